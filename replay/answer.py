"""Define the answer that a replay hands to a wire engine: one whole response, in pieces with their send times.

An engine sends the head, then each piece separately at its time. It generates the hop-by-hop headers (framing,
connection) itself and leaves the other headers unchanged. Times are nanoseconds after the engine got the answer; 0 means
immediately.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol

import msgspec

from calls.model import ChunkKind, Headers
from calls.project_runs import split_run_name

type End = Literal["complete", "cut", "hold"]
"""How the engine ends an answer.

`complete`: end the message. `cut`: break the connection. `hold`: send nothing more and wait for the client to leave. If it
is still connected after `patience`, call `answer_waiting_client`; then send what that returns if no head was sent, and
break the connection otherwise.
"""

SHORTEST_RECHECK: Final = 5_000_000
"""Minimum nanoseconds between two checks of a piece that has to wait."""

LONGEST_RECHECK: Final = 100_000_000
"""Maximum nanoseconds between two checks of a piece that has to wait."""

type AnswerSource = Literal["replayed", "edited", "live", "miss", "stand-in"]

type MatchTier = Literal["strict", "semantic"]
"""`strict`: the request equals the recorded one in everything it says. `semantic`: only in the fields of its key."""


# Piece and Answer are created for each replayed call, and creating a frozen dataclass takes five times as long. Treat them
# as immutable.
class Piece(msgspec.Struct):
    """Some bytes of the body, sent separately."""

    at: int
    data: bytes
    ready_data: Callable[[], bytes | None] | None = None
    """Returns the bytes to send instead of `data`, or None while the piece has to wait longer than its time."""

    latest: int | None = None
    """When the piece is sent even if it is not ready; None if it waits as long as the client does."""

    def sendable_data(self, now: int) -> bytes | None:
        """Return the bytes to send now; None if the piece has to wait."""
        if self.ready_data is None or (self.latest is not None and now >= self.latest):
            return self.data
        return self.ready_data()


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A message for the client of a WebSocket, or an action on its connection."""

    kind: Literal["text", "binary", "close", "cut", "wait"]
    """`cut`: break the connection. `wait`: call `answer_waiting_client` if the client is still connected then."""

    data: bytes = b""
    """The data of a `close` frame is empty, or the code in two bytes followed by the reason."""

    after: int = 0
    """Nanoseconds after the previous message of either side."""


class Dialogue(Protocol):
    """The server's side of a replayed WebSocket. Methods return the frames to send next, in order."""

    def begin(self) -> list[Frame]:
        """Return the first frames, once the WebSocket is open."""

    def receive(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        """Handle a message of the client."""

    def answer_waiting_client(self) -> list[Frame]:
        """Handle a client that is still connected when a `wait` frame is over."""

    def note_client_left(self) -> None:
        """Handle a client that disconnected without a close frame."""


class Duplex(Protocol):
    """A request that may be answered before it ends."""

    @property
    def has_diverged(self) -> bool:
        """Whether the request is no longer the recorded one, after its answer began: break off."""

    def receive(self, data: bytes) -> "Answer | None":
        """Take more of the request's body; at first, all that has come. Return the answer when it may begin.

        Its pieces become ready as more of the request comes.
        """

    def end(self) -> None:
        """Handle the end of the request."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """The response to one request: a recorded one, or a refusal by Playhead."""

    status: int
    """0 if no response head was recorded: send nothing and go to `end`."""

    reason: str = ""
    http_version: str = "HTTP/1.1"
    headers: Headers = ()
    pieces: tuple[Piece, ...] = ()
    trailers: Headers = ()
    end: End = "complete"
    at: int = 0
    """Send time of the head."""

    end_at: int = 0
    """Earliest time of the end."""

    patience: int = 0
    """Nanoseconds that a `hold` waits for the client to leave."""

    answer_waiting_client: Callable[[], "Answer"] | None = None
    """Called at the end of a `hold` whose client did not leave."""

    note_client_left: Callable[[int], None] | None = None
    """Called with the number of body bytes sent when the client leaves early, unless the end is a `hold`."""

    recorded_outcome: Literal["completed", "refused"] | None = None
    """The outcome that the engine reports to the recorder if the answer becomes part of a new run."""

    dialogue: Dialogue | None = None
    """The WebSocket that follows a status of 101."""

    @property
    def body(self) -> bytes:
        """The data of all pieces."""
        return b"".join(piece.data for piece in self.pieces)


def recheck_delay(waited: int) -> int:
    """Return the nanoseconds until a waiting piece is checked again: a tenth of the time it has waited, within limits."""
    return min(max(waited // 10, SHORTEST_RECHECK), LONGEST_RECHECK)


def source_header(
    source: AnswerSource, *, run: str, step: int | None = None, match: MatchTier | None = None, reframed: bool = False
) -> tuple[str, str]:
    """Return the `Playhead` header of an answer, which says where the answer comes from (RFC 9651)."""
    step_part = "" if step is None else f"; step={step}"
    match_part = "" if match is None else f"; match={match}"
    return "Playhead", f'{source}; run="{_escape_run(run)}"{step_part}{match_part}{"; reframed" if reframed else ""}'


@lru_cache(256)
def _escape_run(run: str) -> str:
    # The id within the project: clients and the API know no other name.
    return split_run_name(run)[1].encode("ascii", "replace").decode().replace("\\", "\\\\").replace('"', '\\"')
