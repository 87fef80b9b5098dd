"""Forget the sums of whole days (`sums.day_sums`) and their models (`drift.model_days`), in each transaction that changes the sums of a run and hour."""

from collections.abc import Collection, Sequence
from typing import Final

import asyncpg

DAY: Final = 24 * 3600 * 1_000_000_000
"""In nanoseconds."""


async def forget_days(connection: asyncpg.Connection, project: str, hours: Collection[int]) -> None:
    """Forget the sums of the days of these hours, whose `call_sums` the connection's transaction changes."""
    days = sorted({hour - hour % DAY for hour in hours})
    if days:
        # In this order: a day that is being made at this moment is waited for, and then deleted.
        await connection.execute(CHANGE_DAYS, project, days)
        await connection.execute(DELETE_DAYS, project, days)
        await connection.execute(DELETE_MODEL_DAYS, project, days)


async def delete_call_sums(connection: asyncpg.Connection, project: str, runs: Sequence[str]) -> int:
    """Delete all of `call_sums` of these runs, and the sums of their days; return how many rows of runs went."""
    deleted_rows = await connection.fetch(DELETE_CALL_SUMS, project, list(runs))
    await forget_days(connection, project, {row["hour"] for row in deleted_rows})
    return len(deleted_rows)


CHANGE_DAYS = """
INSERT INTO summed_days (project, day, is_valid, changes, changed_at)
SELECT $1, day, false, 1, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint
FROM unnest($2::bigint[]) AS day ORDER BY day
ON CONFLICT (project, day) DO UPDATE SET
    is_valid = false, changes = summed_days.changes + 1, changed_at = excluded.changed_at
"""

DELETE_DAYS = "DELETE FROM day_sums WHERE project = $1 AND day = ANY ($2::bigint[])"

# Only where a day is stored: most changes are of the present day, which is not.
DELETE_MODEL_DAYS = f"""
WITH forgotten AS (DELETE FROM model_days WHERE project = $1 AND day = ANY ($2::bigint[]) RETURNING day)
DELETE FROM model_answers USING forgotten
WHERE project = $1 AND started_at >= forgotten.day AND started_at < forgotten.day + {DAY}
"""  # noqa: S608 - a constant

DELETE_CALL_SUMS = "DELETE FROM call_sums WHERE project = $1 AND run = ANY ($2::text[]) RETURNING hour"
