"""Tell whether Postgres answers, within a time limit."""

import asyncio
from typing import Final

from store.database.connection import Database, DatabaseError

PATIENCE: Final = 2.0
"""Seconds."""


class Pulse:
    """Asks one question at a time: a server that is frozen would else take one connection with each."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[dict[str, str]] | None = None

    async def troubles(self, database: Database) -> dict[str, str]:
        """What is wrong with it, if anything is."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.Task(_asked(database))
        # Not cancelled where it is late: asyncpg would wait for the server to hear of that.
        done, _ = await asyncio.wait({self._asking}, timeout=PATIENCE)
        return self._asking.result() if done else {"database": f"Postgres has not answered for {PATIENCE:g} s."}


async def _asked(database: Database) -> dict[str, str]:
    try:
        async with database.raw() as connection:
            await connection.fetchval("SELECT 1")
    except DatabaseError as error:
        return {"database": str(error)}
    return {}
