"""What rules let go disappears with its space, what they keep stays whole, and a pass that was killed is continued."""

import asyncio
import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from calls.events import Gap, ReplayReported
from calls.model import Call, Exchange
from store.database.connection import Database
from store.database.tables import PARTITIONED, metadata
from store.erasure.eraser import Eraser
from store.feed.consumer import ConsumerRunner
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_reader import CallReader
from store.query.runs import Runs
from store.retention import partition_swap
from store.retention.facts import FactsLoader
from store.retention.rules import RetentionPolicy, judge_run, parse_rule, shipped_rules
from store.retention.runner import RetentionBusy, RetentionRunner
from store.sums.run_sums import RunSums
from tests.store.running_store import is_problem, open_store
from tests.store.samples import NOON, SECOND, call, exchange, prose

DAY = 86_400 * SECOND
NOW = NOON


def policy(*tables: dict[str, Any], budget: int | None = None) -> RetentionPolicy:
    return RetentionPolicy(
        rules=(*shipped_rules(), *(parse_rule(table, n) for n, table in enumerate(tables, 1))), budget=budget
    )


WEEK = policy({"keep": "7d"})


def make_exchange(run: str, days_ago: int, number: int, **more: Any) -> Exchange:
    body = f'{{"query": "{prose(f"{run}{number}", 40)}"}}'.encode()
    return exchange(number, run=run, at=NOW - days_ago * DAY + number * SECOND, request=body, **more)


async def store(database: Database, exchanges: Sequence[Exchange], gaps: Sequence[Gap] = ()) -> None:
    await BatchWriter(database).write_batch([DerivedExchange(one, call(one)) for one in exchanges], gaps)
    runner = ConsumerRunner(database, RunSums(database), FeedSignal())
    while await runner.process_new():
        pass


def retention(database: Database, rules: RetentionPolicy = WEEK) -> RetentionRunner:
    return RetentionRunner(database, rules, now=lambda: NOW)


async def fetch(database: Database, statement: str, *values: object) -> list[asyncpg.Record]:
    async with database.connection() as connection:
        found: list[asyncpg.Record] = await connection.fetch(statement, *values)
        return found


async def run_names(database: Database) -> set[str]:
    return {row["id"] for row in await fetch(database, "SELECT id FROM runs")}


async def traces(database: Database, run: str) -> dict[str, int]:
    """How many rows of each table name a run."""
    tables = [table for table in metadata.tables.values() if "run" in table.columns]
    counts = {
        table.name: (await fetch(database, f"SELECT count(*) FROM {table.name} WHERE run = $1", run))[0][0]
        for table in tables
    }
    return {name: count for name, count in counts.items() if count}


def derive(one: Exchange) -> Call:
    return call(one)


async def compare_groups(database: Database) -> None:
    """Whether rules say of each run what they say of its group."""
    matches: list[dict[str, Any]] = [
        *({"model": "gpt*"}, {"status": "5xx"}, {"min_cost": 0.001}, {"max_cost": 0.0}, {"has_gap": True}),
        *({"label": {"flagged": "*"}}, {"verdict": "right"}, {"failed": True}, {"pinned": True}, {"has_error": True}),
        {},
    ]
    for keep in ("20d", "21d"):
        tables = [{"name": str(match), "match": match, "keep": keep, "keep_bodies": "1d"} for match in matches]
        rules = tuple(parse_rule(table, number) for number, table in enumerate(tables))
        for some in (rules, rules[::-1], *((rule,) for rule in rules)):
            async with database.connection() as connection:
                loader = FactsLoader(connection, "default", some, NOW + 1, frozenset())
                await loader.prepare()
                groups = await loader.groups()
                of_group = {run: judge_run(one.facts, some, NOW + 1) for one in groups for run in one.runs}
                pages = [page async for page in loader.pages(of_group)]
            alone = {one.facts.run: judge_run(one.facts, some, NOW + 1) for page in pages for one in page}
            assert of_group == alone
            assert set(alone) == await run_names(database)


