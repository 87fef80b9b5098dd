"""Store large exchanges one after another, concurrently with the drain, so that they do not delay other exchanges.

If no call can be derived within the limits, the evidence is stored with a call that has the reason. If the exchange cannot be
stored either, a gap has the reason, and the file of its events is moved to `damaged/`. Each store server that starts tries some of
these files once again, because memory or a limit may have been what was missing.
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from calls.events import Gap, RequestStarted
from store.database.connection import DatabaseError
from store.ingest.drain import Drain, LargeExchange
from store.ingest.open_exchange_files import read_request_event
from store.large.jobs import HelperJob, Reply, StoringJob

log = logging.getLogger(__name__)

MAX_KEPT_FILES: Final = 100
"""Exchanges that were set aside and are tried again after a start. Each may take minutes. The next start tries the next ones."""

RETRY_PAUSES: Final = (0.2, 5.0)
"""Seconds between two attempts while Postgres is unavailable: at first, and at most."""


class JobRunner(Protocol):
    """Runs jobs, in this process or in another."""

    async def run(self, job: HelperJob) -> Reply:
        """Run a job and return its result."""

    async def close(self) -> None:
        """End the process that runs the jobs."""


class _QueuedExchange(NamedTuple):
    drain: Drain
    exchange: LargeExchange


class LargeQueue:
    """The large exchanges that have ended and are to be stored, in order."""

    def __init__(
        self,
        runner: JobRunner,
        write_gap: Callable[[Gap], Awaitable[object]],
        damaged: Path,
        *,
        on_stored: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._write_gap = write_gap
        self._damaged = damaged
        self._on_stored = on_stored
        self._waiting: deque[_QueuedExchange] = deque()
        self._has_more = asyncio.Event()
        self.underived_count = 0
        """How many were stored without a derived call."""

        self.trouble: str | None = None
        """Why none can be stored at present."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, drain: Drain, exchange: LargeExchange) -> None:
        """Add an exchange to be stored."""
        self._waiting.append(_QueuedExchange(drain, exchange))
        self._has_more.set()

    async def run(self) -> None:
        """Store the exchanges that are added, until cancelled."""
        kept_files = deque(await asyncio.to_thread(_kept_files, self._damaged))
        try:
            while True:
                if not kept_files:
                    await self._has_more.wait()
                while self._waiting:
                    if await self._try_store(self._waiting[0]):
                        self._waiting.popleft()
                self._has_more.clear()
                if kept_files:
                    await self._store_kept_file(kept_files.popleft())
        finally:
            await self._runner.close()

    async def _try_store(self, queued: _QueuedExchange) -> bool:
        """Store an exchange, or set it aside for good. Return False if the system failed, so that it must be tried again."""
        try:
            await self._store(queued)
        except OSError as error:
            self.trouble = f"the large exchange {queued.exchange.id} cannot be stored yet: {error}"
            await asyncio.sleep(RETRY_PAUSES[1])
            return False
        return True

    async def _store_kept_file(self, file: Path) -> None:
        """Store an exchange that an earlier store server could not store; leave its file if this one cannot either."""
        job = StoringJob(file=str(file), source=f"{self._damaged.name}/{file.name}", is_cut_off=None)
        with suppress(OSError):
            # Before: one at which this process is killed must not be the first of each start. By a clock that is finer than the
            # file system's own, by which two files may have the same time.
            now = time.time_ns()
            await asyncio.to_thread(os.utime, file, ns=(now, now))
        try:
            reply = await self._run_with_fallback(file.stem, job)
        except OSError as error:  # no process could be started for it: nothing else waits for this file
            reply = Reply(failed=str(error))
        if reply.failed:
            log.warning("%s cannot be stored yet: %s; a later start tries it again", file, reply.failed)
            return
        log.info("the large exchange %s, which could not be stored before, is stored", file.stem)
        try:
            await asyncio.to_thread(file.unlink, missing_ok=True)
        except OSError as error:
            log.warning("%s is stored and cannot be deleted: %s", file, error)
        self._on_stored()

    async def _store(self, queued: _QueuedExchange) -> None:
        drain, exchange = queued
        job = StoringJob(file=str(exchange.file), source=exchange.source, is_cut_off=exchange.is_cut_off)
        reply = await self._run_with_fallback(exchange.id, job)
        if reply.failed:
            await self._give_up(drain, exchange, reply.failed)
        else:
            drain.mark_large_stored(exchange.id)
        self._on_stored()

    async def _run_with_fallback(self, name: str, job: StoringJob) -> Reply:
        """Run a job, and if it fails once more without deriving a call."""
        reply = await self._run_when_available(job)
        if not reply.failed:
            return reply
        log.warning("no call is derived from the large exchange %s: %s", name, reply.failed)
        self.underived_count += 1
        reason = f"no call was derived from this exchange: {reply.failed}; its evidence is complete"
        return await self._run_when_available(msgspec.structs.replace(job, underived=reason))

    async def _run_when_available(self, job: StoringJob) -> Reply:
        """Run a job, again while Postgres is unavailable."""
        pause, longest = RETRY_PAUSES
        while (reply := await self._runner.run(HelperJob(store=job))).is_unavailable:
            self.trouble = reply.failed
            await asyncio.sleep(pause)
            pause = min(pause * 2, longest)
        self.trouble = None
        return reply

    async def _give_up(self, drain: Drain, exchange: LargeExchange, reason: str) -> None:
        """Write a gap for an exchange that cannot be stored, and keep the file of its events."""
        log.error("the large exchange %s cannot be stored: %s", exchange.id, reason)
        head = await asyncio.to_thread(_read_request_event, exchange.file)
        run, at = (head.run, head.started_at) if head else ("unknown", 0)
        kept_file = self._damaged / exchange.file.name
        sentence = f"the exchange could not be stored: {reason}; its events are kept in {kept_file}"
        gap = Gap(run, at, f"{sentence}, from which a later start of the store server tries again", exchange.id)
        while not await self._try_write_gap(gap):  # noqa: ASYNC110 - Postgres sends no event when it is available again
            await asyncio.sleep(RETRY_PAUSES[1])
        await asyncio.to_thread(drain.set_aside, exchange.id, self._damaged)

    async def _try_write_gap(self, gap: Gap) -> bool:
        try:
            await self._write_gap(gap)
        except DatabaseError as error:
            self.trouble = str(error)
            return False
        self.trouble = None
        return True


def _read_request_event(file: Path) -> RequestStarted | None:
    try:
        return read_request_event(file)
    except (OSError, msgspec.DecodeError):
        return None


def _kept_files(damaged: Path) -> list[Path]:
    """Return files of exchanges that were set aside, those first which were tried the longest time ago."""
    try:
        found = [one for one in os.scandir(damaged) if one.name.endswith(".parked") and one.is_file()]
        found.sort(key=lambda one: one.stat().st_mtime)
    except OSError:
        return []
    return [Path(one.path) for one in found[:MAX_KEPT_FILES]]
