"""Try a transaction again that conflicts with another, a few times."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from store.database.connection import DatabaseUnavailable

RETRY_PAUSES: Final = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Seconds between attempts of a transaction that conflicts with another."""


class TransactionConflict(Exception):
    """Another transaction has changed what this one relied on, and the next attempt may succeed."""


TRANSIENT_ERRORS: Final = (
    TransactionConflict,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)


async def retry_conflicts[T](attempt: Callable[[], Awaitable[T]]) -> T:
    """Make a transaction, again where another prevents it. Raises `DatabaseUnavailable` if that happens too often."""
    for pause in RETRY_PAUSES:
        try:
            return await attempt()
        except TRANSIENT_ERRORS:
            await asyncio.sleep(pause)
    raise DatabaseUnavailable("The transaction conflicted with others too often.")
