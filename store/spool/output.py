"""Write frames to the current segment of a spool: each frame completely or not at all."""

from collections.abc import Callable, Sequence
from pathlib import Path

from store.spool.disk import Disk
from store.spool.progress import Progress
from store.spool.segment import OVERHEAD, encode_frames, head_line, segment_path


class WriteFailed(OSError):
    """The disk did not take all bytes; the file ends with the frame of the last of `frames_written` payloads."""

    def __init__(self, frames_written: int, reason: str) -> None:
        super().__init__(reason)
        self.frames_written = frames_written


class Output:
    """Writes one segment after another. Handles of finished segments are left in `retired_handles` to be synced and closed."""

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
        self._head_size = 0
        """Bytes of the first line of the current segment."""
        self.segment_count = 0
        """How many segments were created; each is a new directory entry to be synced."""
        self.retired_handles: list[int] = []

    def begin_segment(self) -> None:
        """Create the next segment. Raises WriteFailed."""
        self.retire_segment()
        path = segment_path(self._directory, self._number)
        try:
            handle = self._disk.create(path)
        except OSError as error:
            raise WriteFailed(0, f"{path} cannot be created: {error.strerror}") from error
        # Counted before anything can fail, so that no two segments ever share a number.
        self._number += 1
        self.segment_count += 1
        self.handle, self.size = handle, 0
        self._write_head()

    def retire_segment(self) -> None:
        """Finish the current segment; it is never written again."""
        if self.handle is not None:
            self.retired_handles.append(self.handle)
            self.handle, self.size = None, 0

    def write(self, payloads: Sequence[bytes]) -> int:
        """Append the payloads as frames; return their size in bytes. Raises WriteFailed."""
        if self.handle is None:
            self.begin_segment()
        elif self.size == 0:
            self._write_head()
        data = encode_frames(payloads, self._salt)
        self._write(data, payloads)
        self._progress.add(len(payloads))
        return len(data)

    def _write_head(self) -> None:
        head = head_line(self._number - 1, self._salt, self._now(), self._progress.records + 1)
        self._head_size = len(head)
        self._write(head, [])

    def _write(self, data: bytes, payloads: Sequence[bytes]) -> None:
        assert self.handle is not None
        written, size = 0, len(data)
        try:
            while written < size:
                # Nearly every write is whole: no view is needed for the first one.
                count = self._disk.write(self.handle, memoryview(data)[written:] if written else data)
                if count == 0:
                    raise OSError(0, "no bytes were written")
                written += count
        except OSError as error:
            done, whole = _whole_frames(payloads, written)
            self._truncate(self.size + whole)
            self._progress.add(done)
            raise WriteFailed(done, f"writing failed: {error.strerror}") from error
        self.size += size

    def _truncate(self, size: int) -> None:
        """Cut off an incomplete frame and finish the segment, so that the reader can delete it.

        If truncating fails too, the reader skips the incomplete frame. A segment without frames is kept and used again:
        writing to a full disk is retried often, and each retry would otherwise create another file.
        """
        assert self.handle is not None
        try:
            self._disk.truncate(self.handle, size)
        except OSError:
            self.retire_segment()
        else:
            self.size = size
            if size > self._head_size:
                self.retire_segment()


def _whole_frames(payloads: Sequence[bytes], written: int) -> tuple[int, int]:
    """The number of frames that were written completely, and their size."""
    count, size = 0, 0
    for payload in payloads:
        if size + OVERHEAD + len(payload) > written:
            break
        size += OVERHEAD + len(payload)
        count += 1
    return count, size
