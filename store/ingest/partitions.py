"""Create daily partitions of the large tables: a week ahead, and on demand for late exchanges."""

import datetime as dt
import uuid
from collections.abc import Iterable

import asyncpg

from store.database.connection import MIGRATION_LOCK, Database
from store.database.tables import PARTITIONED, parts

AHEAD = 7
OLDEST = dt.date(2000, 1, 1)
NEWEST = dt.date(2100, 1, 1)


def day_of(exchange: str) -> dt.date:
    """The UTC day in which a uuidv7 was made. Raises ValueError on another id, and on a day that nobody can have lived."""
    value = uuid.UUID(exchange)
    if value.version != 7:
        raise ValueError(f"{exchange} is not a uuidv7")
    seconds = (value.int >> 80) // 1000
    # Checked before the calendar is asked: 48 bits of milliseconds reach further than it does.
    if not _seconds(OLDEST) <= seconds < _seconds(NEWEST):
        raise ValueError(f"{exchange} was made before {OLDEST} or after {NEWEST}")
    return dt.datetime.fromtimestamp(seconds, dt.UTC).date()


def bound(day: dt.date) -> uuid.UUID:
    """Not greater than any uuidv7 of this day, and greater than all before."""
    return uuid.UUID(int=(_seconds(day) * 1000) << 80)


def _seconds(day: dt.date) -> int:
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())


class Partitions:
    """The days that have their partitions, as far as this process knows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._made: set[dt.date] = set()

    async def ensure(self, days: Iterable[dt.date]) -> None:
        """Make what is lacking for these days."""
        for day in sorted(set(days) - self._made):
            async with self._database.raw() as connection, connection.transaction():
                await _make(connection, day)
            self._made.add(day)

    async def ahead(self, today: dt.date) -> None:
        """Make the partitions of yesterday, today and a week to come."""
        await self.ensure(today + dt.timedelta(days=n) for n in range(-1, AHEAD + 1))


async def _make(connection: asyncpg.Connection, day: dt.date) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
    for table in PARTITIONED:
        name = f"{table.name}_{day:%Y%m%d}"
        if await connection.fetchval("SELECT to_regclass($1)", name) is None:
            # Attached rather than made as a partition: that would lock the whole table against its readers.
            await connection.execute(f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)")
            await connection.execute(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES {_range(table, day)}"
            )


def _range(table: object, day: dt.date) -> str:
    following = day + dt.timedelta(days=1)
    first, last = (day, following) if table is parts else (bound(day), bound(following))
    return f"FROM ('{first}') TO ('{last}')"
