"""Write records to the spool, and report what could not be written once that is possible.

While the spool refuses records, request starts and bodies are lost and reported as gaps. Small records that are needed to
read the rest (response heads, ends, gaps) are kept as owed, and written in order once the spool accepts records again.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from calls.events import Data, EffectBatch, Gap, Record, RequestStarted, encode_records
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
        self._spool = spool
        self._now = now
        self._owed_records: deque[Record] = deque()
        self._gaps: dict[tuple[str, str], Gap] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self.noted_faults = spool.fault_count
        """The number of failures of the spool when `check_faults` noted one last."""

        self._timer: asyncio.TimerHandle | None = None

    def write(self, record: Record) -> int | str:
        """Write a record and return its number, or return why it was not written. It may be written later if it is owed."""
        if (self._owed_records or self._gaps) and not self.write_owed():
            return self._keep_owed(record, self._spool.trouble or "the spool is full")
        try:
            return self._spool.append(encode_records(record), starts_exchange=isinstance(record, RequestStarted))
        except SpoolError as error:
            return self._keep_owed(record, str(error))

    def write_together(self, records: Sequence[Record]) -> int | None:
        """Write several records as one and return its number. Return None if none was written: `write` may still accept them."""
        if self._owed_records or self._gaps:
            return None
        try:
            # Not `isinstance`, which asks the metaclass of these types.
            return self._spool.append(encode_records(records), starts_exchange=type(records[0]) is RequestStarted)
        except SpoolError:
            return None

    def record_gap(self, run: str, reason: str, exchange: str | None = None) -> None:
        """Record that something was not recorded. Owed gaps with the same run and reason are merged."""
        gap = Gap(run, self._now(), reason, exchange)
        if not (self._owed_records or self._gaps):
            try:
                self._spool.append(encode_records(gap))
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
        if self._spool.fault_count != self.noted_faults:
            self.noted_faults = self._spool.fault_count
            self.record_gap(run, self._spool.last_fault)

    def write_owed(self) -> bool:
        """Write owed records and gaps. Return whether all of them were written."""
        try:
            while self._owed_records:
                self._spool.append(encode_records(self._owed_records[0]))
                self._owed_records.popleft()
            while self._gaps:
                about, gap = next(iter(self._gaps.items()))
                self._spool.append(encode_records(_merged_gap(gap, self._counts[about])))
                del self._gaps[about], self._counts[about]
        except SpoolError:
            self._schedule_retry()
            return False
        return True

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
