"""What pages of a run have in common is loaded once, and again when the run has changed."""

from functools import partial
from typing import Any

import pytest

from calls.derive import derive_call
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_graph import load_call_graph
from store.query.call_reader import CallReader
from store.query.rest_shapes import Shape
from store.query.run_graphs import RunGraph, RunGraphs
from tests.store.call_graph.test_call_ids import USER, chat, result
from tests.store.running_store import PROFILES

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
