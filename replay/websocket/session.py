"""Replay a WebSocket, and report to its client where it leaves the record."""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from calls.codec.json import dumps
from calls.codec.lenient_json import as_object
from calls.keys.divergence import AbsentValue, Difference, is_same_json
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.model import ChunkKind, Exchange, Json, Request
from calls.placeholder import PREFIX
from calls.redaction.redactor import Redactor
from calls.redaction.whole_request import redact_message
from calls.websocket_messages import message_value, opening_request
from replay import playback
from replay.answer import Answer, Dialogue, Frame
from replay.incoming_request import IncomingRequest
from replay.misses import explain
from replay.misses.miss import Miss, NearestCall
from replay.misses.nearest import DIFFERENCES_LISTED
from replay.misses.redacted_again import redact_entry
from replay.pacing import Pace
from replay.reframing.id_rewrite import remove_ids
from replay.script import RecordedExchange, Script
from replay.websocket.conversations import ConversationsDialogue, replay_dialogue
from replay.websocket.timeline import Break, WebsocketDialogue

MISS_CLOSE_CODE: Final = 4424
"""The close code of a miss (private use, RFC 6455 7.4.2). SDKs do not reconnect after it, unlike after 1011."""

_MAX_REASON: Final = 123
"""Maximum bytes of a close reason: a control frame has at most 125 bytes, two of them for the code (RFC 6455 5.5)."""

_RECORD_AGAIN: Final = "record the run again: playhead record -- CMD"


_MAX_REMEMBERED: Final = 1 << 20
"""Maximum bytes of client messages that are remembered, to continue with another WebSocket of the same opening request."""


_MAX_REDACTED_AGAIN: Final = 64 << 10
"""Maximum bytes of recorded client messages that are redacted again, which takes 30 ms at most: the client waits, and others do."""


