"""A recorded WebSocket, replayed message by message."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Exchange, Json
from replay.answer import Frame
from replay.pacing import INSTANT, Pace
from replay.websocket.conversations import replay_dialogue
from replay.websocket.timeline import GRACE, Break
from store.active_profiles import load_profiles
from tests.calls.sockets import socket
from tests.calls.strategies import pieces

REALTIME = "https://api.openai.com/v1/realtime?model=gpt-realtime"
RESPONSES = "https://api.openai.com/v1/responses"
PROFILES = load_profiles()

HELLO: Json = {"type": "session.created", "session": {"id": "sess_1"}}
UPDATE: Json = {"type": "session.update", "session": {"instructions": "Be brief."}}
CREATE: Json = {"type": "response.create"}
DONE: Json = {"type": "response.done", "response": {"id": "resp_1"}}
BYE = b"\x03\xe8"


class Client:
    """A client of a replayed WebSocket, which remembers what it received."""

    def __init__(self, exchange: Exchange, pace: Pace = INSTANT) -> None:
        self.broken: list[Break] = []
        self.drifted: list[str] = []
        self.played = replay_dialogue(exchange, PROFILES, pace, on_break=self._break_off, on_drift=self.drifted.extend)
        self.frames = self.played.begin()

    def _break_off(self, where: Break) -> list[Frame]:
        self.broken.append(where)
        return [Frame(kind="close", data=b"miss")]

    def say(self, message: Json | bytes) -> list[Any]:
        """Send a message, and return the answers."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self._read_frames(self.played.receive("text", data))

    def part(self) -> list[Any]:
        return self._read_frames(self.played.receive("close", BYE))

    @property
    def first(self) -> list[Any]:
        return self._read_frames(self.frames)

    @staticmethod
    def _read_frames(frames: list[Frame]) -> list[Any]:
        return [json.loads(frame.data) if frame.kind == "text" else (frame.kind, frame.data) for frame in frames]


def append_audio(data: bytes) -> Json:
    return {"type": "input_audio_buffer.append", "audio": base64.b64encode(data).decode()}


WAIT = ("wait", b"")


def session(*more: Any) -> Exchange:
    return socket(
        ("response", HELLO), ("request", UPDATE), ("request", CREATE), ("response", DONE), *more, url=REALTIME
    )


def test_what_the_server_said_is_released_when_the_client_has_said_what_came_before() -> None:
    client = Client(session(("request", BYE, "close"), ("response", BYE, "close")))
    assert client.first == [HELLO]
    assert client.say(UPDATE) == []
    assert client.say(CREATE) == [DONE, WAIT]
    assert client.part() == [("close", BYE)]
    assert client.broken == []


def test_a_message_may_be_spelled_otherwise() -> None:
    client = Client(session())
    assert (
        client.say(b'{ "session":{"instructions":"Be brief\\u002e"}, "event_id": "e7", "type":"session.update"}') == []
    )
    assert client.say(CREATE) == [DONE, WAIT]
    assert client.drifted == []


def test_differences_that_do_not_count_are_reported_as_drift() -> None:
    client = Client(session())
    client.say({**UPDATE, "session": {"instructions": "Be brief.", "tracing": "auto"}})  # type: ignore[dict-item]
    assert client.drifted == ["/body/0/session/tracing"]
    assert client.broken == []


@pytest.mark.parametrize(
    ("message", "pointer"),
    [
        ({"type": "session.update", "session": {"instructions": "Be long."}}, "/session/instructions"),
        ({**UPDATE, "session": {"instructions": "Be brief.", "voice": "ash"}}, "/session/voice"),  # type: ignore[dict-item]
        (CREATE, "/session"),
        (b"no json", ""),
        (b"\xff\xfe", "/sha256"),
    ],
)
def test_another_message_is_a_miss_with_the_places(message: Json | bytes, pointer: str) -> None:
    client = Client(session())
    assert client.say(message) == [("close", b"miss")]
    (where,) = client.broken
    assert (where.reason, where.number) == ("no_match", 1)
    assert pointer in [difference.pointer for difference in where.differences]
    assert client.say(UPDATE) == client.part() == []


