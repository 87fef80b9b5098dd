"""Count in two numbers how often replay reports have changed, and how many of the changes a worker has written to its spool.

A worker writes reports a few times a second, not after each answer. To let a reader wait for a complete report, it counts each
change before the client can see the answer. The file is mapped, so counting is a write to memory and needs no disk. It is
removed with the spool, because a dead worker writes no more changes.
"""

import asyncio
import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final

SEQUENCE_FILE: Final = "news"

POLL_INTERVAL: Final = 0.02
"""Seconds between two checks whether a worker has written its changes."""

# Native, so that each counter is read and written in one piece.
_COUNTERS: Final = Struct("@QQ")


class ReportSequence:
    """The counts that a worker writes."""

    def __init__(self, spool: Path) -> None:
        handle = os.open(spool / SEQUENCE_FILE, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(handle, bytes(_COUNTERS.size))
            self._map = mmap.mmap(handle, _COUNTERS.size)
        finally:
            os.close(handle)
        self._counters = memoryview(self._map).cast("Q")

    @property
    def changes(self) -> int:
        """The number of changes."""
        return self._counters[0]

    def count_change(self) -> None:
        """Count a change that is not written yet."""
        self._counters[0] += 1

    def mark_written(self, changes: int) -> None:
        """Note that this many changes are in the spool, where they are not lost if the process is killed."""
        self._counters[1] = changes


async def wait_until_written(spools: Path) -> None:
    """Wait until all changes so far are written, or their worker's spool is removed."""
    for path, changes in _change_counts(spools).items():
        while (counted := _read_counters(path)) and counted[1] < changes:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(POLL_INTERVAL)


def _change_counts(spools: Path) -> dict[Path, int]:
    return {path: counted[0] for path in spools.glob(f"*/{SEQUENCE_FILE}") if (counted := _read_counters(path))}


def _read_counters(path: Path) -> tuple[int, int] | None:
    """The numbers of changes and of written changes; None if the spool is removed or just created."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return _COUNTERS.unpack(data) if len(data) == _COUNTERS.size else None
