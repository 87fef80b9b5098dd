"""Questions of an MCP server on its listening stream, beside calls that come in another order than recorded."""

from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from calls.codec.json import dumps
from calls.model import Exchange, Headers, Json, Request, Response
from replay.answer import Answer
from replay.pacing import RECORDED
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from tests.replay.sessions import answer_request
from tests.replay.strategies import JSON, PROFILES, body, exchange, post, run_of

URL = "https://tools.example.com/mcp"
OLD = "https://tools.example.com/sse"
NAMED: Headers = (*JSON, ("Mcp-Session-Id", "a"))
EVENTS: Headers = (("content-type", "text/event-stream"),)
MS = 1_000_000
LISTEN = Request(method="GET", url=URL, headers=NAMED[1:])
OPEN_OLD = Request(method="GET", url=OLD, headers=(("Accept", "text/event-stream"),))

ASKED = ("a", "b")
"""What the calls are about; what is asked for each is answered before the next question."""


def message(**members: Json) -> dict[str, Json]:
    return {"jsonrpc": "2.0", **members}


def event(value: Json) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"


def call(number: int, about: str) -> dict[str, Json]:
    meta: Json = {"progressToken": number}
    return message(
        id=number, method="tools/call", params={"name": "think", "arguments": {"about": about}, "_meta": meta}
    )


def question(number: int, about: str) -> dict[str, Json]:
    content: Json = {"type": "text", "text": about}
    return message(id=number, method="sampling/createMessage", params={"messages": [{"content": content}]})


def reply(number: int, about: str) -> dict[str, Json]:
    return message(id=number, result={"role": "assistant", "content": {"type": "text", "text": f"on {about}"}})


def result(number: int, about: str) -> dict[str, Json]:
    return message(id=number, result={"content": [{"type": "text", "text": about}]})


def progress(token: int) -> dict[str, Json]:
    return message(method="notifications/progress", params={"progressToken": token, "progress": 1})


def send(value: Json, url: str = URL) -> Request:
    return post(url, dumps(value), NAMED if url == URL else JSON)


def events_at(*parts: tuple[int, bytes]) -> Response:
    pieces = body(*(data for _, data in parts))
    chunks = tuple(
        type(chunk)(at * MS, chunk.offset, chunk.size) for chunk, (at, _) in zip(pieces.chunks, parts, strict=True)
    )
    timed_body = type(pieces)(data=pieces.data, chunks=chunks, size=pieces.size)
    return Response(status=200, reason="OK", headers=EVENTS, body=timed_body)


ACCEPTED = Response(status=202, reason="Accepted")
QUESTIONS = ((12, 0, "a"), (13, 1, "b"), (22, 2, "a again"), (23, 3, "b again"))
"""When each question is asked, its id, and what about. Each is answered 4 ms later; the calls began at 10 and 11, and ended at
40 and 41."""


def replay_of(*exchanges: Exchange) -> Session:
    ordered = sorted(exchanges, key=lambda one: one.started_at)
    return Session("replay-1", build_recording(run_of(*ordered), PROFILES), ReplayOptions(), lambda _: None)


def timed_exchange(number: int, request: Request, response: Response, started: int, ended: int) -> Exchange:
    return exchange(request, response, number=number, started_at=started * MS, ended_at=(ended - started) * MS)


def streamable_replay(*, is_whole: bool = False) -> Session:
    def answer_of(number: int, about: str) -> Response:
        value = result(number, about)
        if is_whole:
            whole = body(dumps(value))
            chunk = whole.chunks[0]
            timed = type(whole)(data=whole.data, chunks=(type(chunk)(29 * MS, 0, chunk.size),), size=whole.size)
            return Response(status=200, reason="OK", headers=JSON, body=timed)
        return events_at((29, event(value)))

    events = ((14, progress(2)), *((at, question(number, about)) for at, number, about in QUESTIONS))
    stream = events_at(*((at, event(value)) for at, value in sorted(events, key=lambda one: one[0])))
    replies = (
        timed_exchange(10 + number, send(reply(number, about)), ACCEPTED, at + 4, at + 5)
        for at, number, about in QUESTIONS
    )
    return replay_of(
        timed_exchange(1, LISTEN, stream, 0, 60),
        *(
            timed_exchange(n + 1, send(call(n, about)), answer_of(n, about), 9 + n, 39 + n)
            for n, about in enumerate(ASKED, 1)
        ),
        *replies,
        timed_exchange(30, Request(method="DELETE", url=URL, headers=NAMED), ACCEPTED, 59, 60),
    )