def test_one_message_more_than_was_recorded_is_a_miss() -> None:
    client = Client(session())
    client.say(UPDATE)
    client.say(CREATE)
    assert client.say(CREATE) == [("close", b"miss")]
    assert (client.broken[0].reason, client.broken[0].number) == ("consumed", 3)


def test_a_client_that_leaves_before_it_has_said_all_has_not_been_served() -> None:
    client = Client(session())
    client.say(UPDATE)
    assert client.part() == [("close", BYE)]
    assert (client.broken[0].reason, client.broken[0].number) == ("client_left", 2)
    gone = Client(session())
    gone.played.note_client_left()
    assert gone.broken[0].reason == "client_left"


def test_a_client_that_has_said_all_may_leave_without_a_word() -> None:
    client = Client(session(("request", BYE, "close")))
    client.say(UPDATE)
    client.say(CREATE)
    client.played.note_client_left()
    assert client.broken == []


def test_a_client_that_stays_where_the_recorded_one_left_gets_the_reason() -> None:
    client = Client(session(("request", BYE, "close")))
    client.say(UPDATE)
    wait = client.played.receive("text", b'{"type": "response.create"}')[-1]
    assert (wait.kind, wait.after) == ("wait", 2_000_000 + GRACE)
    client.played.answer_waiting_client()
    assert client.broken[0].reason == "incomplete"


@pytest.mark.parametrize(("outcome", "end"), [("server_closed", "cut"), ("client_closed", "wait")])
def test_a_recording_without_a_goodbye_ends_as_it_did(outcome: Any, end: str) -> None:
    client = Client(socket(("request", CREATE), ("response", DONE), url=REALTIME, outcome=outcome))
    assert client.say(CREATE) == [DONE, (end, b"")]


def test_a_goodbye_of_the_server_comes_with_its_code_and_reason() -> None:
    expired = (1008).to_bytes(2) + b"session expired"
    client = Client(socket(("request", CREATE), ("response", expired, "close"), ("request", UPDATE), url=REALTIME))
    assert client.say(CREATE) == [("close", expired)]
    assert client.say(UPDATE) == []
    assert client.broken == []


@given(st.data(), st.binary(min_size=1, max_size=30), st.binary(min_size=1, max_size=30))
def test_sound_may_be_cut_otherwise_and_what_it_brought_comes_in_time(
    data: st.DataObject, before: bytes, after: bytes
) -> None:
    started: Json = {"type": "input_audio_buffer.speech_started"}
    heard = socket(
        *(("request", append_audio(piece)) for piece in data.draw(pieces(before))),
        ("response", started),
        *(("request", append_audio(piece)) for piece in data.draw(pieces(after))),
        ("request", CREATE),
        ("response", DONE),
        url=REALTIME,
    )
    client = Client(heard)
    said = 0
    for piece in data.draw(pieces(before + after)):
        reply = client.say(append_audio(piece))
        was, said = said, said + len(piece)
        assert reply == ([started] if was < len(before) <= said else [])
    assert client.say(CREATE) == [DONE, WAIT]
    assert client.broken == []


@pytest.mark.parametrize("now", [[b"abX"], [b"abc", b"d"], [b"ab"]])
def test_other_sound_or_more_or_less_of_it_is_a_miss(now: list[bytes]) -> None:
    client = Client(socket(("request", append_audio(b"abc")), ("request", CREATE), ("response", DONE), url=REALTIME))
    for piece in now:
        client.say(append_audio(piece))
    client.say(CREATE)
    assert [where.reason for where in client.broken] == ["no_match"]


def test_an_id_that_the_client_mints_anew_comes_back_in_what_the_server_says() -> None:
    item: dict[str, Json] = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "item_then"}],
    }
    create: dict[str, Json] = {"type": "conversation.item.create", "item": {**item, "id": "item_then"}}
    added: dict[str, Json] = {
        "type": "conversation.item.added",
        "previous_item_id": None,
        "item": {**item, "id": "item_then"},
    }
    client = Client(socket(("request", create), ("response", added), url=REALTIME))
    reply = client.say({**create, "item": {**item, "id": "item_now"}})
    assert reply[0] == {**added, "item": {**item, "id": "item_now"}}


