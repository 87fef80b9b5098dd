"""Whether the sums of a project have been made, and up to where in the feed."""

from typing import Final

from sqlalchemy import and_, or_, select

from store.database.asyncio_engine import AsyncConnection
from store.database.tables import feed, feed_positions, run_totals
from store.feed.entries import ReplayStored, decode_entries
from store.feed.feed import FeedPosition

NAME: Final = "sums/5"
"""The name of the consumer that makes them (`sums.run_sums`)."""

MOST_CHANGES: Final = 200
"""Rows of the feed that a list of runs reads to find the runs that changed."""


async def sums_position(connection: AsyncConnection, project: str) -> FeedPosition | None:
    """Return the position up to which sums and marks of failed calls follow the feed; None while they are made anew."""
    is_mine = (feed_positions.c.project == project, feed_positions.c.consumer == NAME)
    query = select(feed_positions.c.transaction, feed_positions.c.feed_row).where(*is_mine)
    row = (await connection.execute(query)).first()
    return None if row is None else FeedPosition(row[0], row[1])


async def has_sums(connection: AsyncConnection, project: str) -> bool:
    """Whether all calls have been summed and marked, but for the newest."""
    return await sums_position(connection, project) is not None


async def load_changed_runs(connection: AsyncConnection, project: str, most: int) -> list[str] | None:
    """Load the runs in which something was stored since the stored sums were made; None where these cannot be used.

    They cannot while they are made anew, and when more than `most` rows of the feed are still to be processed.
    """
    position = await sums_position(connection, project)
    if position is None:
        return None
    is_newer = or_(feed.c.transaction > position[0], and_(feed.c.transaction == position[0], feed.c.id > position[1]))
    query = select(feed.c.entries).where(feed.c.project == project, is_newer).limit(most + 1)
    rows = (await connection.execute(query)).scalars().all()
    if len(rows) > most:
        return None
    entries = (entry for row in rows for entry in decode_entries(row) if not isinstance(entry, ReplayStored))
    return sorted({name for entry in entries for name in (entry.run, getattr(entry, "previous_run", None)) if name})


async def load_unsummed_runs(connection: AsyncConnection, project: str) -> list[str] | None:
    """Load the runs that the sums of runs lag behind, or of which these do not have all facets; None where these cannot be used."""
    changed = await load_changed_runs(connection, project, MOST_CHANGES)
    if changed is None:
        return None
    is_cut = (run_totals.c.project == project, run_totals.c.is_cut)
    cut = (await connection.execute(select(run_totals.c.run).where(*is_cut).limit(MOST_CHANGES + 1))).scalars().all()
    return None if len(cut) > MOST_CHANGES else [*changed, *cut]