class Client:
    """A client that answers each question as it comes."""

    def __init__(self, session: Session, url: str = URL) -> None:
        self.session, self.url = session, url
        self.streams: list[Answer] = []
        self.sent_pieces: dict[int, int] = {}
        self.got: list[dict[str, Any]] = []

    async def open(self, request: Request) -> Answer:
        self.streams.append(await answer_request(self.session, request))
        return self.streams[-1]

    async def send(self, value: Json) -> Answer:
        return await self.open(send(value, self.url))

    def take(self) -> list[dict[str, Any]]:
        """The messages that came since the last time."""
        came: list[dict[str, Any]] = []
        for place, stream in enumerate(self.streams):
            for piece in stream.pieces[self.sent_pieces.get(place, 0) :]:
                if (data := piece.sendable_data(0)) is None:
                    break
                self.sent_pieces[place] = self.sent_pieces.get(place, 0) + 1
                came += _messages(data)
        self.got += came
        return came

    async def answer_questions(self) -> None:
        """Answer what the server asks until it asks nothing more."""
        while came := self.take():
            for each in came:
                if each.get("method") == "sampling/createMessage":
                    await self.send(reply(each["id"], each["params"]["messages"][0]["content"]["text"]))


def _messages(data: bytes) -> list[dict[str, Any]]:
    from json import loads

    lines = [line[5:] if line.startswith(b"data:") else line for line in data.splitlines()]
    return [loads(line) for line in lines if line.strip().startswith(b"{")]


@pytest.mark.parametrize("order", list(permutations(((1, "a"), (2, "b")))))
@pytest.mark.parametrize("is_whole", [False, True], ids=["events", "whole"])
async def test_calls_in_any_order_get_their_questions_before_their_answers(
    order: tuple[tuple[int, str], ...], is_whole: bool
) -> None:
    session = streamable_replay(is_whole=is_whole)
    client = Client(session)
    await client.open(LISTEN)
    assert client.take() == []
    for number, (_, about) in enumerate(order, 5):
        await client.send(call(number, about))
    assert not any("result" in each for each in client.take())
    for each in [one for one in client.got if one.get("method") == "sampling/createMessage"]:
        await client.send(reply(each["id"], each["params"]["messages"][0]["content"]["text"]))
    await client.answer_questions()
    assert [each["id"] for each in client.got if "method" in each and "id" in each] == [0, 1, 2, 3]
    answered = {each["id"]: each["result"]["content"][0]["text"] for each in client.got if "result" in each}
    assert answered == {number: about for number, (_, about) in enumerate(order, 5)}
    await client.open(Request(method="DELETE", url=URL, headers=NAMED))
    report = session.report()
    assert (report["verdict"], report["unused"]) == ("right", 0)


async def test_an_answer_to_a_question_is_accepted_at_once() -> None:
    session = replay_of(
        timed_exchange(1, LISTEN, events_at((12, event(question(0, "a"))), (16, event(question(1, "a again")))), 0, 60),
        timed_exchange(2, send(call(1, "a")), events_at((29, event(result(1, "a")))), 10, 40),
        # The next question came, and was answered, before the first answer had been accepted.
        timed_exchange(3, send(reply(0, "a")), Response(status=202, reason="Accepted", body=body(b"ok")), 14, 25),
        timed_exchange(4, send(reply(1, "a again")), ACCEPTED, 18, 19),
    )
    client = Client(session)
    await client.open(LISTEN)
    await client.send(call(1, "a"))
    accepted = await client.send(reply(0, "a"))
    assert [piece.ready_data for piece in accepted.pieces] == [None]


@pytest.mark.parametrize("first", ASKED)
async def test_a_call_that_comes_alone_waits_for_no_other_call(first: str) -> None:
    session = streamable_replay()
    client = Client(session)
    await client.open(LISTEN)
    for number, about in enumerate((first, *(each for each in ASKED if each != first)), 7):
        await client.send(call(number, about))
        await client.answer_questions()
        assert any(each.get("id") == number and "result" in each for each in client.got)


async def test_the_second_question_waits_for_the_answer_to_the_first() -> None:
    client = Client(streamable_replay())
    await client.open(LISTEN)
    await client.send(call(1, "a"))
    await client.send(call(2, "b"))
    questions = [each["id"] for each in client.take() if "id" in each]
    assert questions == [0, 1]
    await client.send(reply(1, "b"))
    assert client.take() == []
    await client.send(reply(0, "a"))
    assert [each["id"] for each in client.take() if "id" in each] == [2, 3]


async def test_progress_on_the_listening_stream_comes_with_the_present_token_after_its_call() -> None:
    client = Client(streamable_replay())
    await client.open(LISTEN)
    await client.send(call(8, "a"))
    assert progress(2) not in client.take()
    await client.send(call(9, "b"))
    assert progress(9) in client.take()


