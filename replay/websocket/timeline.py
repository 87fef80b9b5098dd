"""Decide when each recorded message of a server is sent: once the client has said what it said before it.

Nothing here knows sockets or clocks: messages come in, and frames with their delays go out. Messages are compared as keys count
them, one by one and in their order; sound by its bytes, however it is cut now. An id that the client minted anew is put
into what the server says of it; an id that the server minted must come back as it was.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Final, Literal, NamedTuple

from calls.keys.divergence import ABSENT, Difference, differences
from calls.keys.profile import Profiles
from calls.keys.websocket_key import Conversation, KeyedMessage
from calls.model import Body, ChunkKind, Exchange, Json
from calls.websocket_messages import Sound, opening, sound, spoken, value, whole
from replay.answer import Frame
from replay.pacing import Pace
from replay.reframing.id_rewrite import renamed

GRACE: Final = 10_000_000_000
"""How much longer than in the recording a client that left then may stay, in nanoseconds."""

type Kind = Literal["text", "binary", "close"]
type Why = Literal["no_match", "consumed", "incomplete", "client_left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a client leaves the record."""

    why: Why
    number: int
    """Which of the client's messages it was, from 1."""

    differences: tuple[Difference, ...] = ()
    message: Json = None


class Turn(NamedTuple):
    """One recorded message."""

    at: int
    asked: bool
    """Whether the client said it."""

    kind: Kind
    data: bytes


def turns(exchange: Exchange) -> Iterator[Turn]:
    """All messages of a WebSocket in the order of their times."""
    assert exchange.response is not None
    asked, answered = exchange.request.body, exchange.response.body
    return merge(_turns(asked, asked=True), _turns(answered, asked=False), key=lambda turn: turn.at)


def _turns(body: Body, *, asked: bool) -> Iterator[Turn]:
    if spoken(body):
        for chunk in body.chunks:
            if chunk.kind != "data":
                yield Turn(chunk.at, asked, chunk.kind, body.data[chunk.offset : chunk.offset + chunk.size])


