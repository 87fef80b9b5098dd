"""Values that are secret because of their name, in every syntax between name and value."""

from collections.abc import Callable

import pytest

from calls.redaction.redactor import Redactor
from tests.calls.secrets import KEY, SECRETS

REDACTOR = Redactor(key=KEY)


def redact(data: bytes) -> bytes:
    return REDACTOR.redact_body(data)[0]


def messagepack(name: bytes, value: bytes) -> bytes:
    """Encode a map of one member in MessagePack."""
    return b"\x81" + _header(name, 0xA0, 32, 0xD9) + name + _header(value, 0xA0, 32, 0xD9) + value


def cbor(name: bytes, value: bytes) -> bytes:
    """Encode a map of one member in CBOR (RFC 8949)."""
    return b"\xa1" + _header(name, 0x60, 24, 0x78) + name + _header(value, 0x60, 24, 0x78) + value


def _header(text: bytes, short: int, limit: int, long: int) -> bytes:
    return bytes([short | len(text)]) if len(text) < limit else bytes([long, len(text)])


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("name", ["password", "api_key", "openai_api_key", "clientSecret"])
@pytest.mark.parametrize("packed", [messagepack, cbor])
def test_a_string_behind_its_name_in_a_binary_format_is_replaced(
    packed: Callable[[bytes, bytes], bytes], name: str, secret: str
) -> None:
    data = packed(name.encode(), secret.encode())

    new = redact(data)

    assert secret.encode() not in new
    assert len(new) == len(data)
    assert redact(new) == new


def test_a_name_in_text_is_no_header_of_a_binary_format() -> None:
    text = "passwords, secret_keyed, api_keyx and passwordąść stay".encode()
    assert redact(text) == text


def test_every_secret_of_a_list_is_replaced_and_its_other_members_stay() -> None:
    new = redact(b'{"api_keys": ["aB3dE6gH9jK2", "", "hunter2hunter2", 7], "n": ["aB3dE6gH9jK2"]}')

    assert new.endswith(b', 7], "n": ["aB3dE6gH9jK2"]}')
    assert b"hunter2" not in new
    assert new.count(b"PLAYHEAD_J") == 2


def test_the_schema_of_a_secret_stays() -> None:
    text = b'{"api_key": {"type": "string", "description": "starts with a1b2c3d4e5", "format": "uuid4hex"}}'
    assert redact(text) == text


def test_a_long_container_is_searched_as_far_as_memory_is_given_to_it() -> None:
    listed = b", ".join(b'"aB3dE6gH9jK2%04d"' % n for n in range(300))

    new = redact(b'{"api_key": [' + listed + b"]}")

    assert b"aB3dE6gH9jK2" not in new


@pytest.mark.parametrize(
    "name", ["X-Private-Key", "X-Api-Key", "X-DB-Password", "Client-Secret", "X-Signing-Key", "X-Auth-Token", "X-Jwt"]
)
def test_a_response_header_named_like_a_member_is_secret(name: str) -> None:
    ((_, value),), count = REDACTOR.redact_response_headers(((name, "hunter2hunter2"),))
    assert (value[:10], count) == ("PLAYHEAD_H", 1)


@pytest.mark.parametrize(
    "name", ["X-Request-Id", "Content-Type", "X-RateLimit-Remaining-Tokens", "Etag", "X-Cache-Key"]
)
def test_other_response_headers_stay(name: str) -> None:
    assert REDACTOR.redact_response_headers(((name, "some value"),)) == (((name, "some value"),), 0)
