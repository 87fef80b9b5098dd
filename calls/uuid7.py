"""Identifiers that sort by their creation time (RFC 9562 5.7), also within one millisecond."""

from collections.abc import Callable

_MILLISECOND = 1_000_000
_COUNTER = 12 + 30
"""Bits of the counter, without the version and variant (RFC 9562 6.2, method 1: fixed-length dedicated counter)."""
_RANDOM = 32
_MASK = (1 << _RANDOM) - 1
_RANDOM_PARTS_PER_DRAW = 64
"""Random parts that one draw provides: each draw is a system call."""


class Uuid7:
    """Generates identifiers, each greater than the one before, even when the clock is set back."""

    def __init__(self, now: Callable[[], int], randbits: Callable[[int], int]) -> None:
        self._now = now
        self._randbits = randbits
        self._millisecond = -1
        self._count = 0
        self._random_pool = self._parts_left = 0

    def __call__(self) -> str:
        """Return the next identifier as text."""
        millisecond = self._now() // _MILLISECOND
        if millisecond > self._millisecond:
            self._millisecond = millisecond
            # The top bit stays free, so that the counter does not overflow within a millisecond.
            self._count = self._randbits(_COUNTER - 1)
        else:
            self._count += 1
            if self._count >> _COUNTER:
                self._millisecond, self._count = self._millisecond + 1, 0
        if not self._parts_left:
            self._random_pool, self._parts_left = (
                self._randbits(_RANDOM * _RANDOM_PARTS_PER_DRAW),
                _RANDOM_PARTS_PER_DRAW,
            )
        random, self._random_pool, self._parts_left = (
            self._random_pool & _MASK,
            self._random_pool >> _RANDOM,
            self._parts_left - 1,
        )
        high, low = self._count >> 30, self._count & ((1 << 30) - 1)
        early, late = self._millisecond >> 16, self._millisecond & 0xFFFF
        end = (low & 0xFFFF) << _RANDOM | random
        return f"{early:08x}-{late:04x}-{7 << 12 | high:04x}-{2 << 14 | low >> 16:04x}-{end:012x}"
