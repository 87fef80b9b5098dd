"""Follow the feed, and export the runs that ended.

A run is sent as a whole when it ended: when its end was reported, or when it has been idle for 30 minutes. What is stored later
in a run whose end was reported is sent with all of it again; the ids are the same, so nothing is doubled. Nothing is held in memory
but the page of a run that is being sent: what waits is the feed, which keeps a week. The position of each target is stored after
its runs were sent, so after a crash some are sent twice.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import asyncpg

from calls.model import Call, Exchange
from store.database.blobs import CorruptData
from store.database.connection import Database, DatabaseError
from store.feed.consumer import POLL_INTERVAL, RETRY_PAUSE
from store.feed.entries import CallStored, FeedEntry, GapStored, RunEnded
from store.feed.feed import DELETED, PROJECTS, FeedPosition, last_position, read_feed
from store.feed.signal import FeedSignal
from store.otlp.run_export import RunExport
from store.otlp.sender import ExportState, OtlpSender, SpansRefused
from store.otlp.spans.ids import target_id
from store.otlp.target import ExportTarget

log = logging.getLogger(__name__)

NO_PROJECT: Final = ""
"""Stands for a project in the position where a target began."""

BATCH: Final = 100
"""Rows of the feed after which the position is stored."""


class Exporter:
    """Exports the runs of all projects to one target."""

    def __init__(
        self,
        database: Database,
        derive: Callable[[Exchange], Call],
        target: ExportTarget,
        signal: FeedSignal,
        *,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._database = database
        self._derive = derive
        self._target = target
        self._signal = signal
        self._now = now
        self._name = f"otlp:{target_id(target.url, target.options.project)}"
        self._sender = OtlpSender(target)
        self._waiting: list[asyncio.Event] = []

    @property
    def state(self) -> ExportState:
        """How it is doing."""
        return self._sender.state

    async def run(self) -> None:
        """Export until the task is cancelled. A failure is logged and tried again."""
        try:
            await self._run()
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections to the target."""
        await self._sender.close()

    async def _run(self) -> None:
        while True:
            try:
                waiting = tuple(self._waiting)
                if await self.export_new():
                    continue
                for each in waiting:
                    each.set()
                self._waiting = [each for each in self._waiting if not each.is_set()]
                if not self._waiting:
                    await self._signal.wait(POLL_INTERVAL)
            except DatabaseError as error:
                log.warning("the export to %s waits for the database: %s", self._target.host, error)
                await asyncio.sleep(RETRY_PAUSE)
            except Exception:  # a bug in an export must not end the process that stores the record
                log.exception("the export to %s failed; it tries again", self._target.host)
                await asyncio.sleep(RETRY_PAUSE)

    async def wait_until_idle(self) -> None:
        """Wait until everything is sent that is in the feed now. `run` must be running."""
        idle = asyncio.Event()
        self._waiting.append(idle)
        self._signal.send()
        await idle.wait()

    async def export_new(self) -> bool:
        """Export what is new in each project; return whether there was anything."""
        async with self._database.connection() as connection:
            await self._first_position(connection)
            projects = [row["project"] for row in await connection.fetch(PROJECTS)]
        found = [await self._export_project(project) for project in projects]
        return any(found)

    async def _export_project(self, project: str) -> bool:
        async with self._database.connection() as connection:
            position = await self._load_position(connection, project)
            rows = await read_feed(connection, project, position, BATCH)
            runs = await self._ended_runs(connection, project, [entry for row in rows for entry in row.entries])
        for run in runs:
            await self._export_run(project, run)
        if rows:
            async with self._database.connection() as connection:
                await self._store_position(connection, project, rows[-1].position)
        return bool(rows)

    async def _load_position(self, connection: asyncpg.Connection, project: str) -> FeedPosition:
        """Load the position. A project that has none begins where the target began; one that lagged a week, with what is left."""
        position = await self._fetch_position(connection, project, self._name) or await self._first_position(connection)
        deleted = await self._fetch_position(connection, project, DELETED)
        if deleted is None or position.transaction >= deleted.transaction:
            return position
        self.state.lost += 1
        log.error(
            "the export to %s lagged more than a week behind: runs that ended before are not sent", self._target.host
        )
        return deleted

    async def _first_position(self, connection: asyncpg.Connection) -> FeedPosition:
        """Load where the target began, which is when it was configured: earlier runs are not sent to it."""
        begin = await self._fetch_position(connection, NO_PROJECT, self._name)
        if begin is None:
            begin = await last_position(connection)
            await self._store_position(connection, NO_PROJECT, begin)
        return begin

    async def _fetch_position(self, connection: asyncpg.Connection, project: str, name: str) -> FeedPosition | None:
        row = await connection.fetchrow(POSITION, project, name)
        return None if row is None else FeedPosition(row["transaction"], row["feed_row"])

    async def _store_position(self, connection: asyncpg.Connection, project: str, position: FeedPosition) -> None:
        await connection.execute(STORE_POSITION, project, self._name, position.transaction, position.row)

    async def _ended_runs(
        self, connection: asyncpg.Connection, project: str, entries: Sequence[FeedEntry]
    ) -> list[str]:
        """Return the runs that these entries complete: that ended, or had ended before something was stored in them."""
        ended_runs = [entry.run for entry in entries if isinstance(entry, RunEnded)]
        grown = [entry.run for entry in entries if isinstance(entry, CallStored | GapStored)]
        rows = await connection.fetch(
            MATCHING, project, list({*ended_runs, *grown}), ended_runs, json.dumps(self._target.labels)
        )
        found = {row["id"] for row in rows}
        return [run for run in dict.fromkeys((*ended_runs, *grown)) if run in found]

    async def _export_run(self, project: str, run: str) -> None:
        export = RunExport(self._database, self._derive, project, self._target.options, self._now())
        try:
            async for request in export.requests(run):
                await self._sender.send(request)
            self.state.runs += 1
        except SpansRefused as error:
            log.error("run %s is not exported: %s", run, error)
        except CorruptData as error:
            log.error("run %s is not exported to %s: it cannot be read: %s", run, self._target.host, error)


POSITION = "SELECT transaction, feed_row FROM feed_positions WHERE project = $1 AND consumer = $2"

STORE_POSITION = """
INSERT INTO feed_positions (project, consumer, transaction, feed_row) VALUES ($1, $2, $3, $4)
ON CONFLICT (project, consumer) DO UPDATE SET transaction = excluded.transaction, feed_row = excluded.feed_row
"""

MATCHING = """
SELECT id FROM runs WHERE project = $1 AND id = ANY ($2::text[]) AND (id = ANY ($3::text[]) OR ended_at IS NOT NULL)
    AND labels @> $4::jsonb
"""
