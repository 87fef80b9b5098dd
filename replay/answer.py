"""What a replay tells the wire engine to send: one whole answer, in pieces with their times.

An engine sends the status, the headers as they stand and each piece by itself at its time; it makes the hop-by-hop
part (framing, connection) itself. `end` says what happens after the last piece.
"""

from dataclasses import dataclass
from typing import Literal

from calls.model import Headers

type End = Literal["complete", "cut", "hold"]
"""`complete`: the message ends. `cut`: break the connection there. `hold`: send nothing more and wait for the client to
leave."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the body, to be sent by themselves."""

    at: int
    """Nanoseconds after the answer was given; 0 is at once."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response to one request, from a recording or a refusal of ours."""

    status: int
    reason: str = ""
    http_version: str = "HTTP/1.1"
    headers: Headers = ()
    pieces: tuple[Piece, ...] = ()
    trailers: Headers = ()
    end: End = "complete"

    @property
    def body(self) -> bytes:
        """All pieces together."""
        return b"".join(piece.data for piece in self.pieces)
