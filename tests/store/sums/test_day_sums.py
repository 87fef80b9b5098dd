"""Sums over whole days give what the calls give, whatever happens to the calls afterwards; and failures are marked rightly."""

import asyncio
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from calls.model import Exchange
from store.database.connection import Database
from store.database.tables import calls, day_sums, summed_days
from store.erasure.erase_rows import erase_exchanges, erase_run
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.query.runs import Runs
from store.sums.day_sums import CUBES, DaySums, smallest_cube
from store.sums.summed_days import DAY
from tests.store.agents import Agent
from tests.store.samples import NOON
from tests.store.sums.test_run_sums import HOUR, catch_up, compare, derive, groupings_for, write

FILTERS = (
    Filters(),
    Filters(since=NOON - NOON % DAY),
    Filters(since=NOON - DAY - 12345, until=NOON + 2 * DAY + 77),
    Filters(until=NOON + DAY, models=["gpt-4o"]),
    Filters(tools=["search"]),
    Filters(actors=["planner"], statuses=[range(200, 300)]),
    Filters(labels={"team": "support"}),
    # What stored sums do not have, and the marks of calls do.
    Filters(error=True, since=NOON - DAY - 12345),
    Filters(error=False),
    Filters(min_cost=Decimal("0.000001"), models=["gpt-4o"]),
    Filters(min_duration=1),
)
FILTERS_OF_CALLS = (
    Filters(min_cost=Decimal("0.00010001"), since=NOON - DAY - 12345, until=NOON + 2 * DAY + 77),
    Filters(min_cost=Decimal(0), labels={"team": "support"}),
    Filters(min_duration=300 * 10**6 + 1, statuses=[range(200, 300)]),
    Filters(error=False, models=["gpt-4o"]),
)
SECOND = 1_000_000_000


def three_days() -> list[Exchange]:
    """Runs of three days; one goes on over midnight, one has a failure."""
    return [
        *Agent(turns=3).run("a"),
        *Agent(turns=3, offset=12 * HOUR - 20).run("a"),
        *Agent(turns=4, offset=24 * HOUR, model="gpt-4o", status=lambda turn: 500 if turn == 2 else 200).run("b"),
        *Agent(turns=2, offset=49 * HOUR, actor="planner").run("c"),
    ]


async def sum_days(database: Database) -> int:
    # The present time, by which the database says when a day changed: a date would be over one day.
    return await DaySums(database, time.time_ns).sum_settled_days(settled_after=-DAY)


async def valid_days(database: Database) -> int:
    async with database.transaction() as connection:
        return await connection.scalar(select(func.count()).select_from(summed_days).where(summed_days.c.is_valid)) or 0


@pytest.fixture
async def summed_database(database: Database) -> Database:
    await write(database, three_days())
    await Runs(database).patch("b", labels={"team": "support"})
    await catch_up(database)
    assert await sum_days(database) == 3
    return database


async def test_sums_of_days_are_those_of_the_calls(summed_database: Database, subtests: pytest.Subtests) -> None:
    assert await valid_days(summed_database) == 3
    for number, filters in enumerate((*FILTERS, *FILTERS_OF_CALLS)):
        with subtests.test(filters=filters):
            await compare(summed_database, filters, groupings_for(number))


async def test_sums_of_days_are_what_is_read(summed_database: Database) -> None:
    async with summed_database.transaction() as connection:
        await connection.execute(day_sums.update().values(calls=day_sums.c.calls + 1000))
    with pytest.raises(AssertionError):
        await compare(summed_database)


async def test_every_question_has_the_smallest_cube() -> None:
    assert [smallest_cube(cube.traits) for cube in CUBES] == list(CUBES)
    asked = ((), ("model", "actor"), ("labels", "model"), ("labels", "run"), ("run", "model"))
    assert [cube and cube.number for cube in map(smallest_cube, asked)] == [1, 5, 7, 4, None]


async def test_they_stay_right_whatever_is_stored_and_removed(summed_database: Database) -> None:
    draw = random.Random(15)
    for number in range(6):
        match draw.randrange(4):
            case 0:
                await write(summed_database, Agent(turns=2, offset=draw.randrange(60) * HOUR).run(f"late {number}"))
            case 1:
                await write(summed_database, Agent(turns=1, offset=draw.randrange(60) * HOUR, model="gpt-4o").run("a"))
            case 2:
                await erase_run(summed_database, "default", draw.choice("abc"), NOON)
            case _:
                async with summed_database.transaction() as connection:
                    ids = (await connection.execute(select(calls.c.id, calls.c.run))).all()
                one = draw.choice(ids)
                await erase_exchanges(summed_database, "default", one[1], [one[0]], NOON)
        await compare(summed_database, groupings=("tool day",))
        await compare(summed_database, Filters(error=True), groupings=("run",))
        await catch_up(summed_database)
        await compare(summed_database, FILTERS[2], ("model",))
        await sum_days(summed_database)
        assert await valid_days(summed_database) >= 3
        await compare(summed_database, groupings=("run", "model actor"))


