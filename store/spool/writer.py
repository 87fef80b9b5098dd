"""Append records to a spool: in memory first, then written by one thread and synced by another, in groups.

`append` never blocks and never touches the disk. All queued records are written with one `write(2)`, at most 20 ms after
the first was appended, or at once when a task calls `wait_until_durable`. The event loop writes them itself if that is
certain to be quick (few bytes, into the page cache, and the last write was quick), otherwise the writing thread does. A
separate thread syncs, once every 20 ms, because a sync takes milliseconds and tasks that wait only for the write must not
wait for it. Threads are woken as rarely as possible: each wake-up makes the event loop compete for the interpreter, which
costs more than everything else done for a record.
"""

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from store.spool.disk import Disk
from store.spool.errors import SpoolBroken, SpoolError, SpoolFull
from store.spool.output import Output, WriteFailed
from store.spool.place import claim_spool, next_segment_number
from store.spool.progress import Progress
from store.spool.scheduled_work import ScheduledWork
from store.spool.segment import MAX_PAYLOAD, OVERHEAD
from store.spool.syncer import Syncer
from store.spool.waiters import Verdict, Waiters

log = logging.getLogger(__name__)

type Durability = Literal["process", "fsync"]

GROUP_INTERVAL: Final = 0.02
"""Seconds between two groups that are written or synced, while no task waits for one."""

MAX_INLINE_WRITE: Final = 256 << 10
"""Bytes that the event loop's thread may write itself."""

SLOW_WRITE: Final = 0.005
"""Seconds from which a write of the event loop's thread counts as slow."""

SLOW_WRITE_BACKOFF: Final = 20.0
"""After two slow writes in a row, only the writing thread writes, for this many times as long as the last one took. So slow
writes take little of the event loop's time, and a machine that was busy for a moment recovers soon. A single slow write is
mostly one during which the thread lost its processor."""

RETRY_INTERVAL: Final = 0.25
"""Seconds between two attempts to write to a disk that refuses."""


