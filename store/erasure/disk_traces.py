"""Remove from disk what Postgres leaves there after a DELETE.

A deleted row stays in its file until it is overwritten, its words may be in the statistics, and the write-ahead log has what was ever
inserted. So the files of the days are written anew, the small tables and the statistics, too, and the write-ahead log is moved on until
no file of before is left. Copies elsewhere are out of reach: backups, archives of the log, replicas, blocks that a file system or a
disk has freed but not overwritten.
"""

import asyncio
import datetime as dt
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import asyncpg

from store.database.conflicts import retry_conflicts
from store.database.connection import Database
from store.retention.partition_swap import erased_days, rewrite_day

log = logging.getLogger(__name__)

SMALL_TABLES: Final = (
    "runs",
    "gaps",
    "effects",
    "replays",
    "processes",
    "call_sums",
    "run_totals",
    "day_sums",
    "model_days",
    "model_answers",
)
"""Tables that are written anew after each erasure."""

CONTENT_COLUMNS: Final = (
    *(
        "head",
        "request_body",
        "response_body",
        "request_digest",
        "response_digest",
        "url",
        "salt",
        "ties",
        "body",
        "hash",
    ),
    *(
        "summary",
        "answer",
        "key",
        "created_ids",
        "returned_ids",
        "text",
        "words",
        "evidence",
        "items",
        "report",
        "labels",
        "name",
    ),
)
"""Columns of which the statistics have values that were erased."""

VACUUM_TIMEOUT: Final = 600.0
LOCK_TIMEOUT: Final = "2s"
"""How long to wait for those who use a table that is written anew. Others wait behind."""

LOCK_TRIES: Final = 5
LOCK_PAUSE: Final = 1.0

SNAPSHOT_TRIES: Final = 40
SNAPSHOT_PAUSE: Final = 0.25
"""How often, and after how many seconds, to look whether older transactions have ended."""

_LOCK: Final = 0x65726173  # "eras"

MOST_SEGMENTS: Final = 200
"""Files of the write-ahead log that are overwritten at most."""

RELOAD_PAUSE: Final = 0.3
"""Seconds until the server's processes have read a changed setting."""


async def remove_disk_traces(database: Database) -> list[str]:
    """Write anew all that has erased rows; return what may still have them, a sentence each."""
    remains, _ = await rewrite_erased_days(database)
    return [*remains, *await clear_shared_files(database)]


async def rewrite_erased_days(
    database: Database, after: dt.date = dt.date.min, seconds: float = math.inf
) -> tuple[list[str], dt.date | None]:
    """Write the days after this one anew that have erased rows, for so many seconds; return what may still have them, and the last day
    that was written if there are more."""
    remains: list[str] = []
    until = time.monotonic() + seconds
    days = [day for day in await erased_days(database) if day > after]
    for day in days:
        async with database.rewriting:
            cleared = await rewrite_day(database, day)
        if cleared.way == "postponed":
            remains.append(
                f"the files of {day} were in use and were not rewritten: the next erasure does it, or `playhead up` within an hour"
            )
        if day != days[-1] and time.monotonic() >= until:
            return remains, day
    return remains, None


async def clear_shared_files(database: Database) -> list[str]:
    """Write the small tables, the statistics and the write-ahead log anew; return what may still have something, a sentence each."""
    remains: list[str] = []
    async with database.rewriting, database.connection() as connection:
        # One after the other, also of other processes: two would delete the same rows, maybe in another order, and change the same setting.
        connection.keep_session_state()
        await connection.execute("SELECT pg_advisory_lock($1)", _LOCK, timeout=VACUUM_TIMEOUT)
        try:
            remains += await _wait_for_older_transactions(connection)
            for table in SMALL_TABLES:
                remains += await _vacuum(connection, table)
            remains += await _vacuum_statistics(connection)
            remains += await _renew_log(connection)
        finally:
            await connection.execute("SELECT pg_advisory_unlock($1)", _LOCK)
    return remains


