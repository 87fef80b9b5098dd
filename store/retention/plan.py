"""Decide which runs go, and how much that frees: the same for `--plan` and for a real run."""

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import asyncpg

from store.database.connection import Database
from store.feed.feed import PROJECTS
from store.retention.facts import JudgedRun, load_replay_reports, load_run_facts
from store.retention.partition_sizes import DaySize, load_day_size, load_store_size, partition_days, run_sizes
from store.retention.rules import RetentionPolicy, Verdict, judge_run

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


async def make_plan(database: Database, policy: RetentionPolicy, now: int) -> RetentionPlan:
    """Judge every run of every project."""
    async with database.connection() as connection:
        projects = [row["project"] for row in await connection.fetch(PROJECTS)]
        size = await load_store_size(connection)
        days = [await load_day_size(connection, day, projects) for day in await _past_days(connection, now)]
        sizes = run_sizes(days)
        judged: list[_RunVerdict] = []
        for project in projects:
            reports = await load_replay_reports(connection, project)
            async for page in load_run_facts(connection, project, reports, now):
                for one in page:
                    verdict = judge_run(one.facts, policy.rules, now)
                    judged.append(_RunVerdict(one, verdict, sizes.get((project, one.facts.run), 0)))
    return _assemble_plan(judged, policy, size, days, now)


async def _past_days(connection: asyncpg.Connection, now: int) -> list[dt.date]:
    today = dt.datetime.fromtimestamp(now / 1e9, dt.UTC).date()
    return [day for day in await partition_days(connection) if day <= today]


def _assemble_plan(
    judged: Sequence[_RunVerdict], policy: RetentionPolicy, size: int, days: Sequence[DaySize], now: int
) -> RetentionPlan:
    expiries = [
        Expiry(one.run, one.verdict.part, one.verdict.rule or "", one.verdict.reason, one.size)
        for one in judged
        if one.verdict.part is not None
    ]
    warnings = list(_unmatched_rules(judged, policy))
    if policy.budget is not None:
        excess = size - sum(expiry.size for expiry in expiries) - policy.budget
        further, remaining = choose_for_budget(judged, excess)
        if remaining > 0:
            # It would take all that may go and still not be kept: more likely a mistake than a wish.
            warnings.append(_budget_warning(judged, policy.budget, remaining))
        else:
            replaced = {one.judged.incarnation for one in further}
            expiries = [one for one in expiries if one.judged.incarnation not in replaced] + further
    expired_incarnations = {expiry.judged.incarnation for expiry in expiries if expiry.part == "run"}
    kept_runs = _kept_runs([one for one in judged if one.run.incarnation not in expired_incarnations])
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


def _unmatched_rules(judged: Sequence[_RunVerdict], policy: RetentionPolicy) -> list[str]:
    """Warn of rules of the user that match no run, which may be misspelt."""
    used = Counter(one.verdict.rule for one in judged)
    return [
        f"{rule.name} matches no run that an earlier rule leaves to it: check its match and its place in playhead.toml"
        for rule in policy.rules[1:]
        if judged and not used[rule.name]
    ]


def _budget_warning(judged: Sequence[_RunVerdict], budget: int, remaining: int) -> str:
    fixed_runs = [one for one in judged if not one.verdict.may_go_for_budget and one.verdict.part != "run"]
    size = sum(one.size for one in fixed_runs)
    runs = f"{len(fixed_runs)} {'run' if len(fixed_runs) == 1 else 'runs'} of {size:,} bytes"
    return (
        f"the budget of {budget:,} bytes cannot be kept, so it removes nothing: without all runs that may go, {budget + remaining:,} bytes would be"
        f" left, which are {runs} that are pinned, flagged, forked from, live or kept for ever, and the database itself; unpin some, or raise"
        " retention_budget above that"
    )


def _kept_runs(judged: Sequence[_RunVerdict]) -> list[KeptRuns]:
    runs: Counter[str] = Counter()
    sizes: defaultdict[str, int] = defaultdict(int)
    for one in judged:
        reason = one.verdict.rule or one.verdict.reason
        runs[reason] += 1
        sizes[reason] += one.size
    return [KeptRuns(reason, count, sizes[reason]) for reason, count in runs.most_common()]
