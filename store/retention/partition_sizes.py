"""How large each day is on disk, and how much of it each run takes."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import asyncpg

from store.database.tables import PARTITIONED

SCAN_TIMEOUT: Final = 600.0
"""Seconds that reading one day may take."""


MOST_REMEMBERED: Final = 200_000
"""Weights of runs that are remembered, some 40 MB."""

type _Weights = dict[tuple[str, str], int]
"""By project and run: bytes of the rows of its exchanges."""


class _PartitionState(NamedTuple):
    """Differs once the rows of a day have changed, some seconds later at most."""

    day: dt.date
    file: int
    changes: int


@dataclass(slots=True)
class DaySize:
    """The size of a day, and the weight of each run in it."""

    day: dt.date
    size: int
    """Bytes of its partitions with their indexes."""

    weights: _Weights

    def share_of(self, runs: Sequence[tuple[str, str]]) -> float:
        """The part of the day that these runs take, from 0 to 1."""
        total = sum(self.weights.values())
        return sum(self.weights.get(run, 0) for run in runs) / total if total else 1.0


async def partition_days(connection: asyncpg.Connection) -> list[dt.date]:
    """List the days that have partitions, the oldest first."""
    names = (row["name"].rpartition("_")[2] for row in await connection.fetch(DAYS))
    return sorted(dt.datetime.strptime(name, "%Y%m%d").replace(tzinfo=dt.UTC).date() for name in names)


class DaySizes:
    """Measures days, and remembers the weights of runs in those that do not change."""

    def __init__(self) -> None:
        self._known: dict[dt.date, tuple[_PartitionState, _Weights]] = {}

    async def load(
        self, connection: asyncpg.Connection, days: Sequence[dt.date], projects: Sequence[str]
    ) -> list[DaySize]:
        """Measure these days. Reads the rows of those that have changed since the last time, but not their bodies."""
        # The state first: what is stored while the rows are read is in the next one.
        states = {row["day"]: _PartitionState(*row.values()) for row in await connection.fetch(STATES, list(days))}
        sizes: dict[dt.date, int] = dict(await connection.fetch(SIZES, list(days), [one.name for one in PARTITIONED]))
        known = {}
        for day in days:
            state, weights = self._known.get(day, (None, None))
            if weights is None or state != states.get(day):
                weights = await _load_weights(connection, day, projects)
            known[day] = (states[day], weights)
        self._known = dict(_within_limit(known, MOST_REMEMBERED))
        return [DaySize(day, sizes[day], known[day][1]) for day in days]


def _within_limit(
    known: Mapping[dt.date, tuple[_PartitionState, _Weights]], limit: int
) -> Iterator[tuple[dt.date, tuple[_PartitionState, _Weights]]]:
    """Yield the oldest days, which change least, as long as they have no more runs."""
    count = 0
    for day, one in known.items():
        count += len(one[1])
        if count > limit:
            return
        yield day, one


async def _load_weights(connection: asyncpg.Connection, day: dt.date, projects: Sequence[str]) -> _Weights:
    return {
        (project, row["run"]): row["weight"]
        for project in projects
        for row in await connection.fetch(_weights(day), project, timeout=SCAN_TIMEOUT)
    }


async def load_store_size(connection: asyncpg.Connection) -> int:
    """Bytes of the database on disk."""
    size: int = await connection.fetchval("SELECT pg_database_size(current_database())")
    return size


def run_sizes(days: Sequence[DaySize]) -> Mapping[str, Mapping[str, int]]:
    """Add up the bytes of each run of each project over all days."""
    sizes: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for day in days:
        total = sum(day.weights.values()) or 1
        for (project, run), weight in day.weights.items():
            sizes[project][run] += day.size * weight // total
    return sizes


DAYS = """
SELECT relid::regclass::text AS name FROM pg_partition_tree('exchanges') WHERE isleaf AND relid::regclass::text ~ '_[0-9]{8}$'
"""

SIZES = """
SELECT day, (
    SELECT coalesce(sum(pg_total_relation_size(to_regclass(name || to_char(day, '_YYYYMMDD')))), 0)::bigint
    FROM unnest($2::text[]) AS name
) AS size FROM unnest($1::date[]) AS day
"""

# The file differs once a partition was written anew, and what is counted since then begins at zero.
STATES = """
SELECT day, coalesce(pg_relation_filenode(exchanges)::bigint, 0) AS file,
    pg_stat_get_tuples_inserted(exchanges) + pg_stat_get_tuples_updated(exchanges) + pg_stat_get_tuples_deleted(exchanges) AS changes
FROM unnest($1::date[]) AS day, to_regclass(to_char(day, '"exchanges_"YYYYMMDD')) AS exchanges
"""


def _weights(day: dt.date) -> str:
    # The size of a compressed column is known without reading it.
    return f"""
SELECT run, sum(
    200 + pg_column_size(head) + coalesce(pg_column_size(request_body), 0) + coalesce(pg_column_size(response_body), 0)
)::bigint AS weight FROM exchanges_{day:%Y%m%d} WHERE project = $1 GROUP BY run
"""  # noqa: S608 - a date
