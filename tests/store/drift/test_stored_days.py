"""What is stored of days gives the same changes of models as all calls, whatever happens to the calls afterwards."""

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import func, select

from calls.model import Exchange
from store.database.connection import Database
from store.database.tables import calls, model_answers, model_days
from store.drift.model_changes import DriftQuestion, find_model_changes
from store.drift.model_days import ModelDays, load_days
from store.drift.stored_days import read_stored_days
from store.erasure.erase_rows import erase_exchanges, erase_run
from store.query.runs import Runs
from store.sums.day_sums import DaySums
from store.sums.summed_days import DAY
from tests.store.agents import Agent
from tests.store.samples import NOON
from tests.store.sums.test_run_sums import HOUR, catch_up, write

QUESTIONS = (
    DriftQuestion(),
    DriftQuestion(since=NOON + 25 * 3600 * 10**9),
    DriftQuestion(until=NOON + 25 * 3600 * 10**9 + 77),
    DriftQuestion(since=NOON + DAY - NOON % DAY, until=NOON + 2 * DAY - NOON % DAY),
    DriftQuestion(since=NOON + 10**10, until=NOON + 3 * DAY),
    DriftQuestion(provider="openai"),
    DriftQuestion(provider="absent"),
    DriftQuestion(model="gpt-5"),
    DriftQuestion(model="gpt-5-2026-09-09", since=NOON + DAY),
)


def five_days() -> list[Exchange]:
    """Runs that ask the same each day; some are answered otherwise, by another model, or by turns."""
    return [
        *Agent(turns=3).run("a"),
        *Agent(turns=3, offset=2 * HOUR).run("b"),
        *Agent(turns=4, offset=24 * HOUR, asks=lambda turn: f"something else {turn % 2}").run("c"),
        *Agent(turns=2, offset=25 * HOUR, status=lambda turn: 500).run("failed"),
        *Agent(turns=3, offset=49 * HOUR, model="gpt-5-2026-09-09").run("d"),
        *Agent(turns=3, offset=73 * HOUR, fingerprint=lambda turn: f"fp_{turn % 2}").run("e"),
        *Agent(turns=2, offset=97 * HOUR, asks=lambda turn: "once more").run("f"),
    ]


def _say(words: str, _: int) -> str:
    return words


async def make_days(database: Database) -> None:
    await DaySums(database, time.time_ns).sum_settled_days(settled_after=-DAY)
    await ModelDays(database).make_days()


async def compare(
    database: Database, questions: Sequence[DriftQuestion] = QUESTIONS, *, is_stored: bool | None = None
) -> None:
    """Whether each question has the same answer from what is stored as from the calls."""
    for question in questions:
        stored = await find_model_changes(database, question)
        assert stored == await find_model_changes(database, question, uses_days=False), question
    if is_stored is not None:
        assert (await read_stored_days(database, "default", None, None) is not None) is is_stored


async def count(database: Database, table: Any) -> int:
    async with database.transaction() as connection:
        return await connection.scalar(select(func.count()).select_from(table)) or 0


@pytest.fixture(autouse=True)
def always_stored_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the stored days be used even where reading all of these few calls is faster."""
    monkeypatch.setattr("store.drift.stored_days.ALL_OF_READ_ANEW", 1)


@pytest.fixture
async def stored_database(database: Database) -> Database:
    await write(database, five_days())
    await catch_up(database)
    await make_days(database)
    async with database.connection() as connection:
        days = await load_days(connection, "default")
    assert [day.repeats is not None for day in days] == [True] * 5
    return database


async def test_stored_days_give_the_changes_that_the_calls_give(stored_database: Database) -> None:
    await compare(stored_database, is_stored=True)
    found = await find_model_changes(stored_database, DriftQuestion())
    assert {change["kind"] for change in found["items"]} == {"model", "fingerprint"}
    repeats = [*found["answers"], *(change["same_requests"] for change in found["items"])]
    assert [sum(one[name] for one in repeats) > 0 for name in ("asked_again", "answered_otherwise")] == [True, True]


async def test_what_is_stored_is_what_is_read(stored_database: Database) -> None:
    async with stored_database.transaction() as connection:
        await connection.execute(calls.update().values(answer=b"the same"))
    with pytest.raises(AssertionError):
        await compare(stored_database)


async def test_stored_days_stay_right_whatever_is_stored_and_removed(stored_database: Database) -> None:
    draw = random.Random(15)
    for number in range(4):
        match number % 4:
            case 0:
                offset, words = draw.randrange(100) * HOUR, f"late {number}"
                await write(stored_database, Agent(turns=2, offset=offset, asks=partial(_say, words)).run(words))
            case 1:
                await erase_run(stored_database, "default", draw.choice("abcdef"), NOON)
            case 2:
                await Runs(stored_database).patch(draw.choice("abcdef"), labels={"kind": "canary"})
            case _:
                async with stored_database.transaction() as connection:
                    one = draw.choice((await connection.execute(select(calls.c.id, calls.c.run))).all())
                await erase_exchanges(stored_database, "default", one[1], [one[0]], NOON)
        await compare(stored_database, QUESTIONS[:3])
        await catch_up(stored_database)
        await compare(stored_database, QUESTIONS[:3])
        await DaySums(stored_database, time.time_ns).sum_settled_days(settled_after=-DAY)
        await ModelDays(stored_database).make_days()
        await compare(stored_database, QUESTIONS[:1], is_stored=True)


async def test_an_erased_run_leaves_nothing_in_the_days(stored_database: Database) -> None:
    answers, days = await count(stored_database, model_answers), await count(stored_database, model_days)
    await erase_run(stored_database, "default", "d", NOON)
    assert await count(stored_database, model_answers) == answers - 3
    assert await count(stored_database, model_days) == days - 1
    await compare(stored_database)


async def test_a_day_with_too_many_variants_is_read_from_the_calls(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.drift.model_days.MOST_VARIANTS", 1)
    await write(database, five_days())
    await catch_up(database)
    await make_days(database)
    async with database.connection() as connection:
        days = await load_days(connection, "default")
    assert [day.variants is None for day in days] == [False, False, False, True, False]
    assert all(day.is_made for day in days)
    await compare(database, is_stored=True)
