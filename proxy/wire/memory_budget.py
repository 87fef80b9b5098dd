"""Bound the memory that all connections of a worker take together for something that each of them may hold."""

from typing import Final

MESSAGES_LIMIT: Final = 64 << 20
"""Bytes of WebSocket messages that have begun and are not whole, on all connections."""


class MemoryBudget:
    """So many bytes for all."""

    def __init__(self, limit: int = MESSAGES_LIMIT) -> None:
        self.left = limit


class MemoryShare:
    """What one of them holds of it. It is given back with this object, however a connection ends."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._size = 0

    def resize(self, size: int) -> bool:
        """Hold this much from now on; False where there is no room for more."""
        more = size - self._size
        if more > self._budget.left:
            return False
        self._budget.left -= more
        self._size = size
        return True

    def __del__(self) -> None:
        self._budget.left += self._size
