"""Ids that a client draws anew in each run, and that answers repeat."""

import gzip
import json
import threading
import time
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.codec.json import dumps
from calls.dialects.protocols.ag_ui import AgUiStream
from calls.model import Body, Chunk, Exchange, Headers, Request, Response
from calls.route import route_request
from replay.reframing.echoed_ids import answer_with_ids
from tests.replay.sessions import answer_request, miss_request, session_of
from tests.replay.strategies import SECOND, exchange, ok, post

AGENT = "https://shop.example.com/agent"
RPC = "https://node.example.com/v1"
RUNS = "https://agents.example.com/runs"


def uid(number: int) -> str:
    return str(UUID(int=number << 64 | number))


THEN, NOW = uid(1), "thread_" + "9" * 20


def body_with_ids(data: bytes, *sizes: int, headers: Headers = (("content-type", "text/event-stream"),)) -> Body:
    ends = [0, *sizes, len(data)]
    chunks = tuple(Chunk(number, start, end - start) for number, (start, end) in enumerate(pairwise(ends)))
    response = Response(status=200, headers=headers, body=Body(data=data, chunks=chunks, size=len(data)))
    made = answer_with_ids(exchange(post(AGENT, b"{}"), response), {THEN: NOW}).response
    assert made is not None
    return made.body


EVENT = dumps({"threadId": THEN, "text": f"of {THEN}", "name": THEN, "deep": [{"thread_id": THEN, "id": uid(2)}]})


def test_only_members_that_are_named_like_ids_have_the_present_one() -> None:
    document = json.loads(body_with_ids(EVENT).data)
    assert document == json.loads(EVENT) | {"threadId": NOW, "deep": [{"thread_id": NOW, "id": uid(2)}]}


def test_all_other_bytes_stay_as_they_are() -> None:
    data = b'{"a" :1,\n "threadId" :  "%s" , "b":"\\u00fc"}' % THEN.encode()
    assert body_with_ids(data).data == data.replace(THEN.encode(), NOW.encode())
    assert body_with_ids(b"\xff\xfe" + data).data == b"\xff\xfe" + data.replace(THEN.encode(), NOW.encode())


@given(st.lists(st.integers(0, len(EVENT) * 2), max_size=5).map(sorted))
def test_an_answer_stays_divided_where_it_was(sizes: list[int]) -> None:
    body = body_with_ids(EVENT * 2, *sizes)
    assert b"".join(body.data[one.offset : one.offset + one.size] for one in body.chunks) == body.data
    assert body.data == body_with_ids(EVENT * 2).data
    assert body.size == len(body.data)
    # A cut between two events is one between the edited ones.
    if len(EVENT) in sizes:
        assert len(body_with_ids(EVENT).data) in {one.offset for one in body.chunks}


def test_a_compressed_answer_is_given_decompressed() -> None:
    headers = (("content-encoding", "gzip"), ("content-length", "1"))
    made = answer_with_ids(exchange(post(AGENT, b"{}"), ok(gzip.compress(EVENT), headers=headers)), {THEN: NOW})
    assert made.response is not None
    assert made.response.body.data == body_with_ids(EVENT).data
    assert made.response.headers == (("content-length", str(len(made.response.body.data))),)


def test_an_answer_without_the_ids_is_the_same_object() -> None:
    recorded = exchange(post(AGENT, b"{}"), ok(EVENT))
    assert answer_with_ids(recorded, {uid(3): NOW}) is recorded


def agent_input(thread: int, run: int, *texts: tuple[int, str]) -> dict[str, Any]:
    messages = [{"id": uid(number), "role": "user", "content": text} for number, text in texts]
    ids = {"threadId": uid(thread), "runId": uid(run)}
    return {**ids, "state": {}, "messages": messages, "tools": [], "context": [], "forwardedProps": {}}


def ag_ui(*made: Any) -> Request:
    return post(AGENT, dumps(agent_input(*made)))


