"""The exception that ends a command, with a sentence for its user."""

from typing import Final

OWN_FAILURE: Final = 125
"""The exit code of our own failures; those of a wrapped command are its own."""


class Failure(Exception):
    """What happened, why, and what to do, in one sentence. The command line prints it and exits with 125."""


def first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception of a group, out of however many task groups it has come."""
    inner = group.exceptions[0]
    return first(inner) if isinstance(inner, BaseExceptionGroup) else inner
