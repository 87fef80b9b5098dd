"""MCP's streams (streamable HTTP): what came after a request waits for it, and so does the end."""

import pytest

from calls.codec.json import dumps
from calls.model import Headers, Json, Request, Response
from replay.answer import Answer
from replay.playback import GRACE
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.sessions import answer_request
from tests.replay.strategies import PROFILES, exchange, ok, post, run_of

URL = "https://tools.example.com/mcp"
EVENTS: Headers = (("content-type", "text/event-stream"),)
MS = 1_000_000
END = 50 * MS


def headers_of(session: str) -> Headers:
    return (("Content-Type", "application/json"), ("Mcp-Session-Id", session))


def send(message: dict[str, Json], session: str = "a") -> Request:
    return post(URL, dumps({"jsonrpc": "2.0", **message}), headers_of(session))


def call(number: int, name: str = "look", session: str = "a") -> Request:
    return send({"id": number, "method": "tools/call", "params": {"name": name, "arguments": {}}}, session)


def end_session(session: str = "a") -> Request:
    return Request(method="DELETE", url=URL, headers=headers_of(session))


def listen(session: str = "a", after: str | None = None) -> Request:
    last: Headers = (("Last-Event-ID", after),) if after else ()
    return Request(method="GET", url=URL, headers=(("Mcp-Session-Id", session), *last))


def event(message: dict[str, Json]) -> bytes:
    return b"data: " + dumps({"jsonrpc": "2.0", **message}) + b"\n\n"


CHANGED = event({"method": "notifications/tools/list_changed"})
QUESTION = event({"id": 0, "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
CANCELLED: dict[str, Json] = {"method": "notifications/cancelled", "params": {"requestId": 1}}


def replay_of(stream: tuple[Request, Response], *later: tuple[Request, int]) -> Session:
    """A replay of a stream whose pieces came at 1, 2, … ms, and of requests that came at these times."""
    first = exchange(*stream, started_at=0, ended_at=END)
    others = [
        exchange(request, ok(b"", status=202), number=number, started_at=at, ended_at=MS)
        for number, (request, at) in enumerate(later, 2)
    ]
    return Session("replay-1", build_recording(run_of(first, *others), PROFILES), ReplayOptions(), lambda _: None)


def sendable(answer: Answer, now: int = 0) -> list[bytes | None]:
    """What of each piece may be sent now."""
    return [piece.sendable_data(now) for piece in answer.pieces]


async def test_a_listening_stream_ends_after_the_end_of_its_session() -> None:
    session = replay_of((listen(), ok(CHANGED, headers=EVENTS)), (end_session(), 30 * MS), (end_session("b"), 40 * MS))
    stream = await answer_request(session, listen())
    assert sendable(stream) == [CHANGED, None]
    await answer_request(session, end_session())
    assert sendable(stream) == [CHANGED, b""]
    await answer_request(session, end_session("b"))
    assert session.report()["verdict"] == "right"


async def test_an_event_waits_for_the_last_request_before_it() -> None:
    session = replay_of((listen(), ok(CHANGED, CHANGED, headers=EVENTS)), (call(1), MS + 1), (end_session(), 40 * MS))
    stream = await answer_request(session, listen())
    assert sendable(stream) == [CHANGED, None, None]
    await answer_request(session, call(7))
    assert sendable(stream) == [CHANGED, CHANGED, None]


async def test_requests_that_never_come_are_not_waited_for_longer_than_recorded_and_the_grace() -> None:
    session = replay_of((listen(), ok(CHANGED, headers=EVENTS)), (call(1), 0), (end_session(), 40 * MS))
    stream = await answer_request(session, listen())
    assert sendable(stream, END + GRACE - 1) == [None, None]
    assert sendable(stream, END + GRACE) == [CHANGED, b""]


async def test_a_client_may_leave_a_listening_stream_that_waits() -> None:
    session = replay_of((listen(), ok(CHANGED, headers=EVENTS)), (end_session(), 40 * MS))
    assert (await answer_request(session, listen())).note_client_left is None


@pytest.mark.parametrize("at", [0, END, 2 * END])
async def test_a_stream_that_continues_an_answer_waits_for_nothing(at: int) -> None:
    answer = event({"id": 1, "result": {"content": []}})
    session = replay_of((listen(after="1"), ok(answer, headers=EVENTS)), (call(2), at), (end_session(), at))
    assert sendable(await answer_request(session, listen(after="1"))) == [answer]


async def test_an_answer_waits_for_the_answer_to_the_servers_question() -> None:
    answer = event({"id": 1, "result": {"content": []}})
    reply = send({"id": 0, "result": {"role": "assistant"}})
    other = send({"id": 9, "result": {"role": "assistant"}})
    session = replay_of(
        (call(1), ok(QUESTION, answer, headers=EVENTS)), (call(2), MS), (reply, MS + 1), (other, MS + 2)
    )
    stream = await answer_request(session, call(1))
    assert sendable(stream) == [QUESTION, None, None]
    await answer_request(session, reply)
    assert sendable(stream) == [QUESTION, answer, b""]
    assert stream.note_client_left is not None


async def test_the_answer_to_a_cancelled_request_waits_for_the_cancellation() -> None:
    failed = event({"id": 1, "error": {"code": 0, "message": "Request cancelled"}})
    session = replay_of((call(1), ok(failed, headers=EVENTS)), (send(CANCELLED), MS // 2))
    stream = await answer_request(session, call(1))
    assert (sendable(stream), stream.note_client_left) == ([None, None], None)
    await answer_request(session, send(CANCELLED))
    assert sendable(stream) == [failed, b""]


async def test_calls_that_only_came_meanwhile_hold_nothing_back() -> None:
    answer = event({"id": 1, "result": {"content": []}})
    session = replay_of((call(1), ok(answer, headers=EVENTS)), (call(2, "other"), 0), (call(3, "other"), MS))
    stream = await answer_request(session, call(1))
    assert [piece.ready_data for piece in stream.pieces] == [None]
