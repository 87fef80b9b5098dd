"""Write records to the spool in order, and report what could not be written once that is possible.

`RecordWriter` writes those of one exchange, also while a body of it is being redacted on a thread. What the spool refuses is
the loss of the exchange, and one gap of its run. `SpoolOutbox` writes those of all exchanges of a worker. While the spool
refuses records, request starts and bodies are lost and reported as gaps. Small records that are needed to read the rest
(response heads, ends, gaps) are kept as owed, and written in order once the spool accepts records again.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from calls.events import Data, EffectBatch, Gap, Record, RequestStarted, Side, encode_records
from proxy.recording.ordered_queue import OrderedQueue
from store.spool import SpoolError

MAX_OWED = 10_000
"""Maximum number of owed records, and of owed gaps. Further records are lost, and reported by the gaps."""

UNKNOWN_RUN: Final = "unknown"
"""The run of a gap that belongs to no known run."""

MORE_GAPS: Final = "exchanges of further runs could not be recorded while the spool could not be written"

_HOW_FULL: Final = re.compile(r"\d+(?= (?:of \d+ )?bytes)")
"""The number of bytes in a reason, which is ignored when gaps with the same reason are merged."""

UNOWED: Final = (RequestStarted, Data, EffectBatch)
"""Records that may be large, and are lost where the spool refuses them."""

RETRY_AFTER = 1.0
"""Seconds until owed records are retried, unless another record comes first."""


class Journal(Protocol):
    """Stores records: a spool on disk or, in fixtures, memory for the duration of a test."""

    fault_count: int
    last_fault: str

    @property
    def trouble(self) -> str | None: ...
    @property
    def queued_bytes(self) -> int: ...
    def call_soon(self, work: Callable[[], None]) -> None: ...
    def append(self, payload: bytes, *, starts_exchange: bool = False) -> int: ...
    def write_now(self, number: int) -> bool: ...
    async def wait_until_durable(self, number: int, since: int | None = None) -> None: ...


class SpoolOutbox:
    """Writes records to the spool, and keeps those that are owed."""

    def __init__(self, spool: Journal, now: Callable[[], int]) -> None:
        self.spool = spool
        self._now = now
        self._owed_records: deque[Record] = deque()
        self._gaps: dict[tuple[str, str], Gap] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self.noted_faults = spool.fault_count
        """The number of failures of the spool when `check_faults` noted one last."""

        self.open_queues: set[OrderedQueue] = set()
        """The queues of exchanges of which a body is being redacted on the thread."""

        self._timer: asyncio.TimerHandle | None = None

    def write(self, record: Record) -> int | str:
        """Write a record and return its number, or return why it was not written. It may be written later if it is owed."""
        if (self._owed_records or self._gaps) and not self.write_owed():
            return self._keep_owed(record, self.spool.trouble or "the spool is full")
        try:
            return self.spool.append(encode_records(record), starts_exchange=isinstance(record, RequestStarted))
        except SpoolError as error:
            return self._keep_owed(record, str(error))

    def write_together(self, records: Sequence[Record]) -> int | None:
        """Write several records as one and return its number. Return None if none was written: `write` may still accept them."""
        if self._owed_records or self._gaps:
            return None
        try:
            # Not `isinstance`, which asks the metaclass of these types.
            return self.spool.append(encode_records(records), starts_exchange=type(records[0]) is RequestStarted)
        except SpoolError:
            return None

    def record_gap(self, run: str, reason: str, exchange: str | None = None) -> None:
        """Record that something was not recorded. Owed gaps with the same run and reason are merged."""
        gap = Gap(run, self._now(), reason, exchange)
        if not (self._owed_records or self._gaps):
            try:
                self.spool.append(encode_records(gap))
                return
            except SpoolError:
                pass  # the gap is owed
        about = run, _HOW_FULL.sub("", reason)
        if about not in self._gaps and len(self._gaps) >= MAX_OWED:
            about, gap = (UNKNOWN_RUN, MORE_GAPS), Gap(UNKNOWN_RUN, gap.happened_at, MORE_GAPS, None)
        self._gaps.setdefault(about, gap)
        self._counts[about] = self._counts.get(about, 0) + 1
        self._schedule_retry()

    def check_faults(self, run: str) -> None:
        """Record a gap in this run if the spool has failed since the last check."""
        if self.spool.fault_count != self.noted_faults:
            self.noted_faults = self.spool.fault_count
            self.record_gap(run, self.spool.last_fault)

    def write_owed(self) -> bool:
        """Write owed records and gaps. Return whether all of them were written."""
        try:
            while self._owed_records:
                self.spool.append(encode_records(self._owed_records[0]))
                self._owed_records.popleft()
            while self._gaps:
                about, gap = next(iter(self._gaps.items()))
                self.spool.append(encode_records(_merged_gap(gap, self._counts[about])))
                del self._gaps[about], self._counts[about]
        except SpoolError:
            self._schedule_retry()
            return False
        return True

    async def drain(self) -> None:
        """Wait until no body is being redacted, and retry records that could not be written. Call it before closing the spool."""
        while queues := list(self.open_queues):
            await asyncio.gather(*(queue.wait_until_empty() for queue in queues))
        self.write_owed()

    def _keep_owed(self, record: Record, reason: str) -> str:
        if not isinstance(record, UNOWED) and len(self._owed_records) < MAX_OWED:
            self._owed_records.append(record)
        self._schedule_retry()
        return reason

    def _schedule_retry(self) -> None:
        if self._timer is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without an event loop, the next record triggers the retry
        self._timer = loop.call_later(RETRY_AFTER, self._retry_now)

    def _retry_now(self) -> None:
        self._timer = None
        self.write_owed()


def _merged_gap(gap: Gap, count: int) -> Gap:
    if count == 1:
        return gap
    return Gap(gap.run, gap.happened_at, f"{gap.reason} ({count} times)", None, count)


class RecordWriter(msgspec.Struct, eq=False):
    """Writes the records of one exchange. External faults never raise."""

    _outbox: SpoolOutbox
    _run: str
    _exchange: str
    queue: OrderedQueue | None = None
    """What waits for a body that is being redacted on the thread; None while nothing waits."""

    _first_number: int = 0
    _last_number: int = 0
    _is_start_lost: bool = False
    loss_reason: str = ""
    """Why part of the exchange was not recorded; empty if all of it was."""

    lost_sides: tuple[Side, ...] = ()
    """The sides of which a piece was lost. Later pieces are not written either: their offsets would be wrong."""

    def write(self, record: Record) -> None:
        """Write a record at once, whatever waits for the thread."""
        if self._is_start_lost or (self.lost_sides and isinstance(record, Data) and record.side in self.lost_sides):
            return
        result = self._outbox.write(record)
        if isinstance(result, int):
            self._last_number = result
            self._first_number = self._first_number or result
            return
        if isinstance(record, RequestStarted):
            self._is_start_lost = True
        elif isinstance(record, Data):
            self.lost_sides += (record.side,)
        self._note_loss(result)

    def append(self, record: Record) -> None:
        """Write a record in its turn, which is nearly always now."""
        if self.queue is None:
            self.write(record)
        else:
            self.queue.append(partial(self.write, record))

    def call_in_turn(self, call: Callable[[], None]) -> None:
        """Call what writes a record when it is its turn."""
        if self.queue is None:
            call()
        else:
            self.queue.append(call)

    def append_data(self, events: Sequence[Data]) -> None:
        """Write pieces of a body in their turn, as one record if possible."""
        if not self.write_together(events):
            for event in events:
                self.append(event)

    def write_together(self, events: Sequence[Record]) -> bool:
        """Write several events as one record. Return False if that is not possible now."""
        if len(events) < 2 or self.queue is not None or self._is_start_lost or self.loss_reason:
            return False
        number = self._outbox.write_together(events)
        if number is None:
            return False
        self._last_number = number
        self._first_number = self._first_number or number
        return True

    # -- the thread

    def open_queue(self) -> OrderedQueue | None:
        """Return the queue behind a body that is redacted on the thread; None if no event loop is running."""
        if self.queue is None:
            try:
                self.queue = OrderedQueue(self._drop_queue)
            except RuntimeError:
                return None
            self._outbox.open_queues.add(self.queue)
        return self.queue

    def _drop_queue(self) -> None:
        if self.queue is not None:
            self._outbox.open_queues.discard(self.queue)
            self.queue = None

    # -- what is certain, and what is lost

    def is_written_now(self) -> bool:
        """Return whether every record is written, writing it now if possible."""
        return self.queue is None and not self.loss_reason and self._outbox.spool.write_now(self._last_number)

    async def wait_until_written(self) -> bool:
        """Wait until every record is written. Return False if one is lost."""
        if self.queue is not None:
            await self.queue.wait_until_empty()
        if not self.loss_reason:
            try:
                await self._outbox.spool.wait_until_durable(self._last_number, self._first_number)
            except SpoolError as error:
                self._note_loss(str(error))
        return not self.loss_reason

    def record_gap(self, reason: str) -> None:
        """Record that a part of the exchange is not recorded."""
        self._outbox.record_gap(self._run, reason, self._exchange)

    def _note_loss(self, reason: str) -> None:
        if not self.loss_reason:
            self.loss_reason = reason
            self.record_gap(reason)
