"""Whether the sums of a project have been made, and up to where in the feed."""

from typing import Final

from sqlalchemy import select

from store.database.asyncio_engine import AsyncConnection
from store.database.tables import feed_positions
from store.feed.feed import FeedPosition

NAME: Final = "sums/3"
"""The name of the consumer that makes them (`sums.run_sums`)."""


async def sums_position(connection: AsyncConnection, project: str) -> FeedPosition | None:
    """Return the position up to which sums and marks of failed calls follow the feed; None while they are made anew."""
    is_mine = (feed_positions.c.project == project, feed_positions.c.consumer == NAME)
    query = select(feed_positions.c.transaction, feed_positions.c.feed_row).where(*is_mine)
    row = (await connection.execute(query)).first()
    return None if row is None else FeedPosition(row[0], row[1])


async def has_sums(connection: AsyncConnection, project: str) -> bool:
    """Whether all calls have been summed and marked, but for the newest."""
    return await sums_position(connection, project) is not None
