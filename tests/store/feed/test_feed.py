"""The feed has what was stored, once and in order, and a consumer processes every entry once."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest
from msgspec.structs import replace

from calls.events import Gap
from calls.model import ToolCall
from store.database.connection import Database
from store.database.traits import TRAITS_OF_COLUMNS
from store.feed import consumer
from store.feed.consumer import ConsumerRunner, pause_after
from store.feed.entries import (
    CallStored,
    FeedEntry,
    GapStored,
    RunBegan,
    RunChanged,
    RunDeleted,
    decode_entries,
    encode_entries,
)
from store.feed.feed import BEGINNING, FeedRow, append_entries, delete_old_entries, read_feed
from store.feed.feed_watch import FeedWatch
from store.feed.signal import FeedSignal
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.runs import Runs
from tests.store.samples import NOON, model_call, tool_exchange
from tests.store.samples import exchange as made_exchange

PROJECT = "default"


async def entries(database: Database) -> list[FeedEntry]:
    """Everything in the feed."""
    async with database.connection() as connection:
        return [entry for row in await read_feed(connection, PROJECT, BEGINNING) for entry in row.entries]


async def test_a_batch_that_is_written_twice_is_in_the_feed_once(database: Database) -> None:
    writer = BatchWriter(database)
    batch = [tool_exchange(0, run="night"), tool_exchange(1, run="night")]
    for _ in range(2):
        await writer.write_batch(batch, [Gap("night", NOON, "a cut", None)])
    began, *rest = await entries(database)
    assert isinstance(began, RunBegan)
    assert [type(entry) for entry in rest] == [CallStored, CallStored, GapStored]
    assert [entry.id for entry in rest if isinstance(entry, CallStored)] == [one.exchange.id for one in batch]


async def test_changes_and_the_end_of_a_run_are_in_the_feed(database: Database) -> None:
    runs = Runs(database)
    await runs.put("night", 1)
    await runs.put("night", 2, "a name")
    await runs.patch("night", labels={"a": "b"})
    await runs.delete("night")
    assert not await runs.delete("night")
    assert [type(entry) for entry in await entries(database)] == [RunBegan, RunChanged, RunChanged, RunDeleted]


async def test_a_transaction_that_commits_late_is_not_skipped(database: Database, database_url: str) -> None:
    slow = await asyncpg.connect(database_url)
    began = slow.transaction()
    await began.start()
    await append_entries(slow, PROJECT, [RunChanged("early", 1)])
    async with database.connection() as connection:
        await append_entries(connection, PROJECT, [RunChanged("late", 2)])
        assert await read_feed(connection, PROJECT, BEGINNING) == []
        await began.commit()
        rows = await read_feed(connection, PROJECT, BEGINNING)
        assert [entry.run for row in rows for entry in row.entries if isinstance(entry, RunChanged)] == [
            "early",
            "late",
        ]
        assert [row.position for row in await read_feed(connection, PROJECT, rows[0].position)] == [rows[1].position]
    await slow.close()


class Names:
    """A consumer that collects the runs it is told of."""

    name = "names"

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.rebuilds = 0

    async def process(self, connection: asyncpg.Connection, project: str, rows: Sequence[FeedRow]) -> None:
        self.seen += [entry.run for row in rows for entry in row.entries if isinstance(entry, RunChanged)]

    async def rebuild(self, project: str) -> AsyncIterator[None]:
        self.rebuilds += 1
        yield


async def test_a_consumer_processes_each_entry_once_and_rebuilds_when_entries_are_gone(database: Database) -> None:
    await Runs(database).put("night", 1)
    names = Names()
    runner = ConsumerRunner(database, names, FeedSignal())
    assert await runner.process_new()
    assert not await runner.process_new()
    assert names.rebuilds == 1
    for number in range(3):
        async with database.connection() as connection:
            await append_entries(connection, PROJECT, [RunChanged(str(number), number)], now=1)
    again = ConsumerRunner(database, names, FeedSignal())
    assert await again.process_new()
    assert not await again.process_new()
    assert names.seen == ["0", "1", "2"]
    async with database.connection() as connection:
        await append_entries(connection, PROJECT, [RunChanged("lost", 4)], now=1)
        await delete_old_entries(connection, 1 << 62)
    await again.process_new()
    assert names.rebuilds == 2
    assert not await again.process_new()


class SlowNames(Names):
    """A consumer that takes some transactions to rebuild."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database

    async def rebuild(self, project: str) -> AsyncIterator[None]:
        self.rebuilds += 1
        for _ in range(20):
            async with self.database.connection() as connection:
                await connection.execute("SELECT pg_sleep(0.01)")
            yield


