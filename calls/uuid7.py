"""Identifiers that sort by their creation time (RFC 9562 5.7), also within one millisecond."""

from collections.abc import Callable

_MILLISECOND = 1_000_000
_COUNTER = 12 + 30
"""Bits of the counter, without the version and variant (RFC 9562 6.2, method 1: fixed-length dedicated counter)."""
_RANDOM = 32
_BITS_PER_DRAW = 4096
"""Random bits that one draw provides: each draw is a system call."""


class Uuid7:
    """Generates identifiers, each greater than the one before, even when the clock is set back."""

    def __init__(self, now: Callable[[], int], randbits: Callable[[int], int]) -> None:
        self._now = now
        self._randbits = randbits
        self._millisecond = -1
        self._count = 0
        self._pool = self._bits_left = 0

    def __call__(self) -> str:
        """Return the next identifier as text."""
        millisecond = self._now() // _MILLISECOND
        if millisecond > self._millisecond:
            self._millisecond = millisecond
            # The top bit stays free, so that the counter does not overflow within a millisecond.
            self._count = self._take_random(_COUNTER - 1)
        else:
            self._count += 1
            if self._count >> _COUNTER:
                self._millisecond, self._count = self._millisecond + 1, 0
        random = self._take_random(_RANDOM)
        high, low = self._count >> 30, self._count & ((1 << 30) - 1)
        early, late = self._millisecond >> 16, self._millisecond & 0xFFFF
        end = (low & 0xFFFF) << _RANDOM | random
        return f"{early:08x}-{late:04x}-{7 << 12 | high:04x}-{2 << 14 | low >> 16:04x}-{end:012x}"

    def _take_random(self, bits: int) -> int:
        """Return random bits, each only once."""
        if self._bits_left < bits:
            self._pool, self._bits_left = self._randbits(_BITS_PER_DRAW), _BITS_PER_DRAW
        found = self._pool & (1 << bits) - 1
        self._pool >>= bits
        self._bits_left -= bits
        return found
