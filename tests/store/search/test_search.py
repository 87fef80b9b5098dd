"""What was said in runs is found over REST, with the step where it was said, and nothing else is."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from calls.derive import derive_call
from store.database.connection import Database
from store.feed.consumer import ConsumerRunner
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.search import group_lookup, lookup, lookup_plans
from store.search.groups import read_group
from store.search.index import TextIndex
from store.search.lookup import TextLookup
from store.search.query import SearchQuery
from tests.store.agents import Agent
from tests.store.running_store import PROFILES, RunningStore, is_problem, open_store

derive = partial(derive_call, profiles=PROFILES)


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


async def store(database: Database, run: str, **agent: Any) -> None:
    calls = [(one, derive(one)) for one in Agent(turns=2, **agent).run(run)]
    await BatchWriter(database).write_batch([DerivedExchange(one, call) for one, call in calls])


async def search(running_store: RunningStore, q: str, **query: Any) -> list[dict[str, Any]]:
    response = await running_store.api.get("/v1/search", params={"q": q, "settled": "true"} | query)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def count_texts(database: Database) -> int:
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT texts FROM text_groups")
    return sum(len(read_group(row["texts"])) for row in rows)


async def test_each_part_of_a_call_is_found_at_the_step_where_it_was_said(
    running_store: RunningStore, database: Database
) -> None:
    await store(database, "a", system="Be very polite.", asks=lambda turn: f"weather {turn}")
    places = {
        words: [(one["step"], one["role"]) for one in await search(running_store, words)]
        for words in ("polite", '"find out"', '"weather 0"', '"alpha 1"', "nothing")
    }
    assert places["polite"] == [(1, "prompt")]
    assert places['"find out"'] == [(1, "prompt")]
    assert (1, "arguments") in places['"weather 0"']
    assert (4, "result") in places['"alpha 1"']
    assert places["nothing"] == []


async def test_what_is_sent_again_and_again_is_indexed_once(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    assert len(await search(running_store, "zebra")) == 1
    before = await count_texts(database)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM feed_positions WHERE consumer = 'texts/1'")
    runner = ConsumerRunner(database, TextIndex(database, derive), FeedSignal())
    while await runner.process_new():
        pass
    assert await count_texts(database) == before > 4


async def test_the_index_is_made_anew_on_demand(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    assert len(await search(running_store, "zebra")) == 1
    before = await count_texts(database)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM text_groups")
    assert await search(running_store, "zebra mention") == []
    assert (await running_store.api.post("/v1/search/rebuild")).status_code == 202
    assert len(await search(running_store, "zebra mention")) == 1
    assert await count_texts(database) == before


async def test_a_snippet_shows_what_was_found(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", system="Refund orders within thirty days <b>only</b>.")
    [text] = await search(running_store, "refund thirty")
    assert [text["snippet"][start:end] for start, end in text["highlights"]] == ["Refund", "thirty"]
    assert text["snippet"] == "Refund orders within thirty days <b>only</b>."
    assert text["run"] == "a"


async def test_lists_select_by_words_and_runs_by_their_names(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    await store(database, "b", system="Mention the lion.")
    await running_store.api.patch("/v1/runs/b", json={"name": "safari", "labels": {"park": "north"}})
    for words, runs in (
        ("zebra", ["a"]),
        ("lion", ["b"]),
        ("safari", ["b"]),
        ("north", ["b"]),
        ("mention -lion", ["a"]),
    ):
        listed = await running_store.api.get("/v1/runs", params={"q": words, "settled": "true"})
        assert [run["id"] for run in listed.json()["items"]] == runs, words
    calls = (await running_store.api.get("/v1/calls", params={"q": "zebra", "kind": "model"})).json()["items"]
    assert [(call["run"], call["step"]) for call in calls] == [("a", 1)]


async def test_filters_select_among_what_is_found(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.", actor="planner")
    await store(database, "b", system="Mention the zebra.")
    assert {one["run"] for one in await search(running_store, "zebra")} == {"a", "b"}
    assert {one["run"] for one in await search(running_store, "zebra", actor="planner")} == {"a"}
    assert await search(running_store, "zebra", kind="tool") == []
    assert len(await search(running_store, "zebra", limit=1)) == 1


async def test_a_deleted_run_is_not_found(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", system="Mention the zebra.")
    assert await search(running_store, "zebra")
    await running_store.api.delete("/v1/runs/a")
    assert await search(running_store, "zebra") == []
    assert await count_texts(database) == 0


async def test_a_search_for_nothing_is_refused(running_store: RunningStore) -> None:
    is_problem(await running_store.api.get("/v1/search"), 422, "invalid_request")
    is_problem(await running_store.api.get("/v1/search", params={"q": "-zebra"}), 422, "invalid_query")
    is_problem(await running_store.api.get("/v1/runs", params={"q": "()"}), 422, "invalid_query")


async def pages(
    running_store: RunningStore, q: str, limit: int, between: Callable[[], Awaitable[None]] | None = None
) -> list[str]:
    """All that is found, page by page; something happens between each two."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        query = {"q": q, "settled": "true", "limit": str(limit)} | ({"cursor": cursor} if cursor else {})
        response = await running_store.api.get("/v1/search", params=query)
        assert response.status_code == 200, response.text
        page = response.json()
        assert len(page["items"]) <= limit
        found += [f"{one['run']} {one['role']} {one['snippet']}" for one in page["items"]]
        if (cursor := page["next"]) is None:
            return found
        if between:
            await between()