async def test_one_store_server_at_a_time_rebuilds_a_result(database: Database, database_url: str) -> None:
    await Runs(database).put("night", 1)
    other = Database(database_url)
    await other.connect()
    both = [SlowNames(database), SlowNames(other)]
    runners = [ConsumerRunner(names.database, names, FeedSignal()) for names in both]
    await asyncio.gather(*(runner.process_new() for runner in runners))
    assert [names.rebuilds for names in both] in ([1, 0], [0, 1])
    assert not any([await runner.process_new() for runner in runners])
    await other.close()


class StoredMeanwhile(Names):
    """A consumer during whose batches more is stored."""

    def __init__(self, signal: FeedSignal) -> None:
        super().__init__()
        self.signal = signal
        self.has_seen = asyncio.Event()

    async def process(self, connection: asyncpg.Connection, project: str, rows: Sequence[FeedRow]) -> None:
        await super().process(connection, project, rows)
        self.signal.send()
        self.has_seen.set()


async def test_a_consumer_pauses_while_more_is_stored_unless_somebody_waits(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [pause_after(1.0, is_storing=False), pause_after(0.1, is_storing=True)] == [0.0, 0.4]
    monkeypatch.setattr(consumer, "pause_after", lambda _, *, is_storing: 600.0 if is_storing else 0.0)
    await Runs(database).put("night", 1)
    signal = FeedSignal()
    names = StoredMeanwhile(signal)
    runner = ConsumerRunner(database, names, signal)
    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        running = group.create_task(runner.run())
        await runner.wait_until_caught_up()
        for name in ("first", "second"):
            async with database.connection() as connection:
                await append_entries(connection, PROJECT, [RunChanged(name, 1)])
            signal.send()
            await names.has_seen.wait()
        assert names.seen == ["first"]
        await runner.wait_until_caught_up()
        assert names.seen == ["first", "second"]
        running.cancel()


async def test_a_consumer_does_not_pause_while_it_is_urgent(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "pause_after", lambda *_, **__: 600.0)
    await Runs(database).put("night", 1)
    signal = FeedSignal()
    names = StoredMeanwhile(signal)
    runner = ConsumerRunner(database, names, signal, is_urgent=lambda: True)
    async with asyncio.TaskGroup() as group, asyncio.timeout(30):
        running = group.create_task(runner.run())
        await runner.wait_until_caught_up()
        for name in ("first", "second"):
            names.has_seen.clear()
            async with database.connection() as connection:
                await append_entries(connection, PROJECT, [RunChanged(name, 1)])
            signal.send()
            await names.has_seen.wait()
        assert names.seen == ["first", "second"]
        running.cancel()


async def test_one_look_notices_what_other_processes_append_once_it_can_be_read(database: Database) -> None:
    watch = FeedWatch(database, FeedSignal())
    assert not await watch.load_changed()
    async with database.connection() as earlier, database.connection() as later:
        await append_entries(later, PROJECT, [RunChanged("first", 1)])
        assert await watch.load_changed()
        assert not await watch.load_changed()
        async with earlier.transaction():
            await append_entries(earlier, "another", [RunChanged("held back", 1)])
            await append_entries(later, PROJECT, [RunChanged("second", 1)])
            # Nobody may read it yet: the first transaction began before.
            assert not await watch.load_changed()
        assert await watch.load_changed()
        assert not await watch.load_changed()


async def test_a_signal_wakes_every_reader() -> None:
    signal = FeedSignal()
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(signal.wait(30))
        await asyncio.sleep(0)
        signal.send()


def test_an_entry_comes_back_as_it_was_written() -> None:
    entries: tuple[FeedEntry, ...] = (RunBegan("a", 1), RunDeleted(str(uuid.uuid4()), 2))
    assert decode_entries(encode_entries(entries)) == entries


async def test_the_traits_that_ingest_writes_are_those_of_the_columns(database: Database) -> None:
    plain, failed, cut = (made_exchange(n, status=status) for n, status in enumerate((200, 429, 200)))
    asked = replace(made_exchange(3), actor="planner")
    batch = [
        tool_exchange(9, run="night"),
        DerivedExchange(plain, model_call(plain, tools=["search", "naïve"])),
        DerivedExchange(failed, model_call(failed)),
        DerivedExchange(replace(cut, outcome="server_closed"), model_call(cut, complete=False, model_returned=None)),
        DerivedExchange(asked, model_call(asked, tool_calls=(ToolCall(id=None, name="a", arguments={}),) * 2)),
        DerivedExchange(replace(made_exchange(4), response=None, outcome="refused"), model_call(made_exchange(4))),
    ]
    await BatchWriter(database).write_batch(batch)
    async with database.connection() as connection:
        rows = await connection.fetch(f"SELECT traits, {TRAITS_OF_COLUMNS} AS expected FROM calls")
    assert len(rows) == len(batch)
    for row in rows:
        assert row["traits"] == sorted(row["expected"])
