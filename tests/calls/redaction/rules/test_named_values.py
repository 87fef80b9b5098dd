"""Values that are secret because of their name, in every syntax between name and value."""

import json
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


KEY_LIKE = "aB3dE6gH9jK2mN5pQ8rS"

FOUND = (
    'export NPM_TOKEN="%s"\n',
    "MY_SECRET: %s\n",
    "user:\n  token: %s\n",
    "[auth]\ntoken = '%s'\n",
    "level=info token=%s n=1",
    '{"content": "[auth]\\ntoken = \'%s\'\\n"}',
    "payload=%%7B%%22token%%22%%3A%%22%s%%22%%7D",
    '{"jwtSecret": "%s"}',
    '{"SecretString": "%s"}',
    '{"SecretString": "{\\"api_key\\": \\"%s\\"}"}',
    "user[password]=%s&a=1",
    "q=a%%253Fapi_key%%253D%s",
    "variables=%%7B%%22password%%22%%3A%%22%s%%22%%7D",
    "<a><password><![CDATA[%s]]></password></a>",
    "machine h.example login me password %s",
    "login me password %s",
    "{'HTTP_COOKIE': 's=%s'}",
    '{"set-cookie": ["a=%s; Path=/", "b=2"]}',
    '{"cookie": {"sid": "%s", "domain": "a.example"}}',
    "Incorrect API key provided: %s.",
)


@pytest.mark.parametrize("form", FOUND)
def test_a_value_that_looks_like_a_token_is_found_in_each_syntax(form: str) -> None:
    data = (form % KEY_LIKE).encode()
    new = redact(data)
    assert KEY_LIKE.encode() not in new
    assert len(new) == len(data)
    assert redact(new) == new


@pytest.mark.parametrize(
    "text",
    [
        "SEP_TOKEN = '<|end_of_text_128001|>'",
        'PAD_TOKEN: "tokenizer pad 0"',
        "next-token=aB3dE6gH9jK2mN5pQ8rS",
        '{"nextPageToken": "aB3dE6gH9jK2mN5pQ8rS"}',
        '{"kubernetesSecret": "db-credentials-1"}',
        '{"SecretString": "{\\"user\\": \\"me\\", \\"port\\": 5432}"}',
        "filter[name]=aB3dE6gH9jK2mN5pQ8rS",
        "<a><name><![CDATA[aB3dE6gH9jK2mN5pQ8rS]]></name></a>",
        "Login me password reset",
        "The login and password fields are required.",
        "a login page password reset link",
        '{"cookies": ["chocolate", "ginger"]}',
        "100%25 of it, %2541 and a%252Fb",
    ],
)
def test_what_only_resembles_such_a_syntax_stays(text: str) -> None:
    assert redact(text.encode()) == text.encode()


@pytest.mark.parametrize("before", ["machine h.example ", "machine h\\n\\t", "default "])
def test_any_password_behind_a_machine_is_found(before: str) -> None:
    assert b"correct" not in redact(f"{before}login me password correct-horse\n".encode())


def test_what_follows_a_secret_in_the_json_of_a_query_stays() -> None:
    new = redact(b"variables=%7B%22token%22%3A1%2C%22password%22%3A%22hunter2hunter2%22%2C%22id%22%3A5%7D&c=2")
    assert new.startswith(b"variables=%7B%22token%22%3A1%2C%22password%22%3A%22PLAYHEAD_")
    assert new.endswith(b"%22%2C%22id%22%3A5%7D&c=2")


KEY_LINES = "\n".join(
    ("AAAAgQDkbQ1iC0pPz7Rr4WmU8Yx3Zl0uV5aT9dFfHqJ6sNnBcXo2EiLk8wQy1MvT", "Zl0uV5aT9dFfHqJ6sNnBcXo2Ei==")
)


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize(
    ("before", "secret", "after"),
    [
        ("mysql -u root -p", "hunter2hunter2", " shop"),
        ("mariadb-dump -h db.example -p'", "hunter2 hunter2", "' shop"),
        ("<key>password</key>\n\t<string>", "hunter2hunter2", "</string>"),
        ("//registry.example/:_auth=", "dXNlcjpodW50ZXIyaHVudGVyMg==", "\n"),
        ("always-auth=true\n_auth=", "dXNlcjpodW50ZXIyaHVudGVyMg==", "\nx=y"),
        ('//registry.example/:_auth="', "dXNlcjpodW50ZXIyaHVudGVyMg==", '"\n'),
        ("_auth='", "dXNlcjpodW50ZXIyaHVudGVyMg==", "'"),
        ("_auth = ", "dXNlcjpodW50ZXIyaHVudGVyMg==", "\n"),
        ("Private-MAC: ", "0a1b2c3d4e" * 4, "\r\n"),
        (KEY_LINES + "\nPrivate-MAC: ", "0a1b2c3d" * 8, ""),
        ("Private-Hash: ", "0a1b2c3d4e" * 4, "\n"),
        ("PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 2\n", KEY_LINES, "\nPrivate-MAC: 0a1b"),
        ("PuTTY-User-Key-File-2: ssh-dss\r\nPrivate-Lines: 2\r\n", KEY_LINES, ""),
    ],
)
def test_a_password_in_a_file_or_command_with_a_syntax_of_its_own_is_replaced(
    before: str, secret: str, after: str, escaped: bool
) -> None:
    before, secret, after = (json.dumps(text)[1:-1] if escaped else text for text in (before, secret, after))
    new = redact(f"{before}{secret}{after}".encode()).decode()
    assert new.startswith(before)
    assert new.endswith(after)
    assert len(new) == len(before + secret + after)
    assert not any(part in new for part in (secret[:10], secret[-10:]))


@pytest.mark.parametrize(
    "text",
    [
        "mkdir -p /tmp/a1b2c3 && cp -p a1 b2",
        "mysql -u root -p shop1",
        "mysql -u root; mkdir -pv a1b2c3d4",
        "docker run -p8080:80 image1",
        "ssh -p2222 host1",
        "use_auth=a1b2c3d4e5f6g7h8",
        "_auth=basic",
        'use_auth="a1b2c3d4e5f6g7h8"',
        'proxy-auth="a1b2c3d4e5f6g7h8"',
        "Private-MAC: 0a1b2c3d, shortened",
        "<key>name</key><string>bob1</string>",
        "Private-Lines: 14\nthe lines of the key follow",
    ],
)
def test_what_only_looks_like_these_is_left_as_it_is(text: str) -> None:
    assert redact(text.encode()).decode() == text