async def test_a_run_ended_badly_only_if_its_very_last_call_failed(database: Database) -> None:
    runs = {
        "failed": [make_exchange("failed", 20, 1), make_exchange("failed", 20, 2, status=500)],
        "alone": [make_exchange("alone", 19, 3, status=500)],
        "same day": [make_exchange("same day", 20, 4, status=500), make_exchange("same day", 20, 5)],
        "later day": [make_exchange("later day", 20, 6, status=500), make_exchange("later day", 12, 7)],
        "twice": [make_exchange("twice", 20, n, status=500 if n != 9 else 200) for n in (8, 9, 10)],
        # The last of two calls of the same time is that with the greater id, which is the first here.
        "together": [
            exchange(n, run="together", at=NOW - 20 * DAY, status=status) for n, status in ((11, 200), (12, 500))
        ],
        "whole": [make_exchange("whole", 20, 13)],
    }
    await store(database, [one for some in runs.values() for one in some])
    assert len(await fetch(database, "SELECT FROM calls WHERE failed")) == 7
    async with database.connection() as connection:
        for changed in (frozenset[str](), None):
            loader = FactsLoader(connection, "default", shipped_rules(), NOW + 1, changed)
            await loader.prepare()
            groups = await loader.groups()
            bad = {run for one in groups for run in one.runs if one.facts.ended_badly}
            assert bad == {"failed", "alone", "twice"}, changed


async def test_old_runs_go_with_their_space_and_all_others_stay_whole(database: Database) -> None:
    old = [make_exchange(f"old-{n}", 20 + n % 3, n) for n in range(60)]
    stays = {
        "young": [make_exchange("young", 1, 1)],
        "pinned": [make_exchange("pinned", 20, 100), make_exchange("pinned", 21, 101)],
        "flagged": [make_exchange("flagged", 21, 102)],
        "forked": [make_exchange("forked", 22, 103)],
        "failed": [make_exchange("failed", 20, 104), make_exchange("failed", 20, 105, status=500)],
        "retried": [make_exchange("retried", 21, 106, status=429), make_exchange("retried", 21, 107)],
        "gap": [make_exchange("gap", 22, 108)],
        # Judged by its newest exchange.
        "long": [make_exchange("long", 20, 109), make_exchange("long", 2, 110)],
    }
    gaps = [Gap("gap", NOW - 22 * DAY, "lost", None, 1), Gap("old-1", NOW - 22 * DAY, "lost", None, 1)]
    await store(database, [*old, *(one for run in stays.values() for one in run)], gaps)
    runs = Runs(database)
    await runs.patch("pinned", pinned=True)
    await runs.put("flagged", NOW, labels={"flagged": "yes"})
    await runs.put("child", NOW, parent="forked")
    replayed = ReplayReported("rp", b'{"run": "old-2", "verdict": "right"}')
    await BatchWriter(database).write_batch((), (), [replayed])
    await fetch(database, "UPDATE runs SET active_at = newest_at")
    whole = {name: await exchanges_of(database, name) for name in stays}
    before = (await fetch(database, "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('exchanges')"))[
        0
    ][0]

    plan = await retention(database).plan()
    assert {one.judged.facts.run for one in plan.expiries} == {f"old-{n}" for n in range(60) if n != 1} | {"retried"}
    assert {one.reason for one in plan.expiries} == {"rule 1: older than 1w"}
    await compare_groups(database)
    assert await run_names(database) >= {"old-0", "retried"}

    report = await retention(database).run_once()
    assert {day.way for day in report.days} == {"rewritten"}
    assert len(report.days) == 3
    assert await run_names(database) == {*stays, "old-1", "child"} - {"retried"}
    for name in ("old-0", "old-2", "retried"):
        assert await traces(database, name) == {}
    assert not await fetch(database, "SELECT FROM replays")
    for name in set(stays) - {"retried"}:
        assert await exchanges_of(database, name) == whole[name]
    after = (await fetch(database, "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('exchanges')"))[0][
        0
    ]
    assert after < before
    # What is late is stored, also where a day was rewritten.
    await store(database, [make_exchange("late", 20, 300)])
    assert [one.judged.facts.run for one in (await retention(database).plan()).expiries] == ["late"]


async def exchanges_of(database: Database, run: str) -> list[Exchange]:
    return [one async for one in CallReader(database, derive).exchanges(run)]


async def test_a_day_of_which_nothing_stays_is_dropped_and_comes_back_on_demand(database: Database) -> None:
    writer = BatchWriter(database)
    await writer.create_upcoming_partitions(dt.date(2026, 11, 21))
    await store(database, [make_exchange("old", 20, 1)])
    await fetch(database, "UPDATE runs SET active_at = newest_at")
    report = await retention(database).run_once()
    assert [day.way for day in report.days] == ["dropped"]
    assert report.days[0].after == 0
    for table in PARTITIONED:
        assert (await fetch(database, "SELECT to_regclass($1)", f"{table.name}_20261101"))[0][0] is None
    await store(database, [make_exchange("old", 20, 2)])
    assert len(await exchanges_of(database, "old")) == 1


