"""Texts are stored in groups of their run and day, and nothing of a text stays in a group that it has left."""

import uuid
from collections.abc import Callable
from functools import partial

import pytest

from calls.derive import derive_call
from store.database.connection import Database
from store.erasure.erase_rows import erase_exchanges, erase_run
from store.feed.consumer import ConsumerRunner
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.filters import Filters
from store.search import lookup
from store.search.fresh_texts import FreshTexts
from store.search.groups import MOST_CHARACTERS, MOST_TEXTS, GroupText, divide_texts, make_group, read_group
from store.search.index import TextIndex
from store.search.lookup import TextLookup
from store.search.query import SearchQuery
from store.search.words import distinct_words
from tests.store.agents import Agent
from tests.store.running_store import PROFILES
from tests.store.samples import NOON

derive = partial(derive_call, profiles=PROFILES)


def text(number: int, content: str) -> GroupText:
    return GroupText(bytes([number]) * 16, uuid.UUID(int=number), number, "prompt", content)


@pytest.mark.parametrize(
    ("length", "expected"), [(10, MOST_TEXTS), (MOST_CHARACTERS // 8, 8), (MOST_CHARACTERS - 1, 1), (0, MOST_TEXTS)]
)
def test_a_group_has_a_limited_number_of_texts_and_characters(length: int, expected: int) -> None:
    texts = [text(number, "x" * length) for number in range(100)]
    groups = list(divide_texts(texts))
    assert [one for group in groups for one in group] == texts
    assert {len(group) for group in groups[:-1]} == {expected}
    assert read_group(make_group(groups[0]).texts) == groups[0]


async def follow(database: Database, fresh: FreshTexts | None = None) -> TextIndex:
    index = TextIndex(database, derive, fresh)
    runner = ConsumerRunner(database, index, FeedSignal())
    while await runner.process_new():
        pass
    return index


async def store(database: Database, run: str, asks: Callable[[int], str], offset: int = 0) -> list[str]:
    """Store a run and index it; return the ids of its calls."""
    exchanges = Agent(turns=3, asks=asks, offset=offset).run(run)
    await BatchWriter(database).write_batch([DerivedExchange(one, derive(one)) for one in exchanges])
    await follow(database)
    return [one.id for one in exchanges]


async def stored_words(database: Database) -> dict[str, set[str]]:
    """The words by which each run is found, which are those of its stored texts."""
    found: dict[str, set[str]] = {}
    async with database.connection() as connection:
        for row in await connection.fetch(
            "SELECT run, day, id, tsvector_to_array(words) AS words, texts FROM text_groups"
        ):
            texts = read_group(row["texts"])
            assert set(row["words"]) == distinct_words(one.text for one in texts)
            where = (row["run"], row["day"], row["id"])
            hashes = await connection.fetch(HASHES, *where)
            assert {(one["hash"], one["call"]) for one in hashes} == {(one.hash, one.call) for one in texts}
            found.setdefault(row["run"], set()).update(row["words"])
        groups = await connection.fetchval("SELECT count(DISTINCT text_group) FROM text_hashes")
        assert groups == await connection.fetchval("SELECT count(*) FROM text_groups")
    return found


HASHES = "SELECT hash, call FROM text_hashes WHERE run = $1 AND day = $2 AND text_group = $3"

ANIMALS = ("zebra", "lion", "otter")


async def test_runs_share_no_group(database: Database) -> None:
    fresh = FreshTexts()
    writer = BatchWriter(database, note_call=fresh.note_call)
    await follow(database, fresh)
    runs = {name: Agent(turns=3, asks=partial("{} {}".format, name)).run(f"of {name}") for name in ANIMALS}
    for exchanges in zip(*runs.values(), strict=True):
        await writer.write_batch([DerivedExchange(one, derive(one)) for one in exchanges])
    await follow(database, fresh)
    words = await stored_words(database)
    assert {run: found.intersection(ANIMALS) for run, found in words.items()} == {f"of {one}": {one} for one in ANIMALS}
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM text_groups") == 3


async def test_an_erased_call_leaves_no_word(database: Database) -> None:
    calls = await store(database, "a", ANIMALS.__getitem__)
    await store(database, "b", ANIMALS.__getitem__, 90)
    assert (await stored_words(database))["a"] >= {*ANIMALS}
    # The first model call answers with the zebra, and all that follow repeat it.
    kept = calls[4:]
    await erase_exchanges(database, "default", "a", [uuid.UUID(one) for one in calls if one not in kept], NOON)
    assert "a" not in await stored_words(database)
    await erase_run(database, "default", "b", NOON)
    assert await stored_words(database) == {}


async def test_a_call_that_moves_takes_its_words_along(database: Database) -> None:
    calls = await store(database, "a", ANIMALS.__getitem__)
    async with database.connection() as connection:
        answer = await connection.fetchval("SELECT call FROM text_hashes ORDER BY call LIMIT 1")
        texts = await connection.fetch("SELECT texts FROM text_groups")
        moved = {one.text for row in texts for one in read_group(row["texts"]) if one.call == answer}
        assert str(answer) in calls
        await connection.execute(
            "INSERT INTO runs SELECT project, 'b', gen_random_uuid(), name, labels, started_at, newest_at, active_at FROM runs"
        )
        await connection.execute("UPDATE calls SET run = 'b' WHERE id = $1", answer)
        await connection.execute("UPDATE exchanges SET run = 'b' WHERE id = $1", answer)
    index = await follow(database)
    await index._remove_call("default", "a", str(answer))
    words = await stored_words(database)
    gone = distinct_words(moved) - words["a"]
    assert {"brief", "zebra"} & gone
    assert words["a"] >= {"lion", "otter"}
    async with database.connection() as connection:
        assert not await connection.fetchval("SELECT count(*) FROM text_hashes WHERE call = $1", answer)
    for call in calls:
        await index._remove_call("default", "a", call)
    assert await stored_words(database) == {}


async def test_windows_and_pages_of_any_size_have_the_same_texts(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, run in enumerate("abcd"):
        await store(database, run, ANIMALS.__getitem__, number * 90_000)
    for query in ("zebra", '"q lion"', "o* -lion", "zebra OR otter", '"find out"'):
        monkeypatch.setattr(lookup, "MOST_CANDIDATES", 1000)
        found = sorted(await answers(database, query))
        assert found
        monkeypatch.setattr(lookup, "MOST_CANDIDATES", 3)
        assert sorted(await answers(database, query)) == found, query


async def answers(database: Database, q: str) -> list[tuple[str, uuid.UUID, bytes, str, float]]:
    """All that is found, by pages of two."""
    found = []
    cursor = None
    while True:
        page = await TextLookup(database, "default").find_texts(SearchQuery.parse(q), Filters(q=q), 2, cursor)
        found += [(one.text, one.place.call, one.place.hash, one.role, round(one.rank, 6)) for one in page.texts]
        if (cursor := page.next) is None:
            return found
