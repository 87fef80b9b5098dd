"""Redacting twice is the same as redacting once, for any neighbouring secrets and any pieces."""

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64encode
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calls.redaction.redactor import Redactor
from calls.redaction.rules.credentials import RULES
from calls.redaction.rules.personal_data import PERSONAL_DATA
from calls.redaction.rules.token_families import EXACT, PREFIXES
from calls.redaction.scanning.scanner import RuleTable, Scanner
from tests.calls.positions import is_shown
from tests.calls.secrets import KEY
from tests.calls.token_samples import FAMILIES, KEPT, token
from tests.support.examples import many_examples

REDACTOR = Redactor(key=KEY)
TABLE = RuleTable((*RULES, *PERSONAL_DATA))
SSE = "text/event-stream"

NAMES = st.sampled_from(("password", "api_key", "API_KEY", "secret", "pwd", "token", "client_secret", "X-Api-Key"))
NAMED = (
    *("NAME: VALUE", "NAME=VALUE", "export NAME=VALUE\n", '{"NAME": "VALUE"}', '{"NAME": ["VALUE", "VALUE"]}'),
    *('{"NAME": {"a": "VALUE"}}', "the NAME is VALUE", "NAME=VALUE&x=1", "--NAME VALUE -x", "https://me:VALUE@x/"),
    *(
        '{"a": 1, "NAME": "VALUE", "b": "cc"}',
        "NAME 'VALUE'",
        "<NAME>VALUE</NAME>",
        '"NAME":"VALUE"',
        "NAME: **VALUE**",
    ),
    *('{"name": "NAME", "value": "VALUE"}', '{"value": "VALUE", "name": "NAME"}', '["NAME", "VALUE"]'),
    *("NAME:\n  - VALUE\n", '{"x": "{\\"NAME\\": \\"VALUE\\"}"}', "curl -u me:VALUE x"),
    *("mysql -u me -pVALUE db", "<key>NAME</key> <string>VALUE</string>"),
)
VALUES = st.one_of(
    st.text("abcXYZ0123456789-_*+/=.!PLAYHEAD", min_size=1, max_size=12),
    st.text("ab1 \"'\\&%{}<>$,:\n", min_size=1, max_size=12),
    st.text("P*LAYHED_JT7a", min_size=1, max_size=12),
)


@st.composite
def named_texts(draw: st.DrawFn) -> str:
    """Draw a text with a short value under a secret's name."""
    form = draw(st.sampled_from(NAMED)).replace("NAME", draw(NAMES)).replace("VALUE", draw(VALUES))
    return (
        draw(st.sampled_from(("", "see ", "a: ", "x it ", "xxxx it ")))
        + form
        + draw(st.sampled_from(("", " ok", "\n")))
    )


@st.composite
def encoded_texts(draw: st.DrawFn) -> str:
    """Draw such a text, mostly in base64."""
    text = draw(named_texts())
    for _ in range(draw(st.sampled_from((1, 1, 1, 0, 2)))):
        encode = draw(st.sampled_from((b64encode, urlsafe_b64encode)))
        around = draw(st.sampled_from((("see ", " ok"), ("", ""), ('"', '"'), ("\n", "."))))
        text = encode(text.encode()).decode().join(around)
    return text


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    """Draw such a text in pieces."""
    text = draw(encoded_texts())
    size = draw(st.sampled_from((1, 2, 3, 4, 5, 7, 9, 16, 0)))
    if size:
        return [text[at : at + size] for at in range(0, len(text), size)]
    cuts = draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=6))
    return [text[low:high] for low, high in pairwise([0, *sorted(cuts), len(text)])]


def chat(texts: list[str]) -> bytes:
    events = [json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in texts]
    return b"".join(b"data: %s\n\n" % event.encode() for event in events)


def redact_twice(body: bytes, media: str) -> bytes:
    new, _, _ = REDACTOR.redact_body(body, media)
    assert REDACTOR.redact_body(new, media) == (new, 0, False)
    return new


@settings(max_examples=many_examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=cut_texts())
def test_a_stream_is_redacted_once(pieces: list[str]) -> None:
    redact_twice(chat(pieces), SSE)


@settings(max_examples=many_examples(200), deadline=None)
@given(text=encoded_texts())
def test_a_whole_body_is_redacted_once(text: str) -> None:
    redact_twice(json.dumps({"content": text}).encode(), "application/json")
    redact_twice(text.encode(), "text/plain")


FOUND = (
    # A piece of base64 that ends with the first letters of a placeholder
    *[[text[at : at + 16] for at in range(0, len(text), 16)] for text in (
        "see eHh4eHggaXQgInB3ZCI6ICIuNSpENVkhIWI0NS4iIG9r.",
        "YTogeyJhIjogMSwgInNlY3JldCI6ICJaNT1FMlBZM1kqLlgiLCAiYiI6ICJjYyJ9 ok",
    )],
    # Base64 in pieces whose length is not a multiple of four, one of which ends with the backslash before a quote
    [
        "see eCAiYXBpX2tleSI6IiImYXsgIid7CnsxYSJ7IngiOiAie1wiYXBpX2tleVwi\nOiBcIj0hYkFYOUVfXC",
        'J9In1zZWUgQmVhcmVyIEFUKkRQKmFhSkwqSFQK"}',
    ],
    # A template whose end is in the next piece
    ['x "client_secret":"<', '\n\\${{%ab:\\%>", and'],
    ['api_key="<your', '-key-2>"'],
)  # fmt: skip