def test_an_id_that_the_server_minted_must_come_back_as_it_was() -> None:
    """Two calls with the same output have different ids."""

    def calls(one: str) -> Json:
        return {"type": "response.output_item.done", "item": {"type": "function_call", "call_id": one}}

    def output(one: str) -> Json:
        return {
            "type": "conversation.item.create",
            "item": {"type": "function_call_output", "call_id": one, "output": "5"},
        }

    recorded = socket(
        ("response", calls("call_a")),
        ("response", calls("call_b")),
        ("request", output("call_a")),
        ("response", DONE),
        url=REALTIME,
    )
    assert Client(recorded).say(output("call_a")) == [DONE, WAIT]
    client = Client(recorded)
    assert client.say(output("call_b")) == [("close", b"miss")]
    assert client.broken[0].reason == "no_match"


def test_a_recorded_pace_counts_from_what_was_said_last() -> None:
    client = Client(session(), Pace(1.0))
    client.say(UPDATE)
    (frame, _) = client.played.receive("text", b'{"type": "response.create"}')
    assert frame.after == 1_000_000


def _any_messages() -> st.SearchStrategy[list[bytes]]:
    known = st.sampled_from(
        [json.dumps(one).encode() for one in (UPDATE, CREATE, append_audio(b"ab"), append_audio(b"c"))]
    )
    return st.lists(known | st.binary(max_size=8), max_size=6)


@given(_any_messages(), _any_messages())
def test_no_client_surprises_and_only_the_recorded_one_is_served(then: list[bytes], now: list[bytes]) -> None:
    client = Client(socket(*(("request", message) for message in then), ("response", DONE), url=REALTIME))
    replies = [*client.first, *_all(client, now)]
    if then == now:
        assert client.broken == []
        assert DONE in replies


def _all(client: Client, messages: list[bytes]) -> Iterator[Any]:
    for message in messages:
        yield from client.say(message)


def turn(lane: str, text: str) -> dict[str, Json]:
    return {"type": "response.create", "stream_id": lane, "model": "gpt-5", "input": text}


def completed_event(lane: str, number: int) -> dict[str, Json]:
    return {"type": "response.completed", "stream_id": lane, "response": {"id": f"resp_{number}"}}


TWO_LANES = socket(
    ("request", turn("a", "one")),
    ("request", turn("b", "two")),
    ("response", completed_event("b", 2)),
    ("response", completed_event("a", 1)),
    ("request", turn("a", "three")),
    ("response", completed_event("a", 3)),
    url=RESPONSES,
)


def test_conversations_on_one_socket_keep_each_its_own_order() -> None:
    client = Client(TWO_LANES)
    assert client.say(turn("b", "two")) == [completed_event("b", 2)]
    assert client.say(turn("a", "one")) == [completed_event("a", 1)]
    assert client.say(turn("a", "three")) == [completed_event("a", 3), WAIT]
    assert client.part() == [("close", BYE)]
    assert client.broken == []


def test_a_conversation_may_be_called_otherwise() -> None:
    client = Client(TWO_LANES)
    assert client.say(turn("x", "two")) == [completed_event("x", 2)]
    assert client.say(turn("b", "one")) == [completed_event("b", 1)]
    assert client.say(turn("b", "three")) == [completed_event("b", 3), WAIT]
    assert client.broken == []


def test_a_conversation_that_was_not_recorded_is_a_miss_and_reported_once() -> None:
    client = Client(TWO_LANES)
    client.say(turn("a", "one"))
    assert client.say(turn("c", "four")) == [("close", b"miss")]
    assert client.part() == []
    client.played.note_client_left()
    assert [(where.reason, where.number) for where in client.broken] == [("consumed", 2)]


def test_a_conversation_that_is_not_taken_up_is_left() -> None:
    client = Client(TWO_LANES)
    client.say(turn("a", "one"))
    client.part()
    assert [where.reason for where in client.broken] == ["client_left"]


STARTED: Json = {"type": "input_audio_buffer.speech_started", "item_id": "item_1"}
CALLED: Json = {"type": "response.function_call_arguments.done", "call_id": "call_1", "arguments": "{}"}
RESULT: Json = {
    "type": "conversation.item.create",
    "item": {"type": "function_call_output", "call_id": "call_1", "output": "clear"},
}
SPEECH = bytes(range(60))


