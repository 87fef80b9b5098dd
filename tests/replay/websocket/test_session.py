"""WebSockets in a replay: which recorded one continues, what a client gets that leaves the record, and what is reported."""

import json
from importlib import import_module
from typing import Any

import pytest
from msgspec import structs

from calls.codec.json import dumps
from calls.model import Exchange, Json, Request
from calls.redaction.redactor import Redactor
from replay.answer import Answer, Frame
from replay.recording import build_recording
from replay.replay_options import ReplayOptions
from replay.session import Session
from replay.websocket.session import MISS_CLOSE_CODE, with_redaction
from tests.calls.positions import is_shown
from tests.calls.sockets import ASKED, socket
from tests.replay.strategies import PROFILES, run_of

REALTIME = "https://api.openai.com/v1/realtime?model=gpt-realtime"
RESPONSES = "https://api.openai.com/v1/responses"
LIVE = "https://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
ECHO = "https://api.test/ws"


def one(number: int, *messages: Any, url: str = ECHO, **more: Any) -> Exchange:
    return socket(*messages, url=url, name=f"0199aaaa-0000-7000-8000-{number:012d}", started_at=number, **more)


def talk(number: int, *words: str, url: str = ECHO) -> Exchange:
    """A WebSocket with a greeting, and an answer to each message."""
    said = [
        pair for word in words for pair in (("request", {"say": word}), ("response", {"said": word, "by_id": number}))
    ]
    return one(number, ("response", {"hello": "you", "id": number}), *said, url=url)


class Client:
    """One opened WebSocket, and the result."""

    def __init__(self, answer: Answer) -> None:
        assert answer.dialogue is not None
        self.dialogue = answer.dialogue
        self.first = _decode_frames(self.dialogue.begin())

    def say(self, word: str) -> list[Any]:
        return self.send({"say": word})

    def send(self, message: Json) -> list[Any]:
        return _decode_frames(self.dialogue.receive("text", dumps(message)))


def _decode_frames(frames: list[Frame]) -> list[Any]:
    return [json.loads(frame.data) if frame.kind == "text" else frame for frame in frames if frame.kind != "wait"]


def session_of(*exchanges: Exchange, **options: Any) -> Session:
    ready = build_recording(run_of(*exchanges), PROFILES)
    return Session(id="replay-1", recording=ready, options=ReplayOptions(**options), on_change=lambda _: None)


async def open_socket(session: Session, url: str = ECHO) -> Client:
    answer = await session.answer(Request(method="GET", url=url, headers=ASKED))
    assert answer is not None
    assert answer.status == 101, answer.body
    return Client(answer)


def counts(session: Session) -> tuple[Any, ...]:
    report = session.report()
    return tuple(report[name] for name in ("served", "missed", "unused", "ambiguous", "verdict"))


async def test_a_socket_is_found_by_its_opening() -> None:
    session = session_of(talk(1, "a"))
    answer = await session.answer(Request(method="GET", url=ECHO, headers=(*ASKED, ("Sec-WebSocket-Key", "now"))))
    assert answer is not None
    assert ("Playhead", 'replayed; run="run-1"; step=1; match=strict') in answer.headers
    client = Client(answer)
    assert [*client.first, *client.say("a")] == [{"hello": "you", "id": 1}, {"said": "a", "by_id": 1}]
    assert counts(session) == (1, 0, 0, 0, "right")
    assert session.report()["drift"] == []


@pytest.mark.parametrize("asked", [ECHO + "?x=1", "https://api.test/other"])
async def test_another_opening_is_a_miss_before_anything_is_said(asked: str) -> None:
    session = session_of(talk(1, "a"))
    answer = await session.answer(Request(method="GET", url=asked, headers=ASKED))
    assert answer is not None
    assert answer.status == 424
    problem = json.loads(answer.body)
    assert problem["playhead"]["nearest"]["step"] == 1


async def test_a_page_at_the_same_place_is_no_socket() -> None:
    answer = await session_of(talk(1, "a")).answer(Request(method="GET", url=ECHO))
    assert answer is not None
    assert answer.status == 424


