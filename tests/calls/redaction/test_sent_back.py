"""A secret that an answer gives and a client sends back under its name: the placeholder, which a replay serves, is found as it.

What was recorded had the secret, and what a replay is asked has its placeholder. Both are redacted, and must have one key.
"""

import json
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest

from calls.keys.key import make_key
from calls.model import Body, Headers, Request
from calls.redaction.redactor import Redactor, redact_whole_body
from store.active_profiles import load_profiles
from tests.calls.secrets import KEY

PROFILES = load_profiles()
REDACTOR = Redactor(key=KEY, profiles=PROFILES)
URL = "https://api.test/x"
JSON: Headers = (("content-type", "application/json"),)
FORM: Headers = (("content-type", "application/x-www-form-urlencoded"),)
PARTS: Headers = (("content-type", "multipart/form-data; boundary=edge"),)
XML: Headers = (("content-type", "text/xml"),)

CERTAIN_NAMES = (
    "access_token",
    "refresh_token",
    "sessionToken",
    "client_secret",
    "password",
    "api_key",
    "X-Auth-Token",
)
AMBIGUOUS_NAMES = ("token", "auth", "jwt", "x-amz-credential")
LONG_SECRETS = (
    "0123456789abcdef0123456789abcdef",
    "c8520b8d-94e8-45e1-83d2-b2e0552c8966",
    "kux/62gbkqlgDPER5fqqtr9WYER6zEe+lmRUnPkCm7j4",
    "hLyQwOo3gRK2l2dAQ8h1LXGX9fkIoLgYU5OoJmyPBw8=",
    "AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/s3/aws4_request",
)
SECRETS = (
    *((name, secret) for name in (*CERTAIN_NAMES, *AMBIGUOUS_NAMES) for secret in LONG_SECRETS),
    # Too short for a placeholder: asterisks, which a client may escape.
    *((name, "pin-2468") for name in CERTAIN_NAMES),
)


def requests_with(name: str, value: str) -> Iterator[tuple[str, Headers, bytes]]:
    """The URLs, headers and bodies of requests that have this value under this name."""
    field = f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    file = '--edge\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhello\r\n--edge--\r\n'
    yield URL, JSON, json.dumps({name: value, "n": 1}).encode()
    yield URL, FORM, urlencode({name: value, "n": 1}).encode()
    yield URL, FORM, f"{name}={quote(value, safe='*')}&n=1".encode()
    yield URL, PARTS, (field + file).encode()
    yield URL, XML, f"<r><{name}>{value}</{name}><n>1</n></r>".encode()
    if name in CERTAIN_NAMES:
        yield f"{URL}?{urlencode({name: value, 'n': 1})}", (), b""


def key_of(url: str, headers: Headers, data: bytes) -> tuple[str, str, bytes]:
    """The key of a request, as it is recorded, and its URL and body."""
    redactor = REDACTOR.for_request("POST", url, headers)
    head = redactor.redact_request_head("POST", url, headers)
    redacted, _, _ = redact_whole_body(redactor.new_body_redactor(dict(headers).get("content-type")), data)
    request = Request(method="POST", url=head.url, headers=head.headers, body=Body(data=redacted, size=len(redacted)))
    return make_key(request, PROFILES).key, head.url, redacted


@pytest.mark.parametrize(("name", "secret"), SECRETS)
def test_a_placeholder_that_is_sent_back_is_found_as_the_secret_was(name: str, secret: str) -> None:
    answer, _, _ = redact_whole_body(
        REDACTOR.new_body_redactor("application/json"), json.dumps({name: secret}).encode()
    )
    served = json.loads(answer)[name]
    assert secret not in served
    for recorded, replayed in zip(requests_with(name, secret), requests_with(name, served), strict=True):
        key, url, body = key_of(*recorded)
        assert (secret in url, secret.encode() in body) == (False, False)
        assert (key_of(*replayed)[0], recorded) == (key, recorded)
