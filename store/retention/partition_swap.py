"""Remove what has expired from the partitions of a day, and return its space.

A day of which nothing stays is dropped. A day of which enough goes is rewritten: the rows that stay are copied to a new table, which
takes the old one's place in one transaction, in which `expirations` forgets the day. If less goes, or the day may still grow, rows are
deleted, and their space is used again but not returned.

While a day is rewritten, what writes to that day waits, and nobody else; queries wait for the swap itself, some milliseconds.
"""

import asyncio
import datetime as dt
import logging
from typing import Final, Literal, NamedTuple

import asyncpg
from sqlalchemy import Table

from store.database.connection import MIGRATION_LOCK, Database
from store.database.day_locks import lock_day, share_days
from store.database.partition_tables import create_partition_indexes, create_partition_table
from store.database.tables import PARTITIONED
from store.ingest.partitions import partition_bounds, partition_check
from store.retention.bodies import erase_bodies

log = logging.getLogger(__name__)

REWRITE_SHARE: Final = 0.1
"""The part of a day that must go for the day to be rewritten."""

REWRITE_TIMEOUT: Final = 3600.0
"""Seconds that copying a day may take."""

SWAP_LOCK_TIMEOUT: Final = "150ms"
"""How long to wait for queries of one table before the swap; others wait behind it. All together wait less than Postgres'
deadlock_timeout (1 s), so that a query which uses the tables in another order is never ended as a deadlock."""

SWAP_TRIES: Final = 40
IMPATIENT_TRIES: Final = 8
"""Tries where somebody waits for the answer."""

SWAP_PAUSE: Final = 0.25

LOCK_TRIES: Final = 5
LOCK_PAUSE: Final = 1.0

type Way = Literal["dropped", "rewritten", "deleted", "postponed"]


class ClearedDay(NamedTuple):
    """What was done to a day."""

    day: dt.date
    way: Way
    before: int
    """Bytes of its partitions before."""

    after: int


async def pending_days(database: Database, projects: list[str]) -> list[dt.date]:
    """List the days from which something is to be removed, the oldest first."""
    days: set[dt.date] = set()
    async with database.connection() as connection:
        for project in projects:
            rows = await connection.fetch("SELECT DISTINCT day FROM expirations WHERE project = $1", project)
            days |= {row["day"] for row in rows}
    return sorted(days)


async def erased_days(database: Database) -> list[dt.date]:
    """List the days whose files still have what was erased, the oldest first."""
    async with database.connection() as connection:
        return [row["day"] for row in await connection.fetch(ERASED_DAYS)]


async def clear_day(database: Database, day: dt.date, today: dt.date, share: float = 1.0) -> ClearedDay:
    """Remove from a day what has expired. `share`: the part of it that goes."""
    before = await _day_size(database, day)
    await erase_bodies(database, day)
    may_grow = day >= today - dt.timedelta(days=1)
    if (may_grow or share < REWRITE_SHARE) and day not in await erased_days(database):
        await delete_rows(database, day)
        way: Way = "deleted"
    else:
        way = await _replace_with_retries(database, day)
    return ClearedDay(day, way, before, await _day_size(database, day))


async def rewrite_day(database: Database, day: dt.date) -> ClearedDay:
    """Rewrite a day, however little goes, so that its old files go."""
    before = await _day_size(database, day)
    try:
        way: Way = await _replace_day(database, day, IMPATIENT_TRIES)
    except PartitionsInUse:
        way = "postponed"
    return ClearedDay(day, way, before, await _day_size(database, day))


class PartitionsInUse(Exception):
    """Queries use the partitions, and the swap has waited long enough."""


async def _replace_with_retries(database: Database, day: dt.date) -> Way:
    """Rewrite or drop a day; `postponed` if it is in use all the time."""
    for tries in range(1, LOCK_TRIES + 1):
        try:
            return await _replace_day(database, day)
        except PartitionsInUse:
            log.info("the partitions of %s are in use (%d of %d tries)", day, tries, LOCK_TRIES)
            await asyncio.sleep(LOCK_PAUSE)
    return "postponed"


async def _replace_day(database: Database, day: dt.date, swap_tries: int = SWAP_TRIES) -> Way:
    """Rewrite or drop the partitions of a day in one transaction. Raises `PartitionsInUse`."""
    async with database.connection() as connection:
        try:
            async with connection.transaction():
                return await _replace_tables(connection, day, swap_tries)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            raise PartitionsInUse from error


