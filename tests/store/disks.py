"""Disks that fail in configured ways, for tests of the spool."""

import errno
import os
import threading
from pathlib import Path

from store.spool.disk import Disk


class FaultyDisk(Disk):
    """A disk with limited room, whose syncs can fail or hang, and which writes in portions."""

    def __init__(self, room: int = 1 << 40, portion: int = 1 << 30) -> None:
        self.room = room
        self.portion = portion
        self.fails_with: int | None = None
        self.sync_fails_with: int | None = None
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncs: list[int] = []
        self.writes = 0

    def write(self, handle: int, data: bytes | memoryview) -> int:
        if self.fails_with is not None:
            raise OSError(self.fails_with, os.strerror(self.fails_with))
        take = min(self.room, self.portion, len(data))
        if take == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= take
        self.writes += 1
        return super().write(handle, data[:take])

    def sync(self, handle: int) -> None:
        self.may_sync.wait(30)
        self.syncs.append(handle)
        if self.sync_fails_with is not None:
            raise OSError(self.sync_fails_with, os.strerror(self.sync_fails_with))
        super().sync(handle)


CALLS = (
    "free_bytes",
    "create",
    "write",
    "truncate",
    "sync",
    "is_intact",
    "open_directory",
    "sync_directory",
    "used_bytes",
    "close",
)
"""Every system call that a spool makes while it runs, by the method of `Disk` that makes it."""


class InjectingDisk(Disk):
    """A disk on which one kind of system call fails, from its call number `first` on and `times` times."""

    def __init__(self, call: str, error: int, *, first: int, times: int) -> None:
        assert call in CALLS
        self.call = call
        self.error = error
        self.calls = 0
        self.injected = 0
        self._failing = range(first, first + times)

    def _meet(self, call: str) -> None:
        if call != self.call:
            return
        self.calls += 1
        if self.calls in self._failing:
            self.injected += 1
            raise OSError(self.error, os.strerror(self.error))

    def free_bytes(self, directory: Path) -> int:
        self._meet("free_bytes")
        return super().free_bytes(directory)

    def create(self, path: Path) -> int:
        self._meet("create")
        return super().create(path)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        self._meet("write")
        # In portions, so that an error can come after a part of a record.
        return super().write(handle, data[:200])

    def truncate(self, handle: int, size: int) -> None:
        self._meet("truncate")
        super().truncate(handle, size)

    def sync(self, handle: int) -> None:
        self._meet("sync")
        super().sync(handle)

    def is_intact(self, handle: int, size: int) -> bool:
        self._meet("is_intact")
        return super().is_intact(handle, size)

    def open_directory(self, directory: Path) -> int:
        self._meet("open_directory")
        return super().open_directory(directory)

    def sync_directory(self, handle: int) -> None:
        self._meet("sync_directory")
        super().sync_directory(handle)

    def used_bytes(self, directory: Path) -> int:
        self._meet("used_bytes")
        return super().used_bytes(directory)

    def close(self, handle: int) -> None:
        super().close(handle)
        self._meet("close")
