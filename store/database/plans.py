"""Choose how Postgres plans statements, and when it reads what it needs for that.

Over all daily partitions, planning a statement for its very values takes 4 to 30 ms, where reading some runs or ids by an index takes one.
A connection that plans over them for the first time reads the descriptions of all, which takes 0.1 to 0.3 s for a month of days.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from store.database.asyncio_engine import AsyncConnection
from store.database.connection import ASYNCPG_ERRORS, Database, DatabaseError
from store.database.tables import PARTITIONED

log = logging.getLogger(__name__)


DELAY: Final = 2.0
"""Seconds after the start: a command that starts a store server for itself goes first."""

FEWEST_DAYS: Final = 8
"""With fewer days, the first request is fast anyway."""

CONNECTIONS: Final = 4
"""Those that the pool of lists keeps open."""


async def plan_without_workers(connection: AsyncConnection) -> None:
    """Have the other statements of the transaction use no parallel workers: to start them takes longer than a page of a list."""
    await connection.execute(_NO_WORKERS)


@asynccontextmanager
async def planned_for_any_values(connection: AsyncConnection) -> AsyncIterator[None]:
    """Have the statements in this block use plans that are made once, which an index of runs or ids serves whatever the values are."""
    before = await connection.scalar(_FOR_ANY_VALUES)
    yield
    # After an error the transaction ends, and the setting with it.
    await connection.execute(_AS_BEFORE, {"mode": before})


async def warm_connections(database: Database) -> None:
    """Open the connections of both pools and have them know the partitions, one after the other."""
    await asyncio.sleep(DELAY)
    try:
        async with database.connection() as connection:
            if await connection.fetchval(COUNT_DAYS) < FEWEST_DAYS:
                return
            for statement in STATEMENTS:
                await connection.execute(statement)
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                own = await stack.enter_async_context(database.transaction())
                for statement in STATEMENTS:
                    await own.execute(text(statement))
    except (DatabaseError, SQLAlchemyError, *ASYNCPG_ERRORS) as error:
        # Also where a partition is replaced at this moment: nobody has asked for anything.
        log.info("the first requests will be slower, since connections could not be opened ahead: %s", error)


COUNT_DAYS: Final = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'calls'::regclass"

# No run has this name. All days are planned for, since nothing names one.
STATEMENTS: Final = tuple(f"SELECT FROM {table.name} WHERE project = '' AND run = ''" for table in PARTITIONED)

_NO_WORKERS: Final = text("SET LOCAL max_parallel_workers_per_gather = 0")
# Evaluated in this order.
_FOR_ANY_VALUES: Final = text(
    "SELECT current_setting('plan_cache_mode'), set_config('plan_cache_mode', 'force_generic_plan', true)"
)
_AS_BEFORE: Final = text("SELECT set_config('plan_cache_mode', :mode, true)")