def events(thread: int, run: int, text: str) -> Response:
    ids = {"threadId": uid(thread), "runId": uid(run)}
    sent = [{"type": "RUN_STARTED", **ids}, {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": text}]
    sent.append({"type": "RUN_FINISHED", **ids})
    data = b"".join(b"data: " + dumps(one) + b"\n\n" for one in sent)
    return ok(data, headers=(("content-type", "text/event-stream"),))


async def test_a_front_end_gets_the_answers_of_its_own_threads_with_its_own_ids() -> None:
    """Both threads say the same at the same time; the first one that speaks again is the second one that spoke."""

    def recorded_turn(thread: int, number: int, text: str, *said: tuple[int, str]) -> Exchange:
        run = 10 + number
        answer = events(thread, run, text)
        return exchange(ag_ui(thread, run, *said), answer, number=number, ended_at=SECOND * 9 // 4)

    session = session_of(
        *(recorded_turn(one, one, f"first of {one}", (20 + one, "go")) for one in (1, 2)),
        *(recorded_turn(one, 2 + one, f"then {one}", (20 + one, "go"), (40 + one, "on")) for one in (1, 2)),
    )
    for one in (1, 2):
        answer = await answer_request(session, ag_ui(100 + one, 110 + one, (120 + one, "go")))
        assert answer.body == events(100 + one, 110 + one, f"first of {one}").body.data
    # Of the first turn, only the order says which thread is which.
    assert session.report()["ambiguous"] == 2
    for one in (2, 1):
        asked = ag_ui(100 + one, 130 + one, (120 + one, "go"), (140 + one, "on"))
        assert (await answer_request(session, asked)).body == events(100 + one, 130 + one, f"then {one}").body.data
    report = session.report()
    assert (report["verdict"], report["ambiguous"], report["drift"]) == ("right", 2, [])
    assert report["ids_replaced"] == 4


async def test_a_text_that_differs_is_a_miss_that_names_it_and_no_id() -> None:
    session = session_of(exchange(ag_ui(1, 2, (3, "go")), events(1, 2, "x")))
    miss = await miss_request(session, ag_ui(4, 5, (6, "stop")))
    assert 'it differs at /body/messages/0/content (recorded "go", now "stop").' in miss["detail"]


async def test_a_request_that_names_what_its_client_drew_is_found_by_the_recorded_id() -> None:
    def create(session: int) -> Request:
        return post(RUNS, dumps({"agent_name": "echo", "session_id": uid(session), "input": []}))

    def look(session: int) -> Request:
        return Request(method="GET", url=f"https://agents.example.com/sessions/{uid(session)}")

    session = session_of(
        exchange(create(1), ok(dumps({"run_id": uid(5), "session_id": uid(1)})), number=1),
        exchange(look(1), ok(dumps({"id": uid(1), "history": [uid(1)]})), number=2),
    )
    assert json.loads((await answer_request(session, create(9))).body) == {"run_id": uid(5), "session_id": uid(9)}
    assert json.loads((await answer_request(session, look(9))).body) == {"id": uid(9), "history": [uid(1)]}
    assert session.report()["verdict"] == "right"


def test_many_calls_of_many_messages_are_joined_at_once() -> None:
    joined = AgUiStream()
    for number in range(20_000):
        event = {"type": "TOOL_CALL_START", "toolCallId": f"call-{number}", "toolCallName": "look"}
        joined.add_message("", json.dumps(event))
    before = time.thread_time()
    answer = joined.answer
    assert time.thread_time() - before < 4  # it takes 0.1 s; once it took 12
    assert isinstance(answer, dict)
    messages = answer["messages"]
    assert isinstance(messages, list)
    assert len(messages) == 20_000


@pytest.mark.parametrize(
    ("change", "dialect"),
    [
        ({}, "ag_ui"),
        ({"jsonrpc": "2.0", "method": "tickets/list", "id": 1}, "generic"),
        ({"context": None}, "ag_ui"),
    ],
)
def test_an_agents_input_is_recognised_at_any_path(change: dict[str, Any], dialect: str) -> None:
    assert route_request(post(AGENT, dumps(agent_input(1, 2) | change))).dialect == dialect


@pytest.mark.parametrize("missing", ["threadId", "runId", "messages", "tools", "context"])
def test_another_object_with_a_thread_is_none(missing: str) -> None:
    body = {name: value for name, value in agent_input(1, 2).items() if name != missing}
    assert route_request(post(AGENT, dumps(body))).dialect == "generic"


FRAMED = [
    "application/connect+json",
    "application/grpc-web+json",
    "application/vnd.amazon.eventstream",
    "application/octet-stream",
]


@pytest.mark.parametrize("media_type", FRAMED)
def test_an_answer_in_frames_with_lengths_stays_as_it_is(media_type: str) -> None:
    recorded = exchange(post(AGENT, b"{}"), ok(EVENT, headers=(("content-type", media_type),)))
    assert answer_with_ids(recorded, {THEN: NOW}) is recorded


@pytest.mark.parametrize(
    "name", ["Content-MD5", "Content-Digest", "x-amz-checksum-crc32", "x-goog-hash", "content-range"]
)
def test_an_answer_with_a_checksum_or_a_part_of_one_stays_as_it_is(name: str) -> None:
    recorded = exchange(post(AGENT, b"{}"), ok(EVENT, headers=(("content-type", "application/json"), (name, "x"))))
    assert answer_with_ids(recorded, {THEN: NOW}) is recorded


def test_an_answer_that_was_cut_is_no_whole_one() -> None:
    announced = (("content-type", "application/json"), ("content-length", "5000"))
    cut = exchange(post(AGENT, b"{}"), ok(EVENT, headers=announced), outcome="server_closed")
    made = answer_with_ids(cut, {THEN: NOW}).response
    assert made is not None
    assert NOW.encode() in made.body.data
    assert dict(made.headers)["content-length"] == str(5000 + len(made.body.data) - len(EVENT))

    compressed = (("content-type", "application/json"), ("content-encoding", "gzip"), ("content-length", "5000"))
    cut = exchange(post(AGENT, b"{}"), ok(gzip.compress(EVENT)[:-9], headers=compressed), outcome="server_closed")
    assert answer_with_ids(cut, {THEN: NOW}) is cut


async def test_an_answer_has_the_ids_of_its_own_request() -> None:
    """A client that counts its requests and leaves one out uses the ids that the recorded ones after it had."""

    def call(number: int, method: str) -> Request:
        return post(RPC, dumps({"jsonrpc": "2.0", "id": f"request-{number}", "method": method}))

    def result(number: int) -> Response:
        return ok(dumps({"jsonrpc": "2.0", "id": f"request-{number}", "result": {}}))

    methods = ["one/get", "two/get", "three/get"]
    session = session_of(*(exchange(call(n, one), result(n), number=n) for n, one in enumerate(methods, 1)))
    together = [json.loads(call(n, one).body.data) for n, one in enumerate(methods, 1)]
    answers = [json.loads(result(n).body.data) for n in (1, 2, 3)]
    batch = session_of(exchange(post(RPC, dumps(together)), ok(dumps(answers))))
    shifted = [one | {"id": f"request-{n}"} for n, one in enumerate(together)]
    answer = await answer_request(batch, post(RPC, dumps(shifted)))
    assert [one["id"] for one in json.loads(answer.body)] == ["request-0", "request-1", "request-2"]

    for number, method in enumerate(methods[1:], 1):
        assert (await answer_request(session, call(number, method))).body == result(number).body.data


async def test_a_large_request_is_searched_for_ids_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[bool] = []

    def search(*_: Any) -> None:
        searched.append(threading.current_thread() is threading.main_thread())

    monkeypatch.setattr("replay.session.request_with_ids", search)
    session = session_of(exchange(ag_ui(1, 2, (3, "go")), events(1, 2, "x")))
    await answer_request(session, ag_ui(4, 5, (6, "go")))
    for text in ("short", "long " * 100_000):
        await miss_request(session, ag_ui(4, 5, (6, text)))
    assert searched == [True, False]


async def test_what_a_thread_reads_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def look(recorded: Exchange, *ids: Any) -> Exchange:
        read.append((ids[0], len(ids[0])))
        return recorded

    monkeypatch.setattr("replay.reframing.echoed_ids.answer_with_ids", look)
    made = [exchange(ag_ui(n, 10 + n, (20 + n, f"go {n}")), ok(b" " * 100_000), number=n) for n in (1, 2)]
    session = session_of(*made)
    for n in (1, 2):
        await answer_request(session, ag_ui(100 + n, 110 + n, (120 + n, f"go {n}")))
    assert [len(ids) for ids, _ in read] == [size for _, size in read]


async def test_an_answer_that_is_given_again_has_the_ids_of_the_one_who_asks_then() -> None:
    session = session_of(exchange(ag_ui(1, 2, (3, "go")), events(1, 2, "hello")), after_last="repeat-last")
    for n in (100, 200, 300):
        answer = await answer_request(session, ag_ui(n, n + 1, (n + 2, "go")))
        assert answer.body == events(n, n + 1, "hello").body.data
