"""Tell the proxy workers of this machine which runs have changed, in memory that they share with the store server.

A worker that loads a recording before anybody asks for it reads the version of its run first. As long as that version is the same,
the run is as it was: it is changed before the transaction that changes the run commits, and once more after it has ended.

Runs share places by their names' checksums, so that a change of one may look like one of another, never the reverse.

Behind the versions are the names of the last replays that were created over REST, so that workers load them at once.
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

NAMES: Final = 64
NAME_BYTES: Final = 262
"""Names of replays, each after its length in two bytes. A project and an id have 128 characters at most."""

_VERSION_BYTES: Final = PLACES * 8
_FIRST_NAME: Final = _VERSION_BYTES + 8
"""Before the names is the number of those that were ever written."""

_SIZE: Final = _FIRST_NAME + NAMES * (2 + NAME_BYTES)


class RunVersions:
    """The versions of all runs of a store."""

    def __init__(self, path: Path, *, is_writer: bool) -> None:
        """Open the file. Only a writer creates it, and only a writer may change versions. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT if is_writer else os.O_RDONLY
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            if is_writer:
                os.ftruncate(descriptor, _SIZE)
            access = mmap.ACCESS_WRITE if is_writer else mmap.ACCESS_READ
            # Of a file that is too short, mmap would say ValueError.
            if os.fstat(descriptor).st_size < _SIZE:
                raise OSError(f"{path} is too short")
            self._memory = mmap.mmap(descriptor, _SIZE, access=access)
        finally:
            os.close(descriptor)
        self._places = memoryview(self._memory)[:_FIRST_NAME].cast("Q")

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open the file of a store server that starts. What an earlier one changed last may not be in it: all are new."""
        versions = cls(path, is_writer=True)
        versions.change_all()
        return versions

    def content(self) -> bytes:
        """Return all versions."""
        return self._memory[:_VERSION_BYTES]

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
        self._memory[:_VERSION_BYTES] = secrets.token_bytes(_VERSION_BYTES)

    def announce_replay(self, full_name: str) -> None:
        """Tell the workers that a replay was created. Only the process that serves the API does so."""
        name, number = full_name.encode()[:NAME_BYTES], self._places[PLACES]
        at = _name_offset(number)
        self._memory[at : at + 2 + len(name)] = len(name).to_bytes(2) + name
        self._places[PLACES] = number + 1  # a reader that sees it sees the name

    def announced_replays(self, since: int | None) -> tuple[int, list[str]]:
        """Return how many replays were created, and the full names of those since then; of many, the last ones. None: since now."""
        count = self._places[PLACES]
        begin = count if since is None else max(since, count - NAMES)
        return count, [self._read_name(number) for number in range(begin, count)]

    def _read_name(self, number: int) -> str:
        at = _name_offset(number)
        size = int.from_bytes(self._memory[at : at + 2])
        # Another name may be written over it at this moment. What is no name means no replay.
        return self._memory[at + 2 : at + 2 + size].decode("ascii", "replace")


def _name_offset(number: int) -> int:
    return _FIRST_NAME + number % NAMES * (2 + NAME_BYTES)


def _place(full_name: str) -> int:
    return crc32(full_name.encode()) % PLACES
