"""Identifiers that sort by their creation time (RFC 9562 5.7), also within one millisecond."""

from collections.abc import Callable
from typing import Final

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

_TIME_STEP: Final = 1 << 16
"""Milliseconds in which an identifier begins with the same eight digits: its time has 48 bits."""

_BYTES: Final = tuple([f"{byte:02x}" for byte in range(256)])


class Uuid7:
    """Generates identifiers, each greater than the one before, even when the clock is set back.

    Nearly every identifier is the first of its millisecond. Its parts are texts that were made before: to format a number of 128
    bits after a pause takes 20 µs, since none of the code that it needs is in the processor's caches.
    """

    def __init__(self, now: Callable[[], int], randbits: Callable[[int], int]) -> None:
        self._now = now
        self._randbits = randbits
        self._millisecond = -1
        self._count = 0
        self._drawn: list[tuple[int, int, str]] = []
        """What the next identifiers of new milliseconds have: counter, random number, and both as text."""

        self._step_start = -_TIME_STEP
        self._step_digits = ""
        """The first eight digits of the time, for `_TIME_STEP` milliseconds from `_step_start` on, and a hyphen."""

    def __call__(self, at: int | None = None) -> str:
        """Return the next identifier as text. `at` is the time, if the caller has read the clock."""
        millisecond = (self._now() if at is None else at) // _MILLISECOND
        if not self._drawn:
            self._draw()
        count, random, tail = self._drawn.pop()
        if millisecond > self._millisecond:
            self._millisecond, self._count = millisecond, count
        else:
            self._count += 1
            if self._count >> _COUNTER:
                self._millisecond, self._count = self._millisecond + 1, 0
            millisecond, tail = self._millisecond, _tail(self._count, random)
        offset = millisecond - self._step_start
        if not 0 <= offset < _TIME_STEP:
            offset = millisecond % _TIME_STEP
            self._step_start = millisecond - offset
            self._step_digits = f"{millisecond // _TIME_STEP:08x}-"
        return self._step_digits + _BYTES[offset >> 8] + _BYTES[offset & 255] + tail

    def _draw(self) -> None:
        """Draw random bits for the next identifiers, each of which is used only once."""
        data = self._randbits(8 * _DRAWN * _PER_DRAW).to_bytes(_DRAWN * _PER_DRAW)
        for start in range(0, len(data), _DRAWN):
            number = int.from_bytes(data[start : start + _DRAWN])
            # The top bit stays free, so that the counter does not overflow within a millisecond.
            count, random = number >> _RANDOM & _HALF_COUNTER, number & _LOW
            self._drawn.append((count, random, _tail(count, random)))


def _tail(count: int, random: int) -> str:
    """Return what follows the time: version, counter, variant and random number."""
    low = count & ((1 << 30) - 1)
    return f"-7{count >> 30:03x}-{2 << 14 | low >> 16:04x}-{(low & 0xFFFF) << _RANDOM | random:012x}"
