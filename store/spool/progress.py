"""Count the records that a writer has written, in a mapped file, so that the reader notices missing ones.

A segment that was deleted or cut leaves no trace in the segments after it. The writer therefore counts records: each
segment's first line has the number of its first record, and this file the number of the last one. The file is mapped, so
counting is a write to memory and needs no disk. It is not synced: after a power failure the count may be higher or lower
than the number of records on disk, and only a higher count is reported.
"""

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final

NAME: Final = "progress"

# Native, so that the counter is read and written in one piece.
_COUNTER: Final = Struct("@Q")


class Progress:
    """The writer's count. It continues from the last count of an earlier writer of the same directory."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        self._map = _map_counter(directory)
        self._records = int(_COUNTER.unpack_from(self._map)[0])

    def move(self, directory: Path) -> None:
        """Go on counting in a directory that was created anew. Raises OSError."""
        former, self._map = self._map, _map_counter(directory)
        former.close()
        self.add(0)

    @property
    def records(self) -> int:
        """The number of the last record that is in a segment."""
        return self._records

    def add(self, records: int) -> None:
        """Count records after they were written, so that every counted record is in its file."""
        self._records += records
        _COUNTER.pack_into(self._map, 0, self._records)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def _map_counter(directory: Path) -> mmap.mmap:
    handle = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(handle).st_size != _COUNTER.size:
            # Written, not only extended: on a full disk, a write to a mapped hole raises SIGBUS.
            os.ftruncate(handle, 0)
            os.write(handle, bytes(_COUNTER.size))
        return mmap.mmap(handle, _COUNTER.size)
    finally:
        os.close(handle)


def records_written(directory: Path) -> int:
    """The number of the last record that the writer has written; 0 without a count. Raises OSError."""
    try:
        data = (directory / NAME).read_bytes()
    except FileNotFoundError:
        return 0
    return int(_COUNTER.unpack(data)[0]) if len(data) == _COUNTER.size else 0
