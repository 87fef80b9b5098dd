"""Sessions of one MCP server ask the same questions, each about its own state, and in another order in the replay."""

from collections.abc import Sequence
from itertools import permutations

import pytest

from calls.codec.json import dumps
from calls.model import Exchange, Headers, Json, Request, Response
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.strategies import JSON, PROFILES, SECOND, exchange, ok, post, run_of

URL = "https://tools.example.com/mcp"
EVENTS: Headers = (("content-type", "text/event-stream"),)


def call_look(session: str | None, id_: int, token: int | None = None) -> Request:
    names: Headers = (*JSON, *((("Mcp-Session-Id", session),) if session else ()))
    meta: dict[str, Json] = {} if token is None else {"_meta": {"progressToken": token}}
    params: Json = {"name": "look", "arguments": {}, **meta}
    return post(URL, dumps({"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": params}), names)


def listen(session: str | None, after: str | None = None) -> Request:
    named = (("accept", "text/event-stream"), ("mcp-session-id", session), ("Last-Event-ID", after))
    return Request(method="GET", url=URL, headers=tuple((name, value) for name, value in named if value is not None))


def answer_of(id_: int, text: str) -> dict[str, Json]:
    return {"jsonrpc": "2.0", "id": id_, "result": {"content": [{"type": "text", "text": text}]}}


def whole(id_: int, text: str) -> Response:
    return ok(dumps(answer_of(id_, text)))


def stream(*messages: dict[str, Json], event: str = "e") -> Response:
    pieces = [f"id: {event}-{n}\ndata: ".encode() + dumps(one) + b"\n\n" for n, one in enumerate(messages)]
    return ok(*pieces, headers=EVENTS)


def replay_of(*pairs: tuple[Request, Response], at_once: int = 1000) -> Session:
    """A replay of exchanges of which so many at a time overlapped."""
    exchanges: Sequence[Exchange] = [
        exchange(request, response, number=n, started_at=n + (n - 1) // at_once * 60 * SECOND, ended_at=30 * SECOND)
        for n, (request, response) in enumerate(pairs, 1)
    ]
    return Session("replay-1", build_recording(run_of(*exchanges), PROFILES), ReplayOptions(), lambda _: None)


async def body_of(session: Session, request: Request) -> bytes:
    answer = await session.answer(request)
    assert answer is not None
    assert answer.status == 200
    return b"".join(piece.data for piece in answer.pieces)


@pytest.mark.parametrize("order", list(permutations("abc")))
@pytest.mark.parametrize("renumbered", [0, 1, 10])
async def test_each_session_gets_its_own_answers_in_any_order(order: Sequence[str], renumbered: int) -> None:
    session = replay_of(
        *(
            (call_look(name, number), whole(number, f"page {name}, look {number}"))
            for number in (4, 5)
            for name in "abc"
        ),
        at_once=3,
    )
    for number in (4, 5):
        for name in order:
            # With 1, the first request has the recorded id of the second.
            body = await body_of(session, call_look(name, number + renumbered))
            assert body == dumps(answer_of(number + renumbered, f"page {name}, look {number}"))
    report = session.report()
    assert (report["verdict"], report["unused"], report["ambiguous"]) == ("right", 0, 0)


async def test_an_unknown_session_gets_what_is_left_in_recorded_order_and_that_is_ambiguous() -> None:
    session = replay_of(*((call_look(name, 4), whole(4, f"page {name}")) for name in "ab"))
    bodies = [await body_of(session, call_look(name, 4)) for name in ("new", "other")]
    assert [b"page a" in bodies[0], b"page b" in bodies[1]] == [True, True]
    assert (session.report()["verdict"], session.report()["ambiguous"]) == ("right", 2)


async def test_equal_requests_of_one_session_at_once_stay_ambiguous() -> None:
    session = replay_of(*((call_look("a", number), whole(number, "x")) for number in (4, 5)))
    for number in (4, 5):
        await body_of(session, call_look("a", number))
    assert session.report()["ambiguous"] == 2


@pytest.mark.parametrize("name", ["a", None])
@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
async def test_a_resumed_stream_continues_where_it_broke_off_in_any_order(
    order: Sequence[int], name: str | None
) -> None:
    session = replay_of(
        (listen(name), stream()),
        *((listen(name, f"event {number}"), stream(answer_of(number, f"answer {number}"))) for number in (1, 2, 3)),
    )
    for number in order:
        assert f"answer {number}".encode() in await body_of(session, listen(name, f"event {number}"))
    assert await body_of(session, listen(name)) == b""
    report = session.report()
    # Nothing tells a new stream of a server without sessions from another.
    assert (report["verdict"], report["unused"], report["ambiguous"]) == ("right", 0, 0 if name else 1)


async def test_a_resumed_stream_answers_under_the_ids_that_the_client_uses_now() -> None:
    def progress(token: int) -> dict[str, Json]:
        return {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}

    def rest_of(number: int) -> Response:
        return stream(progress(number), answer_of(number, "done"), event=f"{number}")

    session = replay_of(
        *((call_look(name, number, number), stream()) for name, number in (("a", 4), ("a", 5), ("b", 4))),
        (listen("a", "at 4"), rest_of(4)),
        (listen("a", "at 5"), rest_of(5)),
        (listen("b", "at 4 in b"), rest_of(4)),
    )
    # The first of two equal requests takes the first answer, whatever its id: 5 and 4 are now 7 and 6.
    for now in (7, 6):
        await body_of(session, call_look("a", now, now))
    await body_of(session, call_look("b", 4, 4))
    for after, now, then in (("at 4", 7, 4), ("at 5", 6, 5)):
        body = await body_of(session, listen("a", after))
        assert body == stream(progress(now), answer_of(now, "done"), event=f"{then}").body.data
    assert await body_of(session, listen("b", "at 4 in b")) == rest_of(4).body.data
    assert session.report()["verdict"] == "right"
