"""Identifiers that sort by their creation time (RFC 9562 5.7), also within one millisecond."""

from collections.abc import Callable

_MILLISECOND = 1_000_000
_COUNTER = 12 + 30
"""Bits of the counter, without the version and variant (RFC 9562 6.2, method 1: fixed-length dedicated counter)."""
_RANDOM = 32
_LOW = (1 << _RANDOM) - 1
_HALF_COUNTER = (1 << _COUNTER - 1) - 1
_DRAWN = (_COUNTER - 1 + _RANDOM + 7) // 8
"""Random bytes for one identifier."""

_PER_DRAW = 32
"""Identifiers for which one draw provides: each draw is a system call."""


class Uuid7:
    """Generates identifiers, each greater than the one before, even when the clock is set back."""

    def __init__(self, now: Callable[[], int], randbits: Callable[[int], int]) -> None:
        self._now = now
        self._randbits = randbits
        self._millisecond = -1
        self._count = 0
        self._pool, self._used = b"", 0
        """Random bytes, and how many of them were used: each only once."""

    def __call__(self, at: int | None = None) -> str:
        """Return the next identifier as text. `at` is the time, if the caller has read the clock."""
        millisecond = (self._now() if at is None else at) // _MILLISECOND
        start = self._used
        if start == len(self._pool):
            start, self._pool = 0, self._randbits(8 * _DRAWN * _PER_DRAW).to_bytes(_DRAWN * _PER_DRAW)
        self._used = start + _DRAWN
        random = int.from_bytes(self._pool[start : self._used])
        if millisecond > self._millisecond:
            self._millisecond = millisecond
            # The top bit stays free, so that the counter does not overflow within a millisecond.
            self._count = random >> _RANDOM & _HALF_COUNTER
        else:
            self._count += 1
            if self._count >> _COUNTER:
                self._millisecond, self._count = self._millisecond + 1, 0
        high, low = self._count >> 30, self._count & ((1 << 30) - 1)
        head = self._millisecond << 16 | 7 << 12 | high
        tail = (2 << 30 | low) << _RANDOM | random & _LOW
        text = f"{head << 64 | tail:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
