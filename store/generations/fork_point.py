"""Find the step at which a run can be resumed: the last one with a complete answer."""

from collections.abc import Callable, Iterable

from calls.model import Call, Exchange


def last_complete_step(exchanges: Iterable[Exchange], derive: Callable[[Exchange], Call]) -> int:
    """Return the last step with a complete answer; 0 where there is none. The exchanges are given in step order.

    Requests that were under way when the agent stopped are sent again.
    """
    whole = (step for step, exchange in enumerate(exchanges, 1) if derive(exchange).complete)
    return max(whole, default=0)