async def _replace_tables(connection: asyncpg.Connection, day: dt.date, swap_tries: int) -> Way:
    await lock_day(connection, day)
    tables = await _day_tables(connection, day)
    # Nobody else writes to them now; should somebody who did not lock the day try, they wait.
    for _, name in tables:
        await connection.execute(f"LOCK TABLE ONLY {name} IN SHARE ROW EXCLUSIVE MODE")
    copied = [await _copy_kept_rows(connection, table, name, day) for table, name in tables]
    # Whoever creates partitions has this lock, too.
    await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
    await _lock_tables(connection, swap_tries)
    for table, name in tables:
        await _swap_table(connection, table, name, day, is_kept=any(copied))
    await connection.execute("DELETE FROM expirations WHERE day = $1", day)
    return "rewritten" if any(copied) else "dropped"


async def _day_tables(connection: asyncpg.Connection, day: dt.date) -> list[tuple[Table, str]]:
    """The tables that have a partition of the day, and their partitions."""
    names = {f"{table.name}_{day:%Y%m%d}": table for table in PARTITIONED}
    return [(names[row["name"]], row["name"]) for row in await connection.fetch(EXISTING, list(names))]


async def _lock_tables(connection: asyncpg.Connection, tries: int) -> None:
    """Lock the tables for the swap. Raises `PartitionsInUse`; the copies are kept from one try to the next."""
    names = ", ".join(table.name for table in PARTITIONED)
    await connection.execute(f"SET LOCAL lock_timeout = '{SWAP_LOCK_TIMEOUT}'")
    for _ in range(tries):
        try:
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
            return
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(SWAP_PAUSE)
    raise PartitionsInUse


async def _copy_kept_rows(connection: asyncpg.Connection, table: Table, name: str, day: dt.date) -> int:
    """Copy the rows that stay to a new table; return how many."""
    await create_partition_table(connection, f"{name}_new", table.name, has_indexes=False)
    # With it, attaching does not read the table again, for which everybody would wait.
    await connection.execute(f"ALTER TABLE {name}_new ADD CONSTRAINT bounds CHECK ({partition_check(table, day)})")
    done = await connection.execute(_copy(table, name), day, timeout=REWRITE_TIMEOUT)
    count = int(done.rpartition(" ")[2])
    if count:
        await create_partition_indexes(connection, f"{name}_new", table.name, REWRITE_TIMEOUT)
    return count


async def _swap_table(connection: asyncpg.Connection, table: Table, name: str, day: dt.date, *, is_kept: bool) -> None:
    """Drop the old table and, if anything stays, put the new one in its place."""
    await connection.execute(f"ALTER TABLE {table.name} DETACH PARTITION {name}")
    await connection.execute(f"DROP TABLE {name}")
    if not is_kept:
        await connection.execute(f"DROP TABLE {name}_new")
        return
    await connection.execute(
        f"ALTER TABLE {table.name} ATTACH PARTITION {name}_new FOR VALUES {partition_bounds(table, day)}"
    )
    await connection.execute(f"ALTER TABLE {name}_new DROP CONSTRAINT bounds")
    await connection.execute(f"ALTER TABLE {name}_new RENAME TO {name}")


async def delete_rows(database: Database, day: dt.date) -> None:
    """Delete the rows that have expired from a day, run by run."""
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT project, run, part FROM expirations WHERE day = $1", day)
        for row in rows:
            async with connection.transaction():
                await share_days(connection, [day])
                if row["part"] == "run":
                    for _, name in await _day_tables(connection, day):
                        await connection.execute(
                            f"DELETE FROM {name} WHERE project = $1 AND run = $2",  # noqa: S608 - a table of ours
                            row["project"],
                            row["run"],
                            timeout=REWRITE_TIMEOUT,
                        )
                await connection.execute(
                    "DELETE FROM expirations WHERE project = $1 AND day = $2 AND run = $3 AND part = $4",
                    row["project"],
                    day,
                    row["run"],
                    row["part"],
                )


async def _day_size(database: Database, day: dt.date) -> int:
    names = [f"{table.name}_{day:%Y%m%d}" for table in PARTITIONED]
    async with database.connection() as connection:
        size: int = await connection.fetchval(
            "SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0)::bigint FROM unnest($1::text[]) AS name",
            names,
        )
    return size


EXISTING = "SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS one (name, n) WHERE to_regclass(name) IS NOT NULL ORDER BY n"

ERASED_DAYS = "SELECT DISTINCT day FROM expirations WHERE part = 'erased' ORDER BY day"


def _copy(table: Table, name: str) -> str:
    columns = ", ".join(column.name for column in table.columns)
    return f"""
INSERT INTO {name}_new ({columns}) SELECT {columns} FROM {name} AS old WHERE NOT EXISTS (
    SELECT FROM expirations WHERE expirations.project = old.project AND expirations.day = $1 AND expirations.run = old.run
        AND expirations.part = 'run'
)
"""  # noqa: S608 - a table of ours
