"""Wait for a database that is unavailable, refuses us or has newer tables when the store server starts.

Each of these can be corrected in the database, so none of them ends the server: it serves, reports that it is not ready, and
why.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from store.database.connection import Database, DatabaseUnavailable, DatabaseUnusable, url_without_password

RETRY_PAUSES: Final = (0.1, 2.0)
"""Seconds between two attempts: at first, and at most."""

REPEAT_EVERY: Final = 30.0
"""Seconds after which the same obstacle is reported again."""


async def wait_until_prepared(
    prepare: Callable[[], Awaitable[None]],
    database: Database,
    report: Callable[[str], None],
    *,
    pauses: tuple[float, float] = RETRY_PAUSES,
) -> None:
    """Prepare the database, however long that takes; `report` gets a message for each new obstacle and one at the end."""
    loop = asyncio.get_running_loop()
    name, began, reported = url_without_password(database.url), loop.time(), -REPEAT_EVERY
    pause, longest = pauses
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
