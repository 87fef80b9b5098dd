"""Drain spools for `bench.ingest_beside`, with the modules of the checkout on PYTHONPATH.

Its argument, if any, is a directory with the data that `bench.scale --data` made. Each line of stdin is JSON with a
workload, the number of the turn and the number of calls; each line of stdout is JSON with their cost.
"""

import asyncio
import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg

from bench import ingest
from bench.figures import cpu, cpu_with_children

# Checkouts from before 27 November 2026 have it in `filled`.
fill = import_module("bench.fill_spool" if find_spec("bench.fill_spool") else "bench.filled").fill

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
    """Fill a spool and give it to the store server; return the CPU of a call until it is drained, and until the
    consumers of the feed have processed it.
    """
    aside: Path = store.data.root / f"filled-{workload}-{number}"
    count, _ = await fill(aside, ingest.WORKLOADS[workload](number * 10_000, calls))
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
    """Wait until the consumers of the feed have processed everything."""
    if await connection.fetchval("SELECT to_regclass('feed')") is None:
        return
    async with asyncio.timeout(PATIENCE):
        while await connection.fetchval(BEHIND):  # noqa: ASYNC110 - another process follows
            await asyncio.sleep(0.2)


async def answer_lines() -> None:
    """Measure what each line of stdin says, until stdin is closed."""
    # Before 27 November 2026 the function was named `keeping`, and before that it took no directory.
    run_store_server = getattr(ingest, "run_store_server", None) or getattr(ingest, "keeping")  # noqa: B009
    with run_store_server(*map(Path, sys.argv[1:])) as store:
        connection = await asyncpg.connect(store.dsn)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await measure(store, connection, *json.loads(line))), flush=True)
        await connection.close()


if __name__ == "__main__":
    asyncio.run(answer_lines())
