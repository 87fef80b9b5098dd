"""The stored sums give the same statistics as the calls themselves, also while they lag behind."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from calls.derive import derive_call
from calls.model import Exchange
from store.database.connection import Database
from store.database.tables import call_sums, run_totals
from store.feed.consumer import ConsumerRunner
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.pricing.prices import call_cost
from store.query.filters import Filters
from store.query.rest_shapes import Shape
from store.query.runs import Runs
from store.query.stats.groupings import GROUPINGS, Grouping
from store.query.stats.stats import Stats
from store.sums.run_sums import RunSums
from tests.store.agents import Agent
from tests.store.running_store import PROFILES
from tests.store.samples import NOON

HOUR = 3600
derive = partial(derive_call, profiles=PROFILES)


async def write(database: Database, exchanges: Sequence[Exchange]) -> None:
    calls = [(one, derive(one)) for one in exchanges]
    await BatchWriter(database).write_batch(
        [DerivedExchange(one, call, (), call_cost(one, call)) for one, call in calls]
    )


async def catch_up(database: Database) -> None:
    runner = ConsumerRunner(database, RunSums(database), FeedSignal())
    while await runner.process_new():
        pass


async def statistics(
    database: Database, filters: Filters, grouping: str, *, uses_sums: bool = True
) -> tuple[dict[str, Shape], Shape]:
    groupings = [Grouping.parse(name) for name in grouping.split()]
    groups, total = await Stats(database, uses_sums=uses_sums).load_stats(filters, groupings)
    return {str(group["group"]): group for group in groups}, total


ALL_GROUPINGS = (*GROUPINGS, "label:team", "model day", "tool actor")
SOME_GROUPINGS = ("run", "tool", "label:team", "model day")
"""By a column of a call, by several in one, by what calls do not have, and by hours together."""


def groupings_for(number: int) -> Sequence[str]:
    """The groupings for one of several filters: all for the first, then a sixth and tools, so that each meets others too."""
    if number == 0:
        return ALL_GROUPINGS
    return [name for place, name in enumerate(ALL_GROUPINGS) if place % 6 == number % 6 or name == "tool"]


async def compare(
    database: Database, filters: Filters | None = None, groupings: Sequence[str] = SOME_GROUPINGS
) -> None:
    """Each grouping gives the same from the stored sums as from the calls alone."""
    served = filters or Filters()
    for grouping in groupings:
        expected = await statistics(database, served, grouping, uses_sums=False)
        assert await statistics(database, served, grouping) == expected, grouping
    # No stored sums have this: it is answered from the calls and their marks.
    unserved = dataclasses.replace(served, min_duration=served.min_duration or 0)
    if unserved == served:
        return
    expected = await statistics(database, unserved, groupings[0], uses_sums=False)
    assert await statistics(database, unserved, groupings[0]) == expected


@pytest.fixture
async def filled_database(database: Database) -> Database:
    await write(database, Agent(turns=3).run("a"))
    await write(
        database, Agent(turns=5, offset=HOUR, model="gpt-4o", status=lambda turn: 500 if turn == 2 else 200).run("b")
    )
    await write(database, Agent(turns=2, offset=3 * HOUR, actor="planner").run("c"))
    await Runs(database).patch("b", labels={"team": "support"})
    await catch_up(database)
    return database


FILTERS = (
    Filters(),
    Filters(models=["gpt-4o", "gpt-5-2026-01-01"]),
    Filters(tools=["search"]),
    Filters(tools=["tools.example.com"]),
    Filters(hosts=["api.openai.com"]),
    Filters(statuses=[range(500, 600)]),
    Filters(kinds=["tool"]),
    Filters(actors=["planner", "nobody"]),
    Filters(models=["none"]),
)


async def test_stored_sums_are_those_of_the_calls(filled_database: Database, subtests: pytest.Subtests) -> None:
    for number, filters in enumerate(FILTERS):
        with subtests.test(filters=filters):
            await compare(filled_database, filters, groupings_for(number))


async def test_statistics_are_exact_while_the_sums_lag_behind(filled_database: Database) -> None:
    await write(filled_database, Agent(turns=4, offset=5 * HOUR).run("d"))
    await write(filled_database, Agent(turns=3).run("a")[:2])  # stored already
    await write(filled_database, Agent(turns=2, offset=HOUR // 2).run("a"))
    await compare(filled_database)
    await Runs(filled_database).delete("b")
    await compare(filled_database)
    await catch_up(filled_database)
    await compare(filled_database)


async def test_latencies_are_those_of_the_group_within_one_percent(database: Database) -> None:
    fast, slow = Agent(turns=3).run("fast"), Agent(turns=3, offset=HOUR).run("slow")
    await write(database, [*fast, *(replace(one, first_byte_at=10**9, ended_at=4 * 10**9) for one in slow)])
    for _ in range(2):
        groups, total = await statistics(database, Filters(), "run")
        latencies = [group["duration_ms"]["p50"] for _, group in sorted(groups.items())]
        assert latencies == [pytest.approx((fast[0].ended_at or 0) / 1e6, rel=0.011), pytest.approx(4000, rel=0.011)]
        assert groups["{'run': 'slow'}"]["first_byte_ms"]["p99"] == pytest.approx(1000, rel=0.011)
        assert total["duration_ms"]["p99"] == pytest.approx(4000, rel=0.011)
        await catch_up(database)


async def test_only_the_hours_that_changed_are_summed_again_and_all_hours_are_there(filled_database: Database) -> None:
    await write(filled_database, Agent(turns=2, offset=9 * HOUR).run("a"))
    await catch_up(filled_database)
    await compare(filled_database)
    async with filled_database.transaction() as connection:
        hours = select(func.count(call_sums.c.hour.distinct())).where(call_sums.c.run == "a")
        assert await connection.scalar(hours) == 2


async def test_run_totals_are_those_of_the_run(filled_database: Database) -> None:
    async with filled_database.transaction() as connection:
        rows = {row["run"]: row for row in (await connection.execute(select(run_totals))).mappings()}
    assert rows.keys() == {"a", "b", "c"}
    for name, row in rows.items():
        run = await Runs(filled_database).get(name, NOON)
        assert run is not None
        assert row["calls"] == run["calls"]
        assert row["tokens"] == (run["tokens"]["input_tokens"] or 0) + (run["tokens"]["output_tokens"] or 0)
        assert (None if row["cost_usd"] is None else float(row["cost_usd"])) == run["known_cost_usd"]
    assert rows["b"]["errors"] == 1


async def test_a_deleted_run_has_no_sums(filled_database: Database) -> None:
    await Runs(filled_database).delete("a")
    await write(filled_database, Agent(turns=1).run("a"))
    await Runs(filled_database).delete("a")
    await catch_up(filled_database)
    async with filled_database.transaction() as connection:
        for table in (call_sums, run_totals):
            assert await connection.scalar(select(func.count()).where(table.c.run == "a")) == 0