class WebsocketDialogue:
    """One WebSocket while it is replayed (`Dialogue` in answer.py)."""

    def __init__(
        self,
        exchange: Exchange,
        profiles: Profiles,
        pace: Pace,
        *,
        broken: Callable[[Break], list[Frame]],
        drifted: Callable[[list[str]], None],
        said: Iterable[Turn] | None = None,
    ) -> None:
        """`broken` tells what to say to a client that leaves the record; `said` is a part of what was said."""
        self._exchange = exchange
        self._pace = pace
        self._broken = broken
        self._drifted = drifted
        asked = opening(exchange.request)
        self._then, self._now = Conversation(asked, profiles), Conversation(asked, profiles)
        self._turns = deque(turns(exchange) if said is None else said)
        self._given: list[bytes] = []
        self._names: dict[str, str] = {}
        self._awaited: Sound | KeyedMessage | None = None
        self._at = exchange.first_byte_at or 0
        self.number = 0
        """How many messages the client has said."""

        self._over = False

    def begin(self) -> list[Frame]:
        """What the server says first."""
        return self._released()

    def hear(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """The client has said this: what follows upon it."""
        if self._over:
            return []
        if kind == "close":
            return self._parted(data)
        self.number += 1
        message = value(data)
        if (piece := sound(message)) is not None:
            return self._listen(piece)
        counted = self._now.take(message)
        return [] if counted is None else self._compare(counted)

    def left(self) -> None:
        """The client is gone without a word."""
        if not self._over:
            self._over = True
            self._unsaid()

    def stayed(self) -> list[Frame]:
        """The client is still there, where the one of the recording had left long since."""
        return [] if self._over or self._awaited is not None else self._unlike("incomplete")

    # What the server says

    def _released(self) -> list[Frame]:
        """All that the server said until the client said something that counts."""
        frames: list[Frame] = []
        while self._turns and not self._over:
            turn = self._turns[0]
            if turn.asked:
                if turn.kind == "close":
                    break
                self._awaited = self._awaited or self._counted(turn)
                if self._awaited is not None:
                    return frames
                self._passed()
            else:
                self._over = turn.kind == "close"
                frames.append(self._frame(turn))
                self._passed()
        return frames if self._over else [*frames, self._end()]

    def _frame(self, turn: Turn) -> Frame:
        self._given.append(turn.data)
        data = renamed(turn.data, self._names) if self._names and turn.kind != "close" else turn.data
        return Frame(after=self._pace.at(turn.at - self._at), kind=turn.kind, data=data)

    def _end(self) -> Frame:
        """How it ended, when all was said: somebody broke off, or the client left."""
        since = max(0, (self._exchange.ended_at or 0) - self._at)
        if not self._turns and self._exchange.outcome in ("server_closed", "timed_out", "refused"):
            self._over = True
            return Frame(after=self._pace.at(since), kind="cut")
        return Frame(after=since + GRACE, kind="wait")

    def _passed(self) -> None:
        self._at = self._turns.popleft().at
        self._awaited = None

    # What the client says

    def _counted(self, turn: Turn) -> Sound | KeyedMessage | None:
        """What counts of a recorded message; None where nothing does."""
        message = value(turn.data)
        piece = sound(message)
        if piece is None:
            return self._then.take(message)
        return piece if piece.data else None

    def _listen(self, piece: Sound) -> list[Frame]:
        """Sound: as many recorded pieces as it fills, and a part of one."""
        rest, frames = piece.data, list[Frame]()
        while rest and not self._over:
            awaited = self._awaited
            if not isinstance(awaited, Sound) or awaited.frame != piece.frame:
                return [*frames, *self._unlike_awaited(whole(piece))]
            size = min(len(rest), len(awaited.data))
            if rest[:size] != awaited.data[:size]:
                return [*frames, *self._unlike_awaited(whole(piece))]
            rest = rest[size:]
            if size < len(awaited.data):
                self._awaited = Sound(awaited.frame, awaited.data[size:])
            else:
                self._passed()
                frames += self._released()
        return frames

    def _compare(self, now: KeyedMessage) -> list[Frame]:
        """Anything else must be what comes next."""
        then = self._awaited
        if not isinstance(then, KeyedMessage) or then.text != now.text:
            return self._unlike_awaited(now.selected, now.message)
        if taken := self._taken_for_another(then, now):
            return self._unlike("no_match", (taken,), now.message)
        if places := _drift(then, now):
            self._drifted([f"/body/{self.number - 1}{place}" for place in places])
        self._passed()
        return self._released()

    def _taken_for_another(self, then: KeyedMessage, now: KeyedMessage) -> Difference | None:
        """An id that stands where another one stood, though the server has spoken of one of them. Others are the client's
        own: it may have minted them anew."""
        for name, was in then.ids.items():
            named = now.ids[name]
            if was != named and any(self._server_named(one) for one in (was, named)) and self._names.get(was) != named:
                return Difference(("id",), was, named)
            if was != named:
                self._names[was] = named
        return None

    def _server_named(self, name: str) -> bool:
        quoted = f'"{name}"'.encode()
        return any(quoted in data for data in self._given)

    def _parted(self, data: bytes) -> list[Frame]:
        """The client says goodbye: now, or before it had said all."""
        if self._turns and self._turns[0].kind == "close":
            self._passed()
            frames = [frame for frame in self._released() if frame.kind not in ("wait", "cut")]
        else:
            self._unsaid()
            frames = []
        self._over = True
        # RFC 6455 5.5.1: a goodbye is answered, typically with its own code.
        return (
            frames if any(frame.kind == "close" for frame in frames) else [*frames, Frame(kind="close", data=data[:2])]
        )

    def _unsaid(self) -> None:
        if self._awaited is not None:
            self._broken(Break(why="client_left", number=self.number + 1))

    # Leaving the record

    def _unlike_awaited(self, selected: Json, message: Json = None) -> list[Frame]:
        awaited = self._awaited
        if awaited is None:
            return self._unlike("consumed", message=message)
        then = whole(awaited) if isinstance(awaited, Sound) else awaited.selected
        found = tuple(differences(then, selected)) or (Difference((), ABSENT, selected),)
        return self._unlike("no_match", found, message)

    def _unlike(self, why: Why, found: tuple[Difference, ...] = (), message: Json = None) -> list[Frame]:
        self._over = True
        return self._broken(Break(why=why, number=self.number, differences=found, message=message))


_MINTED: Final = ("/event_id",)
"""Differs in every sending, so that it is no drift."""


def _drift(then: KeyedMessage, now: KeyedMessage) -> list[str]:
    """Pointers of what differs outside of what counts."""
    places = dict.fromkeys((*then.left_out, *now.left_out))
    apart = {difference.pointer for difference in differences(then.message, now.message)} if places else set()
    return [place for place in places if place in apart and place not in _MINTED]
