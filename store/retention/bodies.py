"""Erase the bodies of runs from a day: what was sent and answered goes; what is known about it stays.

An exchange keeps its head, its times and the salt of its head, so that its proof stays whole; a call keeps its columns, and of its summary
what does not repeat a body. Parts and the index of words go with the bodies. Heads are encoded anew, because they may be compressed with
a part. Doing it twice has the same result, so a pass that was killed is done again.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Final

import asyncpg
import msgspec

from store.database.blobs import pack, referenced_parts, unpack
from store.database.connection import Database
from store.database.day_locks import share_days
from store.ingest.partitions import first_id_of
from store.large.summary import EMPTY_SUMMARY, VERSION, read_summary
from store.proof.commitments import without_bodies

PAGE: Final = 200
"""Exchanges whose heads are encoded anew at a time."""


async def erase_bodies(database: Database, day: dt.date) -> int:
    """Erase from a day the bodies of the runs that `expirations` names; return how many exchanges had some."""
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT project, run FROM expirations WHERE day = $1 AND part = 'bodies'", day)
    return sum([await _erase_run_bodies(database, row["project"], row["run"], day) for row in rows])


async def _erase_run_bodies(database: Database, project: str, run: str, day: dt.date) -> int:
    bounds = (first_id_of(day), first_id_of(day + dt.timedelta(days=1)))
    count = 0
    async with database.connection() as connection, connection.transaction():
        await share_days(connection, [day])
        # Then this row, because ingest locks it; what came after the decision has bodies that stay.
        erased_at = await connection.fetchval(LOCK_RUN, project, run)
        if erased_at is None:
            return 0
        while rows := await connection.fetch(WITH_BODIES, project, run, *bounds, erased_at, PAGE):
            primers = await _load_primers(connection, project, run, day, rows)
            await connection.executemany(
                ERASE,
                [
                    (
                        project,
                        row["id"],
                        pack(unpack(row["head"], primers)),
                        row["salt"] and without_bodies(row["salt"]),
                    )
                    for row in rows
                ],
            )
            count += len(rows)
        calls = await connection.fetch(SUMMARIES, project, run, *bounds, erased_at)
        reduced = [(project, row["id"], _without_bodies(row["summary"])) for row in calls]
        await connection.executemany(SET_SUMMARY, reduced)
        if not await connection.fetchval(HAS_BODIES, project, run, *bounds):
            for table in ("parts", "text_groups", "text_hashes"):
                await connection.execute(
                    f"DELETE FROM {table} WHERE project = $1 AND run = $2 AND day = $3",  # noqa: S608 - one of the constants
                    project,
                    run,
                    day,
                )
    return count


async def _load_primers(
    connection: asyncpg.Connection, project: str, run: str, day: dt.date, rows: Sequence[asyncpg.Record]
) -> dict[bytes, bytes]:
    names = {part for row in rows for part in referenced_parts(row["head"])}
    found = await connection.fetch(PARTS, project, run, day, list(names)) if names else ()
    return {row["hash"]: unpack(row["body"]) for row in found}


def _without_bodies(form: bytes | None) -> bytes:
    """Return a summary without what repeats a body: the text, and arguments of tools."""
    found = EMPTY_SUMMARY if form is None else read_summary(form)
    tools = [msgspec.structs.replace(tool, arguments=None) for tool in found.tool_calls]
    reduced = msgspec.structs.replace(found, text=None, tool_calls=tools, version=VERSION)
    return pack(msgspec.msgpack.encode(reduced))


LOCK_RUN = "SELECT bodies_erased_at FROM runs WHERE project = $1 AND id = $2 FOR UPDATE"

WITH_BODIES = """
SELECT id, head, salt FROM exchanges
WHERE project = $1 AND run = $2 AND id >= $3 AND id < $4 AND started_at <= $5 AND request_digest IS NOT NULL
ORDER BY id LIMIT $6
"""

HAS_BODIES = """
SELECT EXISTS (SELECT FROM exchanges WHERE project = $1 AND run = $2 AND id >= $3 AND id < $4 AND request_digest IS NOT NULL)
"""

ERASE = """
UPDATE exchanges SET head = $3, salt = $4, request_body = NULL, response_body = NULL, request_digest = NULL,
    response_digest = NULL, offloaded = NULL
WHERE project = $1 AND id = $2
"""

SUMMARIES = """
SELECT id, summary FROM calls WHERE project = $1 AND run = $2 AND id >= $3 AND id < $4 AND started_at <= $5
"""

SET_SUMMARY = "UPDATE calls SET summary = $3 WHERE project = $1 AND id = $2"

PARTS = "SELECT hash, body FROM parts WHERE project = $1 AND run = $2 AND day = $3 AND hash = ANY ($4::bytea[])"