async def test_a_call_before_the_listening_stream_is_not_waited_for() -> None:
    client = Client(streamable_replay())
    await client.send(call(1, "a"))
    await client.open(LISTEN)
    assert [each["id"] for each in client.take() if "id" in each] == [0, 1]


async def test_a_question_about_a_change_waits_for_the_notification_of_it() -> None:
    changed = message(method="notifications/roots/list_changed")
    asks_roots = message(id=0, method="roots/list")
    session = replay_of(
        timed_exchange(1, LISTEN, events_at((30, event(asks_roots))), 0, 60),
        timed_exchange(2, send(call(1, "a")), events_at((30, event(result(1, "a")))), 10, 40),
        timed_exchange(3, send(changed), ACCEPTED, 20, 21),
        timed_exchange(4, send(message(id=0, result={"roots": []})), ACCEPTED, 32, 33),
    )
    client = Client(session)
    await client.open(LISTEN)
    await client.send(call(1, "a"))
    assert client.take() == []
    await client.send(changed)
    assert client.take() == [asks_roots]


@pytest.mark.parametrize("order", list(permutations(((1, "a"), (2, "b")))))
async def test_the_older_transport_answers_after_its_questions_were_answered(
    order: tuple[tuple[int, str], ...],
) -> None:
    url = "https://tools.example.com/messages"
    parts = [
        (1, b"event: endpoint\ndata: /messages\n\n"),
        *((at, event(question(number, about))) for at, number, about in QUESTIONS),
        *((39 + number, event(result(number, about))) for number, about in enumerate(ASKED, 1)),
    ]
    replies = (
        timed_exchange(10 + number, send(reply(number, about), url), ACCEPTED, at + 4, at + 5)
        for at, number, about in QUESTIONS
    )
    session = replay_of(
        timed_exchange(1, OPEN_OLD, events_at(*parts), 0, 60),
        *(
            timed_exchange(n + 1, send(call(n, about), url), ACCEPTED, 9 + n, 10 + n)
            for n, about in enumerate(ASKED, 1)
        ),
        *replies,
    )
    client = Client(session, url)
    await client.open(OPEN_OLD)
    for number, (_, about) in enumerate(order, 5):
        await client.send(call(number, about))
    assert not any("result" in each for each in client.take())
    for each in [one for one in client.got if one.get("method") == "sampling/createMessage"]:
        await client.send(reply(each["id"], each["params"]["messages"][0]["content"]["text"]))
    await client.answer_questions()
    answered = {each["id"]: each["result"]["content"][0]["text"] for each in client.got if "result" in each}
    assert answered == {number: about for number, (_, about) in enumerate(order, 5)}
    report = session.report()
    assert (report["verdict"], report["unused"]) == ("right", 0)


@pytest.mark.parametrize("odd", [[1], {"a": 1}, 1.5], ids=["array", "object", "fraction"])
@pytest.mark.parametrize("where", ["call", "question", "reply", "cancellation"])
async def test_an_id_of_another_type_does_not_matter(odd: Json, where: str) -> None:
    def id_of(name: str, usual: Json) -> Json:
        return odd if where == name else usual

    asked = call(1, "a") | {"id": id_of("call", 1)}
    answer = reply(0, "a") | {"id": id_of("reply", 0)}
    cancels = message(method="notifications/cancelled", params={"requestId": id_of("cancellation", 2)})
    question_event = event(question(0, "a") | {"id": id_of("question", 0)})
    answer_event = event(result(1, "a") | {"id": asked["id"]})
    session = replay_of(
        timed_exchange(1, send(asked), events_at((2, question_event), (19, answer_event)), 10, 40),
        timed_exchange(2, send(answer), ACCEPTED, 14, 15),
        timed_exchange(3, send(cancels), ACCEPTED, 16, 17),
    )
    client = Client(session)
    for value in (asked, answer, cancels):
        assert (await client.send(value)).status in (200, 202)
    assert [each for each in client.take() if "result" in each]
    assert session.report()["verdict"] == "right"


async def test_a_question_on_a_stream_that_is_opened_late_has_the_present_ids() -> None:
    """What a call waits for is read from the recorded stream; what the stream sends is not."""
    session = streamable_replay()
    await answer_request(session, send(call(1, "a")))
    recorded = session.recording.index.entries[0]
    listening = recorded.exchange
    assert listening.response is not None
    body_now = body(*(event(question(number, f"{about}, now")) for _, number, about in QUESTIONS))
    adapted = replace(listening, response=replace(listening.response, body=body_now))
    stream = session._mcp_streams.find(recorded, adapted)
    assert stream is not None
    events = [piece.data for piece in stream.pieces(RECORDED) if piece.data]
    assert len(events) == len(QUESTIONS)
    assert all(b", now" in data for data in events)
