"""Decide when each recorded message of a server is sent: after the client has sent what preceded it.

This module does no IO and knows no clock: messages come in, and frames with delays go out. Messages are compared in order,
by the fields of their keys; audio is compared by its bytes, however it is split. It comes by the clock, so what a client
says meanwhile may come earlier or later in it, unless it says something of the audio itself: that it ends. If the client
generates a new id, the server's messages use the new one. An id that the server generated must come back unchanged.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Final, Literal, NamedTuple

import msgspec

from calls.keys.divergence import ABSENT, Difference, differences
from calls.keys.profile import Profiles
from calls.keys.websocket_key import Conversation, KeyedMessage
from calls.model import Body, ChunkKind, Exchange, Json
from calls.websocket_messages import (
    AudioPiece,
    digest_audio,
    is_websocket_body,
    message_value,
    opening_request,
    read_message,
)
from replay.answer import Frame
from replay.pacing import Pace
from replay.reframing.id_rewrite import rewrite_ids

GRACE: Final = 10_000_000_000
"""Nanoseconds by which a client may stay longer than the recorded client, which left before the end."""

type Kind = Literal["text", "binary", "close"]
type BreakReason = Literal["no_match", "consumed", "incomplete", "client_left"]


class Break(msgspec.Struct, frozen=True, kw_only=True):
    """The point at which a client leaves the record."""

    reason: BreakReason
    number: int
    """The number of the client's message, from 1."""

    differences: tuple[Difference, ...] = ()
    message: Json = None


class Turn(NamedTuple):
    """One recorded message."""

    at: int
    is_client: bool
    """True if the client sent it."""

    kind: Kind
    data: bytes


def recorded_turns(exchange: Exchange) -> Iterator[Turn]:
    """All messages of a WebSocket in the order of their times."""
    assert exchange.response is not None
    requested, answered = exchange.request.body, exchange.response.body
    return merge(
        _body_turns(requested, is_client=True), _body_turns(answered, is_client=False), key=lambda turn: turn.at
    )


def _body_turns(body: Body, *, is_client: bool) -> Iterator[Turn]:
    if is_websocket_body(body):
        for chunk in body.chunks:
            if chunk.kind != "data":
                yield Turn(chunk.at, is_client, chunk.kind, body.data[chunk.offset : chunk.offset + chunk.size])


class _Step(msgspec.Struct):
    """A recorded message that is no audio, and what of the audio came before it."""

    turn: Turn
    sound_before: int
    message: KeyedMessage | None = None
    """The part of a client's message that is compared."""

    is_tied: bool = False
    """Whether a client's message belongs to its place in the audio."""

    has_come: bool = False


