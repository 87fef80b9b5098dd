"""How large each day is on disk, and how much of it each run takes."""

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import asyncpg

from store.database.tables import PARTITIONED

SCAN_TIMEOUT: Final = 600.0
"""Seconds that reading one day may take."""


@dataclass(slots=True)
class DaySize:
    """The size of a day, and the weight of each run in it."""

    day: dt.date
    size: int
    """Bytes of its partitions with their indexes."""

    weights: dict[tuple[str, str], int] = field(default_factory=dict)
    """By project and run: bytes of the rows of its exchanges."""

    def run_size(self, project: str, run: str) -> int:
        """The share of the day's bytes that a run takes."""
        total = sum(self.weights.values())
        return self.size * self.weights.get((project, run), 0) // total if total else 0

    def share_of(self, runs: Sequence[tuple[str, str]]) -> float:
        """The part of the day that these runs take, from 0 to 1."""
        total = sum(self.weights.values())
        return sum(self.weights.get(run, 0) for run in runs) / total if total else 1.0


async def partition_days(connection: asyncpg.Connection) -> list[dt.date]:
    """List the days that have partitions, the oldest first."""
    names = (row["name"].rpartition("_")[2] for row in await connection.fetch(DAYS))
    return sorted(dt.datetime.strptime(name, "%Y%m%d").replace(tzinfo=dt.UTC).date() for name in names)


async def load_day_size(connection: asyncpg.Connection, day: dt.date, projects: Sequence[str]) -> DaySize:
    """Measure a day. Reads its rows, but not their bodies."""
    size: int = await connection.fetchval(SIZE, [f"{table.name}_{day:%Y%m%d}" for table in PARTITIONED])
    found = DaySize(day, size)
    for project in projects:
        for row in await connection.fetch(_weights(day), project, timeout=SCAN_TIMEOUT):
            found.weights[(project, row["run"])] = row["weight"]
    return found


async def load_store_size(connection: asyncpg.Connection) -> int:
    """Bytes of the database on disk."""
    size: int = await connection.fetchval("SELECT pg_database_size(current_database())")
    return size


def run_sizes(days: Sequence[DaySize]) -> Mapping[tuple[str, str], int]:
    """Add up the bytes of each run over all days."""
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    for day in days:
        total = sum(day.weights.values()) or 1
        for run, weight in day.weights.items():
            sizes[run] += day.size * weight // total
    return sizes


DAYS = """
SELECT relid::regclass::text AS name FROM pg_partition_tree('exchanges') WHERE isleaf AND relid::regclass::text ~ '_[0-9]{8}$'
"""

SIZE = "SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0)::bigint FROM unnest($1::text[]) AS name"


def _weights(day: dt.date) -> str:
    # The size of a compressed column is known without reading it.
    return f"""
SELECT run, sum(
    200 + pg_column_size(head) + coalesce(pg_column_size(request_body), 0) + coalesce(pg_column_size(response_body), 0)
)::bigint AS weight FROM exchanges_{day:%Y%m%d} WHERE project = $1 GROUP BY run
"""  # noqa: S608 - a date