class Spool:
    """The spool of one writer. Call its methods from one event loop's thread. Records are numbered from 1."""

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = 2 << 30,
        durability: Durability = "process",
        segment_bytes: int = 64 << 20,
        max_memory: int = 64 << 20,
        disk: Disk | None = None,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.directory = directory
        self._durability = durability
        self._disk = disk or Disk()
        self._claim = claim_spool(directory)
        self._progress, self._syncer = self._open_files()
        self._used_bytes = self._disk.used_bytes(directory)
        # Half of a small disk is left to the reader, which needs room to delete anything.
        self._max_bytes = min(max_bytes, self._used_bytes + self._disk.free_bytes(directory) // 2)
        self._max_memory = max_memory
        # A full spool empties one segment at a time, so small segments free room sooner.
        self._segment_bytes = min(segment_bytes, max(self._max_bytes // 8, 4096))
        number, salt = next_segment_number(directory), secrets.randbits(32)
        self._output = Output(directory, self._disk, self._progress, number=number, salt=salt, now=now)

        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        """Held from taking records off the queue until they are written, so that they are written in order."""

        self._was_slow = False
        """Whether the last write of the event loop's thread was slow."""

        self._slow_until = 0.0
        self._to_write = threading.Condition(self._lock)
        self._to_sync = threading.Condition(self._lock)
        self._queue: list[bytes] = []
        self._batch: list[bytes] = []
        """Records that the writing thread has taken off the queue and not written yet."""

        self._queued_bytes = 0
        self._appended = self._written = self._synced = 0
        self._is_write_due = self._is_recount_due = self._has_unsynced = self._is_sync_due = False
        # Without an event loop, the threads write and sync everything.
        self._work = ScheduledWork(self._write_appended, lambda: self._wake(self._to_write))
        self._is_group_open = False
        """Whether a group has begun, at whose end all records are written and synced."""

        self._is_closing = self._is_written_out = False
        self._synced_segments = 0
        self._trouble: str | None = None
        self._failed_range = (0, 0, "")
        self._waiters = Waiters(self._lock, self._verdict)
        self.fault_count = 0
        """How often a sync has failed. Each time, records written just before may be lost if the host fails."""

        self.last_fault = ""
        """Why the last sync failed."""

        self._begin_first_segment()
        self._threads = self._start_threads()

    # -- the methods that a worker calls

    @property
    def appended_count(self) -> int:
        """The number of the last record that was appended."""
        return self._appended

    @property
    def written_count(self) -> int:
        """The number of the last record that was written, and is not lost if the process is killed."""
        return self._written

    @property
    def trouble(self) -> str | None:
        """Why nothing can be written at present; None if writing works."""
        return self._trouble

    @property
    def queued_bytes(self) -> int:
        """Bytes that were appended and are not written yet."""
        return self._queued_bytes

    def append(self, payload: bytes, *, starts_exchange: bool = False) -> int:
        """Append a record and return its number. Raises SpoolFull and SpoolBroken.

        The last eighth of the spool is reserved for exchanges that have begun: there, a record that starts one is refused.
        """
        size = OVERHEAD + len(payload)
        room = self._max_bytes - (self._max_bytes // 8 if starts_exchange else 0)
        with self._lock:
            if self._trouble is not None or self._is_closing:
                raise SpoolBroken(self._trouble or f"the spool {self.directory} is closed")
            if self._used_bytes + size > room or self._queued_bytes + size > self._max_memory:
                raise self._full_error()
            if not 0 < len(payload) <= MAX_PAYLOAD:
                raise ValueError(f"a record must have 1 to {MAX_PAYLOAD} bytes, and this one has {len(payload)}")
            self._queue.append(payload)
            self._queued_bytes += size
            self._used_bytes += size
            self._appended += 1
        if not self._is_group_open:
            self._begin_group()
        return self._appended

    def call_soon(self, work: Callable[[], None]) -> None:
        """Call `work` a moment later, together with other work; records that it appends are written at once."""
        self._work.add(work)

    def _write_appended(self) -> None:
        # If it is not quick, the end of the group writes them.
        if self._written < self._appended:
            self.write_now(self._appended)

    def _begin_group(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._wake(self._to_write)
        else:
            self._is_group_open = True
            loop.call_later(GROUP_INTERVAL, self._end_group)

    def _end_group(self) -> None:
        """Write the records that no task has waited for, and request a sync."""
        self._is_group_open = False
        if self._written < self._appended and not self.write_now(self._appended):
            self._wake(self._to_write)
        if self._has_unsynced:
            self._wake(self._to_sync)

    def _wake(self, thread: threading.Condition) -> None:
        with self._lock:
            if thread is self._to_write:
                self._is_write_due = True
            else:
                self._is_sync_due = True
            thread.notify()

    async def wait_until_durable(self, sequence: int, since: int | None = None) -> None:
        """Wait until the record is written, or synced with durability "fsync". Raises SpoolBroken.

        With `since`, also raise if a sync of any record from that one on has failed.
        """
        if self.write_now(sequence):
            return
        with self._lock:
            verdict = self._verdict(sequence, since)
            if isinstance(verdict, SpoolBroken):
                raise verdict
            if verdict:
                return
            future = self._waiters.add(sequence)
            if sequence > self._written:
                self._is_write_due = True
                self._to_write.notify()
            elif self._durability == "fsync":
                self._is_sync_due = True
                self._to_sync.notify()
        await future
        if isinstance(verdict := self._verdict(sequence, since), SpoolBroken):
            raise verdict

    def write_now(self, sequence: int) -> bool:
        """Write up to this record on the calling thread; False if that is not quick, or with durability "fsync"."""
        if self._durability == "fsync":
            return False
        if sequence <= self._written:
            return not self._failed_range[0] < sequence <= self._failed_range[1]
        now = time.monotonic()
        if (
            self._queued_bytes > MAX_INLINE_WRITE
            or now < self._slow_until
            # Without a keyword, for which CPython makes and searches a dict.
            or not self._write_lock.acquire(False)
        ):
            return False
        try:
            ready = self._trouble is None and not self._is_closing
            return ready and self._write_quickly(now) and sequence <= self._written
        finally:
            self._write_lock.release()

    def _write_quickly(self, started_at: float) -> bool:
        """Write the queue to the current segment. Records that are not written stay at the front of the queue."""
        handle, size = self._output.handle, self._output.size + self._queued_bytes
        if handle is None or handle in self._syncer.poisoned_handles or size > self._segment_bytes:
            return False
        with self._lock:
            batch, self._queue = self._queue, []
        try:
            size = self._output.write(batch)
        except WriteFailed as failure:
            self._advance(batch[: failure.frames_written])
            with self._lock:
                self._queue[:0] = batch[failure.frames_written :]
            return False
        with self._lock:
            # Inlined `_advance`.
            self._written += len(batch)
            self._queued_bytes -= size
            self._trouble = None
            self._has_unsynced = True
        if self._waiters.waiting:
            self._waiters.notify()
        ended_at = time.monotonic()
        is_slow = ended_at - started_at > SLOW_WRITE
        if is_slow and self._was_slow:
            self._slow_until = ended_at + SLOW_WRITE_BACKOFF * (ended_at - started_at)
        self._was_slow = is_slow
        return True

    def close(self) -> int:
        """Write and sync the remaining records and release the spool; return how many could not be written."""
        self._work.do_all()
        with self._lock:
            self._is_closing = True
            self._to_write.notify()
            self._to_sync.notify()
        for thread in self._threads:
            thread.join()
        self._output.retire_segment()
        for handle in self._output.retired_handles:
            self._syncer.close(handle)
        self._syncer.close_directory()
        self._progress.close()
        os.close(self._claim)
        return self._appended - self._written

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the state, under the lock

    def _verdict(self, sequence: int, since: int | None = None) -> Verdict:
        """Whether this record, and all from `since` on, are as durable as configured; or the error if one is not."""
        low, high, reason = self._failed_range
        if low < sequence and (since or sequence) <= high:
            return SpoolBroken(reason)
        if sequence <= (self._written if self._durability == "process" else self._synced):
            return True
        return self._trouble is not None and SpoolBroken(self._trouble)

    def _full_error(self) -> SpoolFull:
        if self._queued_bytes >= self._max_memory // 2:
            return SpoolFull(f"the disk of {self.directory} is too slow: {self._queued_bytes} bytes wait to be written")
        if not self._is_recount_due:
            self._is_recount_due = True
            self._to_write.notify()
        return SpoolFull(
            f"the spool {self.directory} is full ({self._used_bytes} of {self._max_bytes} bytes wait to be stored): "
            "check why the store server does not drain it, or raise spool_limit"
        )

    def _run_restarting(self, work: Callable[[], None]) -> None:
        """Run a thread's work, and run it again if a bug ends it: a spool without its threads would refuse every record for
        as long as the worker runs."""
        while True:
            try:
                return work()
            except Exception as bug:  # an error that ends a thread is reported nowhere else
                log.exception("a thread of the spool %s failed; it is started again", self.directory)
                with self._lock:
                    self._queue[:0], self._batch = self._batch, []
                    self.fault_count += 1
                    self.last_fault = self._trouble = f"the spool {self.directory} failed: {bug!r}"
                    self._failed_range = (self._synced, self._written, self.last_fault)
                self._waiters.notify()
                if self._is_closing:
                    return None
                time.sleep(RETRY_INTERVAL)
                with self._lock:
                    self._trouble = None
                    # Records in the queue must not wait until another is appended.
                    self._is_write_due = self._is_sync_due = True

    def _start_threads(self) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._run_restarting, args=(work,), name=name, daemon=True)
            for name, work in (("spool-write", self._write_forever), ("spool-sync", self._sync_forever))
        ]
        for thread in threads:
            thread.start()
        return threads

    # -- the writing thread

    def _open_files(self) -> tuple[Progress, Syncer]:
        try:
            return Progress(self.directory), Syncer(self.directory, self._disk)
        except OSError as error:
            os.close(self._claim)
            raise SpoolBroken(f"the spool {self.directory} cannot be written: {error}") from error

    def _begin_first_segment(self) -> None:
        try:
            self._output.begin_segment()
            self._syncer.sync_directory()
        except OSError as error:
            self._syncer.close_directory()
            os.close(self._claim)
            raise SpoolBroken(f"the spool {self.directory} cannot be written: {error}") from error

    def _write_forever(self) -> None:
        while self._wait_for_writing():
            with self._write_lock:
                with self._lock:
                    self._batch, self._queue = self._queue, []
                self._write_batch()
                if self._is_recount_due:
                    self._recount_used()
            self._wake(self._to_sync)
        with self._lock:
            self._is_written_out = True
            self._to_sync.notify()

    def _wait_for_writing(self) -> bool:
        """Wait until something is to be written; False if the spool is closing and everything is written."""
        with self._lock:
            while not (self._is_write_due or self._is_recount_due or self._is_closing):
                self._to_write.wait()
            if self._is_recount_due and not self._is_closing:
                # Each refused record requests a recount, and that may be thousands a second.
                self._to_write.wait(GROUP_INTERVAL)
            self._is_write_due = False
            return not self._is_closing or bool(self._queue)

    def _write_batch(self) -> None:
        """Write the current batch. Records that are not written when an exception ends this stay in the batch."""
        while batch := self._batch:
            try:
                if self._output.size >= self._segment_bytes or self._output.handle in self._syncer.poisoned_handles:
                    self._output.begin_segment()
                part = batch[: _fitting_count(batch, self._segment_bytes - self._output.size)]
                self._output.write(part)
            except WriteFailed as failure:
                self._batch = batch[failure.frames_written :]
                self._advance(batch[: failure.frames_written])
                if self._restore_directory():
                    continue
                if not self._wait_for_retry(f"the spool {self.directory} cannot be written: {failure}"):
                    return
            else:
                self._batch = batch[len(part) :]
                self._advance(part)

    def _restore_directory(self) -> bool:
        """Create the directory again if somebody has deleted it, or it would take nothing for as long as the worker runs.

        Not if all of the data directory is gone, which is how an installation is removed.
        """
        if self.directory.exists() or not self.directory.parents[1].exists():
            return False
        try:
            claim = claim_spool(self.directory)
            os.close(self._claim)
            self._claim = claim
            self._progress.move(self.directory)
            self._syncer.move(self.directory)
        except (OSError, SpoolError):
            return False  # the next attempt to write says why
        log.warning("the spool %s was deleted, with what waited in it; it is created again", self.directory)
        return True

    def _advance(self, batch: list[bytes]) -> None:
        with self._lock:
            self._written += len(batch)
            self._queued_bytes -= sum(map(len, batch)) + OVERHEAD * len(batch)
            self._trouble = None if batch else self._trouble
            self._has_unsynced = True
        self._waiters.notify()

    def _wait_for_retry(self, reason: str) -> bool:
        """Report trouble and wait before the next attempt; False if the spool is closing."""
        with self._lock:
            self._trouble = reason
        self._waiters.notify()
        with self._lock:
            if self._is_closing:
                return False
            self._to_write.wait(RETRY_INTERVAL)
        return True

    def _recount_used(self) -> None:
        """Measure the spool again. The reader cannot delete the current segment, so begin another if it is large."""
        with self._lock:
            self._is_recount_due = False
        if self._output.size > self._segment_bytes // 8:
            try:
                self._output.begin_segment()
            except WriteFailed:
                pass  # the next write reports the same error
        try:
            used = self._disk.used_bytes(self.directory)
        except OSError:
            return  # the next refused record requests a recount
        with self._lock:
            self._used_bytes = used + self._queued_bytes

    # -- the syncing thread

    def _sync_forever(self) -> None:
        while self._wait_for_syncing():
            with self._lock:
                retired, self._output.retired_handles = self._output.retired_handles, []
                current, segment_count, target = self._output.handle, self._output.segment_count, self._written
                size = self._output.size
                self._has_unsynced = self._is_sync_due = False
            handles = [*retired, *([] if current is None else [current])]
            fault = self._syncer.sync(handles, directory=segment_count != self._synced_segments)
            for handle in retired:
                self._syncer.close(handle)
            if current is not None:
                self._syncer.check_file(current, size)
            with self._lock:
                if fault:
                    self.fault_count, self.last_fault = self.fault_count + 1, fault
                    self._failed_range = (self._synced, target, fault)
                else:
                    self._synced_segments = segment_count
                self._synced = target
            self._waiters.notify()

    def _wait_for_syncing(self) -> bool:
        """Wait until something is to be synced; False if everything is synced and the spool is closing."""
        with self._lock:
            while not ((self._has_unsynced and self._is_sync_due) or self._is_written_out):
                self._to_sync.wait()
            return self._has_unsynced or bool(self._output.retired_handles)


def _fitting_count(batch: list[bytes], room: int) -> int:
    """How many records of a batch fit into a segment; at least one, however large."""
    count = 0
    while count < len(batch) and room > 0:
        room -= OVERHEAD + len(batch[count])
        count += 1
    return max(count, 1)
