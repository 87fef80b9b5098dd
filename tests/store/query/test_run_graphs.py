"""What pages of a run have in common is loaded once, and again when the run has changed."""

import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import EMPTY_BODY, Exchange
from store.database.connection import Database
from store.erasure.erase_rows import erase_exchanges
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_graph import load_call_graph
from store.query.call_reader import CallReader
from store.query.rekey import Rekeyer
from store.query.rest_shapes import Shape
from store.query.run_graphs import RunGraph, RunGraphs
from tests.store.call_graph.test_call_ids import USER, chat, result
from tests.store.running_store import PROFILES
from tests.store.samples import NOON, uuid7

understood = partial(derive_call, profiles=PROFILES)


@pytest.fixture
def loaded_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose call graphs were loaded, in order."""
    runs: list[str] = []

    async def load(connection: Any, project: str, run: str, *rest: Any) -> Any:
        runs.append(run)
        return await load_call_graph(connection, project, run, *rest)

    monkeypatch.setattr("store.query.run_graphs.load_call_graph", load)
    return runs


async def write_turns(database: Database, turns: range, run: str = "night-run") -> None:
    """Write turns of an agent, each of which returns the result of the tool call before it."""
    made = [
        chat(turn, USER, *([result(f"call_{turn - 1}")] if turn else []), asks=[(f"call_{turn}", "find", {})], run=run)
        for turn in turns
    ]
    await BatchWriter(database).write_batch([DerivedExchange(one, understood(one)) for one in made])


async def follows(reader: CallReader, run: str = "night-run", limit: int = 2) -> list[list[int]]:
    """The steps that each call of a run continues, read in pages."""
    found: list[list[int]] = []
    cursor: str | None = None
    while True:
        page = await reader.run_calls(run, limit, cursor)
        found += [[one["step"] for one in call["follows"] or ()] for call in page.items]
        if (cursor := page.next) is None:
            return found


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_all_pages_share_what_was_loaded(database: Database, loaded_runs: list[str], limit: int) -> None:
    await write_turns(database, range(5))
    reader = CallReader(database, understood, graphs=RunGraphs())
    assert await follows(reader, limit=limit) == [[], [1], [2], [3], [4]]
    assert loaded_runs == ["night-run"]


async def test_a_run_that_has_changed_is_loaded_again(database: Database, loaded_runs: list[str]) -> None:
    reader = CallReader(database, understood, graphs=RunGraphs())
    await write_turns(database, range(2))
    assert await follows(reader) == [[], [1]]
    await write_turns(database, range(2, 3))
    assert await follows(reader) == [[], [1], [2]]
    assert loaded_runs == ["night-run"] * 2


def failed_attempt(turn: int) -> Exchange:
    """The same request as that of a turn, which failed before it."""
    whole = chat(turn, USER, result(f"call_{turn - 1}"), asks=[(f"call_{turn}", "find", {})], run="night-run")
    assert whole.response is not None
    earlier = replace(whole, id=uuid7(whole.started_at - 1, 99), started_at=whole.started_at - 1)
    return replace(earlier, response=replace(whole.response, status=429, body=EMPTY_BODY))


async def rekey(database: Database) -> None:
    work = Rekeyer(database, CallReader(database, understood), PROFILES)
    async with aclosing(work.rekey_run("night-run", dry=False)) as steps:
        async for _ in steps:
            pass


async def move(database: Database) -> None:
    """Move the second turn to another run."""
    exchange = chat(1, USER, result("call_0"), asks=[("call_1", "find", {})], run="other")
    await BatchWriter(database).write_batch([DerivedExchange(exchange, understood(exchange), previous_run="night-run")])


async def erase(database: Database) -> None:
    """Erase the second turn."""
    ids = [uuid.UUID(chat(1, USER).id)]
    assert await erase_exchanges(database, "default", "night-run", ids, NOON) is not None


@pytest.mark.parametrize("change", [rekey, move, erase])
async def test_what_new_keys_a_move_and_an_erasure_change_is_loaded_again(
    database: Database, change: Callable[[Database], Awaitable[None]]
) -> None:
    await write_turns(database, range(4))
    attempt = failed_attempt(2)
    await BatchWriter(database).write_batch([DerivedExchange(attempt, understood(attempt))])
    if change is rekey:
        async with database.connection() as connection:
            await connection.execute("UPDATE calls SET key = sha256(key) WHERE status = 429")
    reader = CallReader(database, understood, graphs=RunGraphs())
    before = (await reader.run_calls("night-run")).items
    await change(database)
    after = (await reader.run_calls("night-run")).items
    assert after == (await CallReader(database, understood).run_calls("night-run")).items
    assert len(after) == len(before) - 1


async def test_a_page_lacks_no_call_whose_run_gets_new_keys_meanwhile(database: Database) -> None:
    class RekeyingReader(CallReader):
        async def _shapes(self, *arguments: Any) -> list[Shape]:
            async with database.connection() as connection:
                await connection.execute("UPDATE calls SET key = sha256(key) WHERE project = 'default'")
            return await super()._shapes(*arguments)

    await write_turns(database, range(3))
    before = await CallReader(database, understood).run_calls("night-run")
    page = await RekeyingReader(database, understood).run_calls("night-run")
    assert [call["nth"] for call in page.items] == [call["nth"] for call in before.items] == [0, 0, 1]


async def test_a_link_to_a_call_that_is_erased_meanwhile_is_left_out(database: Database) -> None:
    class ErasingReader(CallReader):
        async def _add_links(self, *arguments: Any) -> list[Shape]:
            await erase(database)
            return await super()._add_links(*arguments)

    await write_turns(database, range(3))
    page = await ErasingReader(database, understood).run_calls("night-run")
    assert [call["follows"] and [one["step"] for one in call["follows"]] for call in page.items] == [None, [1], None]


async def test_only_the_runs_that_were_read_last_are_kept(database: Database, loaded_runs: list[str]) -> None:
    await write_turns(database, range(2), "one")
    await write_turns(database, range(10, 12), "other")
    room = await _size_of(database, "one") * 3 // 2
    loaded_runs.clear()
    reader = CallReader(database, understood, graphs=RunGraphs(room))
    for run in ("one", "one", "other", "one"):
        assert await follows(reader, run) == [[], [1]]
    assert loaded_runs == ["one", "other", "one"]


async def test_a_run_without_room_is_loaded_for_each_page(database: Database, loaded_runs: list[str]) -> None:
    await write_turns(database, range(3))
    assert await follows(CallReader(database, understood, graphs=RunGraphs(most_bytes=1))) == [[], [1], [2]]
    assert loaded_runs == ["night-run"] * 2


async def test_a_page_costs_no_more_where_many_runs_are_kept(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tens of thousands fit, and all requests wait while their sizes are added up."""
    graphs = RunGraphs()
    counted: list[RunGraph] = []

    def count(graph: RunGraph) -> int:
        counted.append(graph)
        return 1000

    monkeypatch.setattr(RunGraph, "size", property(count))
    for number in range(20):
        await write_turns(database, range(2 * number, 2 * number + 2), f"run-{number}")
    for number in range(20):
        async with database.transaction() as connection:
            await graphs.load(connection, "default", f"run-{number}", has_links=True)
    assert len(counted) == 20


async def _size_of(database: Database, run: str) -> int:
    async with database.transaction() as connection:
        return (await RunGraphs().load(connection, "default", run, has_links=True)).size
