"""Copy recorded runs to other days and hours, so that `bench.scale` fills its tables faster than by ingest.

A copy has runs, ids and times of its own in every table, including those of the feed's consumers, so lists, filters and
sums work as on recorded runs; but copies have no proof. Bodies, keys and texts are those of the recorded run, so a word
or key is found in every copy of its run. The feed is not copied, since its entries would be old. Secondary indexes are
built when all rows exist, which makes them more compact than those that ingest writes; therefore sizes are also
reported for the recorded runs.
"""

import asyncio
import datetime as dt
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import asyncpg

from bench.scale_rows import DAY, HOUR, run_name
from store.database.connection import Database
from store.database.tables import PARTITIONED, metadata, text_groups
from store.ingest.partitions import Partitions
from store.search.groups import GroupText, make_group, read_group

PROOF: Final = ("chains", "chain_records", "tree_leaves", "tree_tiles", "checkpoints", "anchors")
NOT_COPIED: Final = frozenset(
    (
        *(
            "feed",
            "feed_positions",
            "audit_log",
            "replays",
            "gaps",
            "processes",
            "expirations",
            "objects",
            "object_uses",
        ),
        *("day_sums", "summed_days", "model_days", "model_answers", "canaries"),
        *PROOF,
    )
)

MORNING: Final = 12
"""Hours of the recorded day in which the recorded runs begin. Copies begin after it."""

_RUN: Final = "'run-' || lpad((substr({}, 5)::integer + {})::text, 7, '0')"
_ID: Final = """(lpad(to_hex(('x' || left(translate({}::text, '-', ''), 12))::bit(48)::bigint - {}), 12, '0')
    || right(translate({}::text, '-', ''), 20))::uuid"""
_WORD_COLUMNS: Final = ("run", "parent")
_TIMES: Final = ("started_at", "newest_at", "active_at", "idle_at", "hour")

SECONDARY_INDEXES: Final = """
SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition FROM pg_index
WHERE indrelid = ANY ($1::regclass[]) AND NOT indisunique
"""


def copy_places(copies: int, days: int) -> Iterator[int]:
    """Yield by how many nanoseconds each copy is earlier: whole days, or whole hours if there are more copies than
    days.
    """
    for number in range(1, copies + 1):
        day, hour = number % days, number // days
        if hour >= MORNING:
            raise ValueError(f"{copies} copies do not fit into {days} days: record more runs, or fewer copies")
        yield day * DAY - hour * HOUR


def copy_statements(runs: int, number: int, earlier: int) -> Iterator[str]:
    """Yield the statements that copy the first `runs` runs."""
    for table in metadata.sorted_tables:
        if table.name not in NOT_COPIED:
            names = [column.name for column in table.columns]
            values = [_value(table.name, name, runs * number, earlier) for name in names]
            run = "id" if table.name == "runs" else "run"
            order = ", ".join(column.name for column in table.primary_key)
            if table is text_groups:
                continue
            yield (
                f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table.name}"  # our own names
                f" WHERE {run} BETWEEN '{run_name(0)}' AND '{run_name(runs - 1)}' ORDER BY {order}"
            )


def _value(table: str, column: str, shift: int, earlier: int) -> str:
    """Return the value of a column in a copy, as SQL."""
    if column in _WORD_COLUMNS or (table, column) == ("runs", "id"):
        return _RUN.format(column, shift)
    if column == "text_group":
        return f"md5({column}::text || '{shift}')::uuid"
    if column in ("id", "call"):
        return _ID.format(column, earlier // 1_000_000, column)
    if column in _TIMES or (table, column) == ("runs", "ended_at"):
        return f"{column} - {earlier}"
    if column == "day":
        # No run of the recorded morning, nor of its copies, is in two days.
        return f"(day - {-(-earlier // DAY)})::date"
    return {"incarnation": "gen_random_uuid()", "salt": "NULL"}.get(column, column)


async def _copy_groups(connection: asyncpg.Connection, runs: int, shift: int, earlier: int) -> None:
    """Copy the groups of texts of the first `runs` runs, whose format PostgreSQL cannot read."""
    rows = await connection.fetch(GROUPS, run_name(0), run_name(runs - 1))
    days = dt.timedelta(days=-(-earlier // DAY))
    copies = []
    for row in rows:
        texts = [
            GroupText(
                one.hash,
                uuid.UUID(int=one.call.int - (earlier // 1_000_000 << 80)),
                one.started_at - earlier,
                one.role,
                one.text,
            )
            for one in read_group(row["texts"])
        ]
        name = uuid.UUID(hashlib.md5(f"{row['id']}{shift}".encode(), usedforsecurity=False).hexdigest())
        run = run_name(int(row["run"].removeprefix("run-")) + shift)
        copies.append((row["project"], run, row["day"] - days, name, *make_group(texts)))
    await connection.executemany(INSERT_GROUP, copies, timeout=3600)


# As the writers of `call_sums` do, so that the sums of whole days are made.
MARK_DAYS: Final = f"""
INSERT INTO summed_days (project, day, is_valid, changes, changed_at)
SELECT DISTINCT project, hour - hour % {DAY}, false, 1, 0 FROM call_sums ON CONFLICT DO NOTHING
"""

GROUPS: Final = "SELECT project, run, day, id, texts FROM text_groups WHERE run BETWEEN $1 AND $2 ORDER BY run, day, id"

INSERT_GROUP: Final = """
INSERT INTO text_groups (project, run, day, id, newest_at, words, texts) VALUES ($1, $2, $3, $4, $5, $6::text::tsvector, $7)
"""


def copy_runs(dsn: str, *, runs: int, copies: int, days: int, newest: int) -> None:
    """Make this many copies of the first `runs` runs."""
    asyncio.run(_copy_runs(dsn, runs, list(copy_places(copies, days)), newest))


async def _copy_runs(dsn: str, runs: int, places: Sequence[int], newest: int) -> None:
    database = Database(dsn)
    await database.connect()
    try:
        today = dt.datetime.fromtimestamp((newest - 1) // 10**9, dt.UTC).date()
        await Partitions(database).create_missing(today - dt.timedelta(days=-(-one // DAY)) for one in places)
        async with database.connection() as connection:
            indexes = await _drop_indexes(connection)
            for number, earlier in enumerate(places, 1):
                async with connection.transaction():
                    for statement in copy_statements(runs, number, earlier):
                        await connection.execute(statement, timeout=3600)
                    await _copy_groups(connection, runs, runs * number, earlier)
            await connection.execute(MARK_DAYS)
            await connection.execute("SET maintenance_work_mem = '1GB'")
            for index in indexes:
                await connection.execute(index["definition"].replace(" ON ONLY ", " ON "), timeout=3600)
    finally:
        await database.close()


async def _drop_indexes(connection: asyncpg.Connection) -> Sequence[Mapping[str, Any]]:
    indexes: Sequence[Mapping[str, Any]] = await connection.fetch(
        SECONDARY_INDEXES, [table.name for table in PARTITIONED]
    )
    for index in indexes:
        await connection.execute(f"DROP INDEX {index['name']}")
    return indexes
