"""Lock files with flock, so that the kernel releases a lock when its process dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

TRIES = 6
"""How often a lock is tried, because `is_held` of another process holds a lock for an instant: longer if the machine is busy."""

_RETRY_AFTER = 0.1
"""Seconds between two tries."""


class LockTaken(Exception):
    """Another process holds the lock."""


class Lock(msgspec.Struct, frozen=True):
    """A lock file."""

    path: Path

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock within a context. Raises LockTaken."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _flock_soon(handle)
            yield
        finally:
            os.close(handle)

    def identity(self) -> tuple[int, int] | None:
        """Return what distinguishes the lock file from one that was created later in its place; None if there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def acquire_shared(self) -> int | None:
        """Acquire a shared lock, until the returned handle is closed; None if another process has an exclusive lock."""
        return self._acquire(fcntl.LOCK_SH)

    def acquire_exclusive(self) -> int | None:
        """Acquire an exclusive lock, until the returned handle is closed; None if another process has a lock."""
        return self._acquire(fcntl.LOCK_EX)

    def _acquire(self, mode: int) -> int | None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _try_flock(handle, mode):
            return handle
        os.close(handle)
        return None

    def try_exclusive(self) -> int | None:
        """Acquire an exclusive lock like `acquire_exclusive`, but create no file. Raises FileNotFoundError."""
        handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        if _try_flock(handle, fcntl.LOCK_EX):
            return handle
        os.close(handle)
        return None

    def is_held(self) -> bool:
        """Whether a process holds the lock now."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_flock(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)


def _flock_soon(handle: int) -> None:
    for number in range(TRIES):
        if number:
            time.sleep(_RETRY_AFTER)
        if _try_flock(handle, fcntl.LOCK_EX):
            return
    raise LockTaken


def _try_flock(handle: int, mode: int) -> bool:
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
