"""The exception that ends a command with a message for its user."""

from typing import Final

FAILURE_EXIT_CODE: Final = 125
"""The exit code of Playhead's own failures. A wrapped command keeps its exit codes."""


class Failure(Exception):
    """A message that says what happened, why, and what to do. The command line prints it and exits with 125."""


def first_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group, which may be nested."""
    inner = group.exceptions[0]
    return first_exception(inner) if isinstance(inner, BaseExceptionGroup) else inner
