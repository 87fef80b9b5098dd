"""File locks that the kernel releases when their process dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_GLANCE = 0.1
"""Seconds for which somebody's `held` may keep us from taking it."""


class LockTaken(Exception):
    """Another process holds the lock."""


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock file (flock)."""

    path: Path

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold it. Raises Taken."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locks(handle, fcntl.LOCK_EX):
                time.sleep(_GLANCE)
                if not _locks(handle, fcntl.LOCK_EX):
                    raise LockTaken
            yield
        finally:
            os.close(handle)

    def shared(self) -> int | None:
        """Hold it together with others, until the handle is closed; None where one process holds it for itself."""
        return self._try(fcntl.LOCK_SH)

    def alone(self) -> int | None:
        """Hold it for ourselves, until the handle is closed; None where another process holds it."""
        return self._try(fcntl.LOCK_EX)

    def _try(self, how: int) -> int | None:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _locks(handle, how):
            return handle
        os.close(handle)
        return None

    def held(self) -> bool:
        """Whether a process holds it now."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _locks(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)


def _locks(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
