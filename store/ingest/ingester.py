"""Drain every spool of a data directory into Postgres.

One pass looks at each spool in turn: gather events, derive calls, store the batch, and only then let the spool forget
it. While Postgres is away the batch in hand waits and the spools grow; workers notice nothing. A spool whose worker is dead
is drained, what it left open is stored as cut with a gap, and its directory is removed.

What is lost if we die now: nothing. Whatever was not committed is read again, and stored once because ids are the worker's.
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
from store import report_sequence as news
from store.attribution.grouping import Grouping
from store.attribution.run_assignment import filed
from store.database.connection import DatabaseError
from store.embedded.postgres import NoPostgres
from store.ingest.batch_writer import DerivedExchange, Ingest
from store.ingest.drain import DAMAGED, Drain, DrainResult
from store.large.memory import trim
from store.large.queue import LargeQueue, Runner
from store.large.storing import InProcess
from store.prices import cost
from store.spool import Position
from store.spool.place import spool_directories
from store.worker_counters import WorkerCounters

log = logging.getLogger(__name__)

HELD = 32 << 20
"""What open exchanges in memory weigh at most, over all spools; more are parked on disk."""

TRIM_EVERY = 5.0
"""Seconds between two times that freed memory is given back to the system, where something was stored."""

COMMIT_EVERY = 1.0
"""Seconds between two syncs of a spool's cursor: what is read again after a crash was stored in this time."""

REST = (0.02, 0.25)
"""Seconds between two looks at the spools: just after there was something, and when nothing has come for a while."""

PATIENCE = (0.1, 5.0)
"""Seconds between two tries while Postgres is away: at first, and at most."""

LAST_LOOK = 2.0
"""Seconds that a stopping store server goes on draining what workers write meanwhile."""


@dataclass(slots=True)
class Counts:
    """What one store server has done since it started."""

    records: int = 0
    exchanges: int = 0
    gaps: int = 0
    large: int = 0
    underived: int = 0
    unplaced: int = 0
    retries: int = 0


