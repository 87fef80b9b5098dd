"""Create daily partitions of the large tables: a week ahead, and on demand for late exchanges."""

import datetime as dt
import re
import uuid
from collections.abc import Iterable
from functools import lru_cache

import asyncpg

from store.database.connection import MIGRATION_LOCK, Database
from store.database.partition_tables import create_partition_table
from store.database.tables import PARTITIONED, calls, exchanges

DAYS_AHEAD = 7
OLDEST_DAY = dt.date(2000, 1, 1)
NEWEST_DAY = dt.date(2100, 1, 1)
OLDEST_ORDINAL, NEWEST_ORDINAL = OLDEST_DAY.toordinal(), NEWEST_DAY.toordinal()
EPOCH = dt.date(1970, 1, 1).toordinal()

_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


# The row of an exchange and its texts ask for the same.
@lru_cache(4096)
def day_of(exchange: str) -> dt.date:
    """The UTC day in which a uuidv7 was made. Raises ValueError for another kind of id and for an implausible day."""
    if _UUID7.fullmatch(exchange):
        # What the ids of workers look like. An object for the whole id takes five times as long.
        milliseconds = int(exchange[:8] + exchange[9:13], 16)
    else:
        value = uuid.UUID(exchange)
        if value.version != 7:
            raise ValueError(f"{exchange} is not a uuidv7")
        milliseconds = value.int >> 80
    day = EPOCH + milliseconds // 86_400_000
    # Checked first, because 48 bits of milliseconds exceed the range of `date`.
    if not OLDEST_ORDINAL <= day < NEWEST_ORDINAL:
        raise ValueError(f"{exchange} was made before {OLDEST_DAY} or after {NEWEST_DAY}")
    return dt.date.fromordinal(day)


def first_id_of(day: dt.date) -> uuid.UUID:
    """The least uuidv7 of this day."""
    return uuid.UUID(int=(_unix_seconds(day) * 1000) << 80)


def _unix_seconds(day: dt.date) -> int:
    return int(dt.datetime.combine(day, dt.time(), dt.UTC).timestamp())


class Partitions:
    """Creates partitions and remembers the days that have one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._existing_days: set[dt.date] = set()

    async def create_missing(self, days: Iterable[dt.date]) -> None:
        """Create the missing partitions of these days."""
        all_days = set(days)
        for day in sorted((all_days - self._existing_days) | await self._dropped_days(all_days & self._existing_days)):
            async with self._database.connection() as connection, connection.transaction():
                await _create_partition(connection, day)
            self._existing_days.add(day)

    async def create_dropped(self, days: Iterable[dt.date]) -> None:
        """Create those of these days again that somebody has dropped, of whatever age: an erasure drops a day of which nothing stays."""
        dropped_days = set(days)
        self._existing_days -= dropped_days
        await self.create_missing(dropped_days)

    async def _dropped_days(self, days: set[dt.date]) -> set[dt.date]:
        """Of days that had partitions, return those that retention has dropped (`store.retention`). It never drops a recent one."""
        if not days or min(days) >= max(self._existing_days) - dt.timedelta(days=DAYS_AHEAD + 1):
            return set()
        async with self._database.connection() as connection:
            rows = await connection.fetch(DROPPED, sorted(days))
        return {row["day"] for row in rows}

    async def create_upcoming(self, today: dt.date) -> None:
        """Create the partitions of yesterday, today and the next week."""
        await self.create_missing(today + dt.timedelta(days=n) for n in range(-1, DAYS_AHEAD + 1))


def is_partition_missing(error: asyncpg.CheckViolationError) -> bool:
    """Whether a row was refused because its day has no partition: the only violation of no constraint in particular."""
    return error.as_dict().get("constraint_name") is None


DROPPED = (
    "SELECT day FROM unnest($1::date[]) AS day WHERE to_regclass('exchanges_' || to_char(day, 'YYYYMMDD')) IS NULL"
)


async def _create_partition(connection: asyncpg.Connection, day: dt.date) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
    for table in PARTITIONED:
        name = f"{table.name}_{day:%Y%m%d}"
        if await connection.fetchval("SELECT to_regclass($1)", name) is None:
            # Attached, because creating it as a partition would lock the whole table against readers.
            await create_partition_table(connection, name, table.name)
            await connection.execute(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES {partition_bounds(table, day)}"
            )


def partition_bounds(table: object, day: dt.date) -> str:
    """The bounds of the partition of a day, as `ATTACH PARTITION` has them."""
    first, last = _range_of(table, day)
    return f"FROM ('{first}') TO ('{last}')"


def partition_check(table: object, day: dt.date) -> str:
    """The same bounds as a condition on the rows of the table."""
    first, last = _range_of(table, day)
    column = "id" if table in (exchanges, calls) else "day"
    return f"{column} IS NOT NULL AND {column} >= '{first}' AND {column} < '{last}'"


def _range_of(table: object, day: dt.date) -> tuple[object, object]:
    following = day + dt.timedelta(days=1)
    return (first_id_of(day), first_id_of(following)) if table in (exchanges, calls) else (day, following)
