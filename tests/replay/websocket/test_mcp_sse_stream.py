"""The stream of MCP's older transport: its answers wait for their requests."""

import gc
from typing import Any

from calls.codec.json import dumps
from calls.model import Request
from replay.answer import LONGEST_RECHECK, SHORTEST_RECHECK, Answer, recheck_delay
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.sessions import answer_request
from tests.replay.strategies import PROFILES, SECOND, exchange, ok, post, run_of

HERE = "https://tools.test"
STREAM = Request(method="GET", url=f"{HERE}/sse", headers=(("Accept", "text/event-stream"),))


def event(name: str, data: str) -> bytes:
    return f"event: {name}\r\ndata: {data}\r\n\r\n".encode()


def answer(number: int, result: str) -> bytes:
    return event("message", dumps({"jsonrpc": "2.0", "id": number, "result": {"said": result}}).decode())


def asks(number: int, what: str) -> Request:
    call: Any = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": what}}
    return post(f"{HERE}/messages?session=s1", dumps(call))


def replay() -> Session:
    body = ok(
        event("endpoint", "/messages?session=s1"),
        answer(1, "one"),
        event("message", '{"jsonrpc":"2.0","method":"notifications/message"}'),
        answer(2, "two"),
        headers=(("Content-Type", "text/event-stream"),),
    )
    stream = exchange(STREAM, body, started_at=0, ended_at=9 * SECOND)
    posts = [
        exchange(asks(n, f"t{n}"), ok(b"Accepted", status=202), number=n + 1, started_at=n * 2_000_000 - 500_000)
        for n in (1, 2)
    ]
    return Session("replay-1", build_recording(run_of(stream, *posts), PROFILES), ReplayOptions(), lambda _: None)


def sendable_data(given: Answer) -> list[bytes]:
    """The data of all remaining pieces that may be sent now."""
    found = [piece.ready_data() for piece in given.pieces if piece.ready_data is not None]
    return [data for data in found if data is not None]


async def test_an_answer_goes_out_when_it_was_asked_for() -> None:
    session = replay()
    stream = await answer_request(session, STREAM)
    assert sendable_data(stream) == [event("endpoint", "/messages?session=s1")]
    assert sendable_data(stream) == []
    assert (await answer_request(session, asks(1, "t1"))).status == 202
    assert sendable_data(stream) == [
        answer(1, "one"),
        event("message", '{"jsonrpc":"2.0","method":"notifications/message"}'),
    ]
    await answer_request(session, asks(2, "t2"))
    assert sendable_data(stream) == [answer(2, "two")]
    assert session.report()["verdict"] == "right"


async def test_it_bears_the_id_under_which_it_is_asked_now_in_any_order() -> None:
    session = replay()
    stream = await answer_request(session, STREAM)
    sendable_data(stream)
    await answer_request(session, asks(7, "t2"))
    assert answer(7, "two") in sendable_data(stream), "nobody waits for what is not asked"
    await answer_request(session, asks(8, "t1"))
    assert answer(8, "one") in sendable_data(stream)


async def test_a_stream_that_nobody_holds_any_more_is_forgotten() -> None:
    session = replay()
    stream = await answer_request(session, STREAM)
    assert session.has_open_stream
    del stream
    gc.collect()
    assert not session.has_open_stream


def test_who_waits_for_long_is_looked_at_less_often() -> None:
    assert [recheck_delay(waited) for waited in (0, SECOND // 10, SECOND // 2, 600 * SECOND)] == [
        SHORTEST_RECHECK,
        SECOND // 100,
        SECOND // 20,
        LONGEST_RECHECK,
    ]
