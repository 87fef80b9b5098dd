"""Decide when each recorded message of a server is sent: after the client has sent what preceded it.

This module does no IO and knows no clock: messages come in, and frames with delays go out. Messages are compared in order,
by the fields of their keys; audio is compared by its bytes, however it is split. If the client generates a new id, the
server's messages use the new one. An id that the server generated must come back unchanged.
"""

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
    audio_piece,
    digest_audio,
    is_websocket_body,
    message_value,
    opening_request,
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
        self._awaited: AudioPiece | KeyedMessage | None = None
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
        message = message_value(data)
        if (piece := audio_piece(message)) is not None:
            return self._match_sound(piece)
        counted = self._current.key_message(message)
        return [] if counted is None else self._match_message(counted)

    def note_client_left(self) -> None:
        """Handle a client that disconnected without a close frame."""
        if not self._is_over:
            self._is_over = True
            self._report_early_leave()

    def answer_waiting_client(self) -> list[Frame]:
        """Handle a client that stays longer than the recorded one."""
        return [] if self._is_over or self._awaited is not None else self._break_off("incomplete")

    # Messages of the server

    def _release_frames(self) -> list[Frame]:
        """Release the frames up to the next message of the client that is compared."""
        frames: list[Frame] = []
        while self._turns and not self._is_over:
            turn = self._turns[0]
            if turn.is_client:
                if turn.kind == "close":
                    break
                self._awaited = self._awaited or self._compared_part(turn)
                if self._awaited is not None:
                    return frames
                self._advance()
            else:
                self._is_over = turn.kind == "close"
                frames.append(self._frame(turn))
                self._advance()
        return frames if self._is_over else [*frames, self._end_frame()]

    def _frame(self, turn: Turn) -> Frame:
        self._sent.append(turn.data)
        data = rewrite_ids(turn.data, self._current_ids) if self._current_ids and turn.kind != "close" else turn.data
        return Frame(after=self._pace.send_time(turn.at - self._at), kind=turn.kind, data=data)

    def _end_frame(self) -> Frame:
        """The frame after the last message: the connection broke, or the client left."""
        since = max(0, (self._exchange.ended_at or 0) - self._at)
        if not self._turns and self._exchange.outcome in ("server_closed", "timed_out", "refused"):
            self._is_over = True
            return Frame(after=self._pace.send_time(since), kind="cut")
        return Frame(after=since + GRACE, kind="wait")

    def _advance(self) -> None:
        self._at = self._turns.popleft().at
        self._awaited = None

    # Messages of the client

    def _compared_part(self, turn: Turn) -> AudioPiece | KeyedMessage | None:
        """The part of a recorded message that is compared; None if nothing is."""
        message = message_value(turn.data)
        piece = audio_piece(message)
        if piece is None:
            return self._recorded.key_message(message)
        return piece if piece.data else None

    def _match_sound(self, piece: AudioPiece) -> list[Frame]:
        """Compare audio, which may cover several recorded pieces and a part of the next one."""
        rest, frames = piece.data, list[Frame]()
        while rest and not self._is_over:
            awaited = self._awaited
            if not isinstance(awaited, AudioPiece) or awaited.frame != piece.frame:
                return [*frames, *self._break_at_awaited(digest_audio(piece))]
            size = min(len(rest), len(awaited.data))
            if rest[:size] != awaited.data[:size]:
                return [*frames, *self._break_at_awaited(digest_audio(piece))]
            rest = rest[size:]
            if size < len(awaited.data):
                self._awaited = AudioPiece(awaited.frame, awaited.data[size:])
            else:
                self._advance()
                frames += self._release_frames()
        return frames

    def _match_message(self, current: KeyedMessage) -> list[Frame]:
        """Compare any other message with the next recorded one."""
        recorded = self._awaited
        if not isinstance(recorded, KeyedMessage) or recorded.text != current.text:
            return self._break_at_awaited(current.selected_fields, current.message)
        if mistaken_id := self._mistaken_id(recorded, current):
            return self._break_off("no_match", (mistaken_id,), current.message)
        if places := _drift(recorded, current):
            self._on_drift([f"/body/{self.message_count - 1}{place}" for place in places])
        self._advance()
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
        if self._turns and self._turns[0].kind == "close":
            self._advance()
            frames = [frame for frame in self._release_frames() if frame.kind not in ("wait", "cut")]
        else:
            self._report_early_leave()
            frames = []
        self._is_over = True
        # RFC 6455 5.5.1: a close frame is answered, typically with its own code.
        return (
            frames if any(frame.kind == "close" for frame in frames) else [*frames, Frame(kind="close", data=data[:2])]
        )

    def _report_early_leave(self) -> None:
        if self._awaited is not None:
            self._on_break(Break(reason="client_left", number=self.message_count + 1))

    # Leaving the record

    def _break_at_awaited(self, selected: Json, message: Json = None) -> list[Frame]:
        awaited = self._awaited
        if awaited is None:
            return self._break_off("consumed", message=message)
        recorded = digest_audio(awaited) if isinstance(awaited, AudioPiece) else awaited.selected_fields
        found = tuple(differences(recorded, selected)) or (Difference((), ABSENT, selected),)
        return self._break_off("no_match", found, message)

    def _break_off(
        self, reason: BreakReason, broken_places: tuple[Difference, ...] = (), message: Json = None
    ) -> list[Frame]:
        self._is_over = True
        return self._on_break(
            Break(reason=reason, number=self.message_count, differences=broken_places, message=message)
        )


_NEW_EACH_TIME: Final = ("/event_id",)
"""Pointers whose values are new in every message, so that they are not drift."""


def _drift(recorded: KeyedMessage, current: KeyedMessage) -> list[str]:
    """Pointers of the differences outside the compared part."""
    places = dict.fromkeys((*recorded.left_out, *current.left_out))
    apart = {difference.pointer for difference in differences(recorded.message, current.message)} if places else set()
    return [place for place in places if place in apart and place not in _NEW_EACH_TIME]
