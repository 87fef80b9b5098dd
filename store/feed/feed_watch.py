"""Look into the database once for all that follow the feed: another process may have appended to it, or a transaction may have ended
that held back what was appended after it. Within this process, whoever appends sends the signal itself.
"""

import asyncio
import logging
from typing import Final

from store.database.connection import Database, DatabaseError
from store.feed.feed import projects_in
from store.feed.signal import FeedSignal

log = logging.getLogger(__name__)

POLL_INTERVAL: Final = 1.0
"""Seconds between two looks."""


class FeedWatch:
    """Sends the signal for each project whose feed has more to read."""

    def __init__(self, database: Database, signal: FeedSignal) -> None:
        self._database = database
        self._signal = signal
        self._seen: dict[str, int | None] = {}

    async def run(self) -> None:
        """Look until the task is cancelled."""
        while True:
            try:
                for project in await self.load_changed():
                    self._signal.send(project)
            except DatabaseError as error:
                log.debug("the feed is looked at later: %s", error)
            await asyncio.sleep(POLL_INTERVAL)

    async def load_changed(self) -> set[str]:
        """Return the projects in which something can be read that could not be when this was called last."""
        async with self._database.connection() as connection:
            newest = {row["project"]: row["newest"] for row in await connection.fetch(NEWEST)}
        changed = {project for project, last in newest.items() if last != self._seen.get(project)}
        self._seen = newest
        return changed


NEWEST = projects_in(
    "feed",
    """project, (
    SELECT max(transaction) FROM feed
    WHERE feed.project = found.project AND transaction < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
) AS newest""",
)
