"""Objects that nothing names go; those that something names, or is about to name, stay."""

import asyncio
import time
import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace

from calls.model import Exchange
from store.database.connection import Database
from store.database.object_forms import ObjectRef, ObjectStorageDown
from store.erasure.erase_rows import erase_run
from store.erasure.eraser import Eraser
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.objects import collection
from store.objects.body_objects import BodyObjects
from store.objects.registry import reserve_objects
from tests.store.objects.test_body_objects import (
    conversation,
    noise,
    object_files,
    object_storage,
    read_exchanges,
    store,
)
from tests.store.samples import NOON
from tests.store.sums.test_run_sums import derive

HOUR = 3600 * 1_000_000_000


def eraser(database: Database) -> Eraser:
    return Eraser(database=database, derive=derive, project="default", data=None, now=lambda: NOON)


async def test_erasing_a_run_deletes_the_objects_that_no_other_needs(database: Database, tmp_path: Path) -> None:
    database.objects = object_storage(database, tmp_path)
    night, day = conversation("night"), conversation("day", turns=1)
    await store(database, [*night, *_renumber(day)])
    report = await eraser(database).erase_run("night")
    assert report is not None
    # The first answer and the first message of both are equal.
    assert (report.objects, len(object_files(tmp_path))) == (4, 2)
    assert await read_exchanges(database, "day") == _renumber(day)
    report = await eraser(database).erase_run("day")
    assert report is not None
    assert (report.objects, object_files(tmp_path)) == (2, [])


def _renumber(exchanges: list[Exchange]) -> list[Exchange]:
    """The same exchanges with other ids."""
    return [replace(one, id=str(uuid.UUID(int=uuid.UUID(one.id).int + 1))) for one in exchanges]


async def test_erasing_a_call_keeps_the_others_of_its_run(database: Database, tmp_path: Path) -> None:
    database.objects = object_storage(database, tmp_path)
    made = conversation()
    await store(database, made)
    report = await eraser(database).erase_exchanges({"night": [made[2].id]})
    assert report is not None
    assert report.objects == 2
    assert await read_exchanges(database) == made[:2]
    report = await eraser(database).erase_exchanges({"night": [made[0].id]})
    assert report is not None
    assert await read_exchanges(database) == [made[1]]


async def test_an_erasure_while_object_storage_is_down_changes_nothing(database: Database, tmp_path: Path) -> None:
    database.objects = object_storage(database, tmp_path)
    made = conversation()
    await store(database, made)
    (tmp_path / "bucket").rename(tmp_path / "away")
    (tmp_path / "bucket").write_text("")
    database.objects = object_storage(database, tmp_path)
    with pytest.raises(ObjectStorageDown):
        await eraser(database).erase_exchanges({"night": [made[0].id]})
    (tmp_path / "bucket").unlink()
    (tmp_path / "away").rename(tmp_path / "bucket")
    database.objects = object_storage(database, tmp_path)
    assert await read_exchanges(database) == made


async def test_what_a_killed_writer_left_goes_after_a_while(database: Database, tmp_path: Path) -> None:
    now = [time.time_ns()]
    storage = database.objects = object_storage(database, tmp_path)
    storage._now = lambda: now[0]
    await store(database, conversation(turns=1))
    kept = object_files(tmp_path)
    # Written, and the process died before the row that names it.
    await storage.write("default", {b"x": noise(9000, 77).encode()})
    assert len(object_files(tmp_path)) == len(kept) + 1
    assert await storage.collect(["default"]) == 0
    now[0] += 2 * HOUR
    assert await storage.collect(["default"]) == 1
    assert object_files(tmp_path) == kept
    # Without even a row: as after a restore of an older state of the database.
    stray = kept[0].with_name(kept[0].name[:2] + "ab" * 31)
    stray.write_bytes(b"stray")
    assert await storage.collect(["default"]) == 0
    now[0] += 48 * HOUR
    assert await storage.collect(["default"]) == 1
    assert object_files(tmp_path) == kept


