"""Pages of sorted lists join to the whole list, whatever is stored meanwhile."""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calls.model import Call, Exchange, Usage
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.pricing.prices import Cost
from store.query.call_reader import CallReader
from store.query.filters import Filters
from store.query.pages import BadCursor, Sort
from store.query.runs import Runs
from tests.store.samples import NOON, SECOND, exchange, model_call

LATER = NOON + 3600 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCall:
    """A call, by what it may be sorted by."""

    at: int
    cost: int | None
    duration: int
    tokens: int | None

    def derive_exchange(self, number: int, run: str) -> DerivedExchange:
        made = exchange(number, run=run, at=NOON + self.at * SECOND, ended_at=self.duration * SECOND)
        usage = Usage() if self.tokens is None else Usage(input_tokens=self.tokens, output_tokens=1)
        cost = None if self.cost is None else Cost(usd=Decimal(self.cost) / 8, prices="test")
        return DerivedExchange(made, model_call(made, usage=usage), cost=cost)

    def value(self, by: str) -> int | None:
        return {"time": self.at, "cost": self.cost, "duration": self.duration, "tokens": self.tokens}[by]


small = st.integers(0, 4)
stored = st.builds(StoredCall, at=small, cost=st.none() | small, duration=small, tokens=st.none() | small)
sorts = st.builds(Sort, st.sampled_from(["time", "cost", "duration", "tokens"]), st.booleans())


def derive(of: Exchange) -> Call:
    return model_call(of)


def in_order(rows: Sequence[tuple[StoredCall, str]], sort: Sort) -> list[str]:
    """Sort in Python: those without a value last, newest first."""
    known = sorted((row.value(sort.by), name) for row, name in rows if row.value(sort.by) is not None)
    unknown = sorted(((row.at, name) for row, name in rows if row.value(sort.by) is None), reverse=True)
    return [name for _, name in (reversed(known) if sort.is_descending else known)] + [name for _, name in unknown]


async def walk_while_storing(fetch: Any, stores: Any) -> list[str]:
    """All items of a list, page by page; something is stored after each page."""
    names: list[str] = []
    cursor = None
    while True:
        page = await fetch(cursor)
        names += [item["id"] for item in page.items]
        if (cursor := page.next) is None:
            return names
        await stores()


async def test_pages_join_to_the_sorted_list_whatever_is_stored_meanwhile(database: Database) -> None:
    loop, projects = asyncio.get_running_loop(), itertools.count()

    async def check(before: list[StoredCall], between: list[StoredCall], limit: int, sort: Sort, of_run: bool) -> None:
        # A project of its own is as good as an empty database.
        project = f"project-{next(projects)}"
        writer = BatchWriter(database, project=project, profile="sha256:profiles")
        numbers = itertools.count()

        async def store(*rows: StoredCall) -> list[tuple[StoredCall, str]]:
            put = [row.derive_exchange(next(numbers), "run" if of_run else f"run-{row.at % 2}") for row in rows]
            await writer.write_batch(put)
            return [(row, one.exchange.id) for row, one in zip(rows, put, strict=True)]

        there = await store(*before)
        queries, coming = CallReader(database, derive, project), iter(between)
        if of_run:
            walk = walk_while_storing(
                lambda cursor: queries.run_calls("run", limit, cursor, frozenset(), sort),
                lambda: store(*itertools.islice(coming, 1)),
            )
        else:
            walk = walk_while_storing(
                lambda cursor: queries.calls(Filters(), limit, cursor, frozenset(), sort),
                lambda: store(*itertools.islice(coming, 1)),
            )
        seen = await walk
        assert len(seen) == len(set(seen))
        first = {name for _, name in there}
        assert [name for name in seen if name in first] == in_order(there, sort)

    @settings(max_examples=40, suppress_health_check=list(HealthCheck))
    @given(st.lists(stored, max_size=9), st.lists(stored, max_size=4), st.integers(1, 4), sorts, st.booleans())
    def try_it(before: list[StoredCall], between: list[StoredCall], limit: int, sort: Sort, of_run: bool) -> None:
        asyncio.run_coroutine_threadsafe(check(before, between, limit, sort, of_run), loop).result()

    await asyncio.to_thread(try_it)


