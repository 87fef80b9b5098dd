"""Decide when each piece of a recorded body is sent: immediately, at its recorded time, or at a multiple of it."""

from collections.abc import Iterator

import msgspec

from calls.model import Body, Exchange
from replay.answer import Piece


class Pace(msgspec.Struct, frozen=True):
    """The factor by which recorded times are stretched: 0 is instant, 1 as recorded, 2 twice as slow."""

    factor: float = 0.0

    def send_time(self, recorded: int | None) -> int:
        """The send time of something recorded at this time."""
        return round(recorded * self.factor) if recorded and self.factor else 0

    def pieces(self, body: Body) -> Iterator[Piece]:
        """Split a body at the recorded boundaries."""
        position = 0
        for chunk in body.chunks:
            data = body.data[position : chunk.offset + chunk.size]
            if data:
                yield Piece(self.send_time(chunk.at), data)
                position += len(data)
        if rest := body.data[position:]:
            yield Piece(self.send_time(body.chunks[-1].at if body.chunks else None), rest)

    def end_time(self, exchange: Exchange) -> int:
        """The earliest time at which the replayed exchange ends."""
        return self.send_time(exchange.ended_at)


INSTANT = Pace(0.0)
RECORDED = Pace(1.0)


def parse_pace(text: str) -> Pace:
    """Parse `instant`, `recorded`, or a factor such as `0.5`. Raises ValueError."""
    match text:
        case "instant":
            return INSTANT
        case "recorded":
            return RECORDED
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not 0 <= factor < float("inf"):
        raise ValueError(f"invalid pace {text!r}: use instant, recorded, or a factor such as 0.5 (twice as fast)")
    return Pace(factor)
