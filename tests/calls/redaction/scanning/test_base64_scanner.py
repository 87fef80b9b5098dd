"""A secret in base64 is replaced in the decoded text, whatever the alphabet, line breaks and depth."""

import base64
import json
import random

import pytest

from calls.redaction.redactor import Redactor
from tests.calls.secrets import KEY, SECRETS, TOKENS, in_base64

REDACTOR = Redactor(key=KEY)
TOKEN = TOKENS[16]
TEXT = f"# settings\nGITHUB={TOKEN}\nthe end, and some more words behind it\n"


def scan_text(data: str) -> str:
    new = REDACTOR.redact_body(data.encode())[0]
    assert len(new) == len(data.encode())
    assert REDACTOR.redact_body(new)[0] == new
    return new.decode()


def decode_base64(data: str) -> str:
    text = data.replace("\n", "").replace("-", "+").replace("_", "/")
    return base64.b64decode(text + "=" * (-len(text) % 4)).decode()


def is_redacted(text: str, original: str = TEXT) -> bool:
    return TOKEN not in text and "PLAYHEAD_T" in text and len(text) == len(original)


def test_the_contents_of_a_file_at_github() -> None:
    lines = in_base64(TEXT * 3, lines=60).replace("\\n", "\n") + "\n"

    new = json.loads(scan_text(json.dumps({"content": lines, "encoding": "base64"})))

    assert is_redacted(decode_base64(new["content"]), TEXT * 3)
    assert [len(line) for line in new["content"].split("\n")] == [len(line) for line in lines.split("\n")]


def test_a_secret_of_kubernetes() -> None:
    new = json.loads(scan_text(json.dumps({"kind": "Secret", "data": {"file": in_base64(TOKEN)}})))

    assert is_redacted(decode_base64(new["data"]["file"]), TOKEN)


def test_a_data_url_of_text() -> None:
    new = scan_text(f'<a href="data:text/plain;base64,{in_base64(TEXT)}">it</a>')

    assert is_redacted(decode_base64(new.split(",")[1].split('"')[0]))


@pytest.mark.parametrize("lead", ["", "é", "éé", "~~??>>", "~??>>~", "Ж" * 20])
@pytest.mark.parametrize("url_safe", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_any_alphabet_padding_and_alignment(lead: str, url_safe: bool, padded: bool) -> None:
    text = "words " + lead + TEXT
    new = json.loads(scan_text(json.dumps({"c": in_base64(text, url_safe=url_safe, padded=padded)})))

    assert is_redacted(decode_base64(new["c"]), text)
    assert ("=" in new["c"]) == (padded and len(text.encode()) % 3 > 0)


def test_base64_in_base64_in_base64() -> None:
    new = scan_text(in_base64(in_base64(in_base64(TEXT))))

    assert is_redacted(decode_base64(decode_base64(decode_base64(new))))


def test_base64_in_lines_in_a_json_string_in_a_json_string() -> None:
    inner = json.dumps({"c": in_base64(TEXT, lines=76).replace("\\n", "\r\n")})

    new = json.loads(json.loads(scan_text(json.dumps({"arguments": inner})))["arguments"])

    assert is_redacted(decode_base64(new["c"].replace("\r", "")))


def test_a_block_of_yaml() -> None:
    lines = in_base64(TEXT, lines=60).replace("\\n", "\n    ")

    new = scan_text(f"data:\n  file: |\n    {lines}\n  other: 1\n")

    assert is_redacted(decode_base64(new.split("|")[1].split("other")[0].replace(" ", "")))
    assert new.endswith("\n  other: 1\n")


def test_characters_that_a_form_or_another_writer_of_json_escapes() -> None:
    text = "????>>>>~~~~" + TEXT
    written = in_base64(text)
    form = scan_text("c=" + written.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D") + "&d=1")
    dotnet = scan_text('{"c":"' + written.replace("+", "\\u002B") + '"}')

    assert is_redacted(decode_base64(form[2:-4].replace("%2B", "+").replace("%2F", "/").replace("%3D", "=")), text)
    assert is_redacted(decode_base64(json.loads(dotnet)["c"]), text)


def test_where_an_escaped_slash_is_replaced_the_base64_breaks_and_the_secret_is_gone() -> None:
    written = in_base64(f"{TOKEN}???{TOKEN}???").replace("/", "\\/")
    assert "\\/" in written

    new = scan_text(f'{{"c":"{written}"}}')

    assert "*" in new
    assert TOKEN not in base64.b64decode(new[6:-2]).decode("latin-1")


def test_a_password_named_inside_of_base64() -> None:
    new = scan_text(in_base64(f'{{"users": [{{"name": "me", "password": "{SECRETS[0]}"}}]}}'))

    assert json.loads(decode_base64(new))["users"][0]["password"].startswith("PLAYHEAD_J")


def test_the_beginning_of_an_image_and_random_bytes_stay() -> None:
    rnd = random.Random(3)
    for begin in (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b""):
        data = json.dumps({"data": base64.b64encode(begin + rnd.randbytes(5000)).decode()})
        assert scan_text(data) == data


def test_words_and_paths_are_no_base64() -> None:
    text = "Tree/Information/Quality/Database/Configuration/Repository/Documentation/Authorization " * 20
    assert scan_text(text) == text


def test_a_long_run_is_decided_as_it_comes() -> None:
    body = REDACTOR.new_body_redactor("application/json")
    chunk = base64.b64encode(b"all of these are words, " * 300)
    body.feed(b'{"c": "', 0)

    waiting = 7
    for at in range(1, 60):
        waiting += len(chunk) - sum(piece.size for piece in body.feed(chunk, at))
        assert waiting <= 160 << 10
