"""A call of gRPC or Connect that failed under HTTP's status of success is a failure."""

from base64 import b64encode

import pytest

from calls.derive import derive_call
from calls.keys.profile import Profiles
from calls.model import Body, Exchange, Headers, Request, Response
from tests.calls.sample_requests import PROFILES

URL = "https://tickets.example.com/tickets.Desk/Refund"
OK: Headers = (("grpc-status", "0"),)
FAILED: Headers = (("grpc-status", "5"), ("grpc-message", "no such ticket"))


def frame(flags: int, data: bytes) -> bytes:
    return bytes((flags,)) + len(data).to_bytes(4, "big") + data


MESSAGE = frame(0, b"\x0a\x02ab")


def state(
    media: str, data: bytes, headers: Headers = (), trailers: Headers = (), profiles: Profiles = PROFILES
) -> str | None:
    head: Headers = (("content-type", media),)
    response = Response(status=200, headers=(*head, *headers), trailers=trailers, body=Body(data=data, size=len(data)))
    exchange = Exchange(
        id="0198c1d2-0000-7000-8000-000000000000",
        run="run",
        request=Request(method="POST", url=URL, headers=head, body=Body(data=MESSAGE, size=len(MESSAGE))),
        response=response,
        outcome="completed",
        started_at=0,
        first_byte_at=0,
        ended_at=1,
    )
    return derive_call(exchange, profiles).answer_state


@pytest.mark.parametrize("media", ["application/grpc", "application/grpc+proto"])
def test_the_trailers_of_grpc_say_whether_a_call_failed(media: str) -> None:
    assert state(media, MESSAGE, trailers=OK) is None
    assert state(media, MESSAGE, trailers=FAILED) == "error"
    assert state(media, b"", headers=FAILED) == "error"  # an answer that has no messages
    assert state(media, b"", headers=OK) is None


def test_the_last_message_of_grpc_web_has_the_trailers() -> None:
    failed, whole = (MESSAGE + frame(0x80, b"grpc-status: %d\r\ngrpc-message: x\r\n" % code) for code in (5, 0))
    assert state("application/grpc-web+proto", failed) == "error"
    assert state("application/grpc-web+proto", whole) is None
    # Each message may be encoded for itself.
    text = b64encode(MESSAGE) + b64encode(failed[len(MESSAGE) :])
    assert state("application/grpc-web-text", text) == "error"
    assert state("application/grpc-web-text", b64encode(whole)) is None


def test_the_last_message_of_a_stream_of_connect_has_the_error() -> None:
    failed = frame(2, b'{"error":{"code":"not_found","message":"no such ticket"}}')
    assert state("application/connect+json", frame(0, b"{}") + failed) == "error"
    assert state("application/connect+proto", MESSAGE + frame(2, b"{}")) is None
    assert state("application/connect+proto", MESSAGE + failed[:-3]) is None
    assert state("application/connect+proto", b"") is None
