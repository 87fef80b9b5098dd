"""Decide when each piece of a recorded body is sent: at once, at its recorded time, or at a multiple of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from calls.model import Body, Exchange
from replay.answer import Piece


@dataclass(frozen=True, slots=True)
class Pace:
    """How recorded time passes: 0 is instant, 1 as recorded, 2 twice as slow."""

    factor: float = 0.0

    def at(self, recorded: int | None) -> int:
        """When to send what was recorded at that time."""
        return round(recorded * self.factor) if recorded and self.factor else 0

    def pieces(self, body: Body) -> Iterator[Piece]:
        """The body, cut at the recorded boundaries."""
        sent = 0
        for chunk in body.chunks:
            data = body.data[sent : chunk.offset + chunk.size]
            if data:
                yield Piece(self.at(chunk.at), data)
                sent += len(data)
        if rest := body.data[sent:]:
            yield Piece(self.at(body.chunks[-1].at if body.chunks else None), rest)

    def end(self, exchange: Exchange) -> int:
        """When the exchange was over."""
        return self.at(exchange.ended_at)


INSTANT = Pace(0.0)
RECORDED = Pace(1.0)


def parse(text: str) -> Pace:
    """The pace that a person named: `instant`, `recorded`, or a factor such as `0.5`. Raises ValueError."""
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
        raise ValueError(f"{text!r} is no pace: use instant, recorded, or a factor such as 0.5 (twice as fast)")
    return Pace(factor)
