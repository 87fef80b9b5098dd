"""Sync segments and the names of them, and remember which files cannot be trusted any more.

After a failed sync nobody knows what of the file is on the disk, and a second sync would report success (the kernel
reports a write-back error once, fsync(2)). Such a file is poisoned: it is never written again.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from store.spool.disk import Disk

log = logging.getLogger(__name__)


class Syncer:
    """For the syncing thread of one spool. `poisoned` may be read from any thread."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        """Raises OSError."""
        self.poisoned: set[int] = set()
        """Handles of files that must not be written any more."""

        self._spool = directory
        self._disk = disk
        self._directory = disk.open_directory(directory)

    def sync(self, handles: Sequence[int], *, names: bool) -> str | None:
        """Sync the files, and their names where there are new ones; return what went wrong."""
        fault = None
        for handle in handles:
            try:
                if handle not in self.poisoned:
                    self._disk.sync(handle)
            except OSError as error:
                self.poisoned.add(handle)
                fault = f"the spool {self._spool} could not be synced: {error.strerror}"
        try:
            if names:
                self.sync_names()
        except OSError as error:
            self.poisoned.update(handles)
            fault = f"the names in the spool {self._spool} could not be synced: {error.strerror}"
        return fault

    def sync_names(self) -> None:
        """Sync the directory. Raises OSError."""
        self._disk.sync_names(self._directory)

    def check(self, handle: int, size: int) -> None:
        """Poison a file that somebody has deleted or cut: what is written to it from now on would be lost as well."""
        try:
            if not self._disk.is_intact(handle, size):
                self.poisoned.add(handle)
        except OSError:
            pass  # the next write or sync says what is wrong

    def close(self, handle: int) -> None:
        """Close a file that is done with."""
        self.poisoned.discard(handle)
        try:
            self._disk.close(handle)
        except OSError as error:
            # The handle is gone all the same (close(2)), and what was written is known by its sync.
            log.warning("a file of the spool %s was closed with an error: %s", self._spool, error.strerror)

    def end(self) -> None:
        """Close the directory."""
        self.close(self._directory)