class OpenWebsockets:
    """The open WebSockets of one replay.

    If a client opens several with equal opening requests, only their messages tell them apart. So each gets the next
    recorded one. If its client then sends something else, it continues as another recorded one that fits all messages so
    far: a free one, or that of an open WebSocket which can continue as this one.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._open: list[ReplayedWebsocket] = []

    def add(self, socket: "ReplayedWebsocket") -> None:
        """Add a WebSocket."""
        self._open.append(socket)

    def remove(self, socket: "ReplayedWebsocket") -> None:
        """Remove a WebSocket, if it is there."""
        if socket in self._open:
            self._open.remove(socket)

    def find_replacement(self, asking: "ReplayedWebsocket") -> RecordedExchange | None:
        """Find another recorded WebSocket that fits; None if there is none."""
        if (free := self._script.swap(asking.recorded, asking.can_continue_as)) is not None:
            return free
        for other in self._open:
            theirs = other.recorded
            if (
                theirs.key == asking.recorded.key
                and asking.can_continue_as(theirs)
                and other.switch_to(asking.recorded)
            ):
                return theirs
        return None


class ReplayedWebsocket:
    """The replay of one recorded WebSocket (implements `Dialogue`)."""

    def __init__(
        self,
        recorded: RecordedExchange,
        profiles: Profiles,
        pace: Pace,
        *,
        note_miss: Callable[[RecordedExchange, Break], Miss],
        note_drift: Callable[[RecordedExchange, list[str]], None],
        open_websockets: OpenWebsockets,
        redactor: Redactor | None = None,
    ) -> None:
        """`note_miss` counts a miss and returns it. `redactor` redacts the recorded messages again."""
        self.recorded = recorded
        self._profiles = profiles
        self._pace = pace
        self._note_miss = note_miss
        self._note_drift = note_drift
        self._open_websockets = open_websockets
        self._redactor = redactor
        self._dialect = make_key(opening_request(recorded.exchange.request), profiles).dialect
        self._received: list[tuple[ChunkKind, bytes]] | None = []
        self._sent: list[Frame] = []
        self._memory_left = _MAX_REMEMBERED
        self._dialogue = self._new_dialogue(recorded)

    def answer(self, source_header: tuple[str, str]) -> Answer:
        """Answer the opening request."""
        exchange = self.recorded.exchange
        assert exchange.response is not None
        return Answer(
            status=101,
            reason=exchange.response.reason,
            headers=(*playback.recorded_headers(exchange.response, whole=False), source_header),
            at=self._pace.send_time(exchange.first_byte_at),
            dialogue=self,
        )

    def begin(self) -> list[Frame]:
        """Return the first frames, once the WebSocket is open."""
        self._open_websockets.add(self)
        return self._remember_sent(self._dialogue.begin())

    def receive(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """Handle a message of the client."""
        if kind == "close":
            self._open_websockets.remove(self)
        elif self._received is not None:
            self._received.append((kind, data))
            self._memory_left -= len(data)
            if self._memory_left < 0:
                self._received, self._sent = None, []
        return self._remember_sent(self._dialogue.receive(kind, data))

    def answer_waiting_client(self) -> list[Frame]:
        """Handle a client that stays longer than the recorded one."""
        return self._dialogue.answer_waiting_client()

    def note_client_left(self) -> None:
        """Handle a client that disconnected without a close frame."""
        self._open_websockets.remove(self)
        self._dialogue.note_client_left()

    def can_continue_as(self, other: RecordedExchange) -> bool:
        """Whether another recorded WebSocket fits all messages so far."""
        return self._expected_messages(other) is not None

    def switch_to(self, other: RecordedExchange) -> bool:
        """Continue as another recorded WebSocket, if no message so far tells the two apart."""
        expected = self._expected_messages(other)
        if expected is None or len(expected) != len(self._sent):
            return False
        self._continue_as(other)
        return True

    def _new_dialogue(self, recorded: RecordedExchange) -> WebsocketDialogue | ConversationsDialogue:
        return replay_dialogue(
            recorded.exchange,
            self._profiles,
            self._pace,
            on_break=self._handle_break,
            on_drift=lambda places: self._note_drift(recorded, places),
        )

    def _remember_sent(self, frames: list[Frame]) -> list[Frame]:
        if self._received is not None:
            self._sent += [frame for frame in frames if frame.kind in _MESSAGES]
        return frames

    def _handle_break(self, where: Break) -> list[Frame]:
        if (
            where.reason in ("no_match", "consumed")
            and (other := self._open_websockets.find_replacement(self)) is not None
        ):
            return self._continue_as(other)
        if where.reason == "no_match" and (again := self._redacted_again()) is not None:
            return self._continue_as(again)
        self._open_websockets.remove(self)
        return refusal_frames(self._note_miss(self.recorded, where), where, self._dialect)

    def _redacted_again(self) -> RecordedExchange | None:
        """The recorded WebSocket with its messages as the present rules redact them; None if that changes nothing."""
        recorded, request = self.recorded, self.recorded.exchange.request
        if self._redactor is None or self._received is None or len(request.body.data) > _MAX_REDACTED_AGAIN:
            return None
        again = redact_entry(recorded, request, self._redactor, self._profiles)
        return None if again is recorded else again

    def _continue_as(self, other: RecordedExchange) -> list[Frame]:
        """Continue as another recorded WebSocket, and return the frames that are due now."""
        self.recorded, self._dialogue = other, self._new_dialogue(other)
        frames = self._replay_received(self._dialogue)
        messages = [frame for frame in frames if frame.kind in _MESSAGES]
        return [*messages[len(self._sent) :], *(frame for frame in frames[-1:] if frame.kind not in _MESSAGES)]

    def _replay_received(self, dialogue: WebsocketDialogue | ConversationsDialogue) -> list[Frame]:
        """All frames that a dialogue returns for the messages received so far."""
        received = self._received or ()
        return [*dialogue.begin(), *(frame for message in received for frame in dialogue.receive(*message))]

    def _expected_messages(self, other: RecordedExchange) -> list[Frame] | None:
        """The messages of another recorded WebSocket for those received so far; None if it does not fit these and those sent."""
        if self._received is None or other.unreplayable_reason or not playback.is_websocket(other.exchange):
            return None
        breaks: list[Break] = []

        def note_break(where: Break) -> list[Frame]:
            breaks.append(where)
            return []

        dialogue = replay_dialogue(
            other.exchange, self._profiles, self._pace, on_break=note_break, on_drift=lambda _: None
        )
        messages = [frame for frame in self._replay_received(dialogue) if frame.kind in _MESSAGES]
        alike = len(messages) >= len(self._sent) and all(map(_is_same_message, messages, self._sent))
        return messages if alike and not breaks else None


_MESSAGES: Final = ("text", "binary")


def _is_same_message(one: Frame, other: Frame) -> bool:
    """Whether two messages of the server are equal except for ids and times."""
    return one.kind == other.kind and is_same_json(
        remove_ids(message_value(one.data)), remove_ids(message_value(other.data))
    )


def opening_exchange(exchange: Exchange) -> Exchange:
    """The exchange with the opening request only, which is all that is known when a client opens a WebSocket."""
    opening = opening_request(exchange.request)
    return exchange if opening is exchange.request else replace(exchange, request=opening)


def websocket_miss(incoming: IncomingRequest, recorded: RecordedExchange, where: Break) -> Miss:
    """The miss of a client that left the record."""
    if where.reason == "client_left":
        return explain.websocket_left_miss(incoming, recorded, where.number)
    if where.reason == "incomplete":
        return explain.client_waits_miss(incoming, recorded)
    what = f"message {where.number} of {incoming.description}"
    detail = (
        f"{what} differs from that of step {recorded.step} of run {incoming.run} at {_places(where)}."
        if where.reason == "no_match"
        else f"{what} begins a conversation that was not recorded; it differs from one of step {recorded.step} of run "
        f"{incoming.run} at {_places(where)}."
        if where.differences
        else f"{what} came after the last recorded one of step {recorded.step} of run {incoming.run}."
    )
    listed_differences, more = (
        tuple(map(_readable_difference, where.differences[:DIFFERENCES_LISTED])),
        len(where.differences[DIFFERENCES_LISTED:]),
    )
    return Miss(
        replay=incoming.replay,
        run=incoming.run,
        reason=where.reason,
        request_line=what,
        detail=detail,
        fix=_RECORD_AGAIN,
        key=recorded.key,
        number=incoming.number,
        nearest=NearestCall(call=recorded.id, step=recorded.step, differences=listed_differences, more=more),
    )


_PLACEHOLDER_START: Final = PREFIX.decode()
_PLACEHOLDER_END: Final = re.compile(r"[A-Z2-7]{2,}(?![a-z0189])")
_BINARY: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Characters that do not occur in text: a value with one of them is binary data that happens to be valid UTF-8."""


