"""Run a part that processes every entry of the feed once, such as the index of words.

Its position is stored in the transaction that stores its result. A consumer without a position, or whose next entries have
been deleted, rebuilds its result from the tables and then continues from the position at which the rebuild began.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import asyncpg

from store.database.connection import Database, DatabaseError, translate_errors
from store.feed.feed import DELETED, PROJECTS, FeedPosition, FeedRow, last_position, read_feed
from store.feed.signal import FeedSignal

log = logging.getLogger(__name__)

POLL_INTERVAL = 30.0
"""Seconds between two looks at the feed that no signal asked for. `store.feed.feed_watch` notices what other processes append."""

BATCH = 100
"""Rows of the feed that are processed in one transaction."""

PAUSE_FACTOR, LONGEST_PAUSE = 4.0, 2.0
"""How long a consumer pauses after a batch while more is being stored, as a multiple of what the batch took, and in seconds at most.
It takes a fifth of a core's time from ingest, and larger batches repeat less work."""

RETRY_PAUSE = 1.0
"""Seconds until a consumer that failed tries again."""


class Consumer(Protocol):
    """What processes the feed."""

    @property
    def name(self) -> str:
        """The name under which the position is stored. Another name rebuilds the result."""

    async def process(self, connection: asyncpg.Connection, project: str, rows: Sequence[FeedRow], /) -> None:
        """Store what follows from the rows, in the connection's transaction. The same rows may come twice after a rebuild."""

    def rebuild(self, project: str, /) -> AsyncIterator[None]:
        """Delete the project's result and make it anew from the tables, in transactions of its own; yield between them."""


