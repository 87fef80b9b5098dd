"""Which answer of MCP's is whose, where it came on another exchange."""

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.mcp_late_answers import find_late_answer, is_old_transport, unanswered_id
from calls.model import Body, Chunk, Exchange, Headers, Json, Request, Response
from tests.calls.strategies import json_values

NOON = 1_795_262_400_000_000_000
SSE: Headers = (("content-type", "text/event-stream"),)
CALL: Json = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "add"}}


def reply(id: Json = 7) -> dict[str, Json]:  # noqa: A002 # what it is
    return {"jsonrpc": "2.0", "id": id, "result": {"content": []}}


def event(data: Json, name: str = "message", id: str = "") -> bytes:  # noqa: A002 # likewise
    place = f"id: {id}\r\n" if id else ""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{place}event: {name}\r\ndata: {text}\r\n\r\n".encode()


def exchange(
    method: str, url: str, *pieces: bytes, at: int = 0, headers: Headers = (), answer: Headers = SSE
) -> Exchange:
    """An exchange whose answer came in these pieces, a second apart."""
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    chunks = tuple(Chunk((n + 1) * 10**9, start, end - start) for n, (start, end) in enumerate(pairwise(ends)))
    body = Body(data=b"".join(pieces), chunks=chunks, size=ends[-1])
    return Exchange(
        id="01932f4e-0000-7000-8000-000000000000",
        run="r",
        request=Request(method=method, url=url, headers=headers),
        response=Response(status=200, headers=answer, body=body),
        outcome="completed",
        started_at=NOON + at * 10**9,
        first_byte_at=0,
        ended_at=len(pieces) * 10**9,
    )


OLD = "http://host/mcp/sse"
POSTED = exchange("POST", "http://host/messages/?session_id=a", at=1)


def old(*events: Json, endpoint: str = "/messages/?session_id=a") -> Exchange:
    return exchange("GET", OLD, event(endpoint, "endpoint"), *map(event, events))


def test_an_answer_on_the_older_stream_belongs_to_the_post_that_announced_it() -> None:
    late = find_late_answer(POSTED, 7, old({"jsonrpc": "2.0", "method": "notifications/message"}, reply(3), reply()))
    assert late is not None
    assert (late.message, late.at) == (reply(), 4 * 10**9)


@pytest.mark.parametrize(
    "stream",
    [
        old(reply(8)),
        old(reply("7")),
        old(reply(), endpoint="/messages/?session_id=b"),
        old({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage"}),
        old("no JSON"),
        exchange("GET", OLD, event(reply())),
        exchange("GET", OLD, event("//[", "endpoint"), event(reply())),
        exchange("GET", OLD, answer=(("content-type", "application/json"),)),
    ],
)
def test_any_other_is_not(stream: Exchange) -> None:
    assert find_late_answer(POSTED, 7, stream) is None


def test_what_was_there_before_it_was_asked_answers_something_else() -> None:
    late = exchange("POST", POSTED.request.url, at=5)
    assert find_late_answer(late, 7, old(reply())) is None


def broken_stream(session: str | None = "s", *, at: int = 1) -> Exchange:
    headers = (("Mcp-Session-Id", session),) if session else ()
    return exchange("POST", "http://host/mcp", event("", id="e1"), at=at, headers=headers)


def gone_on(session: str | None = "s", after: str | None = "e1", *, at: int = 3) -> Exchange:
    pairs = (("Mcp-Session-Id", session), ("Last-Event-ID", after))
    headers = tuple((name, value) for name, value in pairs if value is not None)
    return exchange("GET", "http://host/mcp", event(reply(), id="e2"), at=at, headers=headers)


def test_a_stream_that_is_gone_on_with_brings_the_answer_of_the_one_that_broke_off() -> None:
    late = find_late_answer(broken_stream(), 7, gone_on())
    assert late is not None
    assert late.at == 10**9


@pytest.mark.parametrize("stream", [gone_on("t"), gone_on(None), gone_on(after=None), gone_on(at=0)])
def test_another_session_a_mere_listener_and_one_from_before_do_not(stream: Exchange) -> None:
    assert find_late_answer(broken_stream(), 7, stream) is None


def test_without_a_session_the_event_tells_which_stream_goes_on() -> None:
    asked = exchange(
        "POST", "http://host/mcp", event({"jsonrpc": "2.0", "method": "notifications/progress"}, id="e1"), at=1
    )
    assert find_late_answer(asked, 7, gone_on(None, "e1")) is not None
    assert find_late_answer(asked, 7, gone_on(None, "e9")) is None


def test_a_compressed_stream_is_read_but_tells_no_time() -> None:
    data = event("/messages/?session_id=a", "endpoint") + event(reply())
    stream = exchange("GET", OLD, gzip.compress(data), answer=(*SSE, ("content-encoding", "gzip")))
    late = find_late_answer(POSTED, 7, stream)
    assert late is not None
    assert late.at is None
    assert (
        find_late_answer(POSTED, 7, exchange("GET", OLD, b"\xff", answer=(*SSE, ("content-encoding", "gzip")))) is None
    )


def test_only_the_older_transports_stream_is_old() -> None:
    assert is_old_transport(old())
    assert not is_old_transport(gone_on())
    assert not is_old_transport(broken_stream())
    assert not is_old_transport(exchange("POST", OLD, event("/x", "endpoint")))


@pytest.mark.parametrize(
    ("request_", "answer", "status", "id_"),
    [
        (CALL, None, 202, 7),
        (CALL, {"notifications": []}, 200, 7),
        (CALL, reply(), 200, None),
        (CALL, None, 500, None),
        (CALL, None, None, None),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, None, 202, None),
        (reply(), None, 202, None),
        ([CALL], None, 202, None),
        (None, None, 202, None),
    ],
)
def test_an_answer_is_awaited_where_one_was_asked_for_and_none_came(
    request_: Json, answer: Json, status: int | None, id_: Json
) -> None:
    assert unanswered_id(request_, answer, status) == id_


def cut(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    return (data[start:end] for start, end in pairwise(places))


@given(st.lists(st.integers(0, 10_000), max_size=5))
def test_chunking_does_not_matter(cuts: list[int]) -> None:
    data = event("/messages/?session_id=a", "endpoint") + event(reply(3)) + event(reply())
    late = find_late_answer(exchange("POST", POSTED.request.url), 7, exchange("GET", OLD, *cut(data, cuts)))
    assert late is not None
    assert late.message == reply()


@given(json_values, json_values, st.integers() | st.none(), st.binary(max_size=60))
def test_nothing_that_is_sent_makes_it_fail(asked: Json, answer: Json, status: int | None, data: bytes) -> None:
    id_ = unanswered_id(asked, answer, status)
    find_late_answer(POSTED, id_, exchange("GET", OLD, data))
    find_late_answer(POSTED, id_, exchange("GET", OLD, event("/messages/?session_id=a", "endpoint") + data))
