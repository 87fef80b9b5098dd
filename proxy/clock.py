"""Wall time that passes as time does: a jump of the system's clock counts only once it has lasted.

A clock that is set forward and back again (a wrong NTP answer, an operator's slip) would otherwise stamp what was recorded
in between, and everything after it that has to keep its order, with a time that never was.
"""

import time
from collections.abc import Callable
from typing import Final

SECOND: Final = 1_000_000_000

TOLERANCE: Final = 2 * SECOND
"""Nanoseconds that wall time may differ from elapsed time and is followed at once: drift, and a clock that is slewed."""

LASTING: Final = 60 * SECOND
"""Nanoseconds after which a jump is taken for the right time."""


def elapsed_time() -> int:
    """Nanoseconds since some moment, on a clock that nobody sets. It counts while the machine is suspended, where it can."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if boot_time is None else time.clock_gettime_ns(boot_time)


class SteadyClock:
    """Nanoseconds since the epoch. For one thread."""

    def __init__(self, wall_time: Callable[[], int] = time.time_ns, elapsed: Callable[[], int] = elapsed_time) -> None:
        self._wall_time = wall_time
        self._elapsed = elapsed
        self._offset = wall_time() - elapsed()
        self._jumped_at: int | None = None
        """When, in elapsed time, wall time was first seen to have jumped."""

    def __call__(self) -> int:
        """The time now."""
        wall, elapsed = self._wall_time(), self._elapsed()
        if abs(wall - elapsed - self._offset) > TOLERANCE:
            if self._jumped_at is None:
                self._jumped_at = elapsed
            if elapsed - self._jumped_at < LASTING:
                return self._offset + elapsed
        self._offset, self._jumped_at = wall - elapsed, None
        return wall