@pytest.mark.parametrize("pieces", FOUND)
def test_a_stream_that_once_was_redacted_otherwise_the_second_time(pieces: list[str]) -> None:
    redact_twice(chat(pieces), SSE)


@pytest.mark.parametrize("size", [13, 14, 15, 16, 21])
def test_base64_that_is_cut_in_its_groups_still_decodes(size: int) -> None:
    text = b64encode(b'{"user": "me", "password": "hunter2-x", "more": "of it"}').decode()
    new = redact_twice(chat([text[at : at + size] for at in range(0, len(text), size)]), SSE)
    events = [json.loads(line[6:]) for line in new.splitlines() if line]
    found = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert found == b64encode(b'{"user": "me", "password": "*********", "more": "of it"}').decode()


# -- two rules at one place

WORDS = (
    *(prefix for prefixes, _, _ in PREFIXES for prefix in prefixes.split()),
    *(prefix for prefix, _ in EXACT),
    *("password=", '"api_key": "', "Bearer ", "basic ", "Authorization: ", "_KEY=", "SECRET=", "https://me:"),
)
BEHIND = st.sampled_from(("", " ", "\n", '"', "&", "/", ".", "-", "_", "=", "@x/", ","))
PARTS = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from([token(family) for family in FAMILIES]),
    st.text("abcdef0123456789", min_size=4, max_size=40),
    st.text("ABCDefgh01234567_-.", min_size=4, max_size=40),
)


def replace_secrets(text: bytes) -> bytes:
    out = bytearray(text)
    for at, new in Scanner(TABLE, KEY).feed(text, last=True):
        out[at : at + len(new)] = new
    return bytes(out)


# One of 100,000 such texts still changes: if a placeholder's letters continue as a name or a number.
@settings(
    max_examples=many_examples(600), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(parts=st.lists(PARTS, min_size=2, max_size=4), behind=BEHIND)
def test_secrets_that_begin_inside_of_each_other_are_replaced_once(parts: list[str], behind: str) -> None:
    new = replace_secrets("".join((*parts, behind)).encode())
    assert replace_secrets(new) == new


@settings(max_examples=many_examples(300), deadline=None)
@given(
    prefix=st.sampled_from(WORDS),
    family=st.sampled_from([family for family in FAMILIES if token(family)[0].isalnum()]),
    behind=st.sampled_from(("", " ", "\n", '"', "&")),
)
def test_a_token_behind_the_beginning_of_another_is_not_shown(prefix: str, family: str, behind: str) -> None:
    secret = token(family)
    # A dot must not precede a secret of Azure AD.
    is_azure = family == "Azure AD" and prefix.endswith(".")
    if not (is_azure or prefix[-1].isalnum() or prefix[-1] == "_" or secret.startswith(prefix)):
        new = replace_secrets((prefix + secret + behind).encode()).decode()
        kept = re.match(KEPT.get(family, ""), secret)
        assert not is_shown(secret[kept.end() if kept else 0 :], iter([new])), new


# -- neighbours


@pytest.mark.parametrize("text", ["{}", "it is {} ok", "a {} b {} c"])
@pytest.mark.parametrize("frames", [1, 3])
def test_messages_of_grpc_web_in_base64_are_redacted_once(text: str, frames: int) -> None:
    secret = token("GitHub")
    message = text.format(*[secret] * 2).encode()
    message = b"\x0a" + bytes([len(message)]) + message
    body = b64encode(b"\0" + len(message).to_bytes(4) + message) * frames

    new = redact_twice(body, "application/grpc-web-text+proto")

    size = len(body) // frames
    for at in range(0, len(new), size):
        said = b64decode(new[at : at + size])
        assert said[:7] == b"\0" + len(message).to_bytes(4) + message[:2]
        assert not is_shown(secret, iter([said.decode("latin-1")]))


def test_a_binary_header_that_holds_no_secret_stays() -> None:
    headers = (("grpc-status-details-bin", b64encode(b"\x08\x05\x12\x09not found").decode()), ("x-bin", "no base64"))
    assert REDACTOR.redact_response_headers(headers) == (headers, 0)


@pytest.mark.parametrize("around", ["_", "__", "*", "**", "`", "~~", "|"])
def test_a_token_that_markdown_sets_apart_is_replaced(around: str) -> None:
    secret = token("GitHub")
    new = redact_twice(f"it is {around}{secret}{around} and more".encode(), "text/markdown")
    assert not is_shown(secret, iter([new.decode()]))