def voice_session() -> Exchange:
    """A microphone that goes on while the server hears that someone speaks and has a tool called."""
    return socket(
        ("response", HELLO),
        ("request", append_audio(SPEECH[:7])),
        ("request", UPDATE),
        ("request", append_audio(SPEECH[7:20])),
        ("response", STARTED),
        ("request", append_audio(SPEECH[20:30])),
        ("response", CALLED),
        ("request", append_audio(SPEECH[30:45])),
        ("request", RESULT),
        ("request", CREATE),
        ("request", append_audio(SPEECH[45:50])),
        ("response", DONE),
        ("request", append_audio(SPEECH[50:])),
        url=REALTIME,
    )


@given(data=st.data())
def test_what_a_client_says_while_its_microphone_is_on_may_come_at_any_time(data: st.DataObject) -> None:
    client = Client(voice_session())
    heard: list[Any] = client.first
    waiting: list[Json] = [UPDATE]

    def say(message: Json) -> None:
        is_called = CALLED in heard
        heard.extend(client.say(message))
        waiting.extend([RESULT, CREATE] if CALLED in heard and not is_called else [])

    cut: list[bytes] = data.draw(pieces(SPEECH))
    for piece in cut:
        say(append_audio(piece))
        while waiting and bool(data.draw(st.booleans())):
            say(waiting.pop(0))
    while waiting:
        say(waiting.pop(0))
    assert [one for one in heard if one != WAIT] == [HELLO, STARTED, CALLED, DONE]
    assert client.broken == []
    assert client.drifted == []


@pytest.mark.parametrize("ends", [SPEECH[50:53], SPEECH[50:] + b"and on", b""])
def test_a_microphone_that_stops_sooner_or_later_after_the_answer_is_drift(ends: bytes) -> None:
    client = Client(voice_session())
    for message in (append_audio(SPEECH[:30]), UPDATE, RESULT, CREATE):
        client.say(message)
    assert client.say(append_audio(SPEECH[30:50])) == [DONE]
    if ends:
        client.say(append_audio(ends))
    client.part()
    assert client.broken == []
    assert len(client.drifted) == 1


@pytest.mark.parametrize(("heard", "reasons"), [(15, ["client_left"]), (20, []), (25, [])])
def test_a_microphone_that_stops_before_the_last_answer_is_a_miss(heard: int, reasons: list[str]) -> None:
    sound = b"\0\1" + bytes(range(0x80, 0x9C))
    one: Json = {"type": "Results", "number": 1}
    other: Json = {"type": "Results", "number": 2}
    recorded = socket(
        ("request", sound[:10], "binary"),
        ("response", one),
        ("request", sound[10:20], "binary"),
        ("response", other),
        ("request", sound[20:], "binary"),
        url="wss://api.deepgram.com/v1/listen",
    )
    client = Client(recorded)
    client.played.receive("binary", sound[:heard])
    client.part()
    assert [where.reason for where in client.broken] == reasons


def test_a_microphone_that_stops_before_the_answer_is_a_miss() -> None:
    client = Client(voice_session())
    for message in (append_audio(SPEECH[:20]), UPDATE):
        client.say(message)
    client.part()
    assert [where.reason for where in client.broken] == ["client_left"]


def test_a_result_that_differs_is_a_miss_while_the_microphone_is_on() -> None:
    client = Client(voice_session())
    for message in (append_audio(SPEECH[:33]), UPDATE):
        client.say(message)
    client.say({**RESULT, "item": {**RESULT["item"], "output": "rain"}})  # type: ignore[call-overload,dict-item,index]
    (where,) = client.broken
    assert [one.pointer for one in where.differences] == ["/item/output"]


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("text", {"type": "input_audio_buffer.commit"}),
        ("text", {"type": "input_audio_buffer.clear"}),
        ("binary", {"type": "CloseStream"}),
        ("binary", {"type": "Finalize"}),
        ("binary", b"EOS"),
    ],
)
@pytest.mark.parametrize("cut", [3, 9])
def test_what_ends_the_sound_belongs_to_its_place(kind: Any, end: Any, cut: int) -> None:
    def sound(data: bytes) -> Any:
        return ("request", data, "binary") if kind == "binary" else ("request", append_audio(data))

    url = REALTIME if kind == "text" else "wss://api.deepgram.com/v1/listen"
    client = Client(socket(sound(b"\0abcde"), ("request", end), sound(b"fghi"), ("response", DONE), url=url))
    said = b"\0abcdefghi"
    client.played.receive(kind, said[:cut] if kind == "binary" else json.dumps(append_audio(said[:cut])).encode())
    client.say(end)
    assert [where.reason for where in client.broken] == ["no_match"]


