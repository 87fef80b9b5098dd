"""The index of words is the same whether ingest hands over the texts of calls or the index derives them."""

import uuid
from dataclasses import replace
from functools import partial
from typing import NoReturn

import pytest

from calls.derive import derive_call
from calls.model import Exchange
from store.database.connection import Database
from store.erasure.erase_rows import erase_exchanges
from store.feed.consumer import ConsumerRunner
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.runs import Runs
from store.search import fresh_texts
from store.search.fresh_texts import FreshTexts
from store.search.groups import read_group
from store.search.index import TextIndex
from store.search.words import distinct_words
from tests.store.agents import Agent
from tests.store.running_store import PROFILES
from tests.store.samples import NOON

derive = partial(derive_call, profiles=PROFILES)


def derive_nothing(exchange: Exchange) -> NoReturn:
    raise AssertionError(f"{exchange.id} is derived a second time")


async def store(writer: BatchWriter, exchanges: list[Exchange]) -> None:
    await writer.write_batch([DerivedExchange(one, derive(one)) for one in exchanges])


async def follow(database: Database, index: TextIndex) -> None:
    runner = ConsumerRunner(database, index, FeedSignal())
    while await runner.process_new():
        pass


async def stored_texts(database: Database) -> list[tuple[object, ...]]:
    """The texts of all groups, with the words of their groups, and what is noted of each text."""
    async with database.connection() as connection:
        groups = await connection.fetch("SELECT run, day, id, texts, words::text, newest_at FROM text_groups")
        hashes = await connection.fetch("SELECT run, day, hash, call, text_group FROM text_hashes ORDER BY hash")
    found = []
    for row in groups:
        texts = read_group(row["texts"])
        words = distinct_words([one.text for one in texts])
        assert sorted(row["words"].replace("'", "").split()) == sorted(words)
        assert row["newest_at"] == max(one.started_at for one in texts)
        found += [(row["run"], row["day"], one.hash, one.call, row["id"], one) for one in texts]
    assert sorted(one[:5] for one in found) == sorted(map(tuple, hashes))
    return sorted([("default", *one[:4], one[5]) for one in found], key=lambda one: one[:4])


async def derived_texts(database: Database) -> list[tuple[object, ...]]:
    """The texts as they are when everything is derived again."""
    async for _ in TextIndex(database, derive).rebuild("default"):
        pass
    return await stored_texts(database)


@pytest.fixture
async def followed_database(database: Database) -> Database:
    """A database whose consumer has a position, so that it does not rebuild."""
    await store(BatchWriter(database), Agent(turns=1, offset=-9000).run("first"))
    await follow(database, TextIndex(database, derive))
    return database


async def test_what_ingest_hands_over_is_indexed_without_deriving(followed_database: Database) -> None:
    fresh = FreshTexts()
    writer = BatchWriter(followed_database, note_call=fresh.note_call)
    exchanges = [*Agent(turns=4).run("a"), *Agent(turns=3, offset=50, system="Be polite.").run("b")]
    for place in range(0, len(exchanges), 3):
        await store(writer, exchanges[place : place + 3])
    await store(writer, exchanges[:2])  # stored already
    await follow(followed_database, TextIndex(followed_database, derive_nothing, fresh))
    found = await stored_texts(followed_database)
    assert {row[1] for row in found} == {"first", "a", "b"}
    assert found == await derived_texts(followed_database)


async def test_a_conversation_that_is_sent_again_is_indexed_once(followed_database: Database) -> None:
    fresh = FreshTexts()
    writer = BatchWriter(followed_database, note_call=fresh.note_call)
    system, finds = "Be brief. " * 50, lambda turn: {"found": f"alpha {turn} beta " * 30}
    # The second begins like the first, and has as texts what is none in the first: descriptions of tools are not indexed.
    described = [{"name": "search", "content": f"gamma {number} delta " * 60} for number in range(3)]
    first = Agent(turns=5, system=system, finds=finds, extra={"tools": described})
    again = replace(first, turns=6, offset=90, extra={"documents": described})
    for one in [*first.run("a"), *again.run("a"), *again.run("another")]:
        await store(writer, [one])
    await follow(followed_database, TextIndex(followed_database, derive_nothing, fresh))
    assert await stored_texts(followed_database) == await derived_texts(followed_database)


@pytest.mark.parametrize(("name", "limit"), [("MOST_CHARACTERS", 300), ("MOST_HASHES", 3), ("HELD_SECONDS", -1.0)])
async def test_what_is_not_held_is_derived(
    followed_database: Database, monkeypatch: pytest.MonkeyPatch, name: str, limit: float
) -> None:
    monkeypatch.setattr(fresh_texts, name, limit)
    fresh = FreshTexts()
    writer = BatchWriter(followed_database, note_call=fresh.note_call)
    for run in ("a", "b"):
        await store(writer, Agent(turns=4).run(run))
    await follow(followed_database, TextIndex(followed_database, derive, fresh))
    assert await stored_texts(followed_database) == await derived_texts(followed_database)


async def test_it_says_when_half_of_what_may_be_held_is_held(
    followed_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = FreshTexts()
    writer = BatchWriter(followed_database, note_call=fresh.note_call)
    await store(writer, Agent(turns=4).run("a"))
    held = sum(len(text.text) for call in fresh._calls.values() for text in call.texts)
    said = []
    for limit in (3 * held, held):
        monkeypatch.setattr(fresh_texts, "MOST_CHARACTERS", limit)
        said.append(fresh.is_half_full)
    await follow(followed_database, TextIndex(followed_database, derive_nothing, fresh))
    assert [*said, fresh.is_half_full] == [False, True, False]


async def test_what_was_removed_before_it_was_indexed_is_not_indexed(followed_database: Database) -> None:
    fresh = FreshTexts()
    writer = BatchWriter(followed_database, note_call=fresh.note_call)
    index = TextIndex(followed_database, derive, fresh)
    erased, *others = Agent(turns=3).run("a")
    await store(writer, [erased, *others])
    await store(writer, Agent(turns=3, offset=60).run("gone"))
    await erase_exchanges(followed_database, "default", "a", [uuid.UUID(erased.id)], NOON)
    await Runs(followed_database).delete("gone")
    await follow(followed_database, index)
    # As the eraser does.
    await index.index_calls("default", [one.id for one in others])
    await store(writer, Agent(turns=2, offset=60).run("gone"))
    await follow(followed_database, index)
    found = await stored_texts(followed_database)
    assert uuid.UUID(erased.id) not in {row[4] for row in found}
    assert found == await derived_texts(followed_database)
