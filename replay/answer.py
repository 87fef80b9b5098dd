"""The answer that a replay gives to the wire engine: one whole response, in pieces with their times.

An engine sends the head, then each piece by itself at its time; it makes the hop-by-hop part (framing, connection)
itself and leaves the other headers as they stand. Times are nanoseconds after the answer was given; 0 is at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol

from calls.model import ChunkKind, Headers

type End = Literal["complete", "cut", "hold"]
"""`complete`: the message ends. `cut`: break the connection there. `hold`: send nothing more and wait for the client to
leave; where it is still there after `patience`, call `stayed`, send what that returns if no head has gone out, and
else break the connection."""

AGAIN: Final = 5_000_000
"""Nanoseconds until a piece that had to wait is looked at again, at the least…"""

AGAIN_AT_MOST: Final = 100_000_000
"""…and at the most: who has waited for long is not held up by a little more."""

type Standing = Literal["replayed", "edited", "live", "miss"]

type Tier = Literal["strict", "semantic"]
"""How a request is the recorded one: in all that it says, or only in what its profile calls load-bearing."""


# Neither this nor an answer is frozen: they are made for each replayed call, and to make a frozen one takes five times as
# long. Nobody changes them.
@dataclass(slots=True)
class Piece:
    """Some bytes of the body, to be sent by themselves."""

    at: int
    data: bytes
    ready: Callable[[], bytes | None] | None = None
    """What it waits for beside its time: None as long as it has to wait, then the bytes to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A message for the client of a WebSocket, or what becomes of its connection."""

    kind: Literal["text", "binary", "close", "cut", "wait"]
    """`cut`: break the connection. `wait`: where the client is still there after that time, call `stayed`."""

    data: bytes = b""
    """A goodbye is its code in two bytes and its reason, or empty."""

    after: int = 0
    """Nanoseconds after what was said before it, by either side."""


class Dialogue(Protocol):
    """What is said to the client of a WebSocket. Each method gives what to say next, in its order."""

    def begin(self) -> list[Frame]:
        """It is open."""

    def hear(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """The client has said this."""

    def stayed(self) -> list[Frame]:
        """It has not left."""

    def left(self) -> None:
        """It is gone without a goodbye."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """A response to one request, from a recording or a refusal of ours."""

    status: int
    """0 when no response head was recorded: send nothing, go to `end` at once."""

    reason: str = ""
    http_version: str = "HTTP/1.1"
    headers: Headers = ()
    pieces: tuple[Piece, ...] = ()
    trailers: Headers = ()
    end: End = "complete"
    at: int = 0
    """When the head goes out."""

    end_at: int = 0
    """The earliest time of the end."""

    patience: int = 0
    """How long a `hold` waits for the client to leave."""

    stayed: Callable[[], "Answer"] | None = None
    """What a `hold` calls when the client did not leave."""

    left: Callable[[int], None] | None = None
    """What the engine calls when the client has left before all went out, unless the end is a `hold`: with the bytes of
    the body that did."""

    recorded: Literal["completed", "refused"] | None = None
    """As what the engine tells the recorder of it, where it becomes part of a run of its own."""

    dialogue: Dialogue | None = None
    """What follows a 101."""

    @property
    def body(self) -> bytes:
        """All pieces together."""
        return b"".join(piece.data for piece in self.pieces)


def again(waited: int) -> int:
    """Nanoseconds until a piece is looked at again that has waited for so many: a tenth of it, within limits."""
    return min(max(waited // 10, AGAIN), AGAIN_AT_MOST)


def mark(
    standing: Standing, *, run: str, step: int | None = None, match: Tier | None = None, reframed: bool = False
) -> tuple[str, str]:
    """The header by which every answer says what it is (RFC 9651)."""
    place = "" if step is None else f"; step={step}"
    tier = "" if match is None else f"; match={match}"
    return "Playhead", f'{standing}; run="{_quoted(run)}"{place}{tier}{"; reframed" if reframed else ""}'


@lru_cache(256)
def _quoted(run: str) -> str:
    return run.encode("ascii", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
