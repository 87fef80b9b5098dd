"""What was said in runs is found over REST, with the step where it was said, and nothing else is."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calls.derive import derive_call
from store.database.connection import Database
from store.feed.consumer import ConsumerRunner
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.search.index import TextIndex
from tests.store.agents import Agent
from tests.store.house import PROFILES, House, is_problem, opened

derive = partial(derive_call, profiles=PROFILES)


@pytest.fixture
async def house(tmp_path: Path, database: Database) -> AsyncIterator[House]:
    async with opened(tmp_path / "spool", database) as house:
        yield house


async def store(database: Database, run: str, **agent: Any) -> None:
    calls = [(one, derive(one)) for one in Agent(turns=2, **agent).run(run)]
    await BatchWriter(database).write_batch([DerivedExchange(one, call) for one, call in calls])


async def search(house: House, q: str, **query: Any) -> list[dict[str, Any]]:
    response = await house.api.get("/v1/search", params={"q": q, "settled": "true"} | query)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def count_texts(database: Database) -> int:
    async with database.connection() as connection:
        count: int = await connection.fetchval("SELECT count(*) FROM texts")
        return count


async def test_each_part_of_a_call_is_found_at_the_step_where_it_was_said(house: House, database: Database) -> None:
    await store(database, "a", system="Be very polite.", asks=lambda turn: f"weather {turn}")
    places = {
        words: [(one["step"], one["role"]) for one in await search(house, words)]
        for words in ("polite", '"find out"', '"weather 0"', '"alpha 1"', "nothing")
    }
    assert places["polite"] == [(1, "prompt")]
    assert places['"find out"'] == [(1, "prompt")]
    assert (1, "arguments") in places['"weather 0"']
    assert (4, "result") in places['"alpha 1"']
    assert places["nothing"] == []


async def test_what_is_sent_again_and_again_is_indexed_once(house: House, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    assert len(await search(house, "zebra")) == 1
    before = await count_texts(database)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM feed_positions WHERE consumer = 'texts/1'")
    runner = ConsumerRunner(database, TextIndex(database, derive), FeedSignal())
    while await runner.process_new():
        pass
    assert await count_texts(database) == before > 4


async def test_the_index_is_made_anew_on_demand(house: House, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    assert len(await search(house, "zebra")) == 1
    before = await count_texts(database)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM texts WHERE hash <> (SELECT max(hash) FROM texts)")
    assert await search(house, "zebra mention") == []
    assert (await house.api.post("/v1/search/rebuild")).status_code == 202
    assert len(await search(house, "zebra mention")) == 1
    assert await count_texts(database) == before


async def test_a_snippet_shows_what_was_found(house: House, database: Database) -> None:
    await store(database, "a", system="Refund orders within thirty days <b>only</b>.")
    [text] = await search(house, "refund thirty")
    assert [text["snippet"][start:end] for start, end in text["highlights"]] == ["Refund", "thirty"]
    assert text["snippet"] == "Refund orders within thirty days <b>only</b>."
    assert text["run"] == "a"


async def test_lists_select_by_words_and_runs_by_their_names(house: House, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    await store(database, "b", system="Mention the lion.")
    await house.api.patch("/v1/runs/b", json={"name": "safari", "labels": {"park": "north"}})
    for words, runs in (
        ("zebra", ["a"]),
        ("lion", ["b"]),
        ("safari", ["b"]),
        ("north", ["b"]),
        ("mention -lion", ["a"]),
    ):
        listed = await house.api.get("/v1/runs", params={"q": words, "settled": "true"})
        assert [run["id"] for run in listed.json()["items"]] == runs, words
    calls = (await house.api.get("/v1/calls", params={"q": "zebra", "kind": "model"})).json()["items"]
    assert [(call["run"], call["step"]) for call in calls] == [("a", 1)]


async def test_filters_select_among_what_is_found(house: House, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.", actor="planner")
    await store(database, "b", system="Mention the zebra.")
    assert {one["run"] for one in await search(house, "zebra")} == {"a", "b"}
    assert {one["run"] for one in await search(house, "zebra", actor="planner")} == {"a"}
    assert await search(house, "zebra", kind="tool") == []
    assert len(await search(house, "zebra", limit=1)) == 1


async def test_a_deleted_run_is_not_found(house: House, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    assert await search(house, "zebra")
    await house.api.delete("/v1/runs/a")
    assert await search(house, "zebra") == []
    assert await count_texts(database) == 0


async def test_a_search_for_nothing_is_refused(house: House) -> None:
    is_problem(await house.api.get("/v1/search"), 422, "invalid_request")
    is_problem(await house.api.get("/v1/search", params={"q": "-zebra"}), 422, "invalid_query")
    is_problem(await house.api.get("/v1/runs", params={"q": "()"}), 422, "invalid_query")
