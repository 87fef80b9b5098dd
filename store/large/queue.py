"""Store large exchanges one after another, beside the drain, so that none delays others.

What cannot be derived within the limits is stored as evidence, under a call that says why. What cannot even be stored
becomes a gap that says why, and the file of its events is moved to `damaged/`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from calls.events import Gap, RequestStarted
from store.database.connection import DatabaseError
from store.ingest.drain import Drain, LargeExchange
from store.ingest.open_exchange_files import beginning_of
from store.large.jobs import HelperJob, Reply, StoringJob

log = logging.getLogger(__name__)

PATIENCE: Final = (0.2, 5.0)
"""Seconds between two tries while Postgres is away: at first, and at most."""


class Runner(Protocol):
    """Does a job somewhere."""

    async def run(self, job: HelperJob) -> Reply:
        """Do it; what became of it."""

    async def close(self) -> None:
        """End whatever does it."""


class _Waiting(NamedTuple):
    drain: Drain
    exchange: LargeExchange


class LargeQueue:
    """Large exchanges that have ended and are to be stored. Those of one spool keep their order."""

    def __init__(
        self,
        runner: Runner,
        put_gap: Callable[[Gap], Awaitable[object]],
        damaged: Path,
        *,
        stored: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._put_gap = put_gap
        self._damaged = damaged
        self._stored = stored
        self._waiting: deque[_Waiting] = deque()
        self._more = asyncio.Event()
        self.underived = 0
        """How many were stored without a call that was derived from them."""

        self.failed = 0
        """How many could not be stored."""

        self.trouble: str | None = None
        """Why none can be stored just now."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, drain: Drain, exchange: LargeExchange) -> None:
        """Have it stored."""
        self._waiting.append(_Waiting(drain, exchange))
        self._more.set()

    async def run(self) -> None:
        """Store what is added, until cancelled."""
        try:
            while True:
                await self._more.wait()
                while self._waiting:
                    if await self._is_stored(self._waiting[0]):
                        self._waiting.popleft()
                self._more.clear()
        finally:
            await self._runner.close()

    async def _is_stored(self, waiting: _Waiting) -> bool:
        """Whether it is stored, or set aside; if not, the disk or the system stands in the way, and it is tried again."""
        try:
            await self._store(waiting)
        except OSError as error:
            self.trouble = f"the large exchange {waiting.exchange.id} cannot be stored yet: {error}"
            await asyncio.sleep(PATIENCE[1])
            return False
        return True

    async def _store(self, waiting: _Waiting) -> None:
        drain, exchange = waiting
        job = StoringJob(file=str(exchange.file), source=exchange.source, is_cut_off=exchange.is_cut_off)
        reply = await self._tried(job)
        if reply.failed:
            log.warning("no call is derived from the large exchange %s: %s", exchange.id, reply.failed)
            self.underived += 1
            reason = f"no call was derived from this exchange: {reply.failed}; its evidence is complete"
            reply = await self._tried(msgspec.structs.replace(job, underived=reason))
        if reply.failed:
            await self._give_up(drain, exchange, reply.failed)
        else:
            drain.large_stored(exchange.id)
        self._stored()

    async def _tried(self, job: StoringJob) -> Reply:
        """What became of it, tried until Postgres is there."""
        patience, longest = PATIENCE
        while (reply := await self._runner.run(HelperJob(store=job))).is_unavailable:
            self.trouble = reply.failed
            await asyncio.sleep(patience)
            patience = min(patience * 2, longest)
        self.trouble = None
        return reply

    async def _give_up(self, drain: Drain, exchange: LargeExchange, why: str) -> None:
        """Say in its run that it is lost to the database, and keep the file of its events."""
        log.error("the large exchange %s cannot be stored: %s", exchange.id, why)
        self.failed += 1
        head = await asyncio.to_thread(_beginning, exchange.file)
        run, at = (head.run, head.started_at) if head else ("unknown", 0)
        place = self._damaged / exchange.file.name
        gap = Gap(run, at, f"the exchange could not be stored: {why}; its events are kept in {place}", exchange.id)
        while not await self._told(gap):  # noqa: ASYNC110 - Postgres is away, and tells nobody when it is back
            await asyncio.sleep(PATIENCE[1])
        await asyncio.to_thread(drain.set_aside, exchange.id, self._damaged)

    async def _told(self, gap: Gap) -> bool:
        try:
            await self._put_gap(gap)
        except DatabaseError as error:
            self.trouble = str(error)
            return False
        self.trouble = None
        return True


def _beginning(file: Path) -> RequestStarted | None:
    try:
        return beginning_of(file)
    except (OSError, msgspec.DecodeError):
        return None
