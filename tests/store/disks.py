"""Disks that fail as disks do, on command."""

import errno
import os
import threading

from store.spool.disk import Disk


class FaultyDisk(Disk):
    """A disk with so much room, whose syncs can fail or hang, and which takes what it is given in portions."""

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
