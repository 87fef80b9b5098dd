"""Find the runs of a list: by what is stored of each run, and those by their calls that the stored sums lag behind.

The sums of a run know which models, tools, statuses and so on its calls have, so that a list need not look for a fitting call of each
run. Whether one call has several of them is asked of its calls.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, RowMapping, Select, Text, and_, any_, func, literal, select, text

from store.database.asyncio_engine import AsyncConnection
from store.database.tables import run_totals, runs
from store.query.filters import (
    Filters,
    has_equalities,
    needs_one_call,
    run_conditions,
    select_runs_with_call,
    summed_run_conditions,
)
from store.query.pages import Cursor, Sort, load_sorted_page, merge_pages, next_cursor

FEWEST_LOOKED_AT: Final = 50
MOST_LOOKED_AT: Final = 1000
"""Runs whose calls are looked at together."""


async def load_run_rows(
    connection: AsyncConnection,
    project: str,
    filters: Filters,
    sort: Sort,
    cursor: Cursor | None,
    limit: int,
    *,
    changed: Sequence[str] | None,
    columns: Sequence[ColumnElement[Any]] = tuple(runs.c),
) -> Sequence[RowMapping]:
    """Load a page of runs, plus one row, which shows whether another page follows.

    `changed`: the runs that the stored sums lag behind (`sums.positions.load_unsummed_runs`); None if these are not used.
    """
    query = select(*columns).where(runs.c.project == project)
    by_calls = query.where(*run_conditions(filters, project))
    if changed is None or filters.keys or not has_equalities(filters):
        return await load_sorted_page(connection, by_calls, runs, sort, cursor, limit)
    names = literal(list(changed), ARRAY(Text))
    is_same = and_(run_totals.c.project == runs.c.project, run_totals.c.run == runs.c.id)
    by_sums = query.join(run_totals, is_same).where(
        runs.c.id != func.all(names), *summed_run_conditions(filters, project)
    )
    found = await _load_fitting_page(connection, project, by_sums, filters, sort, cursor, limit)
    if not changed:
        return found
    more = await load_sorted_page(connection, by_calls.where(runs.c.id == any_(names)), runs, sort, cursor, limit)
    return merge_pages(found, more, sort, limit)


async def _load_fitting_page(
    connection: AsyncConnection,
    project: str,
    query: Select[Any],
    filters: Filters,
    sort: Sort,
    cursor: Cursor | None,
    limit: int,
) -> Sequence[RowMapping]:
    """Load a page of `query`, which joins runs with their sums, of those runs of which one call has all traits."""
    if not needs_one_call(filters):
        return await _load_page(connection, query, sort, cursor, limit)
    fitting: list[RowMapping] = []
    size = max(limit, FEWEST_LOOKED_AT)
    while True:
        # Not a condition of `query`: Postgres might look at the calls of all its runs before it sorts them.
        found = await _load_page(connection, query, sort, cursor, size)
        names = [row["id"] for row in found[:size]]
        fit = set((await connection.execute(select_runs_with_call(filters, project, names))).scalars())
        fitting += [row for row in found[:size] if row["id"] in fit]
        cursor = next_cursor(found, size, "")
        if cursor is None or len(fitting) > limit:
            return fitting[: limit + 1]
        size = min(4 * size, max(limit, MOST_LOOKED_AT))


async def _load_page(
    connection: AsyncConnection, query: Select[Any], sort: Sort, cursor: Cursor | None, limit: int
) -> Sequence[RowMapping]:
    """Load a page. By cost, duration or tokens, with a plan for the very values that are asked for.

    After five requests, Postgres would use one plan for frequent and rare values: for a rare model, it read most runs by their cost.
    """
    if sort.by != "time":
        await connection.execute(_PLAN_FOR_VALUES)
    found = await load_sorted_page(connection, query, runs, sort, cursor, limit, has_totals=True)
    if sort.by != "time":
        await connection.execute(_PLAN_AS_USUAL)
    return found


_PLAN_FOR_VALUES: Final = text("SET LOCAL plan_cache_mode = force_custom_plan")
_PLAN_AS_USUAL: Final = text("SET LOCAL plan_cache_mode = auto")