async def test_a_copy_of_the_database_deletes_nothing(database: Database, tmp_path: Path) -> None:
    storage = database.objects = object_storage(database, tmp_path)
    await store(database, conversation())
    files = object_files(tmp_path)
    for owner in (tmp_path / "bucket" / "owner").iterdir():
        owner.write_text("another database")
    copy = database.objects = object_storage(database, tmp_path)
    report = await eraser(database).erase_run("night")
    assert report is not None
    assert report.objects == 0
    assert "belong to another database" in report.remains[0]
    assert await copy.write("default", {b"x": noise(9000, 77).encode()}) == {}
    assert object_files(tmp_path) == files
    assert storage.trouble is None


class _SlowWriter(BodyObjects):
    """Waits between the object and the row that names it."""

    def __init__(self, inner: BodyObjects, deleted: asyncio.Event, written: asyncio.Event) -> None:
        self.__dict__ = inner.__dict__
        self.deleted, self.was_written = deleted, written

    async def write(self, project, contents):  # type: ignore[no-untyped-def]
        found = await super().write(project, contents)
        self.was_written.set()
        await self.deleted.wait()
        return found


async def test_what_is_deleted_before_its_row_is_stored_in_the_database(database: Database, tmp_path: Path) -> None:
    deleted, written = asyncio.Event(), asyncio.Event()
    storage = object_storage(database, tmp_path)
    database.objects = _SlowWriter(storage, deleted, written)
    made = conversation(turns=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(store(database, made))
        await written.wait()
        async with database.connection() as connection:
            rows = await connection.fetch("SELECT address FROM objects")
        assert (
            await collection.delete_unused(database, storage.bucket, "default", [row["address"] for row in rows]) == 2
        )
        # Another writer has begun to write the same object again, and not finished.
        key = storage.keys.key("default")
        refs = [ObjectRef(key.id, row["address"], 1) for row in rows]
        await reserve_objects(database, "default", refs, NOON)
        deleted.set()
    database.objects = object_storage(database, tmp_path)
    assert object_files(tmp_path) == []
    assert await read_exchanges(database) == made


async def test_many_writers_and_collectors_lose_nothing(database: Database, tmp_path: Path) -> None:
    """Runs with the same bodies are stored and erased again and again, by two servers, while unused objects are deleted at once."""
    database.objects = storage = object_storage(database, tmp_path)
    monkey = collection.GRACE
    collection.GRACE = -HOUR  # type: ignore[misc]
    try:
        await asyncio.wait_for(_run_storm(database, storage, tmp_path), 100)
    finally:
        collection.GRACE = monkey  # type: ignore[misc]


async def _run_storm(database: Database, storage: BodyObjects, tmp_path: Path) -> None:
    stop = asyncio.Event()

    async def collect() -> None:
        while not stop.is_set():
            await storage.collect(["default"])
            await asyncio.sleep(0)

    async def write(name: str, seed: int) -> None:
        writer = BatchWriter(database)
        for number in range(6):
            run = f"{name}-{number}"
            made = [_move_exchange(one, run, seed * 100 + number) for one in conversation(run, turns=2)]
            for one in made:
                await writer.write_batch([DerivedExchange(one, derive(one))])
            storage._cache.clear()
            assert await read_exchanges(database, run) == made
            if number % 2:
                gone = await erase_run(database, "default", run, NOON)
                assert gone is not None
                await storage.delete_unused("default", gone.addresses)

    async with asyncio.TaskGroup() as group:
        collecting = group.create_task(collect())
        await asyncio.gather(*(write(name, seed) for seed, name in enumerate(("a", "b", "c"), 1)))
        stop.set()
        await collecting
    for name in ("a-0", "b-4", "c-2"):
        storage._cache.clear()
        assert len(await read_exchanges(database, name)) == 2


def _move_exchange(one: Exchange, run: str, number: int) -> Exchange:
    return replace(one, run=run, id=str(uuid.UUID(int=uuid.UUID(one.id).int + number * 1000)))