async def test_of_two_alike_the_one_that_fits_goes_on() -> None:
    session = session_of(talk(1, "a", "b"), talk(2, "a", "c"))
    client = await open_socket(session)
    assert client.say("a") == [{"said": "a", "by_id": 1}]
    assert client.say("c") == [{"said": "c", "by_id": 2}]
    other = await open_socket(session)
    assert [*other.first, *other.say("a"), *other.say("b")] == [{"hello": "you", "id": 1}, *answers(1, "a", "b")]
    assert counts(session) == (2, 0, 0, 0, "right")


async def test_two_that_are_open_at_once_may_change_places() -> None:
    session = session_of(talk(1, "a"), talk(2, "b"))
    first, second = await open_socket(session), await open_socket(session)
    assert first.say("b") == answers(2, "b")
    assert second.say("a") == answers(1, "a")
    assert counts(session) == (2, 0, 0, 0, "right")


async def test_what_was_sent_already_must_agree_with_what_follows() -> None:
    other = one(2, ("response", {"hello": "Sir", "id": 1}), ("request", {"say": "b"}), ("response", {"said": "b"}))
    session = session_of(talk(1, "a"), other)
    client = await open_socket(session)
    assert client.first == [{"hello": "you", "id": 1}]
    (close,) = client.say("b")
    assert int.from_bytes(close.data[:2]) == MISS_CLOSE_CODE


def answers(number: int, *words: str) -> list[Any]:
    return [{"said": word, "by_id": number} for word in words]


async def test_a_miss_is_reported_with_its_message_and_its_places() -> None:
    session = session_of(talk(1, "a"))
    (close,) = (await open_socket(session)).say("b")
    assert close.data[2:] == b"playhead: replay_miss: message 1 is not the recorded one differs at /say"
    assert counts(session) == (0, 1, 0, 0, "diverged")
    first: Any = session.report()["first_divergence"]
    assert first["reason"] == "no_match"
    assert first["asked"] == f"message 1 of GET {ECHO}"
    assert first["nearest"]["differences"] == [{"pointer": "/say", "recorded": "a", "now": "b"}]


async def test_a_client_that_left_early_is_not_advised_to_take_more_time() -> None:
    session = session_of(talk(1, "a", "b"))
    client = await open_socket(session)
    client.say("a")
    client.dialogue.note_client_left()
    miss: Any = session.report()["first_divergence"]
    assert miss["reason"] == "client_left"
    assert "left before its message 2" in miss["detail"]
    assert "more time" not in miss["fix"]


async def test_bytes_that_differ_are_not_shown_as_text() -> None:
    said = one(1, ("request", b"\x00\x01sound"), ("response", {"said": 1}))
    session = session_of(said)
    client = await open_socket(session)
    client.dialogue.receive("binary", b"\x00\x02noise")
    miss: Any = session.report()["first_divergence"]
    [difference] = miss["nearest"]["differences"]
    assert difference["recorded"].startswith("7 bytes, sha256:")
    assert difference["now"].startswith("7 bytes, sha256:")


async def test_a_reason_fits_into_a_goodbye() -> None:
    wide = {f"ä{number}" * 20: number for number in range(9)}
    session = session_of(one(1, ("request", wide)))
    (close,) = (await open_socket(session)).send({**wide, **dict.fromkeys(wide, 0)})
    assert len(close.data) <= 125
    assert close.data[2:].decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "message", "judge"),
    [
        (REALTIME, {"type": "response.create", "event_id": "mine"}, ("openai.types.realtime", "RealtimeErrorEvent")),
        (
            RESPONSES,
            {"type": "response.create", "stream_id": "a", "input": "hi"},
            ("openai.types.responses.responses_server_event", "ResponseWsError"),
        ),
    ],
)
async def test_an_error_has_the_shape_that_the_sdk_knows(
    url: str, message: dict[str, Json], judge: tuple[str, str]
) -> None:
    module, name = judge
    session = session_of(one(1, ("request", {"type": "response.create", "input": "x"}), url=url))
    error, close = (await open_socket(session, url)).send(message)
    event = getattr(import_module(module), name).model_validate(error)
    assert (event.error.type, event.error.code) == ("replay_miss", "no_match")
    assert "record the run again" in event.error.message
    assert getattr(event, "stream_id", None) == message.get("stream_id")
    assert getattr(event.error, "event_id", None) == message.get("event_id")
    assert close.kind == "close"


