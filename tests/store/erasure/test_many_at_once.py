"""Erasures, recording and what follows the record meet in every order, and nobody fails or loses anything."""

import asyncio

from store.database.connection import Database
from store.feed.signal import FeedSignal
from store.followers import Followers
from store.ingest.batch_writer import BatchWriter
from tests.store.erasure.test_eraser import CANARY, conversation, eraser, exchanges_of, store
from tests.store.sums.test_run_sums import derive


async def test_many_erasures_while_others_record(database: Database) -> None:
    runs = {name: conversation(name, CANARY) for name in ("a", "b", "c", "d", "e", "f")}
    for made in runs.values():
        await store(database, made)
    new = {name: conversation(name, "harmless") for name in ("x", "y")}
    async with asyncio.TaskGroup() as group:
        following = group.create_task(Followers(database, FeedSignal(), derive).run())
        async with asyncio.TaskGroup() as work:
            for name in ("a", "b", "c"):
                for turn in (1, 2):
                    work.create_task(eraser(database).erase_exchanges({name: [runs[name][turn].id]}))
            for name in ("d", "e", "f"):
                work.create_task(eraser(database).erase_run(name))
            for made in new.values():
                work.create_task(store(database, made, BatchWriter(database)))
        following.cancel()
    # Nobody waits in a circle, which Postgres ends by failing one of those who wait.
    async with database.connection() as connection:
        assert await connection.fetchval(DEADLOCKS) == 0
    for name in ("a", "b", "c"):
        assert await exchanges_of(database, name) == [runs[name][0], runs[name][3]]
    for name in ("d", "e", "f"):
        assert await exchanges_of(database, name) == []
    for name, made in new.items():
        assert await exchanges_of(database, name) == made


DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
