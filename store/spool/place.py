"""Claim and list the directories of spools."""

import time
from pathlib import Path

from store.spool import cursor
from store.spool.disk import lock_spool
from store.spool.errors import SpoolBroken, SpoolTaken
from store.spool.segment import segment_numbers

_POLL_INTERVAL = 0.02
_LOCK_TIMEOUT = 1.0


def claim_spool(directory: Path) -> int:
    """Create the directory if needed and lock it; return the lock's handle, to be held as long as the writer runs."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = lock_spool(directory)
        except FileNotFoundError:
            continue  # a store server has just removed the directory as an orphan
        except OSError as error:
            raise SpoolBroken(f"the spool {directory} cannot be created: {error.strerror}") from error
        if handle is not None:
            return handle
        # A reader that checks for a writer holds the lock for an instant.
        if time.monotonic() > deadline:
            raise SpoolTaken(f"another process writes to the spool {directory}: two workers cannot share a spool")
        time.sleep(_POLL_INTERVAL)


def spool_directories(parent: Path) -> list[Path]:
    """List the spools below a directory, without other files and without what a file system keeps at its root."""
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and path.name != "lost+found")
    except FileNotFoundError:
        return []


def next_segment_number(directory: Path) -> int:
    """A number that no segment has had: old segments are never written again, so the reader knows where they end."""
    committed = cursor.load_cursor(directory)
    return max([*segment_numbers(directory), committed.segment if committed else 0]) + 1