def _readable_difference(difference: Difference) -> Difference:
    """A readable difference: binary data is replaced by its size and digest."""
    current = _without_piece_of_secret(difference.recorded, difference.now)
    return msgspec.structs.replace(
        difference, recorded=_without_bytes(difference.recorded), now=_without_bytes(current)
    )


def _without_piece_of_secret(recorded: Json | AbsentValue, now: Json | AbsentValue) -> Json | AbsentValue:
    """The client's text, with asterisks where the recording has a part of a placeholder.

    A secret sent in pieces is recognised only when it is complete: until then, only its place in the recording shows it.
    """
    if not isinstance(recorded, str) or not isinstance(now, str):
        return now
    if _PLACEHOLDER_END.match(recorded):
        return "*" * len(now)
    at = next((at for at in range(len(recorded)) if _begins_placeholder(recorded[at:])), len(recorded))
    return now[:at] + "*" * len(now[at:]) if now[:at] == recorded[:at] else now


def _begins_placeholder(text: str) -> bool:
    return text.startswith((_PLACEHOLDER_START, "*")) or _PLACEHOLDER_START.startswith(text)


def _without_bytes(value: Json | AbsentValue) -> Json | AbsentValue:
    if isinstance(value, str) and _BINARY.search(value):
        data = value.encode("utf-8", "surrogatepass")
        return f"{len(data)} bytes, sha256:{hashlib.sha256(data).hexdigest()[:16]}…"
    return value


def _places(where: Break) -> str:
    return ", ".join(difference.readable_pointer or "all of it" for difference in where.differences[:3])


def refusal_frames(why: Miss, where: Break, dialect: str) -> list[Frame]:
    """The frames of a miss: an error message of this API, and a close frame with the reason."""
    data = MISS_CLOSE_CODE.to_bytes(2) + close_reason(why, where).encode()
    error = _error_message(why, where, dialect)
    messages = [Frame(kind="text", data=dumps(error))] if error else []
    return [*messages, Frame(kind="close", data=data)]


def close_reason(why: Miss, where: Break) -> str:
    """The reason of the close frame, cut to its maximum size."""
    places = f" differs at {_places(where)}" if where.differences else ""
    text = {
        "no_match": f"playhead: replay_miss: message {where.number} is not the recorded one{places}",
        "consumed": f"playhead: replay_miss: message {where.number} came after the last recorded one",
    }.get(
        why.reason,
        f"playhead: replay_miss: {why.reason}: no more messages were recorded, and the client is still connected",
    )
    return text.encode()[:_MAX_REASON].decode(errors="ignore")


def _error_message(why: Miss, where: Break, dialect: str) -> dict[str, Json]:
    error: dict[str, Json] = {
        "type": "replay_miss",
        "code": why.reason,
        "message": f"{why.detail} To fix it: {why.fix}",
    }
    message = as_object(where.message)
    match dialect:
        case "openai_realtime":
            told_error = {**error, "param": None, "event_id": message.get("event_id")}
            return {"type": "error", "event_id": f"event_playhead_{where.number}", "error": told_error}
        case "openai_responses_socket":
            lane = {"stream_id": message["stream_id"]} if "stream_id" in message else {}
            return {"type": "error", "status": 424, "error": {**error, "param": None}, **lane}
        case "gemini_live":
            # Google has no error message. Its SDK treats an unknown message as an error and reads these members.
            return {"code": 424, "status": "FAILED_PRECONDITION", "message": error["message"], "error": error}
        case _:
            return {}


class RedactingDialogue:
    """A dialogue that receives redacted messages, so that a secret matches its placeholder."""

    def __init__(self, inner: Dialogue, redactor: Redactor) -> None:
        self._inner = inner
        self._redactor = redactor
        self.begin, self.answer_waiting_client, self.note_client_left = (
            inner.begin,
            inner.answer_waiting_client,
            inner.note_client_left,
        )

    def receive(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """Handle a message of the client."""
        return self._inner.receive(kind, data if kind == "close" else redact_message(data, self._redactor))


def with_redaction(answer: Answer | None, request: Request, redactor: Redactor) -> Answer | None:
    """Redact the client's messages of an answer that is followed by a dialogue."""
    if answer is None or answer.dialogue is None:
        return answer
    redactor = redactor.for_request(request.method, request.url, request.headers)
    return dataclasses.replace(answer, dialogue=RedactingDialogue(answer.dialogue, redactor))
