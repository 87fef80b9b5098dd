"""Make the system calls of a spool, in one place so that tests can make them fail."""

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

from store.spool.segment import segment_numbers, segment_path

log = logging.getLogger(__name__)


class Disk:
    """The operating system's disk. Every method raises OSError."""

    def free_bytes(self, directory: Path) -> int:
        """The bytes that an unprivileged process may still write."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def create(self, path: Path) -> int:
        """Create a file that only its owner may read, and open it for appending."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    # Not wrapped in a function: a worker calls this twice for every call that it records.
    write: Callable[[int, bytes | memoryview], int] = staticmethod(os.write)
    """Writes some or all of the data to a handle, and returns how many bytes were written."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to this size."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Sync the content of a file."""
        os.fdatasync(handle) if hasattr(os, "fdatasync") else os.fsync(handle)

    def is_intact(self, handle: int, size: int) -> bool:
        """Whether the file still has a name and at least this size."""
        found = os.fstat(handle)
        return found.st_nlink > 0 and found.st_size >= size

    def open_directory(self, directory: Path) -> int:
        """Open the directory for syncing. Kept open, so that a process without free file handles can still sync."""
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_directory(self, handle: int) -> None:
        """Sync the entries of a directory."""
        os.fsync(handle)

    def used_bytes(self, directory: Path) -> int:
        """The total size of the segments of a spool."""
        return segments_size(directory)

    def close(self, handle: int) -> None:
        """Close a handle."""
        os.close(handle)


def sync_directory(directory: Path) -> None:
    """Sync the entries of a directory."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def close_file(handle: int) -> None:
    """Close a file that is not written any more. An error of close(2) is only logged, because the handle is closed anyway."""
    try:
        os.close(handle)
    except OSError as error:
        log.warning("closing a file of a spool failed: %s", error.strerror)


def keep_damaged(directory: Path, name: str, content: bytes | memoryview) -> str:
    """Keep a copy of unreadable bytes in `damaged/` of a spool; return the text to append to the reason of their gap.

    On a full disk no copy is made: only skipped bytes are deleted later, so waiting for room would never end.
    Raises OSError for any other reason.
    """
    damaged = directory / "damaged"
    damaged.mkdir(mode=0o700, exist_ok=True)
    try:
        (damaged / name).write_bytes(content)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        (damaged / name).unlink(missing_ok=True)
        return f"; no copy of it could be kept: {error.strerror}"
    return ""


def lock_spool(directory: Path, *, shared: bool = False) -> int | None:
    """Lock a spool and return the handle that holds the lock, or None if another process holds it.

    A process that removes a spool holds its lock, so a lock counts only while its file is still in the directory.
    """
    path = directory / "lock"
    while True:
        flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
        handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
        is_held = False
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            is_held = _is_same_file(handle, path)
        except BlockingIOError:
            return None
        finally:
            if not is_held:
                close_file(handle)
        if is_held:
            return handle


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def segments_size(directory: Path) -> int:
    """The total size of the segments of a spool. Raises OSError."""
    total = 0
    for number in segment_numbers(directory):
        try:
            total += segment_path(directory, number).stat().st_size
        except FileNotFoundError:
            pass  # the reader has just deleted it
    return total
