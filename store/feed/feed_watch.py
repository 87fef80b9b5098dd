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
    """Sends the signal when the feed of any project has more to read."""

    def __init__(self, database: Database, signal: FeedSignal) -> None:
        self._database = database
        self._signal = signal
        self._seen: dict[str, int | None] = {}

    async def run(self) -> None:
        """Look until the task is cancelled."""
        while True:
            try:
                if await self.has_more():
                    self._signal.send()
            except DatabaseError as error:
                log.debug("the feed is looked at later: %s", error)
            await asyncio.sleep(POLL_INTERVAL)

    async def has_more(self) -> bool:
        """Whether anything can be read that could not be when this was called last."""
        async with self._database.connection() as connection:
            newest = {row["project"]: row["newest"] for row in await connection.fetch(NEWEST)}
        has_more = newest != self._seen
        self._seen = newest
        return has_more


NEWEST = projects_in(
    "feed",
    """project, (
    SELECT max(transaction) FROM feed
    WHERE feed.project = found.project AND transaction < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
) AS newest""",
)
