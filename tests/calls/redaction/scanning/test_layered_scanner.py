"""Unnecessary escapes hide no secret, and a placeholder is as long as the escaped secret."""

import json
import re

import pytest

from calls.redaction.redactor import Redactor
from calls.redaction.scanning.scanner import MAX_BLOCK
from tests.calls.secrets import KEPT, KEY, SECRETS, TOKENS, in_base64, in_escapes

REDACTOR = Redactor(key=KEY)


def redact_text(data: str, content_type: str | None = None) -> str:
    new = REDACTOR.redact_body(data.encode(), content_type)[0]
    assert len(new) == len(data.encode())
    assert REDACTOR.redact_body(new, content_type)[0] == new
    return new.decode()


@pytest.mark.parametrize("token", [token for token in TOKENS if not token.startswith("openai-insecure")])
def test_a_token_with_any_of_its_characters_escaped_is_replaced(token: str) -> None:
    for at in range(0, len(token), 5):
        for escaped in (in_escapes(token[at]), in_escapes(token[at]).upper().replace("U", "u")):
            new = redact_text(
                json.dumps({"text": "key: " + token}).replace(token, token[:at] + escaped + token[at + 1 :])
            )
            assert re.match(f"key: {KEPT}PLAYHEAD_", json.loads(new)["text"])


@pytest.mark.parametrize("token", TOKENS[:12])
def test_a_token_escaped_as_a_whole_is_replaced(token: str) -> None:
    assert json.loads(redact_text(f'{{"a": "{in_escapes(token)}"}}'))["a"].startswith("PLAYHEAD_")
    # Also the dot and the tilde, which a URL never needs to escape
    assert redact_text(f"text=see+{in_escapes(token, percent=True)}&b=1").startswith("text=see+PLAYHEAD_")


@pytest.mark.parametrize("name", ["api\\u005fkey", "\\u0070assword", "client\\u005Fsecret", in_escapes("api_key")])
def test_the_escaped_name_of_a_member_is_a_name(name: str) -> None:
    assert json.loads(redact_text(f'{{"{name}": "{SECRETS[0]}", "n": 1}}')) == {
        json.loads(f'"{name}"'): json.loads(redact_text(f'{{"api_key": "{SECRETS[0]}"}}'))["api_key"],
        "n": 1,
    }


def test_escapes_in_a_json_string_in_a_json_string() -> None:
    inner = f'{{"text": "{in_escapes(TOKENS[0][:6])}{TOKENS[0][6:]}"}}'

    new = json.loads(json.loads(redact_text(json.dumps({"arguments": inner})))["arguments"])

    assert new["text"].startswith("PLAYHEAD_T")


def test_an_assignment_with_an_escaped_sign() -> None:
    assert SECRETS[0] not in redact_text(f'{{"env": "DB_PASSWORD\\u003d{SECRETS[0]}"}}')


def test_escapes_that_mean_something_else_stay() -> None:
    for text in (
        '{"a": "\\u0022password\\u0022", "b": "\\u00e9\\u4e2d\\u0041bc", "c": "100%25 %41 %zz \\\\u00"}',
        "a=%20%26%3D%2F%3A%40&b=%E4%B8%AD",
    ):
        assert redact_text(text) == text


def test_a_secret_that_is_written_longer_than_a_block_is_replaced_to_its_end() -> None:
    secret = in_escapes("aB3dE6gH" * 600)
    assert len(secret) > 3 * MAX_BLOCK

    new = redact_text(f'{{"password": "{secret}", "n": 1}}')

    assert "\\u" not in new
    assert json.loads(new)["n"] == 1


def test_escaped_base64_and_base64_of_escapes() -> None:
    text = f'{{"key": "{in_escapes(TOKENS[16])}"}}'
    assert TOKENS[16] not in redact_text(in_base64(text))
    assert redact_text(in_base64(text)) != in_base64(text)
