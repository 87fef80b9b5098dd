"""Append entries to the feed, and read them in the order in which they were committed."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import asyncpg

from store.database.connection import note_changed_runs
from store.feed.entries import CallStored, FeedEntry, ReplayStored, decode_entries, encode_entries

KEEP = 7 * 24 * 3600 * 1_000_000_000
"""Nanoseconds after which entries are deleted."""

DELETED = "(deleted)"
"""The name of a position that no consumer has: entries up to there have been deleted."""


class FeedPosition(NamedTuple):
    """The place of a row in the feed of a project: the transaction that wrote it, and one of its rows."""

    transaction: int
    row: uuid.UUID


LAST_ROW = uuid.UUID(int=(1 << 128) - 1)

BEGINNING = FeedPosition(0, uuid.UUID(int=0))


class FeedRow(NamedTuple):
    """What one transaction, or a part of it, stored."""

    position: FeedPosition
    stored_at: int
    entries: tuple[FeedEntry, ...]


async def append_entries(
    connection: asyncpg.Connection, project: str, entries: Sequence[FeedEntry], now: int = 0
) -> None:
    """Append entries, in the transaction that stores what they describe."""
    if entries:
        note_changed_runs(connection, project, {name for one in entries for name in _names_in(one)})
        await connection.execute(APPEND, project, uuid.uuid4(), now or time.time_ns(), encode_entries(entries))


def _names_in(entry: FeedEntry) -> Iterator[str]:
    """The names of runs and replays whose recording the entry changes."""
    match entry:
        case ReplayStored(replay=name):
            yield name
        case CallStored(run=name, previous_run=previous):
            yield name
            if previous is not None:
                yield previous
        case _:
            yield entry.run


async def read_feed(
    connection: asyncpg.Connection, project: str, after: FeedPosition, limit: int = 100
) -> list[FeedRow]:
    """Read the next rows of which every earlier one is committed, too."""
    rows = await connection.fetch(READ, project, after.transaction, after.row, limit)
    return [
        FeedRow(FeedPosition(row["transaction"], row["id"]), row["stored_at"], decode_entries(row["entries"]))
        for row in rows
    ]


def position_before(position: FeedPosition) -> FeedPosition:
    """The position after which the row at a position is the first one."""
    transaction, row = position
    return FeedPosition(transaction, uuid.UUID(int=row.int - 1)) if row.int else FeedPosition(transaction - 1, LAST_ROW)


async def deleted_position(connection: asyncpg.Connection, project: str) -> int:
    """The newest transaction whose rows have been deleted; 0 if there is none."""
    query = "SELECT transaction FROM feed_positions WHERE project = $1 AND consumer = $2"
    found: int | None = await connection.fetchval(query, project, DELETED)
    return found or 0


async def last_position(connection: asyncpg.Connection) -> FeedPosition:
    """The position after every transaction that has ended before this one, and before every one that ends later."""
    newest: int = await connection.fetchval("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1")
    return FeedPosition(newest, LAST_ROW)


async def delete_old_entries(connection: asyncpg.Connection, now: int) -> None:
    """Delete the entries of all projects that are older than `KEEP`, and note up to where, in the connection's transaction."""
    for row in await connection.fetch(projects_in("feed")):
        await connection.execute(DELETE_OLD, row["project"], now - KEEP, DELETED)


APPEND = "INSERT INTO feed (project, id, stored_at, entries) VALUES ($1, $2, $3, $4)"

# A transaction that has not ended yet may have any id from the snapshot's xmin on.
READ = """
SELECT transaction, id, stored_at, entries FROM feed
WHERE project = $1 AND (transaction, id) > ($2::bigint, $3::uuid)
    AND transaction < pg_snapshot_xmin(pg_current_snapshot())::text::bigint
ORDER BY transaction, id LIMIT $4
"""

# The consumer's name is that of `DELETED`.
DELETE_OLD = """
WITH gone AS (DELETE FROM feed WHERE project = $1 AND stored_at < $2 RETURNING transaction)
INSERT INTO feed_positions (project, consumer, transaction, feed_row)
SELECT $1, $3, max(transaction), '00000000-0000-0000-0000-000000000000' FROM gone HAVING count(*) > 0
ON CONFLICT (project, consumer) DO UPDATE SET transaction = greatest(feed_positions.transaction, excluded.transaction)
"""


def projects_in(table: str, columns: str = "project") -> str:
    """The statement that lists the projects that have rows in a table, or something of each.

    A loose scan: the index is entered once for each project. It is the only kind of statement that names no project. Citus, which
    has the projects on different nodes, refuses it: there, `SELECT DISTINCT project FROM feed_positions` or a reference table of
    projects must take its place.
    """
    return f"""
WITH RECURSIVE found AS (
    (SELECT project FROM {table} ORDER BY project LIMIT 1)
    UNION ALL
    SELECT (SELECT project FROM {table} AS next WHERE next.project > found.project ORDER BY project LIMIT 1)
    FROM found WHERE found.project IS NOT NULL
)
SELECT {columns} FROM found WHERE project IS NOT NULL
"""  # noqa: S608 - the name of a table of ours


PROJECTS = projects_in("runs")
