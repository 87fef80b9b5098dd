"""Keep the sums of whole days over all runs, so that sums over a month do not read the sums of each of its runs.

A day has several cubes: each tells other traits apart and sums over the rest, so that a question is answered from the smallest one that
has what it asks for. They are made from `call_sums` once the day is over and nothing of it has changed for a while. Whatever changes
`call_sums` forgets the sums of that day in its own transaction, so what is there is always right; days without are read from `call_sums`.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

import asyncpg
from sqlalchemy import BigInteger, Text, exists, literal_column
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg

from store.database.connection import Database, DatabaseError
from store.database.tables import call_sums, calls
from store.feed.feed import projects_in
from store.query.filters import is_failed_exchange
from store.sums.call_rows import COUNTS, HOUR, LATENCIES, TRAITS, marked_rows
from store.sums.summed_days import DAY, DELETE_DAYS
from store.sums.value_classes import COSTS, DURATIONS, class_of

log = logging.getLogger(__name__)

COUNTED: Final = {"first_bytes": "first_byte_counts", "durations": "duration_counts"}
"""The columns with the classes of latencies, each with the column of how many exchanges are in each class."""

SETTLED_AFTER: Final = 60 * 1_000_000_000
"""Nanoseconds without a change after which the sums of a day are made."""

POLL_INTERVAL: Final = 60.0
BUILD_TIMEOUT: Final = 600.0


class Cube(NamedTuple):
    """The traits that the rows of a day tell apart."""

    number: int
    traits: tuple[str, ...]

    def has_all(self, traits: Collection[str]) -> bool:
        """Whether it has all of these; what is known of a run, such as its labels, a cube of runs has as well."""
        return set(traits) - ({"labels"} if "run" in self.traits else set()) <= set(self.traits)


SERVICE: Final = ("kind", "provider", "dialect", "operation", "host", "model", "model_returned", "status")

CUBES: Final = (
    Cube(1, ("actor",)),
    Cube(2, ("tools",)),
    Cube(6, ("hour",)),
    Cube(3, SERVICE),
    Cube(7, ("labels", *SERVICE)),
    Cube(4, ("run",)),
    Cube(5, tuple(name for name in TRAITS if name not in ("project", "run", "hour"))),
)
"""From the smallest to the largest. Numbers of cubes whose traits change must change as well."""

CALL_CUBES: Final = {
    "min_cost": Cube(8, ("cost_class", *SERVICE)),
    "min_duration": Cube(9, ("duration_class", *SERVICE)),
    "error": Cube(10, ("is_failed", *SERVICE)),
}
"""By the filter of calls that they serve, beside those of the service: cubes that are made from `calls`, by what `call_sums` does not know."""


def smallest_cube(traits: Collection[str]) -> Cube | None:
    """Return the smallest cube that has all of these traits; None if none has."""
    return next((cube for cube in CUBES if cube.has_all(traits)), None)


class DaySums:
    """Makes the sums of days that are over. `now` is wall time in nanoseconds."""

    def __init__(self, database: Database, now: Callable[[], int]) -> None:
        self._database = database
        self._now = now

    async def run(self) -> None:
        """Make what is missing, again and again, until the task is cancelled."""
        while True:
            try:
                await self.sum_settled_days()
            except DatabaseError as error:
                log.warning("the sums of days wait for the database: %s", error)
            await asyncio.sleep(POLL_INTERVAL)

    async def sum_settled_days(self, settled_after: int = SETTLED_AFTER) -> int:
        """Make the sums of all days that are over and have settled; return how many."""
        count = 0
        now = self._now()
        async with self._database.connection() as connection:
            projects = [row["project"] for row in await connection.fetch(PROJECTS)]
            days = [
                (project, row["day"])
                for project in projects
                for row in await connection.fetch(SETTLED, project, now - DAY, now - settled_after)
            ]
        for project, day in days:
            count += await self._sum_day(project, day)
            # What is stored meanwhile comes first.
            await asyncio.sleep(0)
        return count

    async def _sum_day(self, project: str, day: int) -> bool:
        """Make the sums of a day, unless it changes meanwhile or another store server makes them."""
        async with self._database.connection() as connection:
            transaction = connection.transaction()
            await transaction.start()
            is_made = False
            try:
                is_made = await _sum_in_transaction(connection, project, day)
            finally:
                await (transaction.commit() if is_made else transaction.rollback())
        return is_made


async def _sum_in_transaction(connection: asyncpg.Connection, project: str, day: int) -> bool:
    if not await connection.fetchval(LOCK_DAY, f"{project}/{day}"):
        return False
    changes = await connection.fetchval(CHANGES, project, day)
    if changes is None:
        return False
    await connection.execute(DELETE_DAYS, project, [day])
    for cube in (*CUBES, *CALL_CUBES.values()):
        await connection.execute(_insertion(cube), project, day, timeout=BUILD_TIMEOUT)
    return await connection.fetchval(MARK_VALID, project, day, changes) is not None


def _insertion(cube: Cube) -> str:
    """Return the statement that makes a cube of the day $2 of the project $1."""
    traits = ", ".join(cube.traits)
    columns = ", ".join((*cube.traits, *COUNTS, *(name for pair in COUNTED.items() for name in pair)))
    firsts = ", ".join(
        f"(array_agg({name}))[1]" if name in _WITHOUT_MINIMUM else f"min({name})" for name in cube.traits
    )
    sums = ", ".join(f"sum({name})" for name in COUNTS)
    classes = "".join(_CLASSES.format(name=name) for name in LATENCIES)
    arrays = ", ".join(f"{name}.numbers, {name}.counts" for name in LATENCIES)
    joins = " ".join(f"LEFT JOIN {name} USING (place)" for name in LATENCIES)
    # Joined by a number, since traits may be null.
    return f"""
