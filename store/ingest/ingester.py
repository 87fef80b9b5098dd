"""Drain every spool of a data directory into Postgres.

Each pass handles every spool in turn: gather events, derive calls, store the batch, and only then commit the spool's
position. While Postgres is unavailable the current batch waits and the spools grow; workers are not affected. A spool whose
worker is dead is drained, its open exchanges are stored as cut off with a gap, and its directory is removed.

What is lost if the process dies: nothing. Events whose position was not committed are read again, and their exchanges are
stored once because the worker has assigned the ids.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from calls.events import Gap
from calls.model import Call, Exchange, UnknownFormat
from calls.project_runs import full_run_name
from store import report_sequence
from store.attribution.run_assignment import assign_run
from store.database.connection import DatabaseError
from store.embedded.postgres import EmbeddedPostgresError
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.ingest.drain import DAMAGED_DIRECTORY, Drain, DrainResult
from store.ingest.project_writers import ProjectWriters, exchange_in_project
from store.large.memory import trim_heap
from store.large.queue import JobRunner, LargeQueue
from store.large.storing import InProcessRunner
from store.pricing.prices import call_cost
from store.spool import Position
from store.spool.place import spool_directories
from store.worker_counters import WorkerCounters

log = logging.getLogger(__name__)

MAX_OPEN_WEIGHT = 32 << 20
"""Weight of open exchanges in memory at most, over all spools; others are parked on disk."""

TRIM_EVERY = 5.0
"""Seconds after storing something until freed memory is returned to the system."""

COMMIT_EVERY = 1.0
"""Seconds between two syncs of a spool's cursor; after a crash, at most this much is read again."""

PASS_PAUSES = (0.02, 0.25)
"""Seconds between two passes: after one that stored something, and at most, while nothing comes."""

BATCH_PAUSES = (0.1, 1.0)
"""Seconds after a batch that was not full, in which the next one gathers, unless somebody waits for it: at first, and at most, while
there is always something to store and nobody reads. A batch of one exchange costs several times as much for each as one of a hundred,
and takes the processor from the workers."""

RETRY_PAUSES = (0.1, 5.0)
"""Seconds between two attempts while Postgres is unavailable: at first, and at most."""

LATE_AFTER = 10.0
"""Seconds after which a batch that is still being stored counts as trouble. It waits for a lock, or for a disk that is very slow."""

STOP_TIMEOUT = 2.0
"""Seconds for which a stopping store server continues to drain what workers write meanwhile."""


@dataclass(slots=True)
class Counts:
    """What a store server has counted since it started."""

    records: int = 0
    exchanges: int = 0
    gaps: int = 0
    large: int = 0
    underived: int = 0
    unplaced: int = 0
    retries: int = 0


@dataclass(slots=True)
class _Waiter:
    """A request that waits until everything in the spools is stored."""

    all_stored: asyncio.Event = field(default_factory=asyncio.Event)
    ends: dict[Drain, Position] | None = None
    """The end of each spool when the request came."""

    is_complete: bool = True
    """Whether all spools could be read."""

    unclosed: dict[Drain, set[str]] = field(default_factory=dict)
    """Exchanges that clients had received completely by then, and whose last event was still to come."""