class ConsumerRunner:
    """Runs one consumer for all projects."""

    def __init__(
        self,
        database: Database,
        consumer: Consumer,
        signal: FeedSignal,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """While `is_urgent`, there is no pause between batches: what waits longer costs more than it takes from ingest."""
        self._database = database
        self._consumer = consumer
        self._signal = signal
        self._is_urgent = is_urgent
        self._waiting: list[asyncio.Event] = []
        self._hurry = asyncio.Event()
        """Set when somebody begins to wait."""

        self._sends = -1
        """How often the signal had been sent before the feed was read last."""

        self._unfinished: set[str] = set()
        """Projects whose feed has more than one batch."""

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._consumer.name

    async def wait_until_caught_up(self) -> None:
        """Wait until everything is processed that is committed now. `run` must be running."""
        caught_up = asyncio.Event()
        self._waiting.append(caught_up)
        self._hurry.set()
        self._signal.send()
        await caught_up.wait()

    async def run(self) -> None:
        """Process the feed until the task is cancelled. A failure is logged and tried again."""
        while True:
            try:
                waiting, self._waiting = self._waiting, []
                self._hurry.clear()
                began, sends = time.monotonic(), self._signal.sends
                try:
                    # Who waits is told when nothing more is found.
                    is_busy = await (self.process_new() if waiting else self._process_changed())
                except BaseException:
                    self._waiting += waiting
                    raise
                if is_busy:
                    self._waiting += waiting
                    is_storing = self._signal.sends != sends
                    await self._pause(pause_after(time.monotonic() - began, is_storing=is_storing))
                    continue
                for each in waiting:
                    each.set()
                if not self._waiting and self._signal.sends == sends:
                    await self._signal.wait(POLL_INTERVAL)
                    if self._signal.sends == sends:
                        self._sends = -1
            except DatabaseError as error:
                log.warning("%s waits for the database: %s", self._consumer.name, error)
                await asyncio.sleep(RETRY_PAUSE)
            except Exception:  # a bug in what follows the record must not end the process that stores it
                log.exception("%s failed; it tries again in %.0f s", self._consumer.name, RETRY_PAUSE)
                await asyncio.sleep(RETRY_PAUSE)

    async def _pause(self, seconds: float) -> None:
        """Pause, unless somebody waits or it is urgent."""
        if self._waiting or self._is_urgent():
            return
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def process_new(self) -> bool:
        """Process what is new in each project once; return whether there was anything."""
        self._sends = -1
        return await self._process_changed()

    async def _process_changed(self) -> bool:
        """Process once what is new in the projects that the signal was sent for since the last time; return whether there was anything."""
        sends = self._signal.sends
        projects = self._signal.changed_since(self._sends)
        if projects is None:
            async with self._database.connection() as connection:
                projects = {row["project"] for row in await connection.fetch(PROJECTS)}
        found = {project: await self._process_project(project) for project in sorted(projects | self._unfinished)}
        self._sends = sends
        self._unfinished = {project for project, number in found.items() if number >= BATCH}
        return any(found.values())

    async def request_rebuild(self, project: str) -> None:
        """Forget the position in a project, so that `run` makes the result anew from the tables."""
        async with self._database.connection() as connection, connection.transaction():
            await connection.execute(
                "DELETE FROM feed_positions WHERE project = $1 AND consumer = $2", project, self._consumer.name
            )
        self._signal.send()

    async def _process_project(self, project: str) -> int:
        """Process one batch of a project's feed; return how many rows it had, `BATCH` if there may be more."""
        async with self._database.connection() as connection, connection.transaction():
            position = await self._load_position(connection, project)
            if position is not None:
                rows = await read_feed(connection, project, position, BATCH)
                if rows:
                    await self._consumer.process(connection, project, rows)
                    await _store_position(connection, project, self._consumer.name, rows[-1].position)
                return len(rows)
        await self._rebuild(project)
        return BATCH

    async def _load_position(self, connection: asyncpg.Connection, project: str) -> FeedPosition | None:
        """Load and lock the position; None if there is none, or if entries after it have been deleted."""
        await connection.execute(LOCK_POSITION, f"{project}/{self._consumer.name}")
        found = await connection.fetch(POSITIONS, project, self._consumer.name, DELETED)
        positions = {row["consumer"]: FeedPosition(row["transaction"], row["feed_row"]) for row in found}
        position, deleted = positions.get(self._consumer.name), positions.get(DELETED)
        if position is None or (deleted is not None and position.transaction < deleted.transaction):
            return None
        return position

    async def _rebuild(self, project: str) -> None:
        async with self._hold_rebuild(project):
            async with self._database.connection() as connection, connection.transaction():
                if await self._load_position(connection, project) is not None:
                    return  # another store server has just made it
                begin = await last_position(connection)
            async for _ in self._consumer.rebuild(project):
                await asyncio.sleep(0)
            async with self._database.connection() as connection, connection.transaction():
                await _store_position(connection, project, self._consumer.name, begin)

    @asynccontextmanager
    async def _hold_rebuild(self, project: str) -> AsyncIterator[None]:
        """Wait until no other store server rebuilds this result: one would delete what the other has made.

        On a connection of its own, which the pool's users do not lack meanwhile. The lock ends with it.
        """
        with translate_errors():
            connection = await self._database.connect_alone()
        try:
            with translate_errors():
                while not await connection.fetchval(TRY_REBUILD_LOCK, f"{project}/{self._consumer.name}"):  # noqa: ASYNC110 - other processes
                    # Waiting in the database would hold a snapshot, and nothing could be vacuumed.
                    await asyncio.sleep(RETRY_PAUSE)
            yield
        finally:
            connection.terminate()


def pause_after(elapsed: float, *, is_storing: bool) -> float:
    """Return the seconds to pause after a batch that took so many seconds; none once nothing more is stored."""
    return min(elapsed * PAUSE_FACTOR, LONGEST_PAUSE) if is_storing else 0.0


async def _store_position(connection: asyncpg.Connection, project: str, name: str, position: FeedPosition) -> None:
    await connection.execute(STORE_POSITION, project, name, position.transaction, position.row)


# Until the end of the transaction, so that two store servers do not process the same rows. Not by a lock of the row, which would
# give the transaction an id before it writes: nobody reads rows of the feed that began after a transaction with an id.
# Nobody waits for the disk: if the host dies, the result and the position are lost together, and the entries are processed again.
LOCK_POSITION = """
SELECT pg_advisory_xact_lock(hashtextextended($1, 20261123)), set_config('synchronous_commit', 'off', true)
"""

TRY_REBUILD_LOCK = "SELECT pg_try_advisory_lock(hashtextextended($1, 20261127))"

POSITIONS = "SELECT consumer, transaction, feed_row FROM feed_positions WHERE project = $1 AND consumer IN ($2, $3)"

STORE_POSITION = """
INSERT INTO feed_positions (project, consumer, transaction, feed_row) VALUES ($1, $2, $3, $4)
ON CONFLICT (project, consumer) DO UPDATE SET transaction = excluded.transaction, feed_row = excluded.feed_row
"""