WITH rows AS MATERIALIZED (
    SELECT {", ".join((*cube.traits, *COUNTS, *LATENCIES))}, dense_rank() OVER (ORDER BY {traits}) AS place
    FROM ({_source(cube)}) AS source
){classes}, sums AS (
    SELECT place, {firsts}, {sums} FROM rows GROUP BY place
)
INSERT INTO day_sums (project, day, cube, place, {columns})
SELECT $1, $2, {cube.number}, sums.*, {arrays} FROM sums {joins}
"""  # noqa: S608 - our own names


_dialect = PGDialect_asyncpg()  # type: ignore[no-untyped-call]
_WITHOUT_MINIMUM: Final = ("labels", "is_failed")


def _source(cube: Cube) -> str:
    """The rows to sum: those of `call_sums`; or the calls that it has, with what it does not know of them."""
    if cube not in CALL_CUBES.values():
        of_day = f"project = $1 AND hour >= $2 AND hour < $2 + {DAY}"
        if "labels" not in cube.traits:
            return f"SELECT * FROM call_sums WHERE {of_day}"  # noqa: S608
        return f"""
            SELECT call_sums.*, runs.labels FROM call_sums JOIN runs ON runs.project = $1 AND runs.id = call_sums.run
            WHERE call_sums.{of_day}
        """  # noqa: S608
    project, day = literal_column("$1", Text), literal_column("$2", BigInteger)
    hour = literal_column(str(HOUR), BigInteger)
    is_summed = exists().where(
        call_sums.c.project == project,
        call_sums.c.run == calls.c.run,
        call_sums.c.hour == calls.c.started_at - calls.c.started_at % hour,
    )
    is_meant = (calls.c.started_at >= day, calls.c.started_at < day + literal_column(str(DAY), BigInteger))
    rows = marked_rows([calls.c.project == project, *is_meant, is_summed]).add_columns(_CALL_TRAITS[cube.traits[0]])
    return str(rows.compile(dialect=_dialect, compile_kwargs={"literal_binds": True}))


_CALL_TRAITS: Final = {
    "cost_class": class_of(calls.c.cost_usd, COSTS).label("cost_class"),
    "duration_class": class_of(calls.c.duration, DURATIONS).label("duration_class"),
    "is_failed": is_failed_exchange().label("is_failed"),
}

_CLASSES = """, {name} AS (
    SELECT place, array_agg(number ORDER BY number) AS numbers, array_agg(count ORDER BY number) AS counts FROM (
        SELECT place, number, count(*)::integer AS count FROM rows, unnest({name}) AS number GROUP BY place, number
    ) AS counted GROUP BY place
)"""

PROJECTS = projects_in("summed_days")

SETTLED = """
SELECT day FROM summed_days WHERE project = $1 AND NOT is_valid AND day <= $2 AND changed_at <= $3 ORDER BY day DESC
"""

LOCK_DAY = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 20261125))"

CHANGES = "SELECT changes FROM summed_days WHERE project = $1 AND day = $2 AND NOT is_valid"

MARK_VALID = """
UPDATE summed_days SET is_valid = true WHERE project = $1 AND day = $2 AND changes = $3 RETURNING changes
"""