class Ingester:
    """Drains the spools until it is stopped. `derive` is a pure function; `revive` restarts an embedded Postgres.

    `is_read` tells whether somebody reads what is stored, and so should not find it late.
    """

    def __init__(
        self,
        spools: Path,
        writer: BatchWriter,
        derive: Callable[[Exchange], Call],
        *,
        large: JobRunner | None = None,
        revive: Callable[[], None] | None = None,
        is_claimed: Callable[[str], bool] = lambda _run: False,
        is_read: Callable[[], bool] = lambda: False,
    ) -> None:
        self.counts = Counts()
        self.troubles: dict[str, str] = {}
        """What is wrong at present, by its subject: `database`, `spools`, `large` or the name of a spool."""

        self.worker_counters = WorkerCounters(spools)
        """The counters of the workers."""

        self._spools = spools
        self._derive = derive
        self._is_claimed = is_claimed
        self._is_read = is_read
        self._large = LargeQueue(
            large or InProcessRunner(writer, derive),
            partial(_write_gap, ProjectWriters(BatchWriter(writer.database), self._derive_in_project)),
            spools.parent / DAMAGED_DIRECTORY,
            on_stored=self._count_large,
        )
        self._trim_at = 0.0
        self._projects = ProjectWriters(writer, self._derive_in_project)
        self._revive = revive
        self._drains: dict[Path, Drain] = {}
        self._commit_at: dict[Path, float] = {}
        """When the position of a spool is committed next."""

        self._retry_at: dict[Path, float] = {}
        """When to open a spool again that could not be read."""

        self._waiters: list[_Waiter] = []
        self._is_database_lost = False
        self._is_behind = False
        """Whether the last batch was full, so that more waits to be stored."""

        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def spools(self) -> int:
        """How many spools are drained."""
        return len(self._drains)

    def bytes_pending(self) -> int:
        """Bytes in the spools that are not committed yet. Reads the disk."""
        pending = 0
        for drain in list(self._drains.values()):
            try:
                pending += drain.reader.stats().bytes_pending
            except (OSError, UnknownFormat):
                pass  # `troubles` has the reason
        return pending

    async def run(self) -> None:
        """Drain the spools until `stop` is called, then once more."""
        async with asyncio.TaskGroup() as group:
            storing = group.create_task(self._large.run())
            await self._drain()
            storing.cancel()

    async def _drain(self) -> None:
        pause, batch_pause = PASS_PAUSES[0], BATCH_PAUSES[0]
        while not self._stopping.is_set():
            if await self._drain_each():
                pause = PASS_PAUSES[0]
                if self._is_behind or self._waiters:
                    continue
                if self._is_read():
                    batch_pause = BATCH_PAUSES[0]
                await _wait_for(self._wake, batch_pause)
                batch_pause = min(batch_pause * 2, BATCH_PAUSES[1])
            else:
                await _wait_for(self._wake, pause)
                pause, batch_pause = min(pause * 1.5, PASS_PAUSES[1]), BATCH_PAUSES[0]
            self._wake.clear()
        await self._drain_before_stop()

    def stop(self) -> None:
        """Make `run` end."""
        self._stopping.set()
        self._wake.set()

    def note_database_lost(self) -> None:
        """Have an embedded Postgres restarted that another part found unavailable."""
        self._is_database_lost = True
        self._wake.set()

    async def wait_until_settled(self, patience: float, *, reports: bool = False) -> bool:
        """Wait until everything acknowledged by now is stored, for `patience` seconds at most; return whether it is.

        With `reports`, wait for changes of replay reports too, which workers write a little later.
        """
        waiter = _Waiter()
        try:
            async with asyncio.timeout(patience):
                if reports:
                    await report_sequence.wait_until_written(self._spools)
                self._waiters.append(waiter)
                self._wake.set()
                await waiter.all_stored.wait()
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return waiter.is_complete

    async def _drain_each(self) -> bool:
        """Drain every spool once; return whether there was anything to store."""
        if self._is_database_lost:
            await self._revive_database()
        await asyncio.to_thread(self._discover_spools)
        is_busy = self._is_behind = False
        for drain in list(self._drains.values()):
            with self._report_trouble(drain):
                is_busy |= await self._drain_spool(drain)
        for waiter in self._waiters:
            self._check_waiter(waiter)
        if self._large.trouble:
            self.troubles["large"] = self._large.trouble
        else:
            self.troubles.pop("large", None)
        if not is_busy and self._trim_at and time.monotonic() > self._trim_at:
            await asyncio.to_thread(trim_heap)
            self._trim_at = 0.0
        return is_busy

    def _count_large(self) -> None:
        self.counts.large += 1
        self.counts.underived += self._large.underived_count
        self._large.underived_count = 0
        self._wake.set()

    async def _drain_spool(self, drain: Drain) -> bool:
        """Store what one spool has; return whether there was anything. Raises OSError."""
        gathered, batch = await asyncio.to_thread(self._gather, drain)
        if not await self._store_or_stop(gathered, batch):
            # What was gathered is now only in the spool, so it is read again from the cursor.
            self._close_drain(drain)
            return False
        drain.mark_stored()
        self._is_behind |= gathered.is_full
        for exchange in gathered.large:
            self._large.add(drain, exchange)
        if gathered.records and not self._trim_at:
            self._trim_at = time.monotonic() + TRIM_EVERY
        if gathered.is_orphaned:
            await self._remove_orphan(drain)
        elif drain.can_commit and time.monotonic() > self._commit_at[drain.directory]:
            with self._report_cursor_trouble(drain):
                await asyncio.to_thread(drain.commit)
        return gathered.records > 0

    def _gather(self, drain: Drain) -> tuple[DrainResult, list[DerivedExchange]]:
        gathered = drain.gather(MAX_OPEN_WEIGHT // max(len(self._drains), 1))
        return gathered, self._derive_batch(gathered, drain)

    def _derive_batch(self, gathered: DrainResult, drain: Drain) -> list[DerivedExchange]:
        source = f"{drain.directory.name} before {drain.position}"
        return [self._derive_recorded(exchange, source) for exchange in gathered.exchanges]

    def _derive_recorded(self, recorded: Exchange, source: str) -> DerivedExchange:
        """Derive the call of an exchange that a worker recorded, whose run has its full name."""
        return self._derive_in_project(*exchange_in_project(recorded), source)

    def _derive_in_project(self, exchange: Exchange, project: str, source: str = "another run") -> DerivedExchange:
        try:
            call = self._derive(exchange)
            assigned = assign_run(exchange, call, lambda run: self._is_claimed(full_run_name(project, run)))
            previous = None if assigned.run == exchange.run else exchange.run
            cost = call_cost(exchange, call)
            return DerivedExchange(assigned, call, (source,), cost, previous, project=project)
        except Exception:  # a bug in one dialect must not keep evidence from being stored
            self.counts.underived += 1
            log.exception("no call could be derived from exchange %s; its evidence is stored", exchange.id)
            return DerivedExchange(exchange, None, (source,), project=project)

    async def _store_or_stop(self, gathered: DrainResult, batch: Sequence[DerivedExchange]) -> bool:
        """Store a batch, retrying while Postgres is unavailable; False if the server is stopped before."""
        if gathered.is_empty:
            return True
        pause, longest = RETRY_PAUSES
        while not await self._try_store(gathered, batch):
            if self._stopping.is_set():
                return False
            await _wait_for(self._stopping, pause)
            pause = min(pause * 2, longest)
        self.counts.records += gathered.records
        self.counts.exchanges += len(batch)
        self.counts.gaps += len(gathered.gaps)
        return True

    async def _try_store(self, gathered: DrainResult, batch: Sequence[DerivedExchange]) -> bool:
        late = asyncio.get_running_loop().call_later(LATE_AFTER, self._report_late_batch)
        try:
            batch = await self._group_batch(batch)
            await self._projects.write_batch(batch, gathered.gaps, gathered.replays, gathered.effects)
        except DatabaseError as error:
            self.troubles["database"] = str(error)
            self.counts.retries += 1
            await self._revive_database()
            return False
        finally:
            late.cancel()
        self.troubles.pop("database", None)
        return True

    def _report_late_batch(self) -> None:
        """Report that the database answers, perhaps, and stores nothing."""
        self.troubles["database"] = (
            f"Postgres has been storing a batch for more than {LATE_AFTER:g} s, perhaps because it waits for a lock:"
            " pg_stat_activity says for which."
        )

    async def _group_batch(self, batch: Sequence[DerivedExchange]) -> Sequence[DerivedExchange]:
        """Move each exchange of a batch to the run of related exchanges. Raises `DatabaseUnavailable`."""
        try:
            return await self._projects.group_batch(batch)
        except DatabaseError:
            raise
        except Exception:  # as above: otherwise one exchange would end every store server that reads it
            self.counts.unplaced += len(batch)
            log.exception("%d exchanges could not be grouped and stay in the runs of their connections", len(batch))
            return batch

    async def _revive_database(self) -> None:
        """Restart an embedded Postgres that was killed."""
        self._is_database_lost = False
        if self._revive is None:
            return
        try:
            await asyncio.to_thread(self._revive)
        except EmbeddedPostgresError as error:
            self.troubles["database"] = str(error)

    def _discover_spools(self) -> None:
        try:
            directories = spool_directories(self._spools)
        except OSError as error:
            self.troubles["spools"] = f"the directory of the spools cannot be listed: {error}"
            return
        self.troubles.pop("spools", None)
        for directory in directories:
            if directory not in self._drains and time.monotonic() > self._retry_at.get(directory, 0):
                self._open_drain(directory)
        new = [waiter for waiter in self._waiters if waiter.ends is None]
        ends = self._end_positions() if new else {}
        for waiter in new:
            waiter.is_complete = self._drains.keys() >= set(directories)
            waiter.ends = dict(ends)

    def _end_positions(self) -> dict[Drain, Position]:
        """The end of each spool that is not empty."""
        ends = {}
        for drain in list(self._drains.values()):
            with self._report_trouble(drain):
                if (end := drain.reader.end_position()) is not None:
                    ends[drain] = end
        return ends

    def _open_drain(self, directory: Path) -> None:
        try:
            self._drains[directory] = Drain(directory, time.time_ns)
        except OSError as error:
            self.troubles[directory.name] = f"the spool {directory.name} cannot be read: {error}; it is left unchanged"
            self._retry_at[directory] = time.monotonic() + RETRY_PAUSES[1]
        self._commit_at[directory] = time.monotonic() + COMMIT_EVERY

    async def _remove_orphan(self, drain: Drain) -> None:
        """Store the open exchanges of a dead worker and remove its spool."""
        gathered = await asyncio.to_thread(drain.finish)
        if await self._store_or_stop(gathered, await asyncio.to_thread(self._derive_batch, gathered, drain)):
            for exchange in gathered.large:
                self._large.add(drain, exchange)
            # The files of large exchanges are in the directory until they are stored.
            if not drain.large_ids and time.monotonic() > self._commit_at[drain.directory]:
                with self._report_cursor_trouble(drain):
                    await asyncio.to_thread(self._remove_spool, drain)
        else:
            self._close_drain(drain)

    def _remove_spool(self, drain: Drain) -> None:
        damaged = drain.directory / DAMAGED_DIRECTORY
        # Not `is_dir`, which is false if the directory cannot be read: the copies would be deleted with the spool.
        if DAMAGED_DIRECTORY in os.listdir(drain.directory):
            destination = self._spools.parent / DAMAGED_DIRECTORY
            destination.mkdir(mode=0o700, exist_ok=True)
            damaged.rename(_unused_path(destination, drain.directory.name))
        self.worker_counters.retire_spool(drain.directory)
        if drain.reader.remove():
            drain.is_removed = True
            self._close_drain(drain)

    def _check_waiter(self, waiter: _Waiter) -> None:
        """Wake the waiting request if everything it waits for is stored."""
        if waiter.ends is None:
            return
        for drain, end in list(waiter.ends.items()):
            if not drain.is_removed and not drain.is_stored_to(end):
                continue
            waiting = drain.unclosed_ids | drain.large_ids
            unclosed = waiter.unclosed.setdefault(drain, set(waiting))
            unclosed &= waiting
            if not unclosed:
                del waiter.ends[drain]
        if not waiter.ends:
            waiter.all_stored.set()

    async def _drain_before_stop(self) -> None:
        """Store what workers wrote before they stopped, then commit every cursor, so that the next store server continues there."""
        deadline = time.monotonic() + STOP_TIMEOUT
        while await self._drain_each() and time.monotonic() < deadline and "database" not in self.troubles:
            pass
        for drain in list(self._drains.values()):
            with self._report_trouble(drain):
                await asyncio.to_thread(drain.commit)
                self._close_drain(drain)

    @contextlib.contextmanager
    def _report_trouble(self, drain: Drain) -> Iterator[None]:
        """Report an error of a spool as trouble and close its drain, so that it is read again from its cursor later."""
        name = drain.directory.name
        try:
            yield
        except (OSError, UnknownFormat) as error:
            self.troubles[name] = f"the spool {name} cannot be drained: {error}; its records stay in it"
            self._close_drain(drain)
            self._retry_at[drain.directory] = time.monotonic() + RETRY_PAUSES[1]
        else:
            self.troubles.pop(name, None)

    @contextlib.contextmanager
    def _report_cursor_trouble(self, drain: Drain) -> Iterator[None]:
        """Report an error of committing a spool's position as trouble and retry later. The drain stays open, because reading
        again from the cursor would store the same records each time."""
        directory = drain.directory
        trouble = f"{directory.name} cursor"
        self._commit_at[directory] = time.monotonic() + COMMIT_EVERY
        try:
            yield
        except OSError as error:
            self._commit_at[directory] = time.monotonic() + RETRY_PAUSES[1]
            self.troubles[trouble] = (
                f"the spool {directory.name} cannot delete records that are stored: {error}; check its disk"
            )
        else:
            self.troubles.pop(trouble, None)

    def _close_drain(self, drain: Drain) -> None:
        self.troubles.pop(f"{drain.directory.name} cursor", None)
        drain.reader.close()
        del self._drains[drain.directory]


def _unused_path(directory: Path, name: str) -> Path:
    """An unused path, because a worker that was restarted leaves a second spool of the same name."""
    names = (name, *(f"{name}-{number}" for number in range(2, 10_000)))
    return next(path for each in names if not (path := directory / each).exists())


async def _write_gap(writer: ProjectWriters, gap: Gap) -> None:
    await writer.write_batch((), (gap,))


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, for this many seconds at most."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
