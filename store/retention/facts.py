"""Load what rules look at: the facts of the runs of a project, some hundred at a time."""

import datetime as dt
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from itertools import batched
from operator import itemgetter
from typing import Final, NamedTuple

import asyncpg
import msgspec

from store.database.blobs import CorruptData, unpack
from store.database.traits import HAS_BROKEN_ANSWER
from store.feed.entries import IDLE
from store.ingest.partitions import day_of, first_id_of
from store.retention.rules import RetentionRule, RunFacts

PAGE: Final = 500
"""Runs whose facts are loaded by one statement."""

FAILED_PAGE: Final = 100
"""Runs with failed calls that are looked at together, so that they are of few days."""

REPLAYS_PAGE: Final = 200


class JudgedRun(NamedTuple):
    """A run's facts, and which of its incarnations they are of."""

    facts: RunFacts
    incarnation: uuid.UUID


class _Report(msgspec.Struct, frozen=True):
    """The members of a replay's report that rules look at."""

    run: str | None = None
    verdict: str | None = None


class ReplayReports(NamedTuple):
    """The replays of each run of a project."""

    verdicts: Mapping[str, frozenset[str]]
    replays: Mapping[str, Sequence[str]]
    """The ids of the replays."""


async def load_replay_reports(connection: asyncpg.Connection, project: str) -> ReplayReports:
    """Load the verdicts of all replays of a project, by the run that was replayed."""
    verdicts: defaultdict[str, set[str]] = defaultdict(set)
    replays: defaultdict[str, list[str]] = defaultdict(list)
    after = ""
    while rows := await connection.fetch(REPLAYS, project, after, REPLAYS_PAGE):
        for row in rows:
            report = _read_report(row["report"])
            if report.run is not None:
                replays[report.run].append(row["id"])
                if report.verdict is not None:
                    verdicts[report.run].add(report.verdict)
        after = rows[-1]["id"]
    return ReplayReports({run: frozenset(found) for run, found in verdicts.items()}, replays)


def _read_report(form: bytes) -> _Report:
    try:
        return msgspec.json.decode(unpack(form), type=_Report)
    except (msgspec.DecodeError, CorruptData):
        return _Report()  # written by another version, or damaged: it says nothing about a run


class RunGroup(NamedTuple):
    """Runs of which all rules say the same."""

    facts: RunFacts
    """Those of one of them."""

    runs: Sequence[str]


class FactsLoader:
    """Loads the facts of the runs of a project.

    `changed`: the runs in which something was stored since the sums were made; None if all may be.
    """

    def __init__(
        self,
        connection: asyncpg.Connection,
        project: str,
        rules: Sequence[RetentionRule],
        now: int,
        changed: Collection[str] | None,
    ) -> None:
        self._connection = connection
        self._project = project
        self._now = now
        self._changed = changed
        self._has_traits = any(rule.match.model or rule.match.status for rule in rules)
        self._has_cost = any(one.match.min_cost is not None or one.match.max_cost is not None for one in rules)
        lengths = {length for rule in rules for length in (rule.keep, rule.bodies) if length is not None}
        self._ages = sorted(now - length * 1_000_000_000 + 1 for length in lengths)
        self._reports = ReplayReports({}, {})
        self._broken: set[str] = set()

    async def prepare(self) -> None:
        """Load what is looked up for all runs at once."""
        self._reports = await load_replay_reports(self._connection, self._project)
        async with self._connection.transaction():
            # Planning these for their very runs, over all daily partitions, takes longer than they do.
            await self._connection.execute("SET LOCAL plan_cache_mode = 'force_generic_plan'")
            self._broken = {row["run"] for row in await self._connection.fetch(UNKEPT, self._project)}
            suspect = await self._suspect_runs()
            unsummed = self._changed
            if unsummed is None:
                unsummed = [row["id"] for row in await self._connection.fetch(ALL_RUNS, self._project)]
            for names in batched(sorted(suspect.union(unsummed) - self._broken), PAGE):
                self._broken |= {row["run"] for row in await self._connection.fetch(LAST_FAILED, self._project, names)}

    async def _suspect_runs(self) -> set[str]:
        """Find the runs whose last call may have failed: those of failed calls that no other call follows in the same days.

        Nearly all are followed by one, on the same day. Looking for it there reads less than the last call of each run, on any day.
        """
        last: dict[str, asyncpg.Record] = {}
        for row in await self._connection.fetch(FAILED, self._project):
            if row["run"] not in last or row["started_at"] > last[row["run"]]["started_at"]:
                last[row["run"]] = row
        suspect: set[str] = set()
        for batch in batched(sorted(last.values(), key=itemgetter("id")), FAILED_PAGE):
            first_day, last_day = (day_of(str(row["id"])) for row in (batch[0], batch[-1]))
            bounds = (first_id_of(first_day), first_id_of(last_day + dt.timedelta(days=1)))
            columns = [[row[name] for row in batch] for name in ("run", "started_at")]
            rows = await self._connection.fetch(UNFOLLOWED, self._project, *columns, *bounds)
            suspect |= {row["run"] for row in rows}
        return suspect

    async def groups(self) -> list[RunGroup]:
        """Load all runs in groups of which all rules say the same."""
        values = (list(self._broken), list(self._reports.verdicts), self._now - IDLE, self._ages)
        async with self._connection.transaction():
            # Enough to group a hundred thousand runs in memory rather than on disk.
            await self._connection.execute("SET LOCAL work_mem = '64MB'")
            # Postgres expects as many groups as runs, and would sort these.
            await self._connection.execute("SET LOCAL enable_sort = off")
            rows = await self._connection.fetch(GROUPS, self._project, *values, self._has_cost, self._has_traits)
        return [RunGroup(self._facts(row, row["runs"][0]), row["runs"]) for row in rows]

    async def pages(self, names: Collection[str]) -> AsyncIterator[list[JudgedRun]]:
        """Yield the facts of these runs, one by one."""
        for page in batched(sorted(names), PAGE):
            rows = await self._connection.fetch(
                FACTS, self._project, page, list(self._broken.intersection(page)), self._now - IDLE, self._has_traits
            )
            yield [JudgedRun(self._facts(row, row["id"]), row["incarnation"]) for row in rows]

    def _facts(self, row: asyncpg.Record, run: str) -> RunFacts:
        facets = row["facets"] or ()
        return RunFacts(
            project=self._project,
            run=run,
            newest_at=row["newest_at"],
            labels={} if row["labels"] == "{}" else msgspec.json.decode(row["labels"]),
            models=frozenset(one.partition("=")[2] for one in facets if one.startswith(("model=", "returned="))),
            statuses=frozenset(int(one[7:]) for one in facets if one.startswith("status=") and one[7:].isdecimal()),
            cost_usd=None if row["cost_usd"] is None else float(row["cost_usd"]),
            has_error=row["has_error"],
            has_gap=row["has_gap"],
            ended_badly=row["has_gap"] or row["is_broken"],
            verdicts=self._reports.verdicts.get(run, frozenset()),
            is_pinned=row["pinned"],
            is_forked_from=row["is_forked_from"],
            is_live=row["is_live"],
            is_summed=row["is_summed"],
            bodies_erased_at=row["newest_at"] if row["are_bodies_erased"] else None,
        )


