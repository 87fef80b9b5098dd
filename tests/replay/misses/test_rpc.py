"""What a client of gRPC, Connect or Twirp learns of a miss, and how its messages are compared.

A client of gRPC reads the fields of an answer that HTTP calls a success; one of Connect that streams reads the last message.
"""

import gzip
import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest

from calls.model import Headers
from replay.answer import Answer
from replay.forks.fork import blocked_answer
from replay.misses.miss import Miss, miss_answer
from replay.session import Session
from tests.replay.sessions import answer_request, session_of
from tests.replay.strategies import exchange, ok, post

URL = "https://tickets.example.com/tickets.Desk/Refund"


def _grpc(content_type: str = "application/grpc", *more: tuple[str, str]) -> Headers:
    return (("content-type", content_type), ("te", "trailers"), *more)


def _frames(*messages: bytes, flags: int = 0) -> bytes:
    return b"".join(bytes((flags,)) + len(one).to_bytes(4, "big") + one for one in messages)


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto", "application/grpc-web+proto"])
async def test_a_miss_says_why_in_the_fields_of_grpc(content_type: str) -> None:
    headers = _grpc(content_type)
    recorded = exchange(post(URL, _frames(b"\x0a\x02ab"), headers), ok(b"x", headers=headers))
    answer = await answer_request(session_of(recorded), post(URL, _frames(b"\x0a\x02zz"), headers))
    fields = dict(answer.headers)
    assert (answer.status, answer.body, fields["Content-Type"]) == (200, b"", content_type)
    assert fields["grpc-status"] == "3"  # INVALID_ARGUMENT, after which no client retries
    assert fields["x-should-retry"] == "false"
    assert fields["grpc-message"].isascii()
    message = unquote(fields["grpc-message"])
    assert message.startswith("playhead: replay_miss: ")
    assert 'it differs at /messages/0/1 (recorded "ab", now "zz")' in message
    assert "playhead record -- CMD" in message


def test_a_long_reason_fits_into_the_fields_that_clients_take() -> None:
    why = Miss(replay="r", run="run-1", reason="no_match", detail="\u00fc" * 5000, fix="record again")
    answer = miss_answer(why, post(URL, b"x", _grpc()))
    assert sum(len(name) + len(value) + 32 for name, value in answer.headers) < 8192


def test_a_request_that_a_fork_blocks_gets_the_reason_too() -> None:
    answer = blocked_answer(post(URL, b"x", _grpc()), run="run-1", fork="fork-1")
    fields = dict(answer.headers)
    assert (answer.status, answer.body, fields["grpc-status"]) == (200, b"", "7")  # PERMISSION_DENIED
    assert "so it was not sent" in unquote(fields["grpc-message"])
    assert answer.recorded_outcome == "refused"


async def test_what_is_left_of_a_deadline_makes_no_difference() -> None:
    """grpcio states it anew for each call, to the microsecond."""
    recorded = exchange(post(URL, b"x", _grpc("application/grpc", ("grpc-timeout", "9999m"))), ok(b"x"))
    session = session_of(recorded)
    answer = await answer_request(session, post(URL, b"x", _grpc("application/grpc", ("grpc-timeout", "9987m"))))
    assert answer.body == b"x"
    assert "match=strict" in dict(answer.headers)["Playhead"]
    assert session.report()["drift"] == []


async def _miss_of(headers: Headers, recorded: bytes, now: bytes, url: str = URL) -> Answer:
    return await answer_request(session_of(exchange(post(url, recorded, headers), ok(b"x"))), post(url, now, headers))


async def test_a_stream_of_connect_ends_with_the_reason() -> None:
    headers = (("content-type", "application/connect+json"), ("connect-protocol-version", "1"))
    answer = await _miss_of(headers, _frames(b'{"q":"a"}', b'{"q":"b"}'), _frames(b'{"q":"a"}', b'{"q":"c"}'))
    assert (answer.status, dict(answer.headers)["Content-Type"]) == (200, "application/connect+json")
    assert (answer.body[0], int.from_bytes(answer.body[1:5], "big")) == (2, len(answer.body) - 5)
    error = json.loads(answer.body[5:])["error"]
    assert error["code"] == "invalid_argument"
    assert 'it differs at /messages/1/q (recorded "b", now "c")' in error["message"]


