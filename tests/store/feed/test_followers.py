"""When old entries of the feed and of the audit log are deleted."""

import asyncio

import pytest

from calls.derive import derive_call
from store import followers
from store.database.connection import Database, DatabaseUnavailable
from store.feed.signal import FeedSignal
from store.followers import Followers
from tests.store.running_store import PROFILES


async def test_a_deletion_that_failed_is_tried_again_before_the_hour_is_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    deleted = asyncio.Event()

    async def delete(*_: object) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise DatabaseUnavailable("Postgres is not available: it restarts.")
        deleted.set()

    monkeypatch.setattr(followers, "CLEAN_AGAIN_AFTER", 0)
    monkeypatch.setattr(followers, "delete_old_entries", delete)
    part = Followers(database, FeedSignal(), lambda exchange: derive_call(exchange, profiles=PROFILES))
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(part.run())
        await deleted.wait()
        following.cancel()