async def test_gemini_is_refused_with_the_code_that_its_sdk_expects() -> None:
    session = session_of(one(1, ("request", {"setup": {"model": "models/a"}}), url=LIVE))
    error, _ = (await open_socket(session, LIVE)).send({"setup": {"model": "models/b"}})
    assert error["code"] == 424


async def test_a_secret_matches_its_placeholder() -> None:
    redactor = Redactor(key=b"k" * 32)
    secret = "sk-proj-0123456789abcdefghijklmnopqrstuvwxyzABCD"
    kept = redactor.redact_body(dumps({"say": secret}))[0]
    assert secret.encode() not in kept
    session = session_of(one(1, ("request", kept), ("response", {"said": "it"})))
    request = Request(method="GET", url=ECHO, headers=ASKED)
    answer = with_redaction(await session.answer(request), request, redactor)
    assert answer is not None
    client = Client(answer)
    assert client.say(secret) == [{"said": "it"}]
    client.dialogue.note_client_left()
    assert counts(session) == (1, 0, 0, 0, "right")


@pytest.mark.parametrize("size", [3, 10, 24, 40])
@pytest.mark.parametrize("before", ["", "my key: "])
async def test_a_secret_in_pieces_from_the_client_is_a_miss_that_does_not_show_it(size: int, before: str) -> None:
    redactor = Redactor(key=b"k" * 32)
    secret = "ghp_aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zAaB3d"
    text = before + secret
    parts = [{"type": "input", "text": text[at : at + size]} for at in range(0, len(text), size)]
    work = redactor.new_message_redactor()
    kept = [one.data for at, part in enumerate(parts) for one in work.feed(dumps(part), at, "text")]
    kept += [one.data for one in work.finish()]
    assert not is_shown(secret, iter(["".join(json.loads(one)["text"] for one in kept)]))
    said = [pair for data in kept for pair in (("request", data), ("response", {"heard": len(data)}))]
    session = session_of(one(1, ("request", {"hello": "you"}), ("response", {"hello": "me"}), *said))
    request = Request(method="GET", url=ECHO, headers=ASKED)
    answer = with_redaction(await session.answer(request), request, redactor)
    assert answer is not None
    client = Client(answer)

    assert client.send({"hello": "you"}) == [{"hello": "me"}]
    frames = [frame for part in parts for frame in client.send(part)]

    if len(parts) == 1:  # it came whole, and its placeholder is the recorded one
        assert counts(session)[1] == 0
        return
    assert frames[-1].data[2:].startswith(b"playhead: replay_miss: message")
    assert frames[-1].data[2:].endswith(b"is not the recorded one differs at /text")
    assert counts(session)[-1] == "diverged"
    shown = json.dumps(session.report()) + str(frames)
    assert not any(secret[at : at + 5] in shown for at in range(len(secret) - 4))


async def test_a_client_that_leaves_before_it_has_said_all_makes_no_right_replay() -> None:
    session = session_of(talk(1, "a", "b"))
    client = await open_socket(session)
    client.say("a")
    client.dialogue.note_client_left()
    assert counts(session) == (0, 1, 0, 0, "diverged")


def subscription(number: int, name: str, protocol: str = "graphql-transport-ws") -> tuple[Exchange, list[Json]]:
    """A WebSocket of GraphQL with one operation of this name, and the messages of the client."""
    said: list[Json] = [
        {"type": "connection_init", "payload": {"authToken": f"of {name}"}},
        {"id": name, "type": "subscribe", "payload": {"query": "subscription { tick }", "variables": {"n": 2}}},
    ]
    tick = {"id": name, "type": "next", "payload": {"data": {"tick": 1}}}
    acknowledged = {"type": "connection_ack"}
    exchange = one(number, ("request", said[0]), ("response", acknowledged), ("request", said[1]), ("response", tick))
    opening = (*exchange.request.headers, ("Sec-WebSocket-Protocol", protocol))
    return structs.replace(exchange, request=structs.replace(exchange.request, headers=opening)), said


