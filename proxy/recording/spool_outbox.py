"""Write records to the spool, and report what could not be written once that is possible.

While the spool refuses, bodies are lost, and a gap says so; what is small and needed to read the rest (heads, ends, gaps)
is owed, and written in its order as soon as the spool takes records again.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from calls.events import Data, Gap, Record, RequestStarted, encode
from store.spool import SpoolError

OWED = 10_000
"""Records that are owed at most. More would be a memory leak; what is over is told by the gaps."""

UNKNOWN: Final = "unknown"
"""The run of what is told of none."""

MORE: Final = "something could not be kept, of more runs than could be remembered while nothing could be written"

_HOW_FULL: Final = re.compile(r"\d+(?= (?:of \d+ )?bytes)")
"""It changes with every request, and is one reason all the same."""

RETRY = 1.0
"""Seconds until what is owed is offered again, where no other record comes first."""


class Journal(Protocol):
    """Where records are kept: a spool on disk, or memory for as long as a test lasts."""

    faults: int
    fault: str

    @property
    def trouble(self) -> str | None: ...
    @property
    def waiting(self) -> int: ...
    def soon(self, work: Callable[[], None]) -> None: ...
    def append(self, payload: bytes, *, begins: bool = False) -> int: ...
    def write_now(self, number: int) -> bool: ...
    async def reached(self, number: int, since: int | None = None) -> None: ...


class SpoolOutbox:
    """What a worker has told its spool, and what it still has to tell."""

    def __init__(self, spool: Journal, now: Callable[[], int]) -> None:
        self._spool = spool
        self._now = now
        self._owed: deque[Record] = deque()
        self._gaps: dict[tuple[str, str], Gap] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._faults = spool.faults
        self._timer: asyncio.TimerHandle | None = None

    def put(self, record: Record) -> int | str:
        """Write a record and give its number, or say why it is not written (an end may yet be, later)."""
        if (self._owed or self._gaps) and not self.settle():
            return self._owe(record, self._spool.trouble or "the spool is full")
        try:
            return self._spool.append(encode(record), begins=isinstance(record, RequestStarted))
        except SpoolError as error:
            return self._owe(record, str(error))

    def put_together(self, records: Sequence[Record]) -> int | None:
        """Write records that came together as one and give its number, or write none of them: they can still be put singly."""
        if self._owed or self._gaps:
            return None
        try:
            return self._spool.append(encode(records), begins=isinstance(records[0], RequestStarted))
        except SpoolError:
            return None

    def gap(self, run: str, reason: str, exchange: str | None = None) -> None:
        """Something passed that is not recorded. Gaps of one run and reason that have to wait become one."""
        gap = Gap(run, self._now(), reason, exchange)
        if not (self._owed or self._gaps):
            try:
                self._spool.append(encode(gap))
                return
            except SpoolError:
                pass  # it is owed, like what it tells of
        about = run, _HOW_FULL.sub("", reason)
        if about not in self._gaps and len(self._gaps) >= OWED:
            about, gap = (UNKNOWN, MORE), Gap(UNKNOWN, gap.happened_at, MORE, None)
        self._gaps.setdefault(about, gap)
        self._counts[about] = self._counts.get(about, 0) + 1
        self._retry()

    def check(self, run: str) -> None:
        """Say it in this run when the disk has failed since anybody asked."""
        if self._spool.faults != self._faults:
            self._faults = self._spool.faults
            self.gap(run, self._spool.fault)

    def settle(self) -> bool:
        """Write what is owed; whether nothing is owed any more."""
        try:
            while self._owed:
                self._spool.append(encode(self._owed[0]))
                self._owed.popleft()
            while self._gaps:
                about, gap = next(iter(self._gaps.items()))
                self._spool.append(encode(_of_many(gap, self._counts[about])))
                del self._gaps[about], self._counts[about]
        except SpoolError:
            self._retry()
            return False
        return True

    def _owe(self, record: Record, reason: str) -> str:
        if not isinstance(record, RequestStarted | Data) and len(self._owed) < OWED:
            self._owed.append(record)
        self._retry()
        return reason

    def _retry(self) -> None:
        if self._timer is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without a loop there is no later: whoever comes next settles
        self._timer = loop.call_later(RETRY, self._again)

    def _again(self) -> None:
        self._timer = None
        self.settle()


def _of_many(gap: Gap, count: int) -> Gap:
    if count == 1:
        return gap
    return Gap(gap.run, gap.happened_at, f"{gap.reason} ({count} times)", None, count)
