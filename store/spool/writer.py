"""The worker's end of a spool: append in memory, written by one thread, synced by another, in groups.

`append` never blocks and never touches the disk. All there is goes out in one `write(2)`, at the latest 20 ms after the
first of it came, or at once where somebody asks for `reached`: by the event loop itself where that is sure to be quick (a
little, into the page cache, and the disk was quick the last time), else by the writing thread. Syncing is a thread of its
own, because a sync takes milliseconds, and whoever waits only for the write must not wait for it; it is called once for
each 20 ms. Threads are woken as seldom as can be: each waking makes the event loop fight for the interpreter, which costs
more than all the rest of a record.
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
from store.spool.errors import SpoolBroken, SpoolFull
from store.spool.output import Output, WriteFailed
from store.spool.place import claimed, unused
from store.spool.progress import Progress
from store.spool.segment import LARGEST, OVERHEAD
from store.spool.syncer import Syncer
from store.spool.waiters import Verdict, Waiters

log = logging.getLogger(__name__)

type Durability = Literal["process", "fsync"]

GROUP: Final = 0.02
"""Seconds between two groups, written or synced, while nobody waits for one."""

LITTLE: Final = 256 << 10
"""Bytes that the event loop's thread may write by itself."""

SLOW: Final = 0.005
"""Seconds that such a write may take. A disk that needs longer is left to the thread, for CALM times as long: so it
takes at most a twentieth of the event loop's time, and a machine that was only busy for a moment is soon forgiven."""

CALM: Final = 20.0

RETRY: Final = 0.25
"""Seconds between two attempts on a disk that refuses, and between two looks at what the reader has deleted."""


