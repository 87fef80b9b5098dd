"""Remove the runs of a plan from everything but the partitions, and note what is to be removed from those.

From then on a run is gone for everybody. Its rows in the partitions follow day by day (`partition_swap`); if the process dies before,
the next one continues with what is noted in `expirations`. A new run of the same name begins without them: `remains`.
"""

import uuid
from collections.abc import Mapping, Sequence
from itertools import batched

import asyncpg

from calls.proof.records import ErasedPart
from store.database.connection import Database
from store.feed.entries import RunChanged, RunDeleted
from store.feed.feed import append_entries
from store.objects.registry import forget_uses
from store.proof.chain import append_erasures, forget_run
from store.retention.plan import Expiry
from store.sums.summed_days import delete_call_sums

BATCH = 100
"""Runs that are removed in one transaction."""


async def expire_runs(
    database: Database, expiries: Sequence[Expiry], replays: Mapping[tuple[str, str], Sequence[str]], now: int
) -> list[Expiry]:
    """Remove whole runs and the reports of their replays; return those that went. A run that has changed since it was judged stays.

    `replays`: the ids of the replays of runs, by project and run.
    """
    expired_runs: list[Expiry] = []
    for project in sorted({one.judged.facts.project for one in expiries}):
        mine = [one for one in expiries if one.judged.facts.project == project and one.part == "run"]
        for batch in batched(mine, BATCH):
            expired_runs += await _expire_batch(database, project, batch, replays, now)
    return expired_runs


async def _expire_batch(
    database: Database,
    project: str,
    batch: Sequence[Expiry],
    replays: Mapping[tuple[str, str], Sequence[str]],
    now: int,
) -> list[Expiry]:
    by_run = {one.judged.facts.run: one for one in batch}
    async with database.connection() as connection, connection.transaction():
        locked = await connection.fetch(LOCK_RUNS, project, sorted(by_run))
        expired_runs = [by_run[row["id"]] for row in locked if _is_unchanged(row, by_run[row["id"]])]
        names = [one.judged.facts.run for one in expired_runs]
        if not names:
            return []
        await connection.execute(NOTE_DAYS, project, names, "run")
        for one in expired_runs:
            await forget_run(connection, project, database.store_server, one.judged.incarnation, now)
        await connection.execute("DELETE FROM runs WHERE project = $1 AND id = ANY ($2::text[])", project, names)
        await forget_uses(connection, project, names)
        for table in ("gaps", "effects", "run_totals", "processes"):
            await connection.execute(
                f"DELETE FROM {table} WHERE project = $1 AND run = ANY ($2::text[])",  # noqa: S608 - one of the constants
                project,
                names,
            )
        await delete_call_sums(connection, project, names)
        ids = [one for name in names for one in replays.get((project, name), ())]
        await connection.execute("DELETE FROM replays WHERE project = $1 AND id = ANY ($2::text[])", project, ids)
        await append_entries(connection, project, [RunDeleted(name, now, is_expired=True) for name in names])
    return expired_runs


def _is_unchanged(row: asyncpg.Record, expiry: Expiry) -> bool:
    facts = expiry.judged.facts
    is_same = (row["incarnation"], row["newest_at"]) == (expiry.judged.incarnation, facts.newest_at)
    return is_same and row["pinned"] == facts.is_pinned and not row["is_forked_from"]


async def expire_bodies(database: Database, expiries: Sequence[Expiry], now: int) -> list[Expiry]:
    """Note that the bodies of runs go, in the chains of the runs too; return the runs. One that has changed since it was judged stays.

    From then on its caches of content are forgotten, and its bodies go day by day (`bodies`).
    """
    expired_runs: list[Expiry] = []
    for one in (one for one in expiries if one.part == "bodies"):
        facts = one.judged.facts
        async with database.connection() as connection, connection.transaction():
            locked = await connection.fetch(LOCK_RUNS, facts.project, [facts.run])
            if not locked or not _is_unchanged(locked[0], one):
                continue
            await connection.execute(NOTE_DAYS, facts.project, [facts.run], "bodies")
            rows = await connection.fetch(WITH_BODIES, facts.project, facts.run)
            bodies: ErasedPart = "bodies"
            erased = [(row["id"], row["started_at"], bodies) for row in rows if row["salt"] is not None]
            # Of effects, what they are is all that there is to keep.
            whole: ErasedPart = "whole"
            gone_effects = await connection.fetch(DELETE_EFFECTS, facts.project, facts.run)
            erased += [(row["id"], row["observed_at"], whole) for row in gone_effects if row["salt"] is not None]
            if erased:
                await append_erasures(
                    connection, facts.project, database.store_server, {one.judged.incarnation: erased}, now, one.rule
                )
            await forget_uses(connection, facts.project, [facts.run])
            await connection.execute(MARK_ERASED, facts.project, facts.run, facts.newest_at, uuid.uuid4())
            await append_entries(connection, facts.project, [RunChanged(facts.run, now)])
        expired_runs.append(one)
    return expired_runs


LOCK_RUNS = """
SELECT id, incarnation, newest_at, pinned,
    EXISTS (SELECT FROM runs AS child WHERE child.project = $1 AND child.parent = runs.id) AS is_forked_from
FROM runs WHERE project = $1 AND id = ANY ($2::text[]) ORDER BY id FOR UPDATE
"""

WITH_BODIES = """
SELECT id, started_at, salt FROM exchanges WHERE project = $1 AND run = $2 AND request_digest IS NOT NULL ORDER BY started_at, id
"""

DELETE_EFFECTS = "DELETE FROM effects WHERE project = $1 AND run = $2 RETURNING id, observed_at, salt"

MARK_ERASED = "UPDATE runs SET bodies_erased_at = $3, encoding = $4 WHERE project = $1 AND id = $2"

# The days are those in the names of the partitions. Parts and texts have the days of their exchanges.
NOTE_DAYS = """
INSERT INTO expirations (project, day, run, part)
SELECT $1, to_date(right(partition, 8), 'YYYYMMDD'), run, $3 FROM (
    SELECT DISTINCT run, tableoid::regclass::text AS partition FROM exchanges WHERE project = $1 AND run = ANY ($2::text[])
    UNION SELECT DISTINCT run, tableoid::regclass::text FROM parts WHERE project = $1 AND run = ANY ($2::text[])
) AS found
ON CONFLICT DO NOTHING
"""
