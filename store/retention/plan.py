"""Decide which runs go, and how much that frees: the same for `--plan` and for a real run."""

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, Literal, NamedTuple

import asyncpg

from store.database.connection import Database
from store.feed.feed import PROJECTS
from store.retention.facts import FactsLoader, JudgedRun
from store.retention.partition_sizes import DaySize, DaySizes, load_store_size, partition_days, run_sizes
from store.retention.rules import RetentionPolicy, Verdict, judge_run
from store.sums.positions import MOST_CHANGES, load_changed_runs

BUDGET_RULE: Final = "size budget"


class Expiry(NamedTuple):
    """A run of which something goes."""

    judged: JudgedRun
    part: Literal["run", "bodies"]
    rule: str
    reason: str
    size: int
    """Bytes that it frees, estimated."""


class KeptRuns(NamedTuple):
    """Runs that stay for the same reason."""

    reason: str
    runs: int
    size: int


class RetentionPlan(NamedTuple):
    """What retention would do at a time."""

    at: int
    expiries: Sequence[Expiry]
    kept_runs: Sequence[KeptRuns]
    size: int
    """Bytes of the store."""

    warnings: Sequence[str]
    days: Sequence[DaySize]

    @property
    def frees(self) -> int:
        """Bytes that it frees, estimated."""
        return sum(expiry.size for expiry in self.expiries)


class _RunVerdict(NamedTuple):
    run: JudgedRun
    verdict: Verdict
    size: int


class _CountedRuns(NamedTuple):
    """Runs that stay, whatever the budget is."""

    verdict: Verdict
    runs: int
    size: int


@dataclass(slots=True)
class _Judgement:
    """What rules say of all runs."""

    judged: list[_RunVerdict] = field(default_factory=list)
    """Of those that go, or may go for the budget."""

    counted: list[_CountedRuns] = field(default_factory=list)
    """The others."""


async def make_plan(
    database: Database, policy: RetentionPolicy, now: int, known_sizes: DaySizes | None = None
) -> RetentionPlan:
    """Judge every run of every project. `known_sizes` has those of days that have not changed since the last plan."""
    day_sizes = known_sizes or DaySizes()
    judgement = _Judgement()
    async with database.connection() as connection:
        projects = [row["project"] for row in await connection.fetch(PROJECTS)]
        size = await load_store_size(connection)
        days = await day_sizes.load(connection, await _past_days(connection, now), projects)
        sizes = run_sizes(days)
        for project in projects:
            # Before the facts: what is stored later belongs to live runs.
            changed = await _changed_runs(database, project)
            loader = FactsLoader(connection, project, policy.rules, now, changed)
            await loader.prepare()
            await _judge_project(loader, policy, now, sizes.get(project, {}), judgement)
    return _assemble_plan(judgement, policy, size, days, now)


async def _judge_project(
    loader: FactsLoader, policy: RetentionPolicy, now: int, sizes: Mapping[str, int], judgement: _Judgement
) -> None:
    """Judge the runs of a project, in groups first: most stay, and are only counted."""
    names: list[str] = []
    for group in await loader.groups():
        verdict = judge_run(group.facts, policy.rules, now)
        if verdict.part is not None or (policy.budget is not None and verdict.may_go_for_budget):
            names += group.runs
        else:
            size = sum(map(sizes.get, group.runs, repeat(0)))
            judgement.counted.append(_CountedRuns(verdict, len(group.runs), size))
    async for page in loader.pages(names):
        judgement.judged += [
            _RunVerdict(one, judge_run(one.facts, policy.rules, now), sizes.get(one.facts.run, 0)) for one in page
        ]


async def _changed_runs(database: Database, project: str) -> frozenset[str] | None:
    async with database.transaction() as own:
        changed = await load_changed_runs(own, project, MOST_CHANGES)
    return None if changed is None else frozenset(changed)


