"""Bound the memory that all connections of a worker use together for one kind of data."""

from typing import Final

MESSAGES_LIMIT: Final = 64 << 20
"""Maximum bytes of incomplete WebSocket messages on all connections."""


class MemoryBudget:
    """A number of bytes that `MemoryShare` objects divide among themselves."""

    def __init__(self, limit: int = MESSAGES_LIMIT) -> None:
        self.free_bytes = limit


class MemoryShare:
    """One connection's share of a budget. It is returned when this object is deleted, however the connection ends."""

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._size = 0

    def resize(self, size: int) -> bool:
        """Set the size of the share. Return False, and change nothing, if the budget does not allow it."""
        more = size - self._size
        if more > self._budget.free_bytes:
            return False
        self._budget.free_bytes -= more
        self._size = size
        return True

    def __del__(self) -> None:
        self._budget.free_bytes += self._size
