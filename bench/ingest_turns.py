"""Drain spools in turns with others: a process of `bench.ingest_beside`, whose modules are those of the checkout on its path.

A line of stdin is a workload, the number of the turn and how many calls; a line of stdout is what they cost.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg

from bench.figures import cpu, cpu_with_children
from bench.filled import fill
from bench.ingest import WORKLOADS, keeping

PATIENCE = 300.0

# Sums, words and models. What only serves clients that wait, or the metrics of a process, is left out.
BEHIND = """
SELECT count(*) FROM (SELECT project, max(transaction) AS newest FROM feed GROUP BY project) AS written
CROSS JOIN (SELECT DISTINCT consumer FROM feed_positions WHERE consumer ~ '^(sums|texts|models)/') AS consumers
LEFT JOIN feed_positions USING (project, consumer)
WHERE feed_positions.transaction IS NULL OR feed_positions.transaction < newest
"""


def measure(kept: Any, workload: str, number: int, calls: int) -> dict[str, float]:
    """Fill a spool, hand it over; CPU for a call until it is drained, and until all that follows is done."""
    aside: Path = kept.data.root / f"filled-{workload}-{number}"
    count, _ = asyncio.run(fill(aside, WORKLOADS[workload](number * 10_000, calls)))
    # What the last turn has left to do is not counted in this one.
    _wait_until(lambda: not asyncio.run(_is_behind(kept.dsn)))
    before = _cpu(kept)
    spool = aside.rename(kept.data.spools / aside.name)
    _wait_until(lambda: not spool.exists())
    drained = _cpu(kept)
    _wait_until(lambda: not asyncio.run(_is_behind(kept.dsn)))
    followed = _cpu(kept)
    return {
        "drained_us": _each(before, drained, count),
        "followed_us": _each(before, followed, count),
        "store_us": (followed[0] - before[0]) / count * 1e6,
        "postgres_us": (followed[1] - before[1]) / count * 1e6,
    }


def _cpu(kept: Any) -> tuple[float, float]:
    return cpu(kept.store_server), cpu_with_children(kept.postgres)


def _each(before: tuple[float, float], after: tuple[float, float], count: int) -> float:
    return (sum(after) - sum(before)) / count * 1e6


async def _is_behind(dsn: str) -> bool:
    connection = await asyncpg.connect(dsn)
    try:
        if await connection.fetchval("SELECT to_regclass('feed')") is None:
            return False
        return bool(await connection.fetchval(BEHIND))
    finally:
        await connection.close()


def _wait_until(is_done: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_done():
        if time.monotonic() > deadline:
            raise SystemExit("the store server did not finish in time")
        time.sleep(0.1)


def main() -> None:
    """Answer one line after the other, until stdin ends."""
    with keeping() as kept:
        for line in sys.stdin:
            print(json.dumps(measure(kept, *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
