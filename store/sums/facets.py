"""Count the values of runs for filters, and load the marks that a list shows beside its runs."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from store.database.blobs import CorruptData, unpack
from store.database.connection import Database
from store.database.tables import call_sums, replays, run_totals, runs
from store.query.filters import Filters, run_conditions
from store.query.rest_shapes import Shape, milliseconds

MOST_RUNS: Final = 2000
"""Runs that are counted: the newest that fit."""

MOST_VALUES: Final = 30
"""Values of each facet: those of the most runs."""

MOST_REPLAYS: Final = 200
"""Replays whose reports are read for marks: those with the largest ids, which begin with their times unless somebody chose them."""

FACETS: Final = ("model", "provider", "status", "kind", "host", "actor")


class _Report(msgspec.Struct, frozen=True):
    """The members of a replay's report that are shown."""

    run: str | None = None
    verdict: str | None = None
    id: str | None = None


class FacetCounts:
    """Counts over the runs of a project. They come from the stored sums, which follow the record by a moment."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def load_facets(self, filters: Filters) -> Shape:
        """How many of the newest runs that fit have each value."""
        async with self._database.transaction() as connection:
            names = await self._newest_runs(connection, filters)
            counted = names[:MOST_RUNS]
            facets: dict[str, list[Shape]] = {}
            for name in FACETS:
                facets[name] = await _count(connection, self._values(name, counted))
            facets["tool"] = await _count(connection, self._tools(counted))
            facets["label"] = await _count(connection, self._labels(counted))
        return {"runs": len(counted), "is_complete": len(names) <= MOST_RUNS, "facets": facets}

    async def load_marks(self, names: Sequence[str]) -> list[Shape]:
        """Errors, durations and verdicts of some runs."""
        table = run_totals.c
        query = select(table.run, table.errors, table.duration).where(
            table.project == self._project, table.run.in_(names)
        )
        reports = (
            select(replays.c.report)
            .where(replays.c.project == self._project)
            .order_by(replays.c.id.desc())
            .limit(MOST_REPLAYS)
        )
        async with self._database.transaction() as connection:
            totals = {row.run: row for row in await connection.execute(query)}
            found = [_read_report(one) for one in (await connection.execute(reports)).scalars()]
        return [
            {
                "run": name,
                "errors": totals[name].errors if name in totals else None,
                "duration_ms": milliseconds(totals[name].duration) if name in totals else None,
                "replays": [{"id": one.id, "verdict": one.verdict} for one in found if one.run == name and one.id],
            }
            for name in names
        ]

    async def _newest_runs(self, connection: AsyncConnection, filters: Filters) -> list[str]:
        query = select(runs.c.id).where(runs.c.project == self._project, *run_conditions(filters, self._project))
        query = query.order_by(runs.c.started_at.desc(), runs.c.id.desc()).limit(MOST_RUNS + 1)
        return list((await connection.execute(query)).scalars())

    def _values(self, name: str, names: Sequence[str]) -> Select[Any]:
        sums = call_sums.c
        rows = select(sums[name].label("value"), sums.run).where(
            sums.project == self._project, sums.run.in_(names), sums[name].is_not(None)
        )
        return _runs_by_value(rows)

    def _tools(self, names: Sequence[str]) -> Select[Any]:
        sums = call_sums.c
        rows = select(func.unnest(sums.tools).label("value"), sums.run).where(
            sums.project == self._project, sums.run.in_(names)
        )
        return _runs_by_value(rows)

    def _labels(self, names: Sequence[str]) -> Select[Any]:
        pairs = func.jsonb_each_text(runs.c.labels).table_valued("key", "value").lateral("pairs")
        rows = (
            select((pairs.c.key + "=" + pairs.c.value).label("value"), runs.c.id.label("run"))
            .select_from(runs.join(pairs, runs.c.project == self._project))
            .where(runs.c.id.in_(names))
        )
        return _runs_by_value(rows)


def _runs_by_value(rows: Select[Any]) -> Select[Any]:
    values = rows.subquery()
    number = func.count(values.c.run.distinct()).label("runs")
    return (
        select(values.c.value, number)
        .group_by(values.c.value)
        .order_by(number.desc(), values.c.value)
        .limit(MOST_VALUES)
    )


async def _count(connection: AsyncConnection, query: Select[Any]) -> list[Shape]:
    return [{"value": str(row.value), "runs": row.runs} for row in await connection.execute(query)]


def _read_report(form: bytes) -> _Report:
    try:
        return msgspec.json.decode(unpack(form), type=_Report)
    except (msgspec.DecodeError, CorruptData):
        return _Report()  # written by another version, or damaged: it says nothing about a run
