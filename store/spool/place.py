"""The directory that a spool is: taken by its writer, and looked at for what is in it."""

import time
from pathlib import Path

from store.spool import cursor
from store.spool.disk import locked
from store.spool.errors import SpoolBroken, SpoolTaken
from store.spool.segment import numbers

_LOOK = 0.02
_PATIENCE = 1.0


def claimed(directory: Path) -> int:
    """The lock of the spool, which says that its writer lives."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = locked(directory)
        except FileNotFoundError:
            continue  # a store server has just removed the orphan that it was
        except OSError as error:
            raise SpoolBroken(f"the spool {directory} cannot be made: {error.strerror}") from error
        if handle is not None:
            return handle
        # A reader that looks whether we live holds the lock for an instant.
        if time.monotonic() > deadline:
            raise SpoolTaken(f"another process writes the spool {directory}: two workers cannot share one")
        time.sleep(_LOOK)


def spool_directories(parent: Path) -> list[Path]:
    """The spools below a directory. Whatever else lies there is left alone: a file, or what a file system puts at its root."""
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and path.name != "lost+found")
    except FileNotFoundError:
        return []


def unused(directory: Path) -> int:
    """A number that no segment has or had: an old one is never written again, so its reader knows where it ends."""
    read = cursor.load(directory)
    return max([*numbers(directory), read.segment if read else 0]) + 1
