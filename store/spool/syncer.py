"""Sync segments and their directory, and remember which files must not be written any more.

After a failed sync it is unknown which bytes of the file are on disk, and a second sync would report success (the kernel
reports a write-back error once, fsync(2)). Such a file is poisoned: it is never written again.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from store.spool.disk import Disk

log = logging.getLogger(__name__)


class Syncer:
    """Used by the syncing thread of one spool. `poisoned_handles` may be read from any thread."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        """Raises OSError."""
        self.poisoned_handles: set[int] = set()
        """Handles of files that must not be written any more."""

        self._spool = directory
        self._disk = disk
        self._directory = disk.open_directory(directory)
        self._former_directories: list[int] = []
        """Handles of directories that were deleted, to be closed by the syncing thread, which may be using them."""

    def sync(self, handles: Sequence[int], *, directory: bool) -> str | None:
        """Sync the files, and the directory if it has new entries; return what went wrong."""
        fault = None
        while self._former_directories:
            self.close(self._former_directories.pop())
        for handle in handles:
            try:
                if handle not in self.poisoned_handles:
                    self._disk.sync(handle)
            except OSError as error:
                self.poisoned_handles.add(handle)
                fault = f"the spool {self._spool} could not be synced: {error.strerror}"
        try:
            if directory:
                self.sync_directory()
        except OSError as error:
            self.poisoned_handles.update(handles)
            fault = f"the directory of the spool {self._spool} could not be synced: {error.strerror}"
        return fault

    def move(self, directory: Path) -> None:
        """Go on in a directory that was created anew. Raises OSError."""
        former, self._directory = self._directory, self._disk.open_directory(directory)
        self._former_directories.append(former)

    def sync_directory(self) -> None:
        """Sync the directory. Raises OSError."""
        self._disk.sync_directory(self._directory)

    def check_file(self, handle: int, size: int) -> None:
        """Poison a file that was deleted or cut: anything written to it from now on would be lost as well."""
        try:
            if not self._disk.is_intact(handle, size):
                self.poisoned_handles.add(handle)
        except OSError:
            pass  # the next write or sync reports what is wrong

    def close(self, handle: int) -> None:
        """Close a finished segment."""
        self.poisoned_handles.discard(handle)
        try:
            self._disk.close(handle)
        except OSError as error:
            # The handle is closed anyway (close(2)), and its sync has already reported whether the content is on disk.
            log.warning("closing a file of the spool %s failed: %s", self._spool, error.strerror)

    def close_directory(self) -> None:
        """Close the handle of the directory."""
        for handle in (self._directory, *self._former_directories):
            self.close(handle)