@pytest.mark.parametrize(
    ("url", "headers", "member"),
    [
        (URL, (("content-type", "application/proto"), ("connect-protocol-version", "1")), "message"),
        (URL, (("content-type", "application/proto"),), "message"),
        ("https://lk.example.com/twirp/livekit.Room/List", (("content-type", "application/protobuf"),), "msg"),
    ],
)
async def test_connect_and_twirp_get_a_code_by_its_name(url: str, headers: Headers, member: str) -> None:
    answer = await _miss_of(headers, b"\x0a\x02ab", b"\x0a\x02zz", url)
    body = json.loads(answer.body)
    assert (answer.status, dict(answer.headers)["Content-Type"]) == (424, "application/json")
    assert body["code"] == "invalid_argument"
    assert 'it differs at /messages/1 (recorded "ab", now "zz")' in body[member]
    assert body["playhead"]["reason"] == "no_match"


@pytest.mark.parametrize(
    ("headers", "encode"),
    [
        (_grpc("application/grpc", ("grpc-encoding", "gzip")), lambda one: _frames(gzip.compress(one), flags=1)),
        (_grpc("application/grpc-web-text"), lambda one: b64encode(_frames(one))),
        (
            (("content-type", "application/proto"), ("content-encoding", "gzip")),
            lambda one: gzip.compress(one),
        ),
    ],
)
async def test_compressed_and_encoded_messages_are_read(headers: Headers, encode: Callable[[bytes], bytes]) -> None:
    session = session_of(exchange(post(URL, encode(b"\x0a\x02ab\x10\x05"), headers), ok(b"x")))
    await answer_request(session, post(URL, encode(b"\x0a\x02ab\x10\x06"), headers))
    (miss,) = _misses(session)
    (difference,) = miss["nearest"]["differences"]
    assert (difference["pointer"][-2:], difference["recorded"], difference["now"]) == ("/2", 5, 6)
    assert miss["candidates"][0]["rules"][0]["rule"] is None


@pytest.mark.parametrize(
    ("media_type", "encode"),
    [
        ("application/grpc", lambda text: b"\x0a" + len(text).to_bytes() + text + b"\x10\x05"),
        ("application/connect+json", lambda text: b'{"a":["%s"],"b":5}' % text),
    ],
)
async def test_no_text_of_a_compressed_message_is_shown(media_type: str, encode: Callable[[bytes], bytes]) -> None:
    """It was recorded as it came, so nobody has looked for secrets in it."""
    headers = _grpc(media_type, ("grpc-encoding", "gzip"))
    recorded, now = (_frames(gzip.compress(encode(text)), flags=1) for text in (b"sk-ant-recorded", b"sk-ant-now"))
    session = session_of(exchange(post(URL, recorded, headers), ok(b"x")))
    answer = await answer_request(session, post(URL, now, headers))
    (miss,) = _misses(session)
    (difference, *_) = miss["nearest"]["differences"]
    assert difference["pointer"].startswith("/messages/0/")
    assert "sk-ant" not in json.dumps(miss) + str(answer.headers) + str(answer.body)


async def test_a_body_that_cannot_be_read_differs_by_its_digest() -> None:
    session = session_of(exchange(post(URL, b"\0\0\0\0\x09ab", _grpc()), ok(b"x")))
    await answer_request(session, post(URL, b"\0\0\0\0\x09abc", _grpc()))
    (miss,) = _misses(session)
    assert miss["nearest"]["differences"][0]["pointer"] == "/body/sha256"


def _misses(session: Session) -> list[Any]:
    misses = session.report()["misses"]
    assert isinstance(misses, list)
    return misses
