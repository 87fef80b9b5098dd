"""Wait for a database that is unavailable, refuses us or has newer tables when the store server starts.

A person can mend each of these on the database's side, so none of them ends the server: it serves, is not ready and says why.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from store.database.connection import Database, Unavailable, Unusable, address

PAUSES: Final = (0.1, 2.0)
"""Seconds between two tries: at first, and at most."""

REPEAT_EVERY: Final = 30.0
"""Seconds after which the same obstacle is reported again."""


async def wait_until_prepared(
    prepare: Callable[[], Awaitable[None]],
    database: Database,
    report: Callable[[str], None],
    *,
    pauses: tuple[float, float] = PAUSES,
) -> None:
    """Prepare the database, however long that takes; `report` gets a sentence for each new obstacle, and one at the end."""
    loop = asyncio.get_running_loop()
    name, began, reported = address(database.url), loop.time(), -REPEAT_EVERY
    pause, longest = pauses
    last = ""
    while (obstacle := await _obstacle(prepare)) is not None:
        database.obstacle = obstacle
        if obstacle != last or loop.time() - reported >= REPEAT_EVERY:
            report(f"waiting for the database {name}: {obstacle}")
            last, reported = obstacle, loop.time()
        await asyncio.sleep(pause)
        pause = min(pause * 2, longest)
    if last:
        report(f"the database {name} is ready, after {loop.time() - began:.0f} s")


async def _obstacle(prepare: Callable[[], Awaitable[None]]) -> str | None:
    """Why the database cannot be used yet; None where it can."""
    try:
        await prepare()
    except Unavailable as error:
        return f"{error} It is tried again until it answers."
    except Unusable as error:
        return f"{error} Correct that in the database, or stop this and correct --database-url."
    return None