@pytest.mark.parametrize(("window", "limits"), [(1000, (2,)), (7, (1, 5)), (3, (1, 2, 5))])
async def test_pages_have_each_text_once_while_others_are_stored(
    running_store: RunningStore, database: Database, monkeypatch: pytest.MonkeyPatch, window: int, limits: Sequence[int]
) -> None:
    for number in range(4):
        await store(database, f"run {number}", asks=lambda turn: f"zebra {turn} " * (turn + 1), offset=number * 40000)
    monkeypatch.setattr(lookup, "MOST_CANDIDATES", window)
    expected = await pages(running_store, "zebra", 500)
    assert len(expected) == len(set(expected)) > 7
    for limit in limits:
        assert sorted(await pages(running_store, "zebra", limit)) == sorted(expected)
    later = iter(range(100))

    async def store_more() -> None:
        await store(database, f"late {next(later)}", asks=lambda turn: f"zebra {turn}", offset=500_000)

    found = await pages(running_store, "zebra", 2, store_more)
    assert len(found) == len(set(found))
    assert set(found) == set(expected)  # what was stored meanwhile is newer than the first page


async def test_the_best_of_a_window_come_first(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", asks=lambda turn: "zebra " * (1 + 5 * turn))
    first = await search(running_store, "zebra", limit=1)
    everything = await search(running_store, "zebra")
    assert first == everything[:1]
    assert [one["rank"] for one in everything] == sorted((one["rank"] for one in everything), reverse=True)


async def test_a_cursor_of_another_search_is_refused(running_store: RunningStore, database: Database) -> None:
    await store(database, "a", system="zebra lion", asks=lambda turn: f"zebra lion {turn}")
    answer = await running_store.api.get("/v1/search", params={"q": "zebra", "settled": "true", "limit": 1})
    cursor = answer.json()["next"]
    assert cursor is not None
    for query in ({"q": "lion"}, {"q": "zebra", "model": "gpt-4o"}):
        is_problem(await running_store.api.get("/v1/search", params=query | {"cursor": cursor}), 422, "bad_cursor")
    calls = await running_store.api.get("/v1/calls", params={"limit": 1})
    for wrong in (calls.json()["next"], "!", "bnVsbA==", cursor[:-4] + "AAAA"):
        is_problem(await running_store.api.get("/v1/search", params={"q": "zebra", "cursor": wrong}), 422, "bad_cursor")
    is_problem(await running_store.api.get("/v1/calls", params={"cursor": cursor}), 422, "bad_cursor")


async def test_lists_select_among_the_newest_texts_without_a_hole(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all texts of a day fit or few, and also if the newest of all do not."""
    for number in range(4):
        await store(database, f"run {number}", asks=lambda turn: f"zebra {turn}", offset=number * 90_000)
    for number in range(3):
        # At the same time as one another, and the last as the one before.
        await store(database, f"beside {number}", asks=lambda turn: f"zebra {turn}", offset=270_000 + 7 * number)
    await store(database, "last", offset=4 * 90_000)
    runner = ConsumerRunner(database, TextIndex(database, derive), FeedSignal())
    while await runner.process_new():
        pass
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT day, texts FROM text_groups")
    fitting = sorted(
        (row["day"], text.started_at, text.call, text.hash)
        for row in rows
        for text in read_group(row["texts"])
        if "zebra" in text.text
    )
    texts = [call for _, _, call, _ in reversed(fitting)]
    assert len(texts) > 8
    for limit in (1, 3, 7, 100):
        monkeypatch.setattr(lookup, "MOST_TEXTS", limit)
        for frequent in (0.0, 0.2, 2.0):
            monkeypatch.setattr(lookup_plans, "FREQUENT_SHARE", frequent)
            for page in (1, 2, 32):
                monkeypatch.setattr(group_lookup, "FIRST_PAGE", page)
                calls = await TextLookup(database, "default").find_calls(SearchQuery.parse("zeb*"))
                assert calls == tuple(dict.fromkeys(texts[:limit])), (limit, frequent, page)