async def test_a_day_that_an_erasure_empties_is_there_again_for_what_is_recorded_later(database: Database) -> None:
    # Two store servers, each of which knows that the day has its partitions.
    writers = [BatchWriter(database), BatchWriter(database)]
    for number, writer in enumerate(writers):
        await writer.create_upcoming_partitions(dt.datetime.fromtimestamp(NOW / 1e9, dt.UTC).date())
        one = make_exchange(f"first-{number}", 0, number)
        await writer.write_batch([DerivedExchange(one, call(one))])
    eraser = Eraser(database=database, derive=derive, project="default", data=None, now=lambda: NOW)
    for number in range(len(writers)):
        assert await eraser.erase_run(f"first-{number}") is not None
    assert (await fetch(database, "SELECT to_regclass('exchanges_20261121')"))[0][0] is None
    late = [make_exchange(f"late-{number}", 0, 10 + number) for number in range(len(writers))]
    for writer, one in zip(writers, late, strict=True):
        batch = await writer.write_batch([DerivedExchange(one, call(one))])
        assert (batch.exchanges, batch.quarantined) == (1, ())
        assert await exchanges_of(database, one.run) == [one]


@pytest.mark.parametrize(("status", "way"), [(200, "dropped"), (500, "rewritten")])
async def test_a_day_that_an_earlier_version_filled_is_cleared(database: Database, status: int, way: str) -> None:
    await store(database, [make_exchange("old", 20, 1), make_exchange("kept", 20, 2, status=status)])
    day = (await fetch(database, "SELECT to_timestamp(min(started_at) / 1e9)::date AS day FROM runs"))[0]["day"]
    for table in ("text_groups", "text_hashes"):
        await fetch(database, f"DROP TABLE {table}_{day:%Y%m%d}")
    await fetch(database, "UPDATE runs SET active_at = newest_at")
    report = await retention(database).run_once()
    assert [one.way for one in report.days] == [way]
    left = [row["run"] for row in await fetch(database, "SELECT run FROM exchanges")]
    assert left == (["kept"] if way == "rewritten" else [])