async def add_run(database: Database, number: int, cost: Decimal | None, *, has_totals: bool = True) -> str:
    """Store a run, and the sums that the store server makes a moment later."""
    run = f"run-{number}"
    await Runs(database).put(run, NOON + number)
    async with database.connection() as connection:
        if has_totals:
            await connection.execute(
                "INSERT INTO run_totals (project, run, started_at, calls, errors, tokens, cost_usd, duration)"
                " VALUES ('default', $1, $2, 1, 0, $3, $4, $5)",
                *(run, NOON + number, number % 3, cost, number % 2),
            )
    return run


@pytest.mark.parametrize("is_descending", [True, False])
async def test_runs_are_sorted_by_their_sums_and_those_without_come_last(
    database: Database, is_descending: bool
) -> None:
    costs = [Decimal("0.5"), None, Decimal("12"), Decimal("0.5"), None, Decimal(0)]
    names = [await add_run(database, number, cost) for number, cost in enumerate(costs)]
    new = await add_run(database, 9, Decimal(99), has_totals=False)
    runs = Runs(database)

    async def list_runs(sort: Sort) -> list[str]:
        return await walk_while_storing(lambda cursor: runs.page(Filters(), LATER, 2, cursor, sort), no_more)

    known = [names[5], names[0], names[3], names[2]]
    unknown = [new, names[4], names[1]]
    by_cost = [*(reversed(known) if is_descending else known), *unknown]
    assert await list_runs(Sort("cost", is_descending)) == by_cost
    tokens = sorted(names, key=lambda name: (int(name[4:]) % 3, name), reverse=is_descending)
    assert await list_runs(Sort("tokens", is_descending)) == [*tokens, new]
    durations = sorted(names, key=lambda name: (int(name[4:]) % 2, name), reverse=is_descending)
    assert await list_runs(Sort("duration", is_descending)) == [*durations, new]


async def no_more() -> None:
    """Store nothing."""


async def test_a_call_that_was_tried_again_is_sorted_by_its_last_attempt(database: Database) -> None:
    first = exchange(0, status=429)
    again = exchange(1)
    other = exchange(2, request=b"other")
    cost = Cost(usd=Decimal(3), prices="test")
    await BatchWriter(database, profile="sha256:profiles").write_batch(
        [
            DerivedExchange(first, model_call(first)),
            DerivedExchange(again, model_call(again), cost=cost),
            DerivedExchange(other, model_call(other), cost=replace(cost, usd=Decimal(1))),
        ]
    )
    queries = CallReader(database, derive)
    for found in (
        await queries.calls(Filters(), sort=Sort("cost")),
        await queries.run_calls("night-run", sort=Sort("cost")),
    ):
        assert [(item["id"], item["cost_usd"]) for item in found.items] == [(first.id, 3), (other.id, 1)]


async def test_a_cursor_is_refused_on_another_list(database: Database) -> None:
    await BatchWriter(database, profile="sha256:profiles").write_batch(
        [StoredCall(at=n, cost=n, duration=n, tokens=n).derive_exchange(n, f"run-{n % 2}") for n in range(6)]
    )
    queries, runs = CallReader(database, derive), Runs(database)
    sort = Sort("cost")
    cursor = (await queries.calls(Filters(), 2, sort=sort)).next
    assert (await queries.calls(Filters(), 3, cursor, frozenset(("cost_usd",)), sort)).items
    other = (await runs.page(Filters(), LATER, 1)).next
    refused = [
        queries.calls(Filters(), 2, cursor),
        queries.calls(Filters(), 2, cursor, sort=Sort("cost", is_descending=False)),
        queries.calls(Filters(models=("gpt-5",)), 2, cursor, sort=sort),
        queries.run_calls("run-1", 2, cursor, sort=sort),
        runs.page(Filters(), LATER, 2, cursor),
        queries.calls(Filters(), 2, other),
        CallReader(database, derive, "other").calls(Filters(), 2, cursor, sort=sort),
    ]
    for request in refused:
        with pytest.raises(BadCursor, match="belongs to another list"):
            await request
