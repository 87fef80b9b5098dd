"""Forms by which a client uploads a file with somebody else's signature."""

import pytest

from calls.keys.key import make_key
from calls.model import Body, Request
from tests.calls.sample_requests import PROFILES

FIELDS = {
    "key": "k3.txt",
    "acl": "private",
    "policy": "eyJleHBpcmF0aW9uIjoiMjAyNiJ9",
    "x-amz-date": "20260101T000000Z",
    "x-amz-credential": "AKIAIOSFODNN7EXAMPLE/20260101/us-east-1/s3/aws4_request",
    "x-amz-signature": "0123abcd",
}


def upload(fields: dict[str, str], file: bytes = b"form", host: str = "bucket.s3.amazonaws.com") -> Request:
    lines = [
        b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (name.encode(), value.encode())
        for name, value in fields.items()
    ]
    lines.append(b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n%s\r\n--b--\r\n' % file)
    data = b"".join(lines)
    headers = (("content-type", "multipart/form-data; boundary=b"),)
    return Request(method="POST", url=f"https://{host}/", headers=headers, body=Body(data=data, size=len(data)))


def key(request: Request) -> str:
    return make_key(request, PROFILES).key


@pytest.mark.parametrize("host", ["bucket.s3.amazonaws.com", "minio.example.com"])
def test_what_is_signed_anew_does_not_count(host: str) -> None:
    later = {"policy": "eyJleHBpcmF0aW9uIjoiMjAyNyJ9", "x-amz-date": "20270101T000000Z", "x-amz-signature": "ffff"}
    assert key(upload(FIELDS, host=host)) == key(upload(FIELDS | later, host=host))


def test_forms_of_older_signatures_are_recognised() -> None:
    made = [
        upload({"key": "k", "AWSAccessKeyId": "A", "Policy": policy, "Signature": policy}) for policy in ("then", "now")
    ]
    assert len(set(map(key, made))) == 1


@pytest.mark.parametrize("change", [{"key": "k4.txt"}, {"acl": "public-read"}, {"x-amz-meta-by": "me"}])
def test_what_is_uploaded_and_where_to_counts(change: dict[str, str]) -> None:
    assert key(upload(FIELDS)) != key(upload(FIELDS | change))
    assert key(upload(FIELDS)) != key(upload(FIELDS, b"another file"))


def test_a_policy_without_a_signature_is_any_field() -> None:
    made = [upload({"policy": policy}, host="shop.example.com") for policy in ("of insurance", "of privacy")]
    assert len(set(map(key, made))) == 2
