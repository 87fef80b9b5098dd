"""The system calls of a spool in one place, so that tests can make them fail."""

import errno
import fcntl
import logging
import os
from pathlib import Path

from store.spool.segment import numbers, path_of

log = logging.getLogger(__name__)


class Disk:
    """The real one. Everything raises OSError."""

    def space(self, directory: Path) -> int:
        """How many bytes more it would take."""
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def create(self, path: Path) -> int:
        """A new file, for us alone."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        """Some or all of the data."""
        return os.write(handle, data)

    def truncate(self, handle: int, size: int) -> None:
        """Cut off what is behind."""
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        """Have the file's bytes on the disk."""
        os.fdatasync(handle) if hasattr(os, "fdatasync") else os.fsync(handle)

    def is_intact(self, handle: int, size: int) -> bool:
        """Whether nobody has deleted the file, or cut it to less than this size, since it was written."""
        found = os.fstat(handle)
        return found.st_nlink > 0 and found.st_size >= size

    def open_directory(self, directory: Path) -> int:
        """A handle to sync the directory's names by. Kept open, so that a process without free files can still sync."""
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def sync_names(self, handle: int) -> None:
        """Have the names in a directory on the disk."""
        os.fsync(handle)

    def used(self, directory: Path) -> int:
        """Bytes that all segments of a spool take."""
        return size(directory)

    def close(self, handle: int) -> None:
        """Give the handle back."""
        os.close(handle)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def close_file(handle: int) -> None:
    """Close a file of which nothing is to be written any more. An error of close(2) is logged: the handle is gone all the same."""
    try:
        os.close(handle)
    except OSError as error:
        log.warning("a file of a spool was closed with an error: %s", error.strerror)


def keep_damaged(directory: Path, name: str, content: bytes | memoryview) -> str:
    """Keep a copy of what cannot be read in `damaged/` of a spool; return what is to be added to the reason of its gap.

    On a full disk there is no copy: only what is passed over is deleted later, so waiting for room would last for ever.
    Raises OSError for any other reason.
    """
    aside = directory / "damaged"
    aside.mkdir(mode=0o700, exist_ok=True)
    try:
        (aside / name).write_bytes(content)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        (aside / name).unlink(missing_ok=True)
        return f"; no copy of it could be kept: {error.strerror}"
    return ""


def locked(directory: Path, *, shared: bool = False) -> int | None:
    """A handle that holds the lock of a spool, or None when another process has it.

    Whoever removes a spool holds its lock; so the lock counts only while its file is still the one in the directory.
    """
    path = directory / "lock"
    while True:
        flags = os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT
        handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
        is_held = False
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            is_held = _still_there(handle, path)
        except BlockingIOError:
            return None
        finally:
            if not is_held:
                close_file(handle)
        if is_held:
            return handle


def _still_there(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def size(directory: Path) -> int:
    """Bytes that all segments of a spool take. Raises OSError."""
    total = 0
    for number in numbers(directory):
        try:
            total += path_of(directory, number).stat().st_size
        except FileNotFoundError:
            pass  # the reader has just deleted it
    return total
