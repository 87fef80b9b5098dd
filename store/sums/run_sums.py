"""Keep the sums of each run: `call_sums`, by hour and traits, and `run_totals`.

Of a run that changed, only the hours are summed again in which something was stored, and the hour before, whose last call may have
been tried again. So the work does not grow with the length of a run. Which of its exchanges were tried again is noted beside
(`sums.attempt_marks`), and the sums of its days are to be made anew (`sums.day_sums`).
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import asyncpg
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Table,
    Text,
    Uuid,
    any_,
    bindparam,
    column,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.sql.dml import ReturningDelete, ReturningInsert

from store.call_graph.retry_query import load_retry_groups
from store.database.asyncio_engine import AsyncConnection, driver_connection
from store.database.connection import Database
from store.database.tables import call_sums, calls, run_totals, runs
from store.feed.entries import CallStored, GapStored, ModelChanged, ReplayStored, RunDeleted, RunEnded
from store.feed.feed import FeedRow
from store.sums.attempt_marks import mark_attempts
from store.sums.call_rows import HOUR, hour_rows
from store.sums.positions import NAME
from store.sums.run_facets import sum_totals
from store.sums.summed_days import delete_call_sums, forget_days

REBUILD_BATCH: Final = 200
"""Runs that are summed in one transaction when everything is summed again."""

type Hours = dict[str, set[int] | None]
"""By run, the beginnings of the hours to sum again; None for all."""


class RunSums:
    """The consumer of the feed."""

    name = NAME

    def __init__(self, database: Database) -> None:
        self._database = database

    async def process(self, _: asyncpg.Connection, project: str, rows: Sequence[FeedRow]) -> None:
        """Sum the runs again of which the rows tell. In a transaction of its own: doing it twice has the same result."""
        hours, deleted = changed_hours(rows)
        if not (hours or deleted):
            return
        async with self._database.transaction() as own:
            if deleted:
                await _delete_sums(own, project, deleted)
            await sum_runs(own, project, {run: hours[run] for run in hours})

    async def rebuild(self, project: str) -> AsyncIterator[None]:
        """Sum all runs of the project again, some at a time; the sums of the others stay until then."""
        after = ""
        while True:
            async with self._database.transaction() as own:
                query = select(runs.c.id).where(runs.c.project == project, runs.c.id > after).order_by(runs.c.id)
                names = (await own.execute(query.limit(REBUILD_BATCH))).scalars().all()
                is_last = len(names) < REBUILD_BATCH
                await _delete_lost_sums(own, project, after, None if is_last else names[-1], names)
                await sum_runs(own, project, dict.fromkeys(names))
            yield
            if is_last:
                return
            after = names[-1]


def changed_hours(rows: Iterable[FeedRow]) -> tuple[Hours, set[str]]:
    """Return the hours to sum again of each run, and the runs that were deleted."""
    hours: defaultdict[str, set[int] | None] = defaultdict(set)
    deleted: set[str] = set()
    for entry in (entry for row in rows for entry in row.entries):
        match entry:
            case CallStored():
                known = hours[entry.run]
                if known is not None:
                    begin = entry.at - entry.at % HOUR
                    known |= {begin, begin - HOUR}
                if entry.previous_run is not None:
                    hours[entry.previous_run] = None
            case RunDeleted():
                deleted.add(entry.run)
            case RunEnded() | GapStored() | ReplayStored() | ModelChanged():
                pass
            case _:
                hours[entry.run] = None
    return dict(hours), deleted


async def sum_runs(connection: AsyncConnection, project: str, hours: Mapping[str, Collection[int] | None]) -> None:
    """Make the sums of these hours of these runs anew; of all hours for None."""
    # Locked against being deleted, which would leave sums of a run that is gone; ingest may update it meanwhile.
    names = list((await connection.execute(_LOCK_RUNS, {"project": project, "runs": list(hours)})).scalars())
    if not names:
        return
    parts = [(name, hour) for name in names for hour in hours[name] or ()]
    groups = await load_retry_groups(connection, project, names)
    failed = await mark_attempts(connection, project, names, groups)
    values = {
        "project": project,
        "runs": names,
        "whole": [name for name in names if hours[name] is None],
        "part_runs": [run for run, _ in parts],
        "part_hours": [hour for _, hour in parts],
    }
    changed = set((await connection.execute(_delete_hours(), values)).scalars())
    values |= {"superseded": groups.superseded_exchanges, "repeated": groups.repeated_polls}
    changed |= set((await connection.execute(_add_hours(), values)).scalars())
    driver = await driver_connection(connection)
    await forget_days(driver, project, changed)
    await sum_totals(driver, project, {name: hours[name] for name in names}, failed)


# Made once: to make them takes ten times as long as to execute them for a batch.
@cache
def _delete_hours() -> ReturningDelete[int]:
    return delete(call_sums).where(*_in_hours(call_sums, call_sums.c.hour)).returning(call_sums.c.hour)


@cache
def _add_hours() -> ReturningInsert[int]:
    hour = calls.c.started_at - calls.c.started_at % literal_column(str(HOUR), BigInteger)
    rows = hour_rows(
        _in_hours(calls, hour), *(bindparam(name, type_=ARRAY(Uuid)) for name in ("superseded", "repeated"))
    )
    sums = rows.subquery("sums")
    added = insert(call_sums).from_select([one.name for one in sums.columns], select(sums))
    return added.returning(call_sums.c.hour)


def _in_hours(table: Table, hour: ColumnElement[Any]) -> tuple[ColumnElement[bool], ...]:
    """Conditions: the row is of one of the `runs`, and this is in the `whole` ones or the hour is one of the parts."""
    runs, whole, part_runs = (bindparam(name, type_=ARRAY(Text)) for name in ("runs", "whole", "part_runs"))
    unnested = func.unnest(part_runs, bindparam("part_hours", type_=ARRAY(BigInteger)))
    part = unnested.table_valued(column("run", Text), column("hour", BigInteger), name="part").render_derived()
    is_part = tuple_(table.c.run, hour).in_(select(part.c.run, part.c.hour))
    return (
        table.c.project == bindparam("project"),
        table.c.run == any_(runs),
        or_(table.c.run == any_(whole), is_part),
    )


# Planning the other statements for these very runs, over all daily partitions, takes longer than they do. If the host dies before the sums
# are on disk, the position in the feed is lost with them (`feed.consumer`).
_LOCK_RUNS: Final = text("""
SELECT id, set_config('plan_cache_mode', 'force_generic_plan', true), set_config('synchronous_commit', 'off', true)
FROM runs WHERE project = :project AND id = ANY (CAST(:runs AS text[])) ORDER BY id FOR KEY SHARE
""")


async def _delete_sums(connection: AsyncConnection, project: str, names: Collection[str]) -> None:
    await connection.execute(delete(run_totals).where(run_totals.c.project == project, run_totals.c.run.in_(names)))
    await delete_call_sums(await driver_connection(connection), project, list(names))


async def _delete_lost_sums(
    connection: AsyncConnection, project: str, after: str, last: str | None, names: Sequence[str]
) -> None:
    """Delete the sums of runs that are no more, between two names."""
    for table in (call_sums, run_totals):
        conditions = [table.c.project == project, table.c.run > after, table.c.run.not_in(names)]
        if last is not None:
            conditions.append(table.c.run <= last)
        found = (await connection.execute(select(table.c.run).distinct().where(*conditions))).scalars().all()
        await _delete_sums(connection, project, found)