@pytest.mark.parametrize("protocol", ["graphql-transport-ws", "chat, graphql-ws"])
async def test_an_operation_of_graphql_may_be_called_otherwise(protocol: str) -> None:
    recorded, _ = subscription(1, "recorded", protocol)
    session = session_of(recorded)
    opening = Request(method="GET", url=ECHO, headers=(*ASKED, ("sec-websocket-protocol", protocol)))
    answer = await session.answer(opening)
    assert answer is not None
    client, (init, subscribe) = Client(answer), subscription(1, "now")[1]
    assert client.send(init) == [{"type": "connection_ack"}]
    assert client.send({"type": "ping"}) == []
    assert client.send(subscribe) == [{"id": "now", "type": "next", "payload": {"data": {"tick": 1}}}]
    assert counts(session) == (1, 0, 0, 0, "right")


async def test_another_question_of_graphql_is_a_miss() -> None:
    recorded, _ = subscription(1, "recorded")
    session = session_of(recorded)
    answer = await session.answer(
        Request(method="GET", url=ECHO, headers=(*ASKED, ("sec-websocket-protocol", "graphql-transport-ws")))
    )
    assert answer is not None
    client, said = Client(answer), subscription(1, "now")[1]
    client.send(said[0])
    client.send(
        {"id": "now", "type": "subscribe", "payload": {"query": "subscription { tick }", "variables": {"n": 3}}}
    )
    first: Any = session.report()["first_divergence"]
    assert [place["pointer"] for place in first["nearest"]["differences"]] == ["/payload/variables/n"]


def kernel_run(number: int, name: str, code: str = "1 + 1") -> tuple[Exchange, Json]:
    """The WebSocket of a Jupyter kernel that ran this code, and the message of the client."""
    header = {
        "msg_id": f"m-{name}",
        "session": f"s-{name}",
        "username": name,
        "date": name,
        "msg_type": "execute_request",
    }
    asked: Json = {"header": header, "parent_header": {}, "metadata": {}, "content": {"code": code}, "channel": "shell"}
    printed: Json = {"header": {"msg_id": "k1"}, "parent_header": header, "content": {"text": "2"}, "channel": "iopub"}
    return one(number, ("request", asked), ("response", printed), url=f"{KERNEL}?session_id={name}"), asked


KERNEL = "https://api.test/api/kernels/kernel-1/channels"


async def test_a_kernel_answers_the_message_that_it_is_sent_now() -> None:
    session = session_of(kernel_run(1, "then")[0])
    client, asked = await open_socket(session, f"{KERNEL}?session_id=now"), kernel_run(1, "now")[1]
    (printed,) = client.send(asked)
    assert (printed["parent_header"]["msg_id"], printed["content"]) == ("m-now", {"text": "2"})
    assert counts(session) == (1, 0, 0, 0, "right")


async def test_a_kernel_that_is_sent_other_code_is_a_miss() -> None:
    session = session_of(kernel_run(1, "then")[0])
    client = await open_socket(session, f"{KERNEL}?session_id=now")
    client.send(kernel_run(1, "now", "2 + 2")[1])
    first: Any = session.report()["first_divergence"]
    assert [place["pointer"] for place in first["nearest"]["differences"]] == ["/content/code"]


async def test_what_is_no_websocket_after_a_101_cannot_be_answered() -> None:
    exchange = talk(1, "a")
    assert exchange.response is not None
    plain = exchange.response.__class__(status=101, headers=(("Upgrade", "tcp"),))
    session = session_of(exchange.__class__(**{**_fields(exchange), "response": plain}))
    answer = await session.answer(Request(method="GET", url=ECHO, headers=ASKED))
    assert answer is not None
    assert "a protocol other than WebSocket" in json.loads(answer.body)["detail"]


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
