"""Load what rules look at: the facts of the runs of a project, some hundred at a time."""

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

import asyncpg
import msgspec

from store.database.blobs import CorruptData, unpack
from store.feed.entries import IDLE
from store.retention.rules import RunFacts

PAGE: Final = 500
"""Runs whose facts are loaded by one statement."""

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


async def load_run_facts(
    connection: asyncpg.Connection, project: str, reports: ReplayReports, now: int
) -> AsyncIterator[list[JudgedRun]]:
    """Yield the facts of all runs of a project."""
    after = ""
    while names := [row["id"] for row in await connection.fetch(NAMES, project, after, PAGE)]:
        rows = await connection.fetch(FACTS, project, names)
        yield [
            JudgedRun(_facts_of(row, project, reports.verdicts.get(row["id"], frozenset()), now), row["incarnation"])
            for row in rows
        ]
        after = names[-1]


def _facts_of(row: asyncpg.Record, project: str, verdicts: frozenset[str], now: int) -> RunFacts:
    is_broken = row["gaps"] or row["is_unkept"] or row["is_last_failed"]
    return RunFacts(
        project=project,
        run=row["id"],
        newest_at=row["newest_at"],
        labels=msgspec.json.decode(row["labels"]),
        models=frozenset(row["models"] or ()),
        statuses=frozenset(row["statuses"] or ()),
        cost_usd=None if row["cost_usd"] is None else float(row["cost_usd"]),
        has_error=bool(row["errors"]),
        has_gap=bool(row["gaps"]),
        ended_badly=bool(is_broken),
        verdicts=verdicts,
        is_pinned=row["pinned"],
        is_forked_from=row["is_forked_from"],
        is_live=row["active_at"] + IDLE > now,
        is_summed=row["is_summed"],
        bodies_erased_at=row["bodies_erased_at"],
    )


REPLAYS = "SELECT id, report FROM replays WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3"

NAMES = "SELECT id FROM runs WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3"

# A run that ended a minute ago counts as live, too: a later request, or its sums, may still come.
FACTS = """
SELECT runs.id, runs.incarnation, runs.labels, runs.newest_at, runs.active_at, runs.pinned, runs.bodies_erased_at,
    totals.cost_usd, totals.errors, totals.run IS NOT NULL AS is_summed, sums.models, sums.statuses,
    EXISTS (SELECT FROM runs AS child WHERE child.project = $1 AND child.parent = runs.id) AS is_forked_from,
    EXISTS (SELECT FROM gaps WHERE gaps.project = $1 AND gaps.run = runs.id) AS gaps,
    unkept.run IS NOT NULL AS is_unkept, last.has_failed AS is_last_failed
FROM runs
-- Of all runs at once: looking into every partition for each run takes milliseconds a run.
LEFT JOIN (
    SELECT DISTINCT run FROM exchanges WHERE project = $1 AND run = ANY ($2::text[]) AND (truncated OR ended_at IS NULL)
) AS unkept ON unkept.run = runs.id
LEFT JOIN (
    SELECT DISTINCT ON (run) run,
        status IS NULL OR status >= 400 OR outcome IN ('server_closed', 'timed_out', 'refused') AND NOT complete AS has_failed
    FROM calls WHERE project = $1 AND run = ANY ($2::text[]) ORDER BY run, started_at DESC, id DESC
) AS last ON last.run = runs.id
LEFT JOIN run_totals AS totals ON totals.project = $1 AND totals.run = runs.id
LEFT JOIN LATERAL (
    SELECT array_remove(array_agg(DISTINCT model) || array_agg(DISTINCT model_returned), NULL) AS models,
        array_agg(DISTINCT status) FILTER (WHERE status IS NOT NULL) AS statuses
    FROM call_sums WHERE call_sums.project = $1 AND call_sums.run = runs.id
) AS sums ON true
WHERE runs.project = $1 AND runs.id = ANY ($2::text[]) ORDER BY runs.id
"""
