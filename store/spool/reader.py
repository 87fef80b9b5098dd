"""Read the records of a spool, commit the position, delete what is committed, and skip damage."""

import errno
import os
import shutil
from pathlib import Path

import msgspec

from store.spool import cursor
from store.spool.disk import close_file, keep_damaged, lock_spool
from store.spool.progress import NAME as PROGRESS
from store.spool.progress import records_written
from store.spool.segment import (
    MARK,
    OVERHEAD,
    Position,
    SegmentHead,
    frame_at,
    frame_size,
    read_head,
    segment_numbers,
    segment_path,
    whole_frames,
)

_BLOCK = 1 << 20
_HEAD = 512
_MAX_DAMAGE_COPY = 16 << 20


class Damage(msgspec.Struct, frozen=True):
    """A part of a spool that could not be read and was skipped."""

    at: Position
    size: int
    reason: str

    def __str__(self) -> str:
        what = f"{self.size} bytes at {self.at.offset} of spool segment" if self.size else "spool segment"
        return f"{what} {self.at.segment}: {self.reason}"


class SpoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a spool is not committed."""

    bytes_pending: int
    """Bytes on disk that are not yet committed."""

    segments: int
    oldest_at: int | None
    """When the oldest uncommitted segment was created, in nanoseconds since the Unix epoch; None if all are committed."""


class _Segment(msgspec.Struct):
    """The segment that is being read."""

    number: int
    handle: int
    offset: int = 0
    head: SegmentHead | None = None


class Reader:
    """Reads one spool, also while it is being written. Use it in one process and one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._committed = cursor.load_cursor(directory) or Position(0, 0)
        self._stored_cursor = self._committed
        self._current: _Segment | None = None
        self._next = self._committed
        """Where reading continues once the segment there can be opened."""

        self._damage: list[Damage] = []
        self._records = self._committed.records
        """The number of the last record that was read or is known to be missing."""

        self._is_counted = bool(self._committed.records) or self._committed == Position(0, 0)
        """Whether `_records` is known. If an older Playhead wrote the cursor, it is unknown until the first segment is opened."""

        self._is_damaged = False
        """Whether damage was skipped since `_records` was known: then the missing records are already reported."""

    @property
    def position(self) -> Position:
        """The position after the last record that was read."""
        current = self._current
        return Position(current.number, current.offset, self._records) if current else self._next

    def read(self, limit: int = _BLOCK) -> list[tuple[Position, bytes | memoryview]]:
        """Read the next payloads, about `limit` bytes but at least one, each with the position after it. Raises OSError."""
        found: list[tuple[Position, bytes | memoryview]] = []
        size = 0
        written = records_written(self._directory)
        while size < limit:
            more = self._read_next(limit - size)
            if not more:
                break
            found += more
            size += sum(len(payload) for _, payload in more)
        if not found and self._is_counted and self._records < written and self._is_at_end():
            self._report_missing_records(written)
        return found

    def commit(self, position: Position) -> None:
        """Store the position and delete the segments before it. Call this once their records are stored. Raises OSError."""
        if position != self._stored_cursor:
            self._store_cursor(position)
        self._committed = position
        self._delete_committed()

    def end_position(self) -> Position | None:
        """The position after the last record on disk, or None if there is none. Raises OSError."""
        for number in reversed(segment_numbers(self._directory)):
            with segment_path(self._directory, number).open("rb") as file:
                head = read_head(file.read(_HEAD))
                size = os.fstat(file.fileno()).st_size
            if size > (head.size if head else 0):
                return Position(number, size)
        return None

    def is_orphaned(self) -> bool:
        """Whether the writer is gone and nothing is left to read; checked in this order, so that its last records count."""
        return self._is_writer_gone() and self._has_read_all()

    def _has_read_all(self) -> bool:
        return (end := self.end_position()) is None or self.position >= end

    def remove(self) -> bool:
        """Delete an orphaned spool, unless a new writer has claimed it. Raises OSError."""
        handle = lock_spool(self._directory)
        if handle is None:
            return False
        try:
            # Another writer may have written and ended since the spool was found orphaned.
            if not self._has_read_all():
                return False
            self.close()
            self._delete()
        finally:
            close_file(handle)
        return True

    def _delete(self) -> None:
        """Delete the directory, the last segment first, so that a spool left half deleted never looks damaged."""
        (self._directory / PROGRESS).unlink(missing_ok=True)
        for number in reversed(segment_numbers(self._directory)):
            segment_path(self._directory, number).unlink()
        shutil.rmtree(self._directory)

    def take_damage(self) -> list[Damage]:
        """Return the damage that was skipped since the last call, and forget it."""
        damage, self._damage = self._damage, []
        return damage

    def stats(self) -> SpoolStats:
        """How much is not committed. Raises OSError."""
        waiting = [number for number in segment_numbers(self._directory) if number >= self._committed.segment]
        sizes = {number: self._content_size(number) for number in waiting}
        pending = sum(sizes.values())
        if self._committed.segment in sizes:
            pending -= min(self._committed.offset, sizes[self._committed.segment])
        full = (number for number in waiting if Position(number, sizes[number]) > self._committed)
        oldest = next((created for number in full if (created := self._creation_time(number))), None)
        return SpoolStats(bytes_pending=pending, segments=len(waiting), oldest_at=oldest)

    def _content_size(self, number: int) -> int:
        """Bytes of a segment; 0 if it has only its first line."""
        with segment_path(self._directory, number).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = read_head(file.read(_HEAD)) if size <= _HEAD else None
        return 0 if head and head.size == size else size

    def close(self) -> None:
        """Close the open segment."""
        if self._current:
            self._next = self.position
            handle, self._current = self._current.handle, None
            close_file(handle)

    # -- reading

    def _read_next(self, limit: int) -> list[tuple[Position, bytes | memoryview]]:
        while segment := self._open_segment():
            frames = self._read_frames(segment, limit)
            if frames:
                return frames
            is_complete = self._is_complete(segment)
            # Read again now that it is known whether a writer is left: the frame may have been completed meanwhile.
            if is_complete and (frames := self._read_frames(segment, limit)):
                return frames
            if not self._skip_damage(segment, is_complete=is_complete):
                break
        return []

    def _open_segment(self) -> _Segment | None:
        """The segment to read, if it exists."""
        if self._current is None:
            number = next((n for n in segment_numbers(self._directory) if n >= self._next.segment), None)
            if number is None:
                return None
            self._check_missing_segments(self._next.segment, number)
            handle = os.open(segment_path(self._directory, number), os.O_RDONLY | os.O_CLOEXEC)
            offset = self._next.offset if number == self._next.segment else 0
            self._current = _Segment(number, handle, offset)
        return self._current

    def _check_missing_segments(self, last: int, number: int) -> None:
        # The segment that was read last may be gone, since it is deleted when it is committed; a later one may not.
        if last and number > last + 1:
            reason = f"missing up to segment {number - 1}; it was deleted before it was read"
            self._add_damage(Position(last + 1, 0), 0, reason)

    def _check_first_record(self, first: int, *, at_start: bool) -> None:
        """Check, when a segment is opened whose first record has this number, that all records before it were read."""
        if not first:
            self._is_counted = False
            return
        if not at_start:
            return  # the cursor has its own count
        if self._is_counted and first - 1 > self._records:
            self._report_missing_records(first - 1)
        self._records, self._is_counted, self._is_damaged = first - 1, True, False

    def _report_missing_records(self, last: int) -> None:
        """Report records up to this number as missing: they were written and are in no segment."""
        if not self._is_damaged:
            position = self.position
            count = last - self._records
            reason = f"{count} record{'s are' if count > 1 else ' is'} missing; a segment was deleted or cut"
            suffix = self._save_damaged(position, f"{reason}: {self._records + 1} to {last}\n".encode())
            self._add_damage(position, 0, reason + suffix)
        self._records, self._is_damaged = last, False

    def _is_at_end(self) -> bool:
        """Whether everything in the existing segments was read."""
        segment = self._current
        if segment is None:
            return not any(number >= self._next.segment for number in segment_numbers(self._directory))
        return segment.offset == os.fstat(segment.handle).st_size and segment_numbers(self._directory)[-1:] <= [
            segment.number
        ]

    def _add_damage(self, at: Position, size: int, reason: str) -> None:
        self._damage.append(Damage(at, size, reason))
        self._is_damaged = True

    def _read_frames(self, segment: _Segment, limit: int) -> list[tuple[Position, bytes | memoryview]]:
        """Read the complete frames at the current offset, about `limit` bytes of them."""
        if segment.head is None:
            segment.head = read_head(os.pread(segment.handle, _HEAD, 0))
            if segment.head is None:
                return []
            self._check_first_record(segment.head.first_record, at_start=segment.offset <= segment.head.size)
            segment.offset = max(segment.offset, segment.head.size)
        data = os.pread(segment.handle, min(max(limit, OVERHEAD), _BLOCK), segment.offset)
        if (size := frame_size(data, 0)) > len(data) and frame_at(data, 0, segment.head.salt) == "short":
            data = os.pread(segment.handle, size, segment.offset)
        # A large payload is not copied, because it may be a body of many megabytes.
        frames = whole_frames(data, segment.head.salt, _BLOCK)
        number, offset, first = segment.number, segment.offset, self._records + 1
        found = [
            (Position(number, offset + stop, record), payload) for record, (stop, payload) in enumerate(frames, first)
        ]
        self._records += len(found)
        segment.offset += frames[-1][0] if frames else 0
        return found

    def _is_complete(self, segment: _Segment) -> bool:
        """Whether nothing more will be written to the segment."""
        return segment_numbers(self._directory)[-1:] > [segment.number] or self._is_writer_gone()

    def _is_writer_gone(self) -> bool:
        try:
            handle = lock_spool(self._directory, shared=True)
        except FileNotFoundError:
            return True
        if handle is None:
            return False
        close_file(handle)
        return True

    def _skip_damage(self, segment: _Segment, *, is_complete: bool) -> bool:
        """Skip what is wrong where no complete frame can be read; False if more has to be written first."""
        size = os.fstat(segment.handle).st_size
        if segment.head and segment.offset > size:
            # The lost part has been read already. A writer that has not noticed appends after the cut.
            self._add_damage(
                Position(segment.number, size), 0, f"the file was cut from {segment.offset} to {size} bytes"
            )
            segment.offset = size
            return True
        # An empty segment is not damaged: its writer found the disk full or died before writing to it. If the segment is not
        # complete, more may have been written since it was read, and the next segment too: the next read sees both.
        if segment.offset >= size and (segment.head or size == 0):
            return is_complete and self._open_following(segment)
        good = self._next_good_frame(segment) if segment.head else None
        if good == segment.offset:
            # The frame was still being written when it was read and is complete now.
            return True
        if good is None and not is_complete:
            return False
        self._quarantine(segment, size if good is None else good, torn=good is None)
        return True

    def _open_following(self, segment: _Segment) -> bool:
        number = next((n for n in segment_numbers(self._directory) if n > segment.number), None)
        if number is None:
            return False
        self._check_missing_segments(segment.number, number)
        self._current, self._next = None, Position(number, 0, self._records)
        close_file(segment.handle)
        return True

    def _next_good_frame(self, segment: _Segment) -> int | None:
        """The offset of the next readable frame, at or after the current offset."""
        assert segment.head
        rest = os.pread(segment.handle, os.fstat(segment.handle).st_size - segment.offset, segment.offset)
        at = rest.find(MARK)
        while at >= 0 and isinstance(frame_at(rest, at, segment.head.salt), str):
            at = rest.find(MARK, at + 1)
        return None if at < 0 else segment.offset + at

    def _quarantine(self, segment: _Segment, stop: int, *, torn: bool) -> None:
        """Report the bytes that are skipped and keep a copy of them, because they may be evidence."""
        segment.head = segment.head or SegmentHead(0, 0, 0)
        at, size = Position(segment.number, segment.offset), stop - segment.offset
        if not size:
            return  # the writer died between creating the file and writing its first line
        reason = "not a spool segment" if not segment.head.size else "incomplete at its end" if torn else "damaged"
        suffix = self._save_damaged(at, os.pread(segment.handle, min(size, _MAX_DAMAGE_COPY), at.offset))
        self._add_damage(at, size, reason + suffix)
        segment.offset = stop

    def _save_damaged(self, at: Position, content: bytes) -> str:
        return keep_damaged(self._directory, f"{at.segment:08}-{at.offset}", content)

    # -- committing

    def _store_cursor(self, position: Position) -> None:
        try:
            cursor.store_cursor(self._directory, position)
        except OSError as error:
            committed = self._segments_before(position)
            if error.errno != errno.ENOSPC or not committed:
                raise
            # The disk has no room for a cursor. One segment may be deleted before the cursor is written, because a reader
            # that finds its segment gone continues with the next.
            segment_path(self._directory, committed[0]).unlink()
            cursor.store_cursor(self._directory, position)
        self._stored_cursor = position

    def _delete_committed(self) -> None:
        """Delete the segments before the cursor. The cursor is on disk by now, so they are never read again."""
        for number in self._segments_before(self._committed):
            segment_path(self._directory, number).unlink()

    def _segments_before(self, position: Position) -> list[int]:
        """The segments that end at or before a position. The last segment counts only if the position is in a later one."""
        numbers = segment_numbers(self._directory)
        sizes = {number: segment_path(self._directory, number).stat().st_size for number in numbers[:-1]}
        filled = [number for number, size in sizes.items() if Position(number, size) <= position]
        return [*filled, *(number for number in numbers[-1:] if number < position.segment)]

    def _creation_time(self, number: int) -> int | None:
        with segment_path(self._directory, number).open("rb") as file:
            head = read_head(file.read(_HEAD))
        return head.created if head else None
