"""Two counters beside a spool: how often a replay's report has changed, and how much of that was written.

A worker notes reports a few times a second, not at each answer. So that whoever asks for one gets it whole, a worker counts each
change here before the client can see the answer. The file is mapped: counting is a store into memory, and needs no disk.
Its end is that of the spool: of a dead worker, what is in the spool is all that will ever be told.
"""

import asyncio
import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final

NAME: Final = "news"

LOOK: Final = 0.02
"""Seconds between two looks whether a worker has told."""

# Native, so that each counter is read and written in one piece.
_COUNTERS: Final = Struct("@QQ")


class News:
    """The worker's side."""

    def __init__(self, spool: Path) -> None:
        handle = os.open(spool / NAME, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(handle, bytes(_COUNTERS.size))
            self._map = mmap.mmap(handle, _COUNTERS.size)
        finally:
            os.close(handle)
        self._counters = memoryview(self._map).cast("Q")

    @property
    def changes(self) -> int:
        """How many there were."""
        return self._counters[0]

    def changed(self) -> None:
        """One more, of which nothing is told yet."""
        self._counters[0] += 1

    def told(self, changes: int) -> None:
        """So many are in the spool, where a killed process would not lose them."""
        self._counters[1] = changes


async def told(spools: Path) -> None:
    """Return once all that has changed by now is told, or will never be."""
    for path, changes in _changes(spools).items():
        while (counted := _read(path)) and counted[1] < changes:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(LOOK)


def _changes(spools: Path) -> dict[Path, int]:
    return {path: counted[0] for path in spools.glob(f"*/{NAME}") if (counted := _read(path))}


def _read(path: Path) -> tuple[int, int] | None:
    """Changes and told; None where the spool is gone, or just begins."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return _COUNTERS.unpack(data) if len(data) == _COUNTERS.size else None