class WebsocketDialogue:
    """The replay of one WebSocket, or of one of its conversations (implements `Dialogue`)."""

    def __init__(
        self,
        exchange: Exchange,
        profiles: Profiles,
        pace: Pace,
        *,
        on_break: Callable[[Break], list[Frame]],
        on_drift: Callable[[list[str]], None],
        conversation_turns: Iterable[Turn] | None = None,
    ) -> None:
        """`on_break` returns the frames for a client that leaves the record. `conversation_turns` are a part of all turns."""
        self._exchange = exchange
        self._pace = pace
        self._on_break = on_break
        self._on_drift = on_drift
        opening = opening_request(exchange.request)
        self._recorded, self._current = Conversation(opening, profiles), Conversation(opening, profiles)
        self._turns = deque(recorded_turns(exchange) if conversation_turns is None else conversation_turns)
        self._sent: list[bytes] = []
        self._current_ids: dict[str, str] = {}
        # The turns that were looked at, apart: audio, and all else. The client's messages are in both of the last two.
        self._sound: deque[tuple[AudioPiece, int]] = deque()
        self._steps: deque[_Step] = deque()
        self._awaited: deque[_Step] = deque()
        self._sound_read = self._sound_heard = 0
        self._is_sound_answered = False
        """Whether the server said something after it heard audio."""

        self._at = exchange.first_byte_at or 0
        self.message_count = 0
        """The number of messages received from the client."""

        self._is_over = False

    def begin(self) -> list[Frame]:
        """Return the frames before the first message of the client."""
        return self._release_frames()

    def receive(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """Handle a message of the client."""
        if self._is_over:
            return []
        if kind == "close":
            return self._close(data)
        self.message_count += 1
        message = read_message(kind, data)
        if isinstance(message, AudioPiece):
            return self._match_sound(message)
        counted = self._current.key_message(message)
        return [] if counted is None else self._match_message(counted)

    def note_client_left(self) -> None:
        """Handle a client that disconnected without a close frame."""
        if not self._is_over:
            self._is_over = True
            self._report_early_leave()

    def answer_waiting_client(self) -> list[Frame]:
        """Handle a client that stays longer than the recorded one."""
        self._read_all()
        return [] if self._is_over or self._awaited or self._sound else self._break_off("incomplete")

    # The recorded turns

    def _read_turn(self) -> bool:
        """Sort the next turn under audio or steps; False if there is none."""
        if not self._turns:
            return False
        turn = self._turns.popleft()
        step = _Step(turn, self._sound_read)
        if not turn.is_client or turn.kind == "close":
            self._steps.append(step)
            return True
        message = read_message(turn.kind, turn.data)
        if isinstance(message, AudioPiece):
            if message.data:
                self._sound.append((message, turn.at))
                self._sound_read += len(message.data)
        elif keyed := self._recorded.key_message(message):
            step.message, step.is_tied = keyed, is_tied_to_sound(message)
            self._steps.append(step)
            self._awaited.append(step)
        return True

    def _read_all(self) -> None:
        while self._read_turn():
            pass

    def _next_sound(self) -> tuple[AudioPiece, int] | None:
        while not self._sound and self._read_turn():
            pass
        return self._sound[0] if self._sound else None

    def _next_message(self) -> _Step | None:
        while not self._awaited and self._read_turn():
            pass
        return self._awaited[0] if self._awaited else None

    def _next_step(self) -> _Step | None:
        while not self._steps and self._read_turn():
            pass
        return self._steps[0] if self._steps else None

    # Messages of the server

    def _release_frames(self) -> list[Frame]:
        """Release the frames up to the next message of the client that is compared."""
        frames: list[Frame] = []
        while not self._is_over and (step := self._next_step()) is not None:
            turn = step.turn
            if turn.is_client:
                if turn.kind == "close":
                    break
                if not step.has_come:
                    return frames
            elif step.sound_before > self._sound_heard:
                return frames
            else:
                self._is_over = turn.kind == "close"
                frames.append(self._frame(turn))
                self._is_sound_answered |= self._sound_heard > 0
                self._pass(turn.at)
            self._steps.popleft()
        return frames if self._is_over or self._sound else [*frames, self._end_frame()]

    def _frame(self, turn: Turn) -> Frame:
        self._sent.append(turn.data)
        data = rewrite_ids(turn.data, self._current_ids) if self._current_ids and turn.kind != "close" else turn.data
        return Frame(after=self._pace.send_time(max(0, turn.at - self._at)), kind=turn.kind, data=data)

    def _end_frame(self) -> Frame:
        """The frame after the last message: the connection broke, or the client left."""
        since = max(0, (self._exchange.ended_at or 0) - self._at)
        if not self._steps and self._exchange.outcome in ("server_closed", "timed_out", "refused"):
            self._is_over = True
            return Frame(after=self._pace.send_time(since), kind="cut")
        return Frame(after=since + GRACE, kind="wait")

    def _pass(self, at: int) -> None:
        self._at = max(self._at, at)

    # Messages of the client

    def _match_sound(self, piece: AudioPiece) -> list[Frame]:
        """Compare audio, which may cover several recorded pieces and a part of the next one."""
        rest, frames = piece.data, list[Frame]()
        while rest and not self._is_over:
            found = self._next_sound()
            tied = next((step for step in self._awaited if step.is_tied), None)
            if tied is not None and tied.sound_before <= self._sound_heard:
                return [*frames, *self._break_at_message(tied, _audio_value(piece))]
            if found is None:
                return [*frames, *self._match_more_sound(piece)]
            recorded, at = found
            size = min(len(rest), len(recorded.data))
            if recorded.frame != piece.frame or rest[:size] != recorded.data[:size]:
                now, then = AudioPiece(piece.frame, rest[:size]), AudioPiece(recorded.frame, recorded.data[:size])
                return [*frames, *self._break_between(_audio_value(then), _audio_value(now))]
            rest = rest[size:]
            self._sound_heard += size
            if size < len(recorded.data):
                self._sound[0] = AudioPiece(recorded.frame, recorded.data[size:]), at
            else:
                self._sound.popleft()
                self._pass(at)
                frames += self._release_frames()
        return frames

    def _match_more_sound(self, piece: AudioPiece) -> list[Frame]:
        """Accept audio that goes on longer: when a client hears an answer and stops sending depends on the clock."""
        if self._is_sound_answered and _is_sound(piece):
            self._on_drift([f"/body/{self.message_count - 1}"])
            return []
        if self._awaited:
            return self._break_at_message(self._awaited[0], _audio_value(piece))
        return self._break_off("consumed")

    def _is_request(self, message: Json) -> bool:
        """Whether a message asks for the first answer, to all audio so far: from then on the server detects itself who speaks."""
        return not self._is_sound_answered and _has_word(message, _REQUEST_WORDS)

    def _match_message(self, current: KeyedMessage) -> list[Frame]:
        """Compare any other message with the next recorded one."""
        step = self._next_message()
        if step is None and self._sound:
            return self._break_between(_audio_value(self._sound[0][0]), current.selected_fields, current.message)
        if step is None:
            return self._break_off("consumed", message=current.message)
        recorded = step.message
        assert recorded is not None
        if recorded.text != current.text:
            return self._break_at_message(step, current.selected_fields, current.message)
        if step.sound_before > self._sound_heard and (step.is_tied or self._is_request(current.message)):
            return self._break_between(_audio_value(self._sound[0][0]), current.selected_fields, current.message)
        if mistaken_id := self._mistaken_id(recorded, current):
            return self._break_off("no_match", (mistaken_id,), current.message)
        if places := _drift(recorded, current):
            self._on_drift([f"/body/{self.message_count - 1}{place}" for place in places])
        self._awaited.popleft()
        step.has_come = True
        self._pass(step.turn.at)
        return self._release_frames()

    def _mistaken_id(self, recorded: KeyedMessage, current: KeyedMessage) -> Difference | None:
        """The difference if the client sent a wrong id that the server knows.

        An id that the server never sent is the client's own, and may be new.
        """
        for name, recorded_id in recorded.ids.items():
            current_id = current.ids[name]
            if (
                recorded_id != current_id
                and any(self._has_server_sent(one) for one in (recorded_id, current_id))
                and self._current_ids.get(recorded_id) != current_id
            ):
                return Difference(("id",), recorded_id, current_id)
            if recorded_id != current_id:
                self._current_ids[recorded_id] = current_id
        return None

    def _has_server_sent(self, name: str) -> bool:
        quoted = f'"{name}"'.encode()
        return any(quoted in data for data in self._sent)

    def _close(self, data: bytes) -> list[Frame]:
        """Handle a close frame of the client."""
        self._report_early_leave()
        step, frames = self._next_step(), list[Frame]()
        if step is not None and step.turn.is_client and step.turn.kind == "close":
            self._steps.popleft()
            self._pass(step.turn.at)
            frames = [frame for frame in self._release_frames() if frame.kind not in ("wait", "cut")]
        self._is_over = True
        # RFC 6455 5.5.1: a close frame is answered, typically with its own code.
        return (
            frames if any(frame.kind == "close" for frame in frames) else [*frames, Frame(kind="close", data=data[:2])]
        )

    def _report_early_leave(self) -> None:
        self._read_all()
        has_all_answers = all(step.turn.is_client or step.turn.kind == "close" for step in self._steps)
        may_stop = self._is_sound_answered and has_all_answers and all(_is_sound(piece) for piece, _ in self._sound)
        if self._awaited or (self._sound and not may_stop):
            self._on_break(Break(reason="client_left", number=self.message_count + 1))
        elif self._sound:
            self._on_drift([f"/body/{self.message_count}"])

    # Leaving the record

    def _break_at_message(self, step: _Step, selected: Json, message: Json = None) -> list[Frame]:
        return self._break_between(step.message.selected_fields if step.message else None, selected, message)

    def _break_between(self, recorded: Json, selected: Json, message: Json = None) -> list[Frame]:
        found = tuple(differences(recorded, selected)) or (Difference((), ABSENT, selected),)
        return self._break_off("no_match", found, message)

    def _break_off(
        self, reason: BreakReason, broken_places: tuple[Difference, ...] = (), message: Json = None
    ) -> list[Frame]:
        self._is_over = True
        return self._on_break(
            Break(reason=reason, number=self.message_count, differences=broken_places, message=message)
        )


_TEXT: Final = bytes([*range(0x20, 0x7F), *b"\t\r\n"])


def _is_sound(piece: AudioPiece) -> bool:
    """Whether a microphone may have sent a piece. Less than half of sound are bytes of letters, and most of what a terminal sends."""
    return bool(piece.frame) or 3 * len(piece.data.translate(None, _TEXT)) > len(piece.data)


def _audio_value(piece: AudioPiece) -> Json:
    return message_value(piece.data) if not piece.frame else digest_audio(piece)


_WORDS: Final = re.compile(r"[A-Z]?[a-z]+")
_REQUEST_WORDS: Final = frozenset(("response",))
"""Words in the types of messages that ask for an answer, such as `response.create`."""

_SOUND_WORDS: Final = frozenset(
    (
        *("activity", "audio", "clear", "close", "commit", "done", "end", "endpoint", "eos", "finalize", "finish"),
        *("flush", "start", "stop", "terminate"),
    )
)
"""Words in the types of messages about the sound before or after them."""


def is_tied_to_sound(message: Json) -> bool:
    """Whether a message says something of the audio before or after it, such as its end, by the name of its type."""
    return not isinstance(message, dict) or _has_word(message, _SOUND_WORDS)


def _has_word(message: Json, words: frozenset[str]) -> bool:
    """Whether one of the words is in a message's type, or in its members' names if it has no type."""
    if not isinstance(message, dict):
        return False
    kinds = (message.get(name) for name in ("type", "message_type", "event"))
    kind = next((kind for kind in kinds if isinstance(kind, str)), None)
    names = " ".join(message) if kind is None else kind
    if isinstance(media := message.get("realtimeInput", message.get("realtime_input")), dict):
        names = " ".join(media)  # Gemini: audioStreamEnd, activityStart
    return any(word.lower() in words for word in _WORDS.findall(names))


_NEW_EACH_TIME: Final = ("/event_id",)
"""Pointers whose values are new in every message, so that they are not drift."""


def _drift(recorded: KeyedMessage, current: KeyedMessage) -> list[str]:
    """Pointers of the differences outside the compared part."""
    places = dict.fromkeys((*recorded.left_out, *current.left_out))
    apart = {difference.pointer for difference in differences(recorded.message, current.message)} if places else set()
    return [place for place in places if place in apart and place not in _NEW_EACH_TIME]
