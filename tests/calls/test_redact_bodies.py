"""Whatever is secret in a body is replaced, wherever it stands and however it is cut; the rest stays as it was."""

import base64
import hashlib
import json
import random
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calls.placeholder import PATTERN
from calls.redaction.redactor import Redactor
from calls.redaction.scanning.scanner import MAX_BLOCK
from tests.calls.secrets import CONTEXTS, HARMLESS, KEPT, KEY, PEM, SECRETS, TOKENS, bodies
from tests.calls.strategies import pieces

REDACTOR = Redactor(key=KEY)


def redact_body(data: bytes, content_type: str | None = None) -> bytes:
    return REDACTOR.redact_body(data, content_type)[0]


def redact_pieces(parts: list[bytes], content_type: str | None = None) -> list[bytes]:
    body = REDACTOR.new_body_redactor(content_type)
    out = [piece for at, part in enumerate(parts) for piece in body.feed(part, at)] + body.finish()
    assert [piece.at for piece in out] == list(range(len(parts)))
    assert [len(piece.data) for piece in out] == [len(part) for part in parts] == [piece.size for piece in out]
    return [piece.data for piece in out]


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("key ", " ok"), ('"', '"'), ("\\n", "\\n"), ("=", "&"), ("(", ")")]
)
def test_a_token_is_recognised_wherever_it_stands(token: str, before: str, after: str) -> None:
    new = redact_body(f"{before}{token}{after}".encode()).decode()

    assert token not in new
    assert re.fullmatch(f"{re.escape(before)}{KEPT}{PATTERN}{re.escape(after)}", new)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(("before", "after"), CONTEXTS)
def test_a_context_makes_a_secret(before: str, after: str, secret: str) -> None:
    new = redact_body(f"{before}{secret}{after}".encode()).decode()

    assert secret not in new
    assert new.endswith(after)
    assert len(new) == len(before + secret + after)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_resembles_a_secret_stays(text: str) -> None:
    assert redact_body(text.encode()).decode() == text


def test_a_private_key_is_replaced_between_its_marks() -> None:
    for text in (PEM, json.dumps({"key": PEM}), json.dumps({"a": json.dumps({"key": PEM})})):
        new = redact_body(text.encode()).decode()

        assert re.search(f"-----BEGIN RSA PRIVATE KEY-----{PATTERN}-----END RSA PRIVATE KEY-----", new)
        assert len(new) == len(text)


def test_a_private_key_is_replaced_to_its_end_also_as_a_field_of_a_form() -> None:
    new = redact_body(f'Content-Disposition: form-data; name="private_key"\r\n\r\n{PEM}--x--'.encode()).decode()

    assert re.search(f"-----BEGIN RSA PRIVATE KEY-----{PATTERN}-----END RSA PRIVATE KEY-----\n--x--", new)


def test_a_short_secret_of_a_member_becomes_asterisks() -> None:
    assert redact_body(b'{"password": "hunter2"}') == b'{"password": "*******"}'


def test_the_first_field_of_a_form_is_a_field() -> None:
    form = b"password=letmein&grant_type=password&client_secret=abc&assertion=x.y.z"

    new = redact_body(form, "application/x-www-form-urlencoded; charset=utf-8")

    assert new == b"password=*******&grant_type=password&client_secret=***&assertion=*****"


@example("P", 0, False)
@example("PLAY", 1, True)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(0, 3), st.booleans())
def test_json_stays_json_and_loses_the_secret(secret: str, depth: int, ascii_only: bool) -> None:
    value: object = {"n": 1, "api_key": secret, "after": ["x", {"y": secret[::-1]}]}
    for _ in range(depth):
        value = {"inner": json.dumps(value, ensure_ascii=ascii_only)}
    data = json.dumps(value, ensure_ascii=ascii_only).encode()

    new: object = json.loads(redact_body(data))
    for _ in range(depth):
        assert isinstance(new, dict)
        new = json.loads(new["inner"])

    assert isinstance(new, dict)
    assert new["n"] == 1
    assert re.fullmatch(rf"(?:{PATTERN}|\*)+|\$?\{{.*\}}|<.*>|%.*%|\$[A-Z_]+", new["api_key"], re.DOTALL)
    assert list(new) == ["n", "api_key", "after"]


@given(bodies, st.data(), st.sampled_from([None, "application/json", "application/x-www-form-urlencoded"]))
def test_chunking_does_not_matter(body: bytes, data: st.DataObject, content_type: str | None) -> None:
    parts = data.draw(pieces(body))

    assert b"".join(redact_pieces(parts, content_type)) == redact_body(body, content_type)


@given(bodies)
def test_byte_by_byte_is_the_same_as_whole(body: bytes) -> None:
    body = body[:400]

    assert b"".join(redact_pieces([bytes([byte]) for byte in body])) == redact_body(body)


