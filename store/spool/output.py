"""The segment that is being written: frames go in whole, or not at all."""

from collections.abc import Callable, Sequence
from pathlib import Path

from store.spool.disk import Disk
from store.spool.progress import Progress
from store.spool.segment import OVERHEAD, framed, head_line, path_of


class WriteFailed(OSError):
    """The disk did not take all; `done` payloads are in the file as whole frames, and nothing behind them."""

    def __init__(self, done: int, why: str) -> None:
        super().__init__(why)
        self.done = done


class Output:
    """One segment after another. Handles that are done with are left in `retired`, for whoever syncs and closes them."""

    def __init__(
        self, directory: Path, disk: Disk, progress: Progress, *, number: int, salt: int, now: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._progress = progress
        self._disk = disk
        self._number = number
        self._salt = salt
        self._now = now
        self.handle: int | None = None
        self.size = 0
        self._head = 0
        """How long the present segment's first line is."""
        self.begun = 0
        """How many segments were begun: each time their directory has a new name to be synced."""
        self.retired: list[int] = []

    def begin(self) -> None:
        """A new segment. Raises WriteFailed."""
        self.retire()
        path = path_of(self._directory, self._number)
        try:
            handle = self._disk.create(path)
        except OSError as error:
            raise WriteFailed(0, f"{path} cannot be made: {error.strerror}") from error
        # The number is used up, whatever happens next: no two segments ever share one.
        self._number += 1
        self.begun += 1
        self.handle, self.size = handle, 0
        self._write_head()

    def retire(self) -> None:
        """Never write to the present segment again."""
        if self.handle is not None:
            self.retired.append(self.handle)
            self.handle, self.size = None, 0

    def write(self, payloads: Sequence[bytes]) -> int:
        """Append them all; return how many bytes that took. Raises WriteFailed."""
        if self.handle is None:
            self.begin()
        elif self.size == 0:
            self._write_head()
        data = framed(payloads, self._salt)
        self._write(data, payloads)
        self._progress.add(len(payloads))
        return len(data)

    def _write_head(self) -> None:
        head = head_line(self._number - 1, self._salt, self._now(), self._progress.records + 1)
        self._head = len(head)
        self._write(head, [])

    def _write(self, data: bytes, payloads: Sequence[bytes]) -> None:
        assert self.handle is not None
        rest = memoryview(data)
        try:
            while rest:
                count = self._disk.write(self.handle, rest)
                if count == 0:
                    raise OSError(0, "it took nothing")
                rest = rest[count:]
        except OSError as error:
            done, whole = _whole(payloads, len(data) - len(rest))
            self._cut(self.size + whole)
            self._progress.add(done)
            raise WriteFailed(done, f"the disk refused: {error.strerror}") from error
        self.size += len(data)

    def _cut(self, size: int) -> None:
        """Leave no half a frame, and go on in another segment, so that the reader can delete this one.

        Where even cutting fails, the reader passes over what is left. A segment that holds nothing yet is kept: a full
        disk is tried again and again, and a new one each time would fill it with names.
        """
        assert self.handle is not None
        try:
            self._disk.truncate(self.handle, size)
        except OSError:
            self.retire()
        else:
            self.size = size
            if size > self._head:
                self.retire()


def _whole(payloads: Sequence[bytes], written: int) -> tuple[int, int]:
    """How many frames fit into what was written, and how many bytes they have."""
    done, size = 0, 0
    for payload in payloads:
        if size + OVERHEAD + len(payload) > written:
            break
        size += OVERHEAD + len(payload)
        done += 1
    return done, size
