"""Find where a run can be left: after the last complete answer."""

from collections.abc import Callable, Iterable

from calls.model import Call, Exchange


def last_whole(exchanges: Iterable[Exchange], derive: Callable[[Exchange], Call]) -> int:
    """The last step of a run, given in step order, whose answer came to its end, by its own mark or by HTTP's.

    What was under way when an agent stopped is to be asked again.
    """
    whole = (step for step, exchange in enumerate(exchanges, 1) if derive(exchange).complete)
    return max(whole, default=0)