async def test_an_erased_run_leaves_nothing_in_the_sums_of_days(summed_database: Database) -> None:
    await Runs(summed_database).delete("b")
    async with summed_database.transaction() as connection:
        rows = select(func.count()).select_from(day_sums).where(day_sums.c.day == NOON + DAY - (NOON + DAY) % DAY)
        assert await connection.scalar(rows) == 0
    assert await valid_days(summed_database) == 2
    await compare(summed_database)


async def test_a_day_that_is_not_over_or_has_not_settled_is_not_summed(database: Database) -> None:
    await write(database, three_days())
    await catch_up(database)
    assert await DaySums(database, lambda: NOON + DAY).sum_settled_days(settled_after=-1000 * DAY) == 1
    assert await DaySums(database, lambda: NOON + 9 * DAY).sum_settled_days(settled_after=1000 * DAY) == 0


async def test_a_day_that_changes_while_it_is_summed_is_not_valid(summed_database: Database) -> None:
    await write(summed_database, Agent(turns=2).run("late"))
    await catch_up(summed_database)
    async with (
        asyncio.TaskGroup() as group,
        summed_database.connection() as watching,
        summed_database.connection() as connection,
        connection.transaction(),
    ):
        # What changes a day has its row until it commits: the sums wait for it, and are not taken.
        await connection.execute("UPDATE summed_days SET changes = changes + 1 WHERE NOT is_valid")
        summing = group.create_task(sum_days(summed_database))
        while not await watching.fetchval(WAITING):  # noqa: ASYNC110 - only Postgres knows it
            await asyncio.sleep(0.01)
    assert summing.result() == 0
    assert await sum_days(summed_database) == 1
    await compare(summed_database)


WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
    AND query LIKE '%UPDATE summed_days SET is_valid%'
"""


def attempts(run: str, statuses: Sequence[int]) -> list[Exchange]:
    """The same request again and again, with these answers."""
    [one] = Agent(turns=1).run(run)[:1]
    assert one.response is not None
    return [
        replace(
            one,
            id=str(uuid.UUID(int=uuid.UUID(one.id).int + place)),
            started_at=one.started_at + place * 5 * SECOND,
            response=replace(one.response, status=status),
        )
        for place, status in enumerate(statuses)
    ]


async def listed_failures(database: Database, **filters: Any) -> list[tuple[str, int]]:
    page = await CallReader(database, derive).calls(Filters(error=True, **filters))
    return [(item["run"], item["attempts"]) for item in page.items]


async def marks(database: Database) -> Mapping[str, list[bool | None]]:
    async with database.transaction() as connection:
        rows = (
            await connection.execute(select(calls.c.run, calls.c.failed).order_by(calls.c.run, calls.c.started_at))
        ).all()
    return {run: [mark for name, mark in rows if name == run] for run in sorted({row[0] for row in rows})}


async def test_only_calls_that_failed_in_the_end_are_marked_and_listed(database: Database) -> None:
    tried = {"again": [500, 200], "in vain": [500, 500], "once": [400], "right": [200]}
    for run, statuses in tried.items():
        await write(database, attempts(run, statuses))
    expected = [("in vain", 2), ("once", 1)]
    assert sorted(await listed_failures(database)) == expected
    await catch_up(database)
    assert await marks(database) == {"again": [None, None], "in vain": [True, True], "once": [True], "right": [None]}
    assert sorted(await listed_failures(database)) == expected
    assert sorted(await listed_failures(database, statuses=[range(400, 500)])) == [("once", 1)]


async def test_marks_follow_attempts_that_come_late_and_that_are_erased(database: Database) -> None:
    first, second, third = attempts("run", [500, 500, 200])
    await write(database, [first])
    await catch_up(database)
    assert await marks(database) == {"run": [True]}
    await write(database, [third])
    await compare(database, groupings=("run",))
    await catch_up(database)
    await write(database, [second])
    await compare(database, groupings=("run",))
    await catch_up(database)
    await compare(database, groupings=("run",))
    assert await marks(database) == {"run": [None, None, None]}
    assert await listed_failures(database) == []
    await erase_exchanges(database, "default", "run", [uuid.UUID(third.id)], NOON)
    await catch_up(database)
    assert await marks(database) == {"run": [True, True]}
    assert await listed_failures(database) == [("run", 2)]


async def test_old_rows_are_marked_when_the_sums_are_made_for_the_first_time(database: Database) -> None:
    await write(database, [*attempts("again", [500, 200]), *attempts("in vain", [500, 500])])
    async with database.transaction() as connection:
        await connection.execute(calls.update().values(failed=None))
    assert await listed_failures(database) == [("in vain", 2)]
    await catch_up(database)
    assert await marks(database) == {"again": [None, None], "in vain": [True, True]}
