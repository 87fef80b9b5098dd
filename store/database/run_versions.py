"""Tell the proxy workers of this machine which runs have changed, in memory that they share with the store server.

A worker that loads a recording before anybody asks for it reads the version of its run first. As long as that version is the same,
the run is as it was: it is changed before the transaction that changes the run commits, and once more after it has ended.

Runs share places by their names' checksums, so that a change of one may look like one of another, never the reverse.
"""

import mmap
import os
import secrets
from binascii import crc32
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

PLACES: Final = 4096
"""Versions of eight bytes each."""


class RunVersions:
    """The versions of all runs of a store."""

    def __init__(self, path: Path, *, is_writer: bool) -> None:
        """Open the file. Only a writer creates it, and only a writer may change versions. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT if is_writer else os.O_RDONLY
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if is_writer:
                os.ftruncate(descriptor, PLACES * 8)
            access = mmap.ACCESS_WRITE if is_writer else mmap.ACCESS_READ
            # Of a file that is too short, mmap would say ValueError.
            if os.fstat(descriptor).st_size < PLACES * 8:
                raise OSError(f"{path} is too short")
            self._memory = mmap.mmap(descriptor, PLACES * 8, access=access)
        finally:
            os.close(descriptor)
        self._places = memoryview(self._memory).cast("Q")

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open the file of a store server that starts. What an earlier one changed last may not be in it: all are new."""
        versions = cls(path, is_writer=True)
        versions.change_all()
        return versions

    def content(self) -> bytes:
        """Return all versions."""
        return self._memory[:]

    @staticmethod
    def version_in(content: bytes, full_names: Iterable[str]) -> tuple[int, ...]:
        """Return the versions that these runs had when all were read."""
        places = memoryview(content).cast("Q")
        return tuple(places[_place(name)] for name in full_names)

    def version(self, full_names: Iterable[str]) -> tuple[int, ...]:
        """Return the versions of these runs."""
        return tuple(self._places[_place(name)] for name in full_names)

    def change(self, full_names: Iterable[str]) -> None:
        """Give these runs new versions. They are random, so two processes may do so at once."""
        for name in full_names:
            self._places[_place(name)] = secrets.randbits(64)

    def change_all(self) -> None:
        """Give all runs new versions."""
        self._memory[:] = secrets.token_bytes(PLACES * 8)


def _place(full_name: str) -> int:
    return crc32(full_name.encode()) % PLACES
