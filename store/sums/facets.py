"""Count the values of runs for filters, and load the marks that a list shows beside its runs."""

from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import select, text

from store.database.blobs import CorruptData, unpack
from store.database.connection import Database
from store.database.tables import replays, run_totals, runs
from store.query.filters import Filters
from store.query.pages import NEWEST_FIRST
from store.query.rest_shapes import Shape, milliseconds
from store.sums.positions import load_unsummed_runs
from store.sums.run_facets import COUNTED_FACETS
from store.sums.run_lists import load_run_rows

MOST_RUNS: Final = 2000
"""Runs that are counted: the newest that fit."""

MOST_VALUES: Final = 30
"""Values of each facet: those of the most runs."""

MOST_REPLAYS: Final = 200
"""Replays whose reports are read for marks: those with the largest ids, which begin with their times unless somebody chose them."""


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
            changed = await load_unsummed_runs(connection, self._project)
            found = await load_run_rows(
                connection, self._project, filters, NEWEST_FIRST, None, MOST_RUNS, changed=changed, columns=_PLACE
            )
            names = [row["id"] for row in found[:MOST_RUNS]]
            rows = await connection.execute(_VALUES, {"project": self._project, "names": names})
            facets: dict[str, list[Shape]] = {name: [] for name in (*COUNTED_FACETS, "label")}
            for facet, number in rows:
                name, _, value = facet.partition("=")
                facets[name].append({"value": value, "runs": number})
        return {"runs": len(names), "is_complete": len(found) <= MOST_RUNS, "facets": facets}

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


_PLACE: Final = (runs.c.id, runs.c.started_at)

_VALUES: Final = text(f"""
WITH counted AS MATERIALIZED (
    -- Materialized, as Postgres would else compare each facet of each run with the patterns.
    SELECT facet, count(*) AS runs FROM (
        SELECT unnest(facets) AS facet FROM run_totals WHERE project = :project AND run = ANY (:names)
    ) AS found GROUP BY facet
)
SELECT facet, runs FROM (
    SELECT facet, runs, row_number() OVER (PARTITION BY split_part(facet, '=', 1) ORDER BY runs DESC, facet) AS place FROM (
        SELECT facet, runs FROM counted WHERE facet ~ '^({"|".join(COUNTED_FACETS)})=' AND facet !~ '^status=.xx$'
        UNION ALL
        SELECT 'label=' || pair.key || '=' || pair.value, count(*)
        FROM runs CROSS JOIN jsonb_each_text(labels) AS pair WHERE project = :project AND id = ANY (:names) AND NOT starts_with(pair.key, 'playhead.')
        GROUP BY pair.key, pair.value
    ) AS every
) AS placed WHERE place <= {MOST_VALUES} ORDER BY runs DESC, facet
""")  # noqa: S608 - our own names


def _read_report(form: bytes) -> _Report:
    try:
        return msgspec.json.decode(unpack(form), type=_Report)
    except (msgspec.DecodeError, CorruptData):
        return _Report()  # written by another version, or damaged: it says nothing about a run