async def _past_days(connection: asyncpg.Connection, now: int) -> list[dt.date]:
    today = dt.datetime.fromtimestamp(now / 1e9, dt.UTC).date()
    return [day for day in await partition_days(connection) if day <= today]


def _assemble_plan(
    judgement: _Judgement, policy: RetentionPolicy, size: int, days: Sequence[DaySize], now: int
) -> RetentionPlan:
    judged = judgement.judged
    expiries = [
        Expiry(one.run, one.verdict.part, one.verdict.rule or "", one.verdict.reason, one.size)
        for one in judged
        if one.verdict.part is not None
    ]
    warnings = list(_unmatched_rules(judgement, policy))
    if policy.budget is not None:
        excess = size - sum(expiry.size for expiry in expiries) - policy.budget
        further, remaining = choose_for_budget(judged, excess)
        if remaining > 0:
            # It would take all that may go and still not be kept: more likely a mistake than a wish.
            warnings.append(_budget_warning(judgement, policy.budget, remaining))
        else:
            replaced = {one.judged.incarnation for one in further}
            expiries = [one for one in expiries if one.judged.incarnation not in replaced] + further
    expired_incarnations = {expiry.judged.incarnation for expiry in expiries if expiry.part == "run"}
    kept_runs = _kept_runs(
        [
            *judgement.counted,
            *(
                _CountedRuns(one.verdict, 1, one.size)
                for one in judged
                if one.run.incarnation not in expired_incarnations
            ),
        ]
    )
    expiries.sort(key=lambda one: one.judged.facts.newest_at)
    return RetentionPlan(now, expiries, kept_runs, size, warnings, days)


def choose_for_budget(judged: Sequence[_RunVerdict], excess: int) -> tuple[list[Expiry], int]:
    """Choose the oldest runs that may go until so many bytes are freed; return them, and the bytes that are still too many."""
    chosen: list[Expiry] = []
    candidates = (one for one in judged if one.verdict.may_go_for_budget and one.verdict.part != "run")
    for one in sorted(candidates, key=lambda one: one.run.facts.newest_at):
        if excess <= 0:
            break
        chosen.append(Expiry(one.run, "run", BUDGET_RULE, f"{BUDGET_RULE}: the oldest run", one.size))
        excess -= one.size
    return chosen, max(excess, 0)


def _unmatched_rules(judgement: _Judgement, policy: RetentionPolicy) -> list[str]:
    """Warn of rules of the user that match no run, which may be misspelt."""
    used = {one.verdict.rule for one in judgement.judged} | {one.verdict.rule for one in judgement.counted}
    return [
        f"{rule.name} matches no run that an earlier rule leaves to it: check its match and its place in playhead.toml"
        for rule in policy.rules[1:]
        if used and rule.name not in used
    ]


def _budget_warning(judgement: _Judgement, budget: int, remaining: int) -> str:
    fixed_runs = [
        *judgement.counted,
        *(
            _CountedRuns(one.verdict, 1, one.size)
            for one in judgement.judged
            if not one.verdict.may_go_for_budget and one.verdict.part != "run"
        ),
    ]
    count, size = sum(one.runs for one in fixed_runs), sum(one.size for one in fixed_runs)
    runs = f"{count} {'run' if count == 1 else 'runs'} of {size:,} bytes"
    return (
        f"the budget of {budget:,} bytes cannot be kept, so it removes nothing: without all runs that may go, {budget + remaining:,} bytes would be"
        f" left, which are {runs} that are pinned, flagged, forked from, live or kept for ever, and the database itself; unpin some, or raise"
        " retention_budget above that"
    )


def _kept_runs(counted: Sequence[_CountedRuns]) -> list[KeptRuns]:
    runs: Counter[str] = Counter()
    sizes: defaultdict[str, int] = defaultdict(int)
    for one in counted:
        reason = one.verdict.rule or one.verdict.reason
        runs[reason] += one.runs
        sizes[reason] += one.size
    return [KeptRuns(reason, count, sizes[reason]) for reason, count in runs.most_common()]