class Spool:
    """One writer's spool. `append` and `reached` are for one event loop's thread; records are numbered from 1."""

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
        self._claim = claimed(directory)
        self._progress, self._syncer = self._opened()
        self._used = self._disk.used(directory)
        # The other half of a small disk is for the reader: it needs room to get rid of anything.
        self._max_bytes = min(max_bytes, self._used + self._disk.space(directory) // 2)
        self._max_memory = max_memory
        # A full spool empties segment by segment: many small ones let it breathe.
        self._segment_bytes = min(segment_bytes, max(self._max_bytes // 8, 4096))
        number, salt = unused(directory), secrets.randbits(32)
        self._output = Output(directory, self._disk, self._progress, number=number, salt=salt, now=now)

        self._lock = threading.Lock()
        self._pen = threading.Lock()
        """Held from taking records to having written them, so that they reach the file in their order."""
        self._slow_until = 0.0
        self._to_write = threading.Condition(self._lock)
        self._to_sync = threading.Condition(self._lock)
        self._queue: list[bytes] = []
        self._in_hand: list[bytes] = []
        """What the writing thread has taken from the queue and not written yet."""
        self._queued = 0
        self._appended = self._written = self._synced = 0
        self._urgent = self._look = self._dirty = self._due = False
        self._works: list[Callable[[], None]] = []
        self._timed = False
        """Whether a group is begun, at whose end all is written and synced."""
        self._closing = self._written_out = False
        self._named = 0
        self._trouble: str | None = None
        self._failed = (0, 0, "")
        self._waiters = Waiters(self._lock, self._verdict)
        self.faults = 0
        """How often a sync has failed; each time, what was written just before may not outlive the host."""
        self.fault = ""
        """What it was, the last time."""

        self._open_first()
        self._threads = [
            threading.Thread(target=self._run_again, args=(work,), name=name, daemon=True)
            for name, work in (("spool-write", self._write_forever), ("spool-sync", self._sync_forever))
        ]
        for thread in self._threads:
            thread.start()

    # -- what the worker calls

    @property
    def appended(self) -> int:
        """The number of the last record that was taken."""
        return self._appended

    @property
    def written(self) -> int:
        """The number of the last record that a killed process would not lose."""
        return self._written

    @property
    def trouble(self) -> str | None:
        """Why nothing can be kept just now; None when all is well."""
        return self._trouble

    @property
    def waiting(self) -> int:
        """Bytes that were taken and are still to be written."""
        return self._queued

    def append(self, payload: bytes, *, begins: bool = False) -> int:
        """Take a record, and give its number. Raises SpoolFull and SpoolBroken.

        One that begins something is taken only while an eighth is left, for the rest of what has begun.
        """
        size = OVERHEAD + len(payload)
        room = self._max_bytes - (self._max_bytes // 8 if begins else 0)
        with self._lock:
            if self._trouble is not None or self._closing:
                raise SpoolBroken(self._trouble or f"the spool {self.directory} is closed")
            if self._used + size > room or self._queued + size > self._max_memory:
                raise self._full()
            if not 0 < len(payload) <= LARGEST:
                raise ValueError(f"a record has 1 to {LARGEST} bytes, not {len(payload)}")
            self._queue.append(payload)
            self._queued += size
            self._used += size
            self._appended += 1
        if not self._timed:
            self._begin_group()
        return self._appended

    def soon(self, work: Callable[[], None]) -> None:
        """Have this done before the present group ends: what it appends is of that group."""
        self._works.append(work)
        if not self._timed:
            self._begin_group()

    def _begin_group(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # Who appends without a loop has the threads do it all.
            self._work()
            self._call(self._to_write)
        else:
            self._timed = True
            loop.call_later(GROUP, self._end_group)

    def _end_group(self) -> None:
        """Write what nobody has waited for, and have all of it synced."""
        try:
            self._work()
        finally:
            self._timed = False
        if self._written < self._appended and not self.write_now(self._appended):
            self._call(self._to_write)
        if self._dirty:
            self._call(self._to_sync)

    def _work(self) -> None:
        works, self._works = self._works, []
        for work in works:
            work()

    def _call(self, thread: threading.Condition) -> None:
        with self._lock:
            if thread is self._to_write:
                self._urgent = True
            else:
                self._due = True
            thread.notify()

    async def reached(self, sequence: int, since: int | None = None) -> None:
        """Return once the record is written, or on disk with durability "fsync". Raises SpoolBroken.

        With `since` it is asked about all records from that one on: a sync in the midst of them may have failed.
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
                self._urgent = True
                self._to_write.notify()
            elif self._durability == "fsync":
                self._due = True
                self._to_sync.notify()
        await future
        if isinstance(verdict := self._verdict(sequence, since), SpoolBroken):
            raise verdict

    def write_now(self, sequence: int) -> bool:
        """Have a record written here and now; False where it cannot be done at once, or where the disk is waited for."""
        if self._durability == "fsync":
            return False
        if sequence <= self._written:
            return not self._failed[0] < sequence <= self._failed[1]
        if self._queued > LITTLE or time.monotonic() < self._slow_until or not self._pen.acquire(blocking=False):
            return False
        try:
            ready = self._trouble is None and not self._closing
            return ready and self._write_quickly() and sequence <= self._written
        finally:
            self._pen.release()

    def _write_quickly(self) -> bool:
        """One write(2) into the present segment. What it does not take is left for the thread, in its place."""
        handle, size = self._output.handle, self._output.size + self._queued
        if handle is None or handle in self._syncer.poisoned or size > self._segment_bytes:
            return False
        with self._lock:
            batch, self._queue = self._queue, []
        began = time.monotonic()
        try:
            self._output.write(batch)
        except WriteFailed as failure:
            self._advance(batch[: failure.done])
            with self._lock:
                self._queue[:0] = batch[failure.done :]
            return False
        self._advance(batch)
        if (ended := time.monotonic()) - began > SLOW:
            self._slow_until = ended + CALM * (ended - began)
        return True

    def close(self) -> int:
        """Write and sync what is left, and let go of the spool; return how many records could not be kept."""
        self._work()
        with self._lock:
            self._closing = True
            self._to_write.notify()
            self._to_sync.notify()
        for thread in self._threads:
            thread.join()
        self._output.retire()
        for handle in self._output.retired:
            self._syncer.close(handle)
        self._syncer.end()
        self._progress.close()
        os.close(self._claim)
        return self._appended - self._written

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the state, under the lock

    def _verdict(self, sequence: int, since: int | None = None) -> Verdict:
        """What is to be said to whoever waits for this, and for all from `since` on."""
        low, high, reason = self._failed
        if low < sequence and (since or sequence) <= high:
            return SpoolBroken(reason)
        if sequence <= (self._written if self._durability == "process" else self._synced):
            return True
        return self._trouble is not None and SpoolBroken(self._trouble)

    def _full(self) -> SpoolFull:
        if self._queued >= self._max_memory // 2:
            return SpoolFull(f"the disk under {self.directory} is too slow: {self._queued} bytes wait to be written")
        if not self._look:
            self._look = True
            self._to_write.notify()
        return SpoolFull(
            f"the spool {self.directory} is full ({self._used} of {self._max_bytes} bytes wait to be stored): "
            "see why the store server does not empty it, or allow more"
        )

    def _run_again(self, work: Callable[[], None]) -> None:
        """Run a thread's work, and begin it again where a mistake of ours ends it: without its threads a spool would
        refuse every record for the rest of the worker's life."""
        while True:
            try:
                return work()
            except Exception as mistake:  # the guard of a thread, whose end nobody would see
                log.exception("a thread of the spool %s failed; it is started again", self.directory)
                with self._lock:
                    self._queue[:0], self._in_hand = self._in_hand, []
                    self.faults += 1
                    self.fault = self._trouble = f"the spool {self.directory} failed: {mistake!r}"
                    self._failed = (self._synced, self._written, self.fault)
                self._waiters.tell()
                if self._closing:
                    return None
                time.sleep(RETRY)
                with self._lock:
                    self._trouble = None
                    # What is in the queue must not wait for another record.
                    self._urgent = self._due = True

    # -- the writing thread

    def _opened(self) -> tuple[Progress, Syncer]:
        try:
            return Progress(self.directory), Syncer(self.directory, self._disk)
        except OSError as error:
            os.close(self._claim)
            raise SpoolBroken(f"the spool {self.directory} cannot be written: {error}") from error

    def _open_first(self) -> None:
        try:
            self._output.begin()
            self._syncer.sync_names()
        except OSError as error:
            self._syncer.end()
            os.close(self._claim)
            raise SpoolBroken(f"the spool {self.directory} cannot be written: {error}") from error

    def _write_forever(self) -> None:
        while self._something():
            with self._pen:
                with self._lock:
                    self._in_hand, self._queue = self._queue, []
                self._write()
                if self._look:
                    self._look_around()
            self._call(self._to_sync)
        with self._lock:
            self._written_out = True
            self._to_sync.notify()

    def _something(self) -> bool:
        """Wait until there is something to do; False when nothing more will come."""
        with self._lock:
            while not (self._urgent or self._look or self._closing):
                self._to_write.wait()
            if self._look and not self._closing:
                # Whoever is refused asks for another look, and that may be thousands a second.
                self._to_write.wait(GROUP)
            self._urgent = False
            return not self._closing or bool(self._queue)

    def _write(self) -> None:
        """Write what is in hand. What is left of it when a mistake of ours ends this is in hand still."""
        while batch := self._in_hand:
            try:
                if self._output.size >= self._segment_bytes or self._output.handle in self._syncer.poisoned:
                    self._output.begin()
                part = batch[: _fitting(batch, self._segment_bytes - self._output.size)]
                self._output.write(part)
            except WriteFailed as failure:
                self._in_hand = batch[failure.done :]
                self._advance(batch[: failure.done])
                if not self._waited(f"the spool {self.directory} cannot be written: {failure}"):
                    return
            else:
                self._in_hand = batch[len(part) :]
                self._advance(part)

    def _advance(self, batch: list[bytes]) -> None:
        with self._lock:
            self._written += len(batch)
            self._queued -= sum(map(len, batch)) + OVERHEAD * len(batch)
            self._trouble = None if batch else self._trouble
            self._dirty = True
        self._waiters.tell()

    def _waited(self, reason: str) -> bool:
        """Refuse everything for a while; False when there is no more time for another attempt."""
        with self._lock:
            self._trouble = reason
        self._waiters.tell()
        with self._lock:
            if self._closing:
                return False
            self._to_write.wait(RETRY)
        return True

    def _look_around(self) -> None:
        """See what the reader has deleted. It cannot delete the segment that we write, so begin another one."""
        with self._lock:
            self._look = False
        if self._output.size > self._segment_bytes // 8:
            try:
                self._output.begin()
            except WriteFailed:
                pass  # the next write meets the same disk, and says so
        try:
            used = self._disk.used(self.directory)
        except OSError:
            return  # whoever is refused next asks for another look
        with self._lock:
            self._used = used + self._queued

    # -- the syncing thread

    def _sync_forever(self) -> None:
        while self._awaited():
            with self._lock:
                retired, self._output.retired = self._output.retired, []
                current, begun, target = self._output.handle, self._output.begun, self._written
                size = self._output.size
                self._dirty = self._due = False
            handles = [*retired, *([] if current is None else [current])]
            fault = self._syncer.sync(handles, names=begun != self._named)
            for handle in retired:
                self._syncer.close(handle)
            if current is not None:
                self._syncer.check(current, size)
            with self._lock:
                if fault:
                    self.faults, self.fault = self.faults + 1, fault
                    self._failed = (self._synced, target, fault)
                else:
                    self._named = begun
                self._synced = target
            self._waiters.tell()

    def _awaited(self) -> bool:
        """Wait until something is to be synced; False when nothing ever will be."""
        with self._lock:
            while not ((self._dirty and self._due) or self._written_out):
                self._to_sync.wait()
            return self._dirty or bool(self._output.retired)


def _fitting(batch: list[bytes], room: int) -> int:
    """How many records of a batch a segment has room for; one always, however large it is."""
    count = 0
    while count < len(batch) and room > 0:
        room -= OVERHEAD + len(batch[count])
        count += 1
    return max(count, 1)
