"""Random draws that are the same for the same seed: SplitMix64, because `random` may change between versions of Python."""

from collections.abc import Sequence
from typing import Final

_MASK: Final = (1 << 64) - 1


class Draws:
    """A sequence of draws."""

    def __init__(self, *seed: int) -> None:
        self._state = 0
        for part in seed:
            self._state = (self._state ^ (part & _MASK)) & _MASK
            self._next()

    def _next(self) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def below(self, count: int) -> int:
        """Draw a number from 0 to `count` - 1."""
        return self._next() % count

    def choose[T](self, items: Sequence[T]) -> T:
        """Draw one of the items."""
        return items[self.below(len(items))]