REPLAYS = "SELECT id, report FROM replays WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3"

# By `exchanges_unkept_idx` alone.
UNKEPT = "SELECT DISTINCT run FROM exchanges WHERE project = $1 AND (truncated OR ended_at IS NULL)"

# By `calls_failed_idx`: if the last call of a run has failed, it is marked, as no later attempt has made it good.
FAILED = "SELECT run, started_at, id FROM calls WHERE project = $1 AND failed"

UNFOLLOWED = """
SELECT run FROM unnest($2::text[], $3::bigint[]) AS failed (run, started_at) WHERE NOT EXISTS (
    SELECT FROM calls WHERE calls.project = $1 AND calls.run = failed.run AND calls.started_at > failed.started_at
        AND calls.id >= $4 AND calls.id < $5
)
"""

ALL_RUNS = "SELECT id FROM runs WHERE project = $1 ORDER BY id"

LAST_FAILED = f"""
SELECT run FROM (
    SELECT DISTINCT ON (run) run,
        status IS NULL OR status >= 400 OR {HAS_BROKEN_ANSWER} AS has_failed
    FROM calls WHERE project = $1 AND run = ANY ($2::text[]) ORDER BY run, started_at DESC, id DESC
) AS last WHERE has_failed
"""  # noqa: S608 - a constant

# Models and statuses of runs of which not all facets are stored are taken from the sums.
_FACETS = """
CASE WHEN totals.facets IS NOT NULL AND NOT totals.is_cut THEN totals.facets ELSE (
    SELECT array_remove(array_agg(DISTINCT 'model=' || model) || array_agg(DISTINCT 'returned=' || model_returned)
        || array_agg(DISTINCT 'status=' || status), NULL)
    FROM call_sums WHERE call_sums.project = $1 AND call_sums.run = runs.id
) END
"""

# A run that ended a minute ago counts as live, too: a later request, or its sums, may still come.
_COLUMNS = """
    coalesce(totals.errors, 0) > 0 AS has_error, totals.run IS NOT NULL AS is_summed, runs.pinned, runs.labels,
    runs.active_at > $4 AS is_live, coalesce(runs.bodies_erased_at >= runs.newest_at, false) AS are_bodies_erased,
    runs.id IN (SELECT child.parent FROM runs AS child WHERE child.project = $1 AND child.parent IS NOT NULL) AS is_forked_from,
    runs.id IN (SELECT gaps.run FROM gaps WHERE gaps.project = $1) AS has_gap
"""

FACTS = f"""
SELECT runs.id, runs.incarnation, runs.newest_at, totals.cost_usd, runs.id = ANY ($3::text[]) AS is_broken,
    CASE WHEN $5 THEN {_FACETS} END AS facets, {_COLUMNS}
FROM runs LEFT JOIN run_totals AS totals ON totals.project = $1 AND totals.run = runs.id
WHERE runs.project = $1 AND runs.id = ANY ($2::text[]) ORDER BY runs.id
"""  # noqa: S608 - constants of this module

_GROUPED = "has_error, is_summed, pinned, labels, is_live, are_bodies_erased, is_forked_from, has_gap, is_broken, cost_usd, facets"

GROUPS = f"""
SELECT {_GROUPED}, min(newest_at) AS newest_at, array_agg(id) AS runs
FROM (
    SELECT runs.id, runs.newest_at, width_bucket(runs.newest_at, $5::bigint[]) AS age,
        CASE WHEN runs.id = ANY ($3::text[]) THEN runs.id END AS replayed, runs.id = ANY ($2::text[]) AS is_broken,
        CASE WHEN $6 THEN totals.cost_usd END AS cost_usd, CASE WHEN $7 THEN {_FACETS} END AS facets, {_COLUMNS}
    FROM runs LEFT JOIN run_totals AS totals ON totals.project = $1 AND totals.run = runs.id
    WHERE runs.project = $1
) AS facts
GROUP BY {_GROUPED}, age, replayed
"""  # noqa: S608 - constants of this module