@pytest.mark.parametrize("channel", [b"", b"\0"])
@pytest.mark.parametrize(
    ("said", "reason"), [((b"ls -l\n",), "client_left"), ((b"ls -l\n", b"pwd\n", b"rm -r /\n"), "consumed")]
)
def test_a_terminal_is_no_microphone(channel: bytes, said: tuple[bytes, ...], reason: str) -> None:
    """Terminals send text in binary messages; those of Kubernetes with the number of a channel before it."""
    client = Client(
        socket(
            ("request", channel + b"ls -l\n", "binary"),
            ("response", b"\1a\n", "binary"),
            ("request", channel + b"pwd\n", "binary"),
            ("response", b"\1/\n", "binary"),
        )
    )
    for data in said:
        client.played.receive("binary", channel + data)
    client.part()
    assert [where.reason for where in client.broken] == [reason]


def test_sound_that_nobody_answered_must_come_whole() -> None:
    upload = socket(("response", HELLO), ("request", b"\0abc", "binary"), ("request", BYE, "close"))
    for said, reason in ((b"\0ab", "client_left"), (b"\0abcd", "consumed"), (b"\0abX", "no_match")):
        client = Client(upload)
        client.played.receive("binary", said)
        client.part()
        assert [where.reason for where in client.broken] == [reason]


@given(data=st.data())
def test_binary_sound_is_compared_by_its_bytes_however_it_is_cut(data: st.DataObject) -> None:
    sound = b"\0\1{" + bytes(range(40))
    keep_alive: Json = {"type": "KeepAlive"}
    recorded = socket(
        ("request", sound[:9], "binary"),
        ("request", keep_alive),
        ("request", sound[9:30], "binary"),
        ("response", {"type": "Results"}),
        ("request", sound[30:], "binary"),
        ("request", {"type": "CloseStream"}),
        ("response", {"type": "Metadata"}),
        url="wss://api.deepgram.com/v1/listen",
    )
    client = Client(recorded)
    heard: list[Any] = []
    is_alive = False
    for piece in data.draw(pieces(sound)):
        if not is_alive and data.draw(st.booleans()):
            is_alive = True
            heard += client.say(keep_alive)
        heard += client._read_frames(client.played.receive("binary", piece))
    heard += [] if is_alive else client.say(keep_alive)
    heard += client.say({"type": "CloseStream"})
    assert heard == [{"type": "Results"}, {"type": "Metadata"}, WAIT]
    assert client.broken == []


SPOKEN = "wss://api.cartesia.ai/tts/websocket?cartesia_version=1"


def text_to_speak(context: str, transcript: str) -> Json:
    return {"context_id": context, "transcript": transcript, "continue": False}


def test_texts_to_speak_at_once_have_new_names_and_come_in_any_order() -> None:
    def sound(context: str, data: str) -> Json:
        return {"type": "chunk", "context_id": context, "data": data}

    recorded = socket(
        ("request", text_to_speak("a", "One.")),
        ("request", text_to_speak("b", "Two.")),
        ("response", sound("a", "1")),
        ("response", sound("b", "2")),
        ("response", sound("a", "1")),
        url=SPOKEN,
    )
    client = Client(recorded)
    assert [one for one in client.say(text_to_speak("y", "Two.")) if one != WAIT] == [sound("y", "2")]
    assert client.say(text_to_speak("x", "One.")) == [sound("x", "1"), sound("x", "1"), WAIT]
    client = Client(recorded)
    client.say(text_to_speak("x", "One, or two."))
    (where,) = client.broken
    assert [one.pointer for one in where.differences] == ["/transcript"]