# What follows `sk-` is another kind of token, and `sk-` with its placeholder looks like one of the first kind.
@example(b"sk-ya29.aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3dE6gH9jK2mN5pQ8rS1tU4vW7x", None)
# What stands before `-sk-` looks like base64 until it is replaced.
@example(
    b"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-sk-aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3dE6gH9jK2mN5p",
    None,
)
# What is replaced inside of something harmless must not make that a secret: by its digits, its missing space, its other end.
@example(b"-----BEGIN PRIVATE KEY----- and the rest. pa-aB3dE6gH9jK2mN5pQ8rS-aB3dE6gH9jK2mN5pQ8rS1tU4vW", None)
@example(b"SECRET=http://u:passwordpassword@host", None)
@example(b"password = \"x9:'secret':'my long cake of rice'\"", None)
@example(f"<a><SecretAccessKey>{PEM[:90]}</SecretAccessKey>".encode(), None)
@example(b"Authorization: Bearer 123456789:AAaB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAa/docs/2024-04-12-release", None)
@example(
    b"https://hooks.slack.com/services/SG.aB3dE6gH9jK2mN5pQ8rS1t.aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3dE6gH9jK/1", None
)
@example(b'name="api_key"\r\n\r\n<Credentials>see https://x.example/a?api_key="}<Credentials>', None)
# Asterisks that stand for a short secret are no Markdown.
@example(b"see https://x.example/a?api_key=see https://x.example/a?b=1&sig=", None)
@given(bodies, st.sampled_from([None, "application/x-www-form-urlencoded"]))
def test_what_was_redacted_passes_unchanged(body: bytes, content_type: str | None) -> None:
    once = redact_body(body, content_type)

    assert REDACTOR.redact_body(once, content_type) == (once, 0, False)


@given(bodies)
def test_length_never_changes(body: bytes) -> None:
    assert len(redact_body(body)) == len(body)


@pytest.mark.parametrize("size", [MAX_BLOCK - 1, MAX_BLOCK, MAX_BLOCK + 1, 2 * MAX_BLOCK, 3 * MAX_BLOCK + 7, 100_000])
@pytest.mark.parametrize("filler", ["x", "\\", '\\"', "\\\\", "a\\n"])
def test_a_secret_of_any_length_is_replaced_to_its_last_byte(size: int, filler: str) -> None:
    secret = ("b" + filler * size)[:size]
    secret = secret[: size - (len(secret) - len(secret.rstrip("\\"))) % 2]
    data = f'{{"password": "{secret}", "after": "sk-not-a-key"}}'.encode()
    rnd = random.Random(size)
    cuts = sorted(rnd.randrange(len(data)) for _ in range(40))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    new = redact_body(data)

    assert re.fullmatch(rb'\{"password": "[A-Z2-7_*]*", "after": "sk-not-a-key"\}', new)
    assert b"".join(redact_pieces(parts)) == new
    assert redact_body(new) == new


@pytest.mark.parametrize("size", range(MAX_BLOCK - 8, MAX_BLOCK + 4))
def test_the_end_of_a_long_key_is_seen_where_a_block_ends(size: int) -> None:
    data = b"-----BEGIN PRIVATE KEY-----" + (b"A1b2" * MAX_BLOCK)[:size] + b"-----END PRIVATE KEY-----"
    whole = redact_body(data)
    assert whole.endswith(b"-----END PRIVATE KEY-----")
    for cut in range(27 + MAX_BLOCK - 2, 27 + MAX_BLOCK + 30):
        assert b"".join(redact_pieces([data[:cut], data[cut:]])) == whole


def test_a_secret_split_over_pieces_is_replaced_in_each() -> None:
    token = TOKENS[0].encode()
    data = b"my key is " + token + b", keep it"
    for cut in range(len(data)):
        first, second = redact_pieces([data[:cut], data[cut:]])
        assert token[:12] not in first + second
        assert first + second == redact_body(data)


def test_only_a_tail_that_may_begin_a_secret_waits() -> None:
    body = REDACTOR.new_body_redactor("text/event-stream")

    assert len(body.feed(b'data: {"text": "all of it is plain"}\n\n', 1)) == 1
    assert body.feed(b"data: this does not: s", 2) == []
    assert [piece.at for piece in body.feed(b"o it was as many\n\n", 3)] == [2, 3]
    assert body.finish() == []


def test_what_waits_is_bounded_whatever_comes() -> None:
    body = REDACTOR.new_body_redactor()
    waiting = 0
    for at in range(3000):
        fed = b'"password": "' if at == 0 else b"y" * 100
        waiting += len(fed) - sum(piece.size for piece in body.feed(fed, at))
        assert waiting <= MAX_BLOCK + 1000


