"""Choose how Postgres plans statements.

Over all daily partitions, planning a statement for its very values takes 4 to 30 ms, where reading some runs or ids by an index takes one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import text

from store.database.asyncio_engine import AsyncConnection


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


_NO_WORKERS: Final = text("SET LOCAL max_parallel_workers_per_gather = 0")
# Evaluated in this order.
_FOR_ANY_VALUES: Final = text(
    "SELECT current_setting('plan_cache_mode'), set_config('plan_cache_mode', 'force_generic_plan', true)"
)
_AS_BEFORE: Final = text("SELECT set_config('plan_cache_mode', :mode, true)")
