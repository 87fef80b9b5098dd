"""Drain spools in turns with others: a process of `bench.ingest_beside`, whose modules are those of the checkout on its path.

With a directory, over the data that `bench.scale --data` made there. A line of stdin is a workload, the number of the turn and how many calls; a line of stdout is what they cost.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import asyncpg

from bench.figures import cpu, cpu_with_children
from bench.fill_spool import fill
from bench.ingest import WORKLOADS, keeping

PATIENCE = 300.0

# Sums, words and models. What only serves clients that wait, or the metrics of a process, is left out.
BEHIND = """
SELECT count(*) FROM (SELECT project, max(transaction) AS newest FROM feed GROUP BY project) AS written
CROSS JOIN (SELECT DISTINCT consumer FROM feed_positions WHERE consumer ~ '^(sums|texts|models)/') AS consumers
LEFT JOIN feed_positions USING (project, consumer)
WHERE feed_positions.transaction IS NULL OR feed_positions.transaction < newest
"""


async def measure(
    store: Any, connection: asyncpg.Connection, workload: str, number: int, calls: int
) -> dict[str, float]:
    """Fill a spool, hand it over; CPU for a call until it is drained, and until all that follows is done."""
    aside: Path = store.data.root / f"filled-{workload}-{number}"
    count, _ = await fill(aside, WORKLOADS[workload](number * 10_000, calls))
    # What the last turn has left to do is not counted in this one.
    await _wait_until_followed(connection)
    before = _cpu(store)
    spool = await asyncio.to_thread(aside.rename, store.data.spools / aside.name)
    await _wait_until_drained(spool)
    drained = _cpu(store)
    await _wait_until_followed(connection)
    followed = _cpu(store)
    return {
        "drained_us": _each(before, drained, count),
        "followed_us": _each(before, followed, count),
        "store_us": (followed[0] - before[0]) / count * 1e6,
        "postgres_us": (followed[1] - before[1]) / count * 1e6,
    }


def _cpu(store: Any) -> tuple[float, float]:
    return cpu(store.store_server), cpu_with_children(store.postgres)


def _each(before: tuple[float, float], after: tuple[float, float], count: int) -> float:
    return (sum(after) - sum(before)) / count * 1e6


async def _wait_until_drained(spool: Path) -> None:
    """Wait until the store server has removed a spool."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(spool.exists):  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.05)


async def _wait_until_followed(connection: asyncpg.Connection) -> None:
    """Wait until everything that follows the record has processed it."""
    if await connection.fetchval("SELECT to_regclass('feed')") is None:
        return
    async with asyncio.timeout(PATIENCE):
        while await connection.fetchval(BEHIND):  # noqa: ASYNC110 - another process follows
            await asyncio.sleep(0.2)


async def answer_lines() -> None:
    """Answer one line after the other, until stdin ends."""
    # The checkout's own `keeping` may know no directories.
    with keeping(*map(Path, sys.argv[1:])) as store:
        connection = await asyncpg.connect(store.dsn)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await measure(store, connection, *json.loads(line))), flush=True)
        await connection.close()


if __name__ == "__main__":
    asyncio.run(answer_lines())
