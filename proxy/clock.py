"""Wall time that ignores jumps of the system clock until they have lasted a minute.

A clock that is set forward and back again (by a wrong NTP answer, or by mistake) would otherwise give wrong times to
what was recorded in between, and to everything after it that has to keep its order.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

SECOND: Final = 1_000_000_000

TOLERANCE: Final = 2 * SECOND
"""Nanoseconds by which wall time may differ from elapsed time and still be followed at once (drift, slewing)."""

LASTING: Final = 60 * SECOND
"""Nanoseconds after which a jump is accepted as the right time."""


elapsed_time: Final[Callable[[], int]] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)
"""Returns nanoseconds on a clock that is never set, and that also counts while the machine is suspended if possible."""


class SteadyClock:
    """Returns the time in nanoseconds since the Unix epoch. Not thread-safe."""

    def __init__(self, wall_time: Callable[[], int] = time.time_ns, elapsed: Callable[[], int] = elapsed_time) -> None:
        self._wall_time = wall_time
        self._elapsed = elapsed
        self._offset = wall_time() - elapsed()
        self._jumped_at: int | None = None
        """The elapsed time at which wall time was first seen to have jumped."""

    def __call__(self) -> int:
        """Return the current time."""
        wall, elapsed = self._wall_time(), self._elapsed()
        if not -TOLERANCE <= wall - elapsed - self._offset <= TOLERANCE:
            if self._jumped_at is None:
                self._jumped_at = elapsed
            if elapsed - self._jumped_at < LASTING:
                return self._offset + elapsed
        self._offset, self._jumped_at = wall - elapsed, None
        return wall
