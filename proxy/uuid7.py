"""Identifiers that sort by the time at which they were made (RFC 9562 5.7), also within one millisecond."""

from collections.abc import Callable

_MILLISECOND = 1_000_000
_COUNTER = 12 + 30
"""Bits behind the version and the variant that count (RFC 9562 6.2, method 1: fixed-length dedicated counter)."""
_RANDOM = 32
_MASK = (1 << _RANDOM) - 1
_DRAWN = 64
"""Random parts that are drawn at once: each draw is a call into the system."""


class Uuid7:
    """Makes one after another, each greater than the one before, whatever the clock does."""

    def __init__(self, now: Callable[[], int], randbits: Callable[[int], int]) -> None:
        self._now = now
        self._randbits = randbits
        self._millisecond = -1
        self._count = 0
        self._drawn = self._left = 0

    def __call__(self) -> str:
        """The next one, as text."""
        millisecond = self._now() // _MILLISECOND
        if millisecond > self._millisecond:
            self._millisecond = millisecond
            # The top bit is left free, so that a millisecond's counter does not run over.
            self._count = self._randbits(_COUNTER - 1)
        else:
            self._count += 1
            if self._count >> _COUNTER:
                self._millisecond, self._count = self._millisecond + 1, 0
        if not self._left:
            self._drawn, self._left = self._randbits(_RANDOM * _DRAWN), _DRAWN
        random, self._drawn, self._left = self._drawn & _MASK, self._drawn >> _RANDOM, self._left - 1
        high, low = self._count >> 30, self._count & ((1 << 30) - 1)
        early, late = self._millisecond >> 16, self._millisecond & 0xFFFF
        end = (low & 0xFFFF) << _RANDOM | random
        return f"{early:08x}-{late:04x}-{7 << 12 | high:04x}-{2 << 14 | low >> 16:04x}-{end:012x}"
