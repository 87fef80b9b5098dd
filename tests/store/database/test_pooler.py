"""Poolers that give each transaction another session of Postgres."""

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest

from store.database.connection import Database, DatabaseUnusable
from store.database.wait import require_own_sessions
from store.ingest.batch_writer import BatchWriter
from store.server import _prepare


class Pool:
    """The sessions of a pooler, as PgBouncer keeps them: the one that became free last is taken first."""

    def __init__(self, free: list[int]) -> None:
        self.free = free

    async def connect(self) -> asyncpg.Connection:
        return cast(asyncpg.Connection, PooledConnection(self))


class PooledConnection:
    """A connection that has a session in a transaction only."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._held: int | None = None

    async def fetchval(self, _: str) -> int:
        return self._pool.free[-1] if self._held is None else self._held

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._held = self._pool.free.pop()
        yield
        self._pool.free.append(self._held)
        self._held = None

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("sessions", [[1, 2], [5, 4, 3, 2, 1]])
async def test_a_pooler_that_shares_sessions_is_refused(sessions: list[int]) -> None:
    with pytest.raises(DatabaseUnusable, match="pool_mode=session"):
        await require_own_sessions(Pool(sessions).connect)


async def test_postgres_itself_is_accepted(database: Database) -> None:
    await require_own_sessions(database.connect_alone)


@pytest.mark.parametrize("may_be_pooled", [True, False])
async def test_a_store_server_uses_no_such_pooler(
    may_be_pooled: bool, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded Postgres has none, and is not asked."""
    monkeypatch.setattr(database, "connect_alone", Pool([1, 2]).connect)
    created: list[dt.date] = []

    class Writer:
        async def create_upcoming_partitions(self, today: dt.date) -> None:
            created.append(today)

    writer: Any = Writer()
    if may_be_pooled:
        with pytest.raises(DatabaseUnusable, match="pool_mode=session"):
            await _prepare(database, cast(BatchWriter, writer), may_be_pooled=True)
    else:
        await _prepare(database, cast(BatchWriter, writer), may_be_pooled=False)
    assert bool(created) is not may_be_pooled
