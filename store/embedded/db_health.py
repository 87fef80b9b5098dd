"""Check whether Postgres answers, within a time limit."""

import asyncio
from typing import Final

from store.database.connection import Database, DatabaseError

TIMEOUT: Final = 2.0
"""Seconds after which a database that does not answer counts as unavailable."""


class DatabaseHealth:
    """Checks a database with one query at a time, so that a frozen server does not use up a connection for each check."""

    def __init__(self) -> None:
        self._query: asyncio.Task[dict[str, str]] | None = None

    async def troubles(self, database: Database) -> dict[str, str]:
        """What is wrong with the database, by the key `database`; empty if it answers."""
        if self._query is None or self._query.done():
            self._query = asyncio.Task(_query_database(database))
        # A late query is not cancelled, because asyncpg would wait for the server to confirm that.
        done, _ = await asyncio.wait({self._query}, timeout=TIMEOUT)
        return self._query.result() if done else {"database": f"Postgres has not answered for {TIMEOUT:g} s."}


async def _query_database(database: Database) -> dict[str, str]:
    try:
        async with database.connection() as connection:
            await connection.fetchval("SELECT 1")
    except DatabaseError as error:
        return {"database": str(error)}
    return {}