@dataclass(slots=True)
class _Ticket:
    """Somebody who waits until all that was in the spools is stored."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    ends: dict[Drain, Position] | None = None
    """How far each spool went when it was asked."""

    whole: bool = True
    """Whether all spools could be looked at."""

    unclosed: dict[Drain, set[str]] = field(default_factory=dict)
    """Exchanges that were acknowledged by then, and whose last event was still to come."""


class Ingester:
    """Runs until it is stopped. `derive` is a pure function; `revive` starts an embedded Postgres that was killed."""

    def __init__(
        self,
        spools: Path,
        ingest: Ingest,
        derive: Callable[[Exchange], Call],
        *,
        large: Runner | None = None,
        revive: Callable[[], None] | None = None,
        is_claimed: Callable[[str], bool] = lambda _run: False,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.counts = Counts()
        self.troubles: dict[str, str] = {}
        """What is wrong just now, by what it is wrong with: `database`, or a spool's name."""

        self.counted = WorkerCounters(spools)
        """What the workers have counted."""

        self._spools = spools
        self._ingest = ingest
        self._derive = derive
        self._is_claimed = is_claimed
        self._large = LargeQueue(
            large or InProcess(ingest, derive),
            partial(_put_gap, Ingest(ingest.database, project=ingest.project)),
            spools.parent / DAMAGED,
            stored=self._large_stored,
        )
        self._trimmed = 0.0
        self._kin = Grouping(ingest.database, partial(self._understood, source="another run"), ingest.project)
        self._revive = revive
        self._now = now
        self._drains: dict[Path, Drain] = {}
        self._commit_at: dict[Path, float] = {}
        """When a spool may forget next what is stored."""

        self._again: dict[Path, float] = {}
        """When to try again a spool that was in trouble."""

        self._tickets: list[_Ticket] = []
        self._lost = False
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def spools(self) -> int:
        """How many spools there are."""
        return len(self._drains)

    def bytes_pending(self) -> int:
        """Bytes in the spools that are not stored yet. Reads the disk."""
        pending = 0
        for drain in list(self._drains.values()):
            try:
                pending += drain.reader.stats().bytes_pending
            except (OSError, UnknownFormat):
                pass  # `troubles` says what is wrong with it
        return pending

    async def run(self) -> None:
        """Drain until `stop`; then what is there by that time."""
        async with asyncio.TaskGroup() as group:
            storing = group.create_task(self._large.run())
            await self._drain()
            storing.cancel()

    async def _drain(self) -> None:
        rest, longest = REST
        while not self._stopping.is_set():
            if await self._pass():
                rest = REST[0]
            else:
                await _either(self._wake, rest)
                self._wake.clear()
                rest = min(rest * 1.5, longest)
        await self._last_passes()

    def stop(self) -> None:
        """Have `run` come to its end."""
        self._stopping.set()
        self._wake.set()

    def database_lost(self) -> None:
        """Somebody else found that Postgres is away: have it started again, if it is ours."""
        self._lost = True
        self._wake.set()

    async def settled(self, patience: float, *, reports: bool = False) -> bool:
        """Wait until all that was acknowledged by now is stored, or for `patience` seconds; whether it is.

        With `reports` also what has changed in the reports of replays, which workers tell a little later.
        """
        ticket = _Ticket()
        try:
            async with asyncio.timeout(patience):
                if reports:
                    await news.told(self._spools)
                self._tickets.append(ticket)
                self._wake.set()
                await ticket.done.wait()
        except TimeoutError:
            return False
        finally:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
        return ticket.whole

    async def _pass(self) -> bool:
        """Look at every spool once; whether there was anything."""
        if self._lost:
            await self._revived()
        await asyncio.to_thread(self._discover)
        busy = False
        for drain in list(self._drains.values()):
            with self._troubled(drain):
                busy |= await self._drained(drain)
        for ticket in self._tickets:
            self._stamp(ticket)
        if self._large.trouble:
            self.troubles["large"] = self._large.trouble
        else:
            self.troubles.pop("large", None)
        if not busy and self._trimmed and time.monotonic() > self._trimmed:
            await asyncio.to_thread(trim)
            self._trimmed = 0.0
        return busy

    def _large_stored(self) -> None:
        self.counts.large += 1
        self.counts.underived += self._large.underived
        self._large.underived = 0
        self._wake.set()

    async def _drained(self, drain: Drain) -> bool:
        """Store what one spool has; whether there was anything. Raises OSError."""
        gathered, batch = await asyncio.to_thread(self._gather, drain)
        if not await self._stored(gathered, batch):
            # What it has gathered is nowhere now but in the spool: it is begun again from its cursor.
            self._forget(drain)
            return False
        drain.stored()
        for exchange in gathered.large:
            self._large.add(drain, exchange)
        if gathered.records and not self._trimmed:
            self._trimmed = time.monotonic() + TRIM_EVERY
        if gathered.orphaned:
            await self._bury(drain)
        elif drain.forgettable and time.monotonic() > self._commit_at[drain.directory]:
            with self._uncommitted(drain):
                await asyncio.to_thread(drain.commit)
        return gathered.records > 0

    def _gather(self, drain: Drain) -> tuple[DrainResult, list[DerivedExchange]]:
        gathered = drain.gather(HELD // max(len(self._drains), 1))
        return gathered, self._kept(gathered, drain)

    def _kept(self, gathered: DrainResult, drain: Drain) -> list[DerivedExchange]:
        source = f"{drain.directory.name} before {drain.position}"
        return [self._understood(exchange, source) for exchange in gathered.exchanges]

    def _understood(self, exchange: Exchange, source: str) -> DerivedExchange:
        try:
            call = self._derive(exchange)
            whose = filed(exchange, call, self._is_claimed)
            was = None if whose.run == exchange.run else exchange.run
            return DerivedExchange(whose, call, (source,), cost(exchange, call), was)
        except Exception:  # a mistake of ours in one dialect must not keep evidence from being stored
            self.counts.underived += 1
            log.exception("no call could be derived from exchange %s; its evidence is kept", exchange.id)
            return DerivedExchange(exchange, None, (source,))

    async def _stored(self, gathered: DrainResult, batch: Sequence[DerivedExchange]) -> bool:
        """Whether it is in the database: tried until it is, or we are stopped."""
        if gathered.empty:
            return True
        patience, longest = PATIENCE
        while not await self._tried(gathered, batch):
            if self._stopping.is_set():
                return False
            await _either(self._stopping, patience)
            patience = min(patience * 2, longest)
        self.counts.records += gathered.records
        self.counts.exchanges += len(batch)
        self.counts.gaps += len(gathered.gaps)
        return True

    async def _tried(self, gathered: DrainResult, batch: Sequence[DerivedExchange]) -> bool:
        try:
            batch = await self._joined(batch)
            await self._ingest.put(batch, gathered.gaps, gathered.replays)
        except DatabaseError as error:
            self.troubles["database"] = str(error)
            self.counts.retries += 1
            await self._revived()
            return False
        self.troubles.pop("database", None)
        return True

    async def _joined(self, batch: Sequence[DerivedExchange]) -> Sequence[DerivedExchange]:
        """The batch with each exchange in the run of its kin. Raises `Unavailable`."""
        try:
            return await self._kin.joined(batch)
        except DatabaseError:
            raise
        except (
            Exception
        ):  # likewise: else one exchange would kill every store server that reads it, and nothing be stored any more
            self.counts.unplaced += len(batch)
            log.exception(
                "whose %d exchanges are could not be found; they stay in the runs they came in under", len(batch)
            )
            return batch

    async def _revived(self) -> None:
        """Have an embedded Postgres that was killed started again."""
        self._lost = False
        if self._revive is None:
            return
        try:
            await asyncio.to_thread(self._revive)
        except NoPostgres as error:
            self.troubles["database"] = str(error)

    def _discover(self) -> None:
        try:
            directories = spool_directories(self._spools)
        except OSError as error:
            self.troubles["spools"] = f"the directory of the spools cannot be read: {error}"
            return
        self.troubles.pop("spools", None)
        for directory in directories:
            if directory not in self._drains and time.monotonic() > self._again.get(directory, 0):
                self._begin(directory)
        new = [ticket for ticket in self._tickets if ticket.ends is None]
        ends = self._ends() if new else {}
        for ticket in new:
            ticket.whole = self._drains.keys() >= set(directories)
            ticket.ends = dict(ends)

    def _ends(self) -> dict[Drain, Position]:
        """How far each spool goes that has anything."""
        ends = {}
        for drain in list(self._drains.values()):
            with self._troubled(drain):
                if (end := drain.reader.end()) is not None:
                    ends[drain] = end
        return ends

    def _begin(self, directory: Path) -> None:
        try:
            self._drains[directory] = Drain(directory, self._now)
        except OSError as error:
            self.troubles[directory.name] = f"the spool {directory.name} cannot be read: {error}; it is left as it is"
            self._again[directory] = time.monotonic() + PATIENCE[1]
        self._commit_at[directory] = time.monotonic() + COMMIT_EVERY

    async def _bury(self, drain: Drain) -> None:
        """Store what a dead worker left open, and remove its spool."""
        gathered = await asyncio.to_thread(drain.finish)
        if await self._stored(gathered, await asyncio.to_thread(self._kept, gathered, drain)):
            for exchange in gathered.large:
                self._large.add(drain, exchange)
            # Its large exchanges lie in its directory until they are stored.
            if not drain.large and time.monotonic() > self._commit_at[drain.directory]:
                with self._uncommitted(drain):
                    await asyncio.to_thread(self._remove, drain)
        else:
            self._forget(drain)

    def _remove(self, drain: Drain) -> None:
        damaged = drain.directory / DAMAGED
        # Not `is_dir`, which says no where it cannot see: then it would be deleted with the rest.
        if DAMAGED in os.listdir(drain.directory):
            kept = self._spools.parent / DAMAGED
            kept.mkdir(mode=0o700, exist_ok=True)
            damaged.rename(_free_path(kept, drain.directory.name))
        self.counted.ended(drain.directory)
        if drain.reader.remove():
            drain.buried = True
            self._forget(drain)

    def _stamp(self, ticket: _Ticket) -> None:
        """Let the waiting go when all it waited for is stored."""
        if ticket.ends is None:
            return
        for drain, end in list(ticket.ends.items()):
            if not drain.buried and not drain.reached(end):
                continue
            waiting = drain.answered | drain.large
            unclosed = ticket.unclosed.setdefault(drain, set(waiting))
            unclosed &= waiting
            if not unclosed:
                del ticket.ends[drain]
        if not ticket.ends:
            ticket.done.set()

    async def _last_passes(self) -> None:
        """What workers wrote before they were stopped; then every cursor, so that the next store server begins where we end."""
        deadline = time.monotonic() + LAST_LOOK
        while await self._pass() and time.monotonic() < deadline and "database" not in self.troubles:
            pass
        for drain in list(self._drains.values()):
            with self._troubled(drain):
                await asyncio.to_thread(drain.commit)
                self._forget(drain)

    @contextlib.contextmanager
    def _troubled(self, drain: Drain) -> Iterator[None]:
        """Say what is wrong with a spool, until it is not; the others go on, and it is begun again from its cursor."""
        name = drain.directory.name
        try:
            yield
        except (OSError, UnknownFormat) as error:
            self.troubles[name] = f"the spool {name} cannot be drained: {error}; what it holds is kept there"
            self._forget(drain)
            self._again[drain.directory] = time.monotonic() + PATIENCE[1]
        else:
            self.troubles.pop(name, None)

    @contextlib.contextmanager
    def _uncommitted(self, drain: Drain) -> Iterator[None]:
        """Say that a spool cannot forget what is stored, and try again later. It goes on: to begin it again from its cursor
        would store all of it once more, each time."""
        directory = drain.directory
        trouble = f"{directory.name} cursor"
        self._commit_at[directory] = time.monotonic() + COMMIT_EVERY
        try:
            yield
        except OSError as error:
            self._commit_at[directory] = time.monotonic() + PATIENCE[1]
            self.troubles[trouble] = f"the spool {directory.name} cannot forget what is stored: {error}; see its disk"
        else:
            self.troubles.pop(trouble, None)

    def _forget(self, drain: Drain) -> None:
        self.troubles.pop(f"{drain.directory.name} cursor", None)
        drain.reader.close()
        del self._drains[drain.directory]


def _free_path(directory: Path, name: str) -> Path:
    """A path that nothing has: a worker that was started again leaves a second spool of its name."""
    names = (name, *(f"{name}-{number}" for number in range(2, 10_000)))
    return next(path for each in names if not (path := directory / each).exists())


async def _put_gap(ingest: Ingest, gap: Gap) -> None:
    await ingest.put((), (gap,))


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, or so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
