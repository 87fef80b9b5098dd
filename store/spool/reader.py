"""The store server's end of a spool: read on, commit, forget; and find the way around whatever damage there is."""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from store.spool import cursor
from store.spool.disk import close_file, keep_damaged, locked
from store.spool.progress import NAME as PROGRESS
from store.spool.progress import records_written
from store.spool.segment import MARK, OVERHEAD, Position, SegmentHead, frame_at, numbers, path_of, read_head, wanted

_BLOCK = 1 << 20
_HEAD = 512
_KEPT_OF_DAMAGE = 16 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a spool that could not be read, and was passed over."""

    at: Position
    size: int
    reason: str

    def __str__(self) -> str:
        what = f"{self.size} bytes at {self.at.offset} of spool segment" if self.size else "spool segment"
        return f"{what} {self.at.segment}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How much waits."""

    bytes_pending: int
    """On disk and not yet committed."""

    segments: int
    oldest: int | None
    """When the oldest segment that is not committed was begun, in nanoseconds since the epoch; None when none waits."""


@dataclass(slots=True)
class _Segment:
    """The segment that is being read."""

    number: int
    handle: int
    offset: int = 0
    head: SegmentHead | None = None


class Reader:
    """Reads one spool, also while it is being written. For one process and one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._committed = cursor.load(directory) or Position(0, 0)
        self._stored = self._committed
        self._current: _Segment | None = None
        self._next = self._committed
        """Where reading goes on, once the segment there can be opened."""
        self._damage: list[Damage] = []
        self._records = self._committed.records
        """The number of the last record that was read, or is known to be missing."""

        self._is_counted = bool(self._committed.records) or self._committed == Position(0, 0)
        """Whether that number is known: not before the first segment is open where an older Playhead wrote the cursor."""

        self._is_damaged = False
        """Whether something was passed over since the number was known: then what is missing is reported already."""

    @property
    def position(self) -> Position:
        """How far it has been read."""
        current = self._current
        return Position(current.number, current.offset, self._records) if current else self._next

    def read(self, limit: int = _BLOCK) -> list[tuple[Position, bytes | memoryview]]:
        """The next payloads, about `limit` bytes of them and at least one, each with the place behind it. Raises OSError."""
        found: list[tuple[Position, bytes | memoryview]] = []
        size = 0
        written = records_written(self._directory)
        while size < limit:
            more = self._read(limit - size)
            if not more:
                break
            found += more
            size += sum(len(payload) for _, payload in more)
        if not found and self._is_counted and self._records < written and self._is_at_end():
            self._note_uncounted(written)
        return found

    def commit(self, position: Position) -> None:
        """What lies before is stored elsewhere: never read it again, and delete the segments it fills. Raises OSError."""
        if position != self._stored:
            self._store(position)
        self._committed = position
        self._collect()

    def end(self) -> Position | None:
        """The place behind the last record there is now, or None where there is none. Raises OSError."""
        for number in reversed(numbers(self._directory)):
            with path_of(self._directory, number).open("rb") as file:
                head = read_head(file.read(_HEAD))
                size = os.fstat(file.fileno()).st_size
            if size > (head.size if head else 0):
                return Position(number, size)
        return None

    def orphaned(self) -> bool:
        """Whether no writer lives and there is nothing left to read. In this order: the last words of a writer count."""
        return self._writer_gone() and self._all_read()

    def _all_read(self) -> bool:
        return (end := self.end()) is None or self.position >= end

    def remove(self) -> bool:
        """Delete an orphaned spool, unless a new writer has just taken it. Raises OSError."""
        handle = locked(self._directory)
        if handle is None:
            return False
        try:
            # Another writer may have come and gone since it was found orphaned.
            if not self._all_read():
                return False
            self.close()
            self._delete()
        finally:
            close_file(handle)
        return True

    def _delete(self) -> None:
        """Delete the directory so that what an error or our death leaves of it never looks damaged: the last segment first."""
        (self._directory / PROGRESS).unlink(missing_ok=True)
        for number in reversed(numbers(self._directory)):
            path_of(self._directory, number).unlink()
        shutil.rmtree(self._directory)

    def damaged(self) -> list[Damage]:
        """What had to be passed over since this was asked last."""
        told, self._damage = self._damage, []
        return told

    def stats(self) -> Stats:
        """How much waits to be committed. Raises OSError."""
        waiting = [number for number in numbers(self._directory) if number >= self._committed.segment]
        sizes = {number: self._content_size(number) for number in waiting}
        pending = sum(sizes.values())
        if self._committed.segment in sizes:
            pending -= min(self._committed.offset, sizes[self._committed.segment])
        full = (number for number in waiting if Position(number, sizes[number]) > self._committed)
        oldest = next((created for number in full if (created := self._created(number))), None)
        return Stats(bytes_pending=pending, segments=len(waiting), oldest=oldest)

    def _content_size(self, number: int) -> int:
        """Bytes of a segment; 0 where it has nothing but its first line."""
        with path_of(self._directory, number).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = read_head(file.read(_HEAD)) if size <= _HEAD else None
        return 0 if head and head.size == size else size

    def close(self) -> None:
        """Give the open file back."""
        if self._current:
            self._next = self.position
            handle, self._current = self._current.handle, None
            close_file(handle)

    # -- reading

    def _read(self, limit: int) -> list[tuple[Position, bytes | memoryview]]:
        while segment := self._open():
            found = self._frames(segment, limit)
            if found:
                return found
            finished = self._finished(segment)
            # Look again, now that we know whether anybody writes: the frame may have become whole in between.
            if finished and (found := self._frames(segment, limit)):
                return found
            if not self._pass_over(segment, finished=finished):
                break
        return []

    def _open(self) -> _Segment | None:
        """The segment to read, if it is there."""
        if self._current is None:
            number = next((n for n in numbers(self._directory) if n >= self._next.segment), None)
            if number is None:
                return None
            self._note_missing(self._next.segment, number)
            handle = os.open(path_of(self._directory, number), os.O_RDONLY | os.O_CLOEXEC)
            offset = self._next.offset if number == self._next.segment else 0
            self._current = _Segment(number, handle, offset)
        return self._current

    def _note_missing(self, last: int, number: int) -> None:
        # The last one read may be gone, since it is deleted when it is committed; one after it may not.
        if last and number > last + 1:
            reason = f"missing up to segment {number - 1}; somebody deleted it"
            self._note(Position(last + 1, 0), 0, reason)

    def _count_from(self, first: int, *, at_start: bool) -> None:
        """A segment is opened whose first record has this number: see whether all before it were read."""
        if not first:
            self._is_counted = False
            return
        if not at_start:
            return  # the cursor's own count goes on
        if self._is_counted and first - 1 > self._records:
            self._note_uncounted(first - 1)
        self._records, self._is_counted, self._is_damaged = first - 1, True, False

    def _note_uncounted(self, last: int) -> None:
        """Records up to a number were written, and are not in the segments there are."""
        if not self._is_damaged:
            position = self.position
            count = last - self._records
            reason = f"{count} record{'s are' if count > 1 else ' is'} missing; somebody deleted or cut a segment"
            kept = self._keep(position, f"{reason}: {self._records + 1} to {last}\n".encode())
            self._note(position, 0, reason + kept)
        self._records, self._is_damaged = last, False

    def _is_at_end(self) -> bool:
        """Whether everything in the segments there are was read."""
        segment = self._current
        if segment is None:
            return not any(number >= self._next.segment for number in numbers(self._directory))
        return segment.offset == os.fstat(segment.handle).st_size and numbers(self._directory)[-1:] <= [segment.number]

    def _note(self, at: Position, size: int, reason: str) -> None:
        self._damage.append(Damage(at, size, reason))
        self._is_damaged = True

    def _frames(self, segment: _Segment, limit: int) -> list[tuple[Position, bytes | memoryview]]:
        """The whole frames at the place we are, about `limit` bytes of them."""
        if segment.head is None:
            segment.head = read_head(os.pread(segment.handle, _HEAD, 0))
            if segment.head is None:
                return []
            self._count_from(segment.head.first, at_start=segment.offset <= segment.head.size)
            segment.offset = max(segment.offset, segment.head.size)
        data = os.pread(segment.handle, min(max(limit, OVERHEAD), _BLOCK), segment.offset)
        if (size := wanted(data, 0)) > len(data) and frame_at(data, 0, segment.head.salt) == "short":
            data = os.pread(segment.handle, size, segment.offset)
        found: list[tuple[Position, bytes | memoryview]] = []
        at = 0
        while not isinstance(frame := frame_at(data, at, segment.head.salt), str):
            start, at = frame
            self._records += 1
            # A large payload is not copied: it may be a body of many megabytes.
            payload = memoryview(data)[start:at] if at - start > _BLOCK else data[start:at]
            found.append((Position(segment.number, segment.offset + at, self._records), payload))
        segment.offset += at
        return found

    def _finished(self, segment: _Segment) -> bool:
        """Whether nothing more will be written to it."""
        return numbers(self._directory)[-1:] > [segment.number] or self._writer_gone()

    def _writer_gone(self) -> bool:
        try:
            handle = locked(self._directory, shared=True)
        except FileNotFoundError:
            return True
        if handle is None:
            return False
        close_file(handle)
        return True

    def _pass_over(self, segment: _Segment, *, finished: bool) -> bool:
        """There is no whole frame here. Go on behind what is wrong; False when there is nothing but to wait."""
        size = os.fstat(segment.handle).st_size
        if segment.head and segment.offset > size:
            # What was there has been read. A writer that has not noticed goes on behind what is left.
            self._note(Position(segment.number, size), 0, f"it was cut from {segment.offset} to {size} bytes")
            segment.offset = size
            return True
        # Without a byte in it it is no damage: its writer found the disk full, or died over it. Where it is not finished,
        # more may have come since it was read, and the next segment too: that is seen when it is looked at again.
        if segment.offset >= size and (segment.head or size == 0):
            return finished and self._advance(segment)
        good = self._good_frame(segment) if segment.head else None
        if good == segment.offset:
            # It was still being written when it was read, and is whole by now: nothing is wrong with it.
            return True
        if good is None and not finished:
            return False
        self._quarantine(segment, size if good is None else good, torn=good is None)
        return True

    def _advance(self, segment: _Segment) -> bool:
        number = next((n for n in numbers(self._directory) if n > segment.number), None)
        if number is None:
            return False
        self._note_missing(segment.number, number)
        self._current, self._next = None, Position(number, 0, self._records)
        close_file(segment.handle)
        return True

    def _good_frame(self, segment: _Segment) -> int | None:
        """Where the next frame is that can be read, here or behind what is wrong."""
        assert segment.head
        rest = os.pread(segment.handle, os.fstat(segment.handle).st_size - segment.offset, segment.offset)
        at = rest.find(MARK)
        while at >= 0 and isinstance(frame_at(rest, at, segment.head.salt), str):
            at = rest.find(MARK, at + 1)
        return None if at < 0 else segment.offset + at

    def _quarantine(self, segment: _Segment, stop: int, *, torn: bool) -> None:
        """Note what is passed over, and keep a copy: it may be somebody's evidence."""
        segment.head = segment.head or SegmentHead(0, 0, 0)
        at, size = Position(segment.number, segment.offset), stop - segment.offset
        if not size:
            return  # a writer died between making the file and writing its first line
        reason = "it is no spool segment" if not segment.head.size else "it breaks off" if torn else "it is damaged"
        kept = self._keep(at, os.pread(segment.handle, min(size, _KEPT_OF_DAMAGE), at.offset))
        self._note(at, size, reason + kept)
        segment.offset = stop

    def _keep(self, at: Position, content: bytes) -> str:
        return keep_damaged(self._directory, f"{at.segment:08}-{at.offset}", content)

    # -- forgetting

    def _store(self, position: Position) -> None:
        try:
            cursor.store(self._directory, position)
        except OSError as error:
            behind = self._behind(position)
            if error.errno != errno.ENOSPC or not behind:
                raise
            # No room for a cursor. A reader that finds its segment gone goes on with the next, so one may go before it.
            path_of(self._directory, behind[0]).unlink()
            cursor.store(self._directory, position)
        self._stored = position

    def _collect(self) -> None:
        """Delete what is behind the cursor: the cursor is on disk by now, so nothing will ask for it again."""
        for number in self._behind(self._committed):
            path_of(self._directory, number).unlink()

    def _behind(self, position: Position) -> list[int]:
        """The segments of which nothing lies at a position or after it; never the last, which may be written to."""
        there = numbers(self._directory)
        sizes = {number: path_of(self._directory, number).stat().st_size for number in there[:-1]}
        filled = [number for number, size in sizes.items() if Position(number, size) <= position]
        return [*filled, *(number for number in there[-1:] if number < position.segment)]

    def _created(self, number: int) -> int | None:
        with path_of(self._directory, number).open("rb") as file:
            head = read_head(file.read(_HEAD))
        return head.created if head else None
