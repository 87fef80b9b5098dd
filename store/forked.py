"""Where a run can be left: the last step that was answered whole."""

from collections.abc import Iterable

from calls.model import Exchange


def last_whole(exchanges: Iterable[Exchange]) -> int:
    """The last step of a run, given in step order, whose answer came to its end. What was under way when an agent stopped
    is to be asked again."""
    steps = (step for step, exchange in enumerate(exchanges, 1) if is_whole(exchange))
    return max(steps, default=0)


def is_whole(exchange: Exchange) -> bool:
    """Whether the answer came to its end and is there."""
    ended = exchange.ended_at is not None and exchange.response is not None
    return ended and exchange.outcome == "completed" and not exchange.truncated
