"""End the runs that have been idle for half an hour: nobody reports their end.

The end is an entry of the feed. It is written once, whichever store server notices it: in the same transaction, the row of the run
notes after which activity it fell idle.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from store.database.connection import Database, DatabaseError
from store.feed.entries import IDLE, RunEnded
from store.feed.feed import append_entries

log = logging.getLogger(__name__)

CHECK_EVERY: Final = 60.0
"""Seconds between two checks."""

BATCH: Final = 500
"""Runs that are ended in one transaction."""


class IdleRunWatch:
    """Ends idle runs. `now` is wall time in nanoseconds."""

    def __init__(self, database: Database, now: Callable[[], int]) -> None:
        self._database = database
        self._now = now

    async def run(self) -> None:
        """Check again and again, until the task is cancelled."""
        while True:
            try:
                while await self.end_idle_runs():
                    pass
            except DatabaseError as error:
                log.warning("idle runs are ended later: %s", error)
            await asyncio.sleep(CHECK_EVERY)

    async def end_idle_runs(self) -> int:
        """End runs that have fallen idle, as many as one transaction may; return their number."""
        async with self._database.connection() as connection, connection.transaction():
            rows = await connection.fetch(NOTE_IDLE, self._now() - IDLE, BATCH)
            for project in {row["project"] for row in rows}:
                ends = [RunEnded(row["id"], row["active_at"], False) for row in rows if row["project"] == project]
                await append_entries(connection, project, ends, self._now())
        return len(rows)


# Without an index: one on the last activity would be written with each batch of calls. Rows that another store server ends are
# left to it.
NOTE_IDLE = """
UPDATE runs SET idle_at = active_at FROM (
    SELECT project, id FROM runs
    WHERE ended_at IS NULL AND idle_at IS DISTINCT FROM active_at AND active_at < $1
    LIMIT $2 FOR UPDATE SKIP LOCKED
) AS idle
WHERE runs.project = idle.project AND runs.id = idle.id
RETURNING runs.project, runs.id, runs.active_at
"""