async def _wait_for_older_transactions(connection: asyncpg.Connection) -> list[str]:
    """Wait until nobody sees what was deleted: otherwise Postgres copies it when it writes a table anew."""
    now = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    for _ in range(SNAPSHOT_TRIES):
        if not await connection.fetchval(OLDER_SNAPSHOTS, now):
            return []
        await asyncio.sleep(SNAPSHOT_PAUSE)
    return ["a transaction that began before the erasure is still open, so small tables may have kept it: erase again"]


async def _vacuum(connection: asyncpg.Connection, table: str) -> list[str]:
    """Write a table anew."""
    try:
        await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        for _ in range(LOCK_TRIES):
            try:
                await connection.execute(f"VACUUM (FULL) {table}", timeout=VACUUM_TIMEOUT)
            except asyncpg.LockNotAvailableError:
                await asyncio.sleep(LOCK_PAUSE)
            else:
                return []
    finally:
        await connection.execute("RESET lock_timeout")
    return [f"the file of the table {table} was in use and was not rewritten: erase again"]


async def _vacuum_statistics(connection: asyncpg.Connection) -> list[str]:
    """Delete the statistics of columns with content, which the planner does not need, and what the file has of them."""
    try:
        # Autovacuum may write the same rows at this moment.
        await retry_conflicts(partial(connection.execute, DELETE_STATISTICS, list(CONTENT_COLUMNS)))
        return await _vacuum(connection, "pg_statistic")
    except asyncpg.InsufficientPrivilegeError:
        return [
            "the statistics of the planner may have words of it until the next VACUUM FULL of pg_statistic by a superuser"
        ]


async def _renew_log(connection: asyncpg.Connection) -> list[str]:
    """Move the write-ahead log on until all its files are new."""
    try:
        async with _without_recycling(connection):
            # A switch fills the rest of its file with zeros, also of those that were renamed earlier.
            for _ in range(min(await connection.fetchval(OLD_SEGMENTS), MOST_SEGMENTS) + 1):
                await connection.execute("SELECT pg_logical_emit_message(false, 'playhead', 'erased'), pg_switch_wal()")
            for _ in range(2):
                await connection.execute("CHECKPOINT", timeout=VACUUM_TIMEOUT)
    except asyncpg.InsufficientPrivilegeError:
        return [
            "the write-ahead log of the database server has it until the log is recycled and overwritten: only a superuser can renew it"
            " (CHECKPOINT, pg_switch_wal)"
        ]
    return []


@asynccontextmanager
async def _without_recycling(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Have Postgres remove old files of the log, instead of renaming and using them again, with their content."""
    if await connection.fetchval("SHOW wal_recycle") == "off":
        yield
        return
    await connection.execute("ALTER SYSTEM SET wal_recycle = off")
    await connection.execute("SELECT pg_reload_conf()")
    await asyncio.sleep(RELOAD_PAUSE)
    try:
        yield
    finally:
        await connection.execute("ALTER SYSTEM RESET wal_recycle")
        await connection.execute("SELECT pg_reload_conf()")


# VACUUM itself keeps nothing from being removed.
OLDER_SNAPSHOTS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
    AND age(backend_xmin) > age($1::text::xid8::xid) AND query NOT LIKE 'autovacuum: VACUUM public%'
"""

# Files that are ready to be written next: up to the last one that was renamed. Those that are new have zeros only.
OLD_SEGMENTS = """
WITH ready AS (
    SELECT name, pg_read_binary_file('pg_wal/' || name, 0, 4, true) <> '\\x00000000' AS is_old
    FROM pg_ls_waldir() WHERE length(name) = 24 AND name > pg_walfile_name(pg_current_wal_insert_lsn())
)
SELECT count(*) FROM ready WHERE name <= (SELECT max(name) FROM ready WHERE is_old)
"""

DELETE_STATISTICS = """
DELETE FROM pg_statistic USING pg_attribute, pg_class
WHERE starelid = attrelid AND staattnum = attnum AND pg_class.oid = attrelid
    AND relnamespace = 'public'::regnamespace AND attname = ANY ($1::text[])
"""
