"""Wait for a database that is unavailable, refuses us or has newer tables when the store server starts.

Each of these can be corrected in the database, so none of them ends the server: it serves, reports that it is not ready, and
why. So it does if a pooler gives each transaction another session of Postgres. Since PgBouncer 1.21, statements work there. What
belongs to the session does not: an advisory lock is taken in one session and released in another, so that what it guards never
runs again, and a setting reaches other clients.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from store.database.connection import (
    POOLER_ADVICE,
    Database,
    DatabaseUnavailable,
    DatabaseUnusable,
    translate_errors,
    url_without_password,
)

RETRY_PAUSES: Final = (0.1, 2.0)
"""Seconds between two attempts: at first, and at most."""

REPEAT_EVERY: Final = 30.0
"""Seconds after which the same obstacle is reported again."""

SESSION_ROUNDS: Final = 3
"""Comparisons of sessions. Other clients of a pooler may take the session that one of them waits for."""

_SESSION: Final = "SELECT pg_backend_pid()"


async def wait_until_prepared(
    prepare: Callable[[], Awaitable[None]], database: Database, report: Callable[[str], None]
) -> None:
    """Prepare the database, however long that takes; `report` gets a message for each new obstacle and one at the end."""
    loop = asyncio.get_running_loop()
    name, began, reported = url_without_password(database.url), loop.time(), -REPEAT_EVERY
    pause, longest = RETRY_PAUSES
    last = ""
    while (obstacle := await _find_obstacle(prepare)) is not None:
        database.obstacle = obstacle
        if obstacle != last or loop.time() - reported >= REPEAT_EVERY:
            report(f"waiting for the database {name}: {obstacle}")
            last, reported = obstacle, loop.time()
        await asyncio.sleep(pause)
        pause = min(pause * 2, longest)
    if last:
        report(f"the database {name} is ready, after {loop.time() - began:.0f} s")


async def _find_obstacle(prepare: Callable[[], Awaitable[None]]) -> str | None:
    """Why the database cannot be used yet; None where it can."""
    try:
        await prepare()
    except DatabaseUnavailable as error:
        return f"{error} Retrying until it answers."
    except DatabaseUnusable as error:
        return f"{error} Correct this in the database, or stop Playhead and correct --database-url."
    return None


async def require_own_sessions(connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
    """Raise `DatabaseUnusable` if a connection loses its session to another one between two transactions."""
    with translate_errors():
        first = await connect()
        try:
            second = await connect()
            try:
                for _ in range(SESSION_ROUNDS):
                    if await _shares_sessions(first, second):
                        raise DatabaseUnusable(POOLER_ADVICE)
            finally:
                await second.close()
        finally:
            await first.close()


async def _shares_sessions(first: asyncpg.Connection, second: asyncpg.Connection) -> bool:
    before = await first.fetchval(_SESSION)
    # A pooler has most likely given this transaction the session that has just become free.
    async with second.transaction():
        other = await second.fetchval(_SESSION)
        after = await first.fetchval(_SESSION)
    return bool(before == other or before != after)