async def test_a_pass_that_was_killed_is_continued_and_a_new_run_of_the_name_begins_empty(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store(database, [*(make_exchange(f"old-{n}", 20, n) for n in range(5)), make_exchange("other", 19, 9)])
    await fetch(database, "UPDATE runs SET active_at = newest_at")

    async def die(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr("store.retention.runner.clear_day", die)
        with pytest.raises(asyncio.CancelledError):
            await retention(database).run_once()
    assert await run_names(database) == set()
    assert len(await fetch(database, "SELECT FROM expirations")) == 6
    # The name of a run that has expired is used again before its rows are gone.
    await store(database, [make_exchange("old-1", 20, 50)])
    assert len(await exchanges_of(database, "old-1")) == 1
    # Nothing new is decided, and what was is done.
    report = await retention(database, policy()).run_once()
    assert len(report.days) == 2
    assert await run_names(database) == {"old-1"}
    assert len(await exchanges_of(database, "old-1")) == 1
    assert not await fetch(database, "SELECT FROM expirations")
    assert [row["run"] for row in await fetch(database, "SELECT run FROM exchanges")] == ["old-1"]


async def test_a_pass_that_is_killed_leaves_no_report_of_what_went_and_its_names_are_released_later(
    database: Database,
) -> None:
    await store(database, [make_exchange(f"old-{n}", 20, n) for n in range(3)])
    await fetch(database, "UPDATE runs SET active_at = newest_at")
    reports = [ReplayReported(f"of-{run}", b'{"run": "%s"}' % run.encode()) for run in ("old-0", "old-2", "elsewhere")]
    await BatchWriter(database).write_batch([], replays=reports)

    class DyingSignal(FeedSignal):
        def send(self, project: str | None = None) -> None:
            raise asyncio.CancelledError

    forgotten: list[tuple[str, str]] = []

    def forget(project: str, run: str) -> None:
        forgotten.append((project, run))

    with pytest.raises(asyncio.CancelledError):
        await RetentionRunner(database, WEEK, signal=DyingSignal(), forget=forget, now=lambda: NOW).run_once()
    assert await run_names(database) == set()
    # Reports have what agents asked.
    assert [row["id"] for row in await fetch(database, "SELECT id FROM replays")] == ["of-elsewhere"]
    await store(database, [make_exchange("old-1", 1, 50)])
    await RetentionRunner(database, WEEK, forget=forget, now=lambda: NOW).run_once()
    # The name of a run that is there again is not released: its client may have claimed it.
    assert sorted(forgotten) == [("default", "old-0"), ("default", "old-2")]


async def test_a_replay_is_forgotten_with_its_run_and_a_fork_is_not(database: Database) -> None:
    await store(database, [make_exchange("old", 20, 0), make_exchange("fork", 1, 1)])
    reports = [ReplayReported(name, b'{"run": "old"}') for name in ("replay", "fork")]
    await BatchWriter(database).write_batch([], replays=reports)
    forgotten: list[tuple[str, str]] = []
    runner = RetentionRunner(
        database, WEEK, forget=lambda project, name: forgotten.append((project, name)), now=lambda: NOW
    )
    await runner.run_once()
    assert forgotten == [("default", "old"), ("default", "replay")]


async def test_two_servers_do_not_run_it_at_once(database: Database) -> None:
    runner = retention(database)
    async with runner._lock():
        with pytest.raises(RetentionBusy, match="running on this database already"):
            await retention(database).run_once()
    await runner.run_once()


async def test_a_budget_takes_the_oldest_runs_and_says_when_it_cannot_be_kept(database: Database) -> None:
    await store(database, [make_exchange(f"run-{n}", 20 - n, n) for n in range(6)])
    await fetch(database, "UPDATE runs SET active_at = newest_at")
    await Runs(database).patch("run-0", pinned=True)
    size = (await retention(database).plan()).size
    year = {"keep": "1y"}
    little = await retention(database, policy(year, budget=size - 1)).plan()
    assert [one.judged.facts.run for one in little.expiries] == ["run-1"]
    assert little.warnings == []
    nothing = await retention(database, policy(year, budget=1000)).plan()
    assert nothing.expiries == []
    assert "the budget of 1,000 bytes cannot be kept, so it removes nothing" in nothing.warnings[0]
    assert "1 run of" in nothing.warnings[0]


async def test_a_rule_that_matches_nothing_is_named(database: Database) -> None:
    await store(database, [make_exchange("a", 1, 1)])
    rules = policy({"name": "ci", "match": {"label": {"env": "ci"}}, "keep": "1d"}, {"keep": "7d"})
    assert [warning[:23] for warning in (await retention(database, rules).plan()).warnings] == [
        "ci matches no run that "
    ]


INDEXES = """
SELECT inhrelid::regclass::text AS child, inhparent::regclass::text AS parent, (
    SELECT array_agg(substring(pg_get_indexdef(indexrelid) FROM 'USING .*') ORDER BY substring(pg_get_indexdef(indexrelid) FROM 'USING .*'))
    FROM pg_index WHERE indrelid = children.inhrelid
) AS own, (
    SELECT array_agg(substring(pg_get_indexdef(indexrelid) FROM 'USING .*') ORDER BY substring(pg_get_indexdef(indexrelid) FROM 'USING .*'))
    FROM pg_index WHERE indrelid = children.inhparent
) AS of_parent
FROM pg_inherits AS children JOIN pg_class ON pg_class.oid = inhparent AND relkind = 'p'
"""


async def test_the_swap_gives_way_to_a_query_and_tries_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_swap, "SWAP_LOCK_TIMEOUT", "20ms")
    await store(database, [make_exchange("old", 20, 1), make_exchange("kept", 20, 2, status=500)])
    await fetch(database, "UPDATE runs SET active_at = newest_at")
    pauses = 0

    async def end_query(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            await reading.rollback()

    async with database.connection() as reader:
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT count(*) FROM exchanges")
        with monkeypatch.context() as patch:
            patch.setattr("store.retention.partition_swap.asyncio", SimpleNamespace(sleep=end_query))
            await retention(database).run_once()
    assert pauses == 3
    assert [row["run"] for row in await fetch(database, "SELECT run FROM exchanges")] == ["kept"]
    # The new partitions have the indexes of their tables, each once, and none beside them.
    indexes = await fetch(database, INDEXES)
    assert len({row["parent"] for row in indexes}) == len(PARTITIONED)
    assert [row["child"] for row in indexes if row["own"] != row["of_parent"]] == []


async def test_the_api_shows_the_plan_and_runs_it(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database) as running_store:
        await store(database, [make_exchange("old", 20, 1)])
        plan = (await running_store.api.get("/v1/retention")).json()
        assert (plan["runs"], plan["items"], plan["kept"][0]["reason"]) == (0, [], "no rule matches")
        assert plan["rules"][0]["match"] == {"failed": True}
        done = (await running_store.api.post("/v1/retention/run")).json()
        assert (done["runs"], done["bodies"], done["days"]) == (0, 0, [])
        async with retention(database)._lock():
            is_problem(await running_store.api.post("/v1/retention/run"), 409, "retention_runs")