def test_a_piece_counts_the_secrets_that_begin_in_it() -> None:
    token = TOKENS[0].encode()
    body = REDACTOR.new_body_redactor()
    fed = [token + b" and " + token[:20], token[20:] + b" .", b"nothing"]

    out = [piece for at, part in enumerate(fed) for piece in body.feed(part, at)] + body.finish()

    assert [piece.redactions for piece in out] == [2, 0, 0]


BLOB = base64.urlsafe_b64encode(hashlib.sha512(b"encrypted reasoning").digest()).rstrip(b"=")


@pytest.mark.parametrize("cut", [0, 1, 60, 86, 87, 89, 95])
@pytest.mark.parametrize("chance", [b"-sk-", b"-pa-", b"-npm_"])
def test_what_resembles_a_key_in_the_midst_of_base64_stays(chance: bytes, cut: int) -> None:
    text = b'{"encrypted_content":"' + BLOB + chance + BLOB + b'"}'
    assert b"".join(redact_pieces([text[:cut], text[cut:]])) == text


@pytest.mark.parametrize(
    "opening", [b'{"secrets": {"a": 1, "b": ', b'{"api_key": ["v1", ', b'{"auth": {"type": "x", "c": ']
)
def test_lists_of_secrets_within_one_another_are_searched_to_the_innermost(opening: bytes) -> None:
    """Each may begin beyond the part that the list around it is searched for."""
    filler = b'"n": "' + b"plain " * 20 + b'", "o": '
    levels = [opening + filler + b'["k3y-%08d"], "p": ' % (7 * n) for n in range(300)]
    data = b"".join([level.replace(b'"c": "n"', b'"n"') for level in levels])
    assert len(data) > 6 * MAX_BLOCK
    new = redact_body(data)

    assert re.findall(rb"k3y-\d+", new) == []
    rnd = random.Random(1)
    cuts = sorted(rnd.randrange(len(data)) for _ in range(40))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert b"".join(redact_pieces(parts)) == new


def test_a_large_body_is_redacted_as_in_pieces() -> None:
    rnd = random.Random(2)
    units = [
        b'{"api_key": ["abc12345678d", {"x": "y"}]}, ',
        b"Bearer a1b2c3d4e5f6g7 ",
        b"token=",
        TOKENS[0].encode(),
        b" ",
    ]
    data = b"".join(rnd.choices(units, k=20_000))
    parts = [data[at : at + 7_001] for at in range(0, len(data), 7_001)]

    assert b"".join(redact_pieces(parts)) == redact_body(data)


@pytest.mark.parametrize("chance", [b"/AIza", b"+1//0", b"/AKIAIOSFODNN7EXAMPLE/"])
def test_so_does_what_resembles_one_in_an_image(chance: bytes) -> None:
    image = BLOB.replace(b"-", b"+").replace(b"_", b"/")
    assert redact_body(image + chance + image) == image + chance + image


@pytest.mark.parametrize(
    "before",
    [BLOB + b"\\n", BLOB + b"=", BLOB + b"\n", b"/v1/organizations/of-Acme/projects/number-42/keys/", BLOB[:40] + b"-"],
)
def test_a_key_behind_a_blob_or_in_a_path_is_replaced(before: bytes) -> None:
    key = b"sk-proj-" + b"aB3dE6gH" * 6
    assert key not in redact_body(before + key)


@given(st.binary(min_size=200, max_size=3000))
@example(bytes(range(256)) * 8)
def test_bytes_without_meaning_are_left_alone(data: bytes) -> None:
    assert redact_body(data, "application/octet-stream") == data


@pytest.mark.parametrize(
    "unit",
    [
        b"sk-",
        b"-----BEGIN PRIVATE KEY-----",
        b'"password="',
        b"://u:p",
        b"Bearer ",
        b"eyJ",
        b"\\",
        b"AKIA",
        b"pa-A-",
        b'{"api_key": "abcdefgh12345678"}, ',
        f"{TOKENS[0]} ".encode(),
        b"token=",
        b"&cookie=",
        b'"api_key":["',
        b'"secrets": {',
        b"password:\n- ",
        b"api_key) values ('",
    ],
)
def test_hostile_bodies_do_not_take_quadratic_time(unit: bytes) -> None:
    def cpu_seconds(size: int) -> float:
        body = unit * (size // len(unit))
        began = time.process_time()
        redact_body(body)
        return time.process_time() - began

    # The first one may compile expressions. Eight times the bytes would take 64 times as long if each were searched with the others.
    short = min(cpu_seconds(25_000) for _ in range(3))
    assert cpu_seconds(200_000) < 16 * short + 0.05
