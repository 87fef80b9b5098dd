"""Delete the rows of runs and calls.

Exchanges of a run share bytes on each day: parts, and primers that others are compressed with. So when some of its calls are erased,
the others of those days are encoded anew, without the parts of before. `runs.encoding` then tells all caches of parts to forget them.
"""

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from calls.proof.records import ErasedPart
from store.database.blobs import ElementPlace, pack, plan_form, referenced_parts, restore_body, split_elements, unpack
from store.database.connection import Database
from store.database.tables import PARTITIONED
from store.feed.entries import RunChanged, RunDeleted
from store.feed.feed import append_entries
from store.ingest.partitions import day_of, first_id_of
from store.proof.chain import append_erasures, forget_run

PAGE: Final = 10
"""Exchanges that are encoded anew at a time."""


@dataclass(slots=True)
class ErasedRows:
    """What was deleted from the tables."""

    rows: Counter[str] = field(default_factory=Counter)
    """By table."""

    days: set[dt.date] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    exchanges: set[str] = field(default_factory=set)

    def add(self, other: "ErasedRows") -> None:
        """Add what was deleted by another step."""
        self.rows += other.rows
        self.days |= other.days
        self.runs |= other.runs
        self.exchanges |= other.exchanges


async def erase_run(database: Database, project: str, run: str, now: int) -> ErasedRows | None:
    """Delete a run with everything that was recorded in it; None if there is none."""
    found = ErasedRows(runs={run})
    async with database.connection() as connection, connection.transaction():
        # First, because ingest locks this row: what it stores later goes into a new run.
        incarnation = await connection.fetchval(LOCK_RUN, project, run)
        if incarnation is None:
            return None
        for row in await connection.fetch("SELECT id FROM exchanges WHERE project = $1 AND run = $2", project, run):
            found.exchanges.add(str(row["id"]))
        for row in await connection.fetch(
            "SELECT DISTINCT day FROM parts WHERE project = $1 AND run = $2", project, run
        ):
            found.days.add(row["day"])
        found.days |= {day_of(one) for one in found.exchanges}
        for table in (
            *(one.name for one in PARTITIONED),
            "gaps",
            "call_sums",
            "run_totals",
            "processes",
            "expirations",
        ):
            found.rows[table] += await _delete(connection, table, "run = $2", project, run)
        found.rows["runs"] += await _delete(connection, "runs", "id = $2", project, run)
        await forget_run(connection, project, database.store_server, incarnation, now)
        await append_entries(connection, project, [RunDeleted(run, now)])
    return found


async def erase_exchanges(
    database: Database, project: str, run: str, ids: Sequence[uuid.UUID], now: int
) -> ErasedRows | None:
    """Delete exchanges of a run with their calls, and encode anew what shares bytes with them; None if there is none."""
    found = ErasedRows(runs={run})
    async with database.connection() as connection, connection.transaction():
        incarnation = await connection.fetchval(LOCK_RUN, project, run)
        gone = await connection.fetch(DELETE_EXCHANGES, project, run, list(ids))
        if incarnation is None or not gone:
            return None
        found.exchanges = {str(row["id"]) for row in gone}
        found.days = {day_of(one) for one in found.exchanges}
        found.rows["exchanges"] = len(gone)
        found.rows["calls"] += await _delete(connection, "calls", "id = ANY ($2::uuid[])", project, list(ids))
        gaps = await connection.fetch(DELETE_GAPS, project, run, sorted(found.exchanges))
        found.rows["gaps"] += len(gaps)
        whole: ErasedPart = "whole"
        erased = [(row["id"], row["began"], whole) for row in (*gone, *gaps)]
        await append_erasures(connection, project, database.store_server, {incarnation: erased}, now)
        for day in sorted(found.days):
            found.rows["parts"] += await _encode_anew(connection, project, run, day)
            # The index of words has each text at the first call that has it; `eraser` indexes the remaining calls again.
            found.rows["texts"] += await _delete(connection, "texts", "run = $2 AND day = $3", project, run, day)
        await connection.execute(NEW_ENCODING, project, run, uuid.uuid4())
        await append_entries(connection, project, [RunChanged(run, now)])
    return found


async def erase_replays(database: Database, project: str, runs: Sequence[str]) -> int:
    """Delete the reports of replays that mention these runs, which may have edited answers; return how many."""
    gone: list[str] = []
    after = ""
    async with database.connection() as connection:
        while rows := await connection.fetch(REPLAYS, project, after):
            gone += [row["id"] for row in rows if any(run.encode() in unpack(row["report"]) for run in runs)]
            after = rows[-1]["id"]
        return await _delete(connection, "replays", "id = ANY ($2::text[])", project, gone)


async def _delete(connection: asyncpg.Connection, table: str, condition: str, *values: object) -> int:
    done = await connection.execute(f"DELETE FROM {table} WHERE project = $1 AND {condition}", *values)  # noqa: S608 - constants
    return int(done.rpartition(" ")[2])


async def _encode_anew(connection: asyncpg.Connection, project: str, run: str, day: dt.date) -> int:
    """Encode the exchanges of a run and day without the parts of before; return how many parts went."""
    bounds = (first_id_of(day), first_id_of(day + dt.timedelta(days=1)))
    after = (-1, uuid.UUID(int=0))
    places: dict[bytes, ElementPlace] = {}
    kept: set[bytes] = set()
    while rows := await connection.fetch(ROWS, project, run, *bounds, *after, PAGE):
        parts = await _load_parts(connection, project, run, day, rows)
        for row in rows:
            fresh, values = _encode_row(row, parts, places)
            for part, form in fresh.items():
                await connection.execute(UPSERT_PART, project, run, day, part, form)
            kept |= fresh.keys()
            await connection.execute(UPDATE_ROW, project, row["id"], *values)
        after = (rows[-1]["started_at"], rows[-1]["id"])
    return await _delete(
        connection, "parts", "run = $2 AND day = $3 AND hash <> ALL ($4::bytea[])", project, run, day, list(kept)
    )


def _encode_row(
    row: Mapping[str, Any], parts: Mapping[bytes, bytes], places: dict[bytes, ElementPlace]
) -> tuple[dict[bytes, bytes], tuple[bytes, bytes | None, bytes | None]]:
    """Return the new parts of a row, and its head and bodies as they are stored from now on."""
    head = pack(unpack(row["head"], parts))
    response = None if row["response_body"] is None else pack(unpack(row["response_body"], parts))
    if row["request_body"] is None:
        return {}, (head, None, response)
    body = restore_body(row["request_body"], parts)
    plan = plan_form(body, split_elements(body), places.get)
    places |= plan.places
    return plan.parts, (head, plan.form, response)


async def _load_parts(
    connection: asyncpg.Connection, project: str, run: str, day: dt.date, rows: Sequence[asyncpg.Record]
) -> dict[bytes, bytes]:
    """Load the parts that rows refer to, and the primers that these need."""
    forms = [
        form for row in rows for form in (row["head"], row["request_body"], row["response_body"]) if form is not None
    ]
    wanted = {part for form in forms for part in referenced_parts(form)}
    found = {row["hash"]: row["body"] for row in await connection.fetch(PARTS, project, run, day, list(wanted))}
    primers = {part for form in found.values() for part in referenced_parts(form)} - found.keys()
    found |= {row["hash"]: row["body"] for row in await connection.fetch(PARTS, project, run, day, list(primers))}
    # Primers are compressed with nothing, so they come first.
    plain = {part: unpack(form) for part, form in found.items() if not referenced_parts(form)}
    return plain | {part: unpack(form, plain) for part, form in found.items() if part not in plain}


LOCK_RUN = "SELECT incarnation FROM runs WHERE project = $1 AND id = $2 FOR UPDATE"

DELETE_EXCHANGES = """
DELETE FROM exchanges WHERE project = $1 AND run = $2 AND id = ANY ($3::uuid[]) RETURNING id, started_at AS began
"""

DELETE_GAPS = """
DELETE FROM gaps WHERE project = $1 AND run = $2 AND exchange = ANY ($3::text[]) RETURNING id, happened_at AS began
"""

ROWS = """
SELECT id, started_at, head, request_body, response_body FROM exchanges
WHERE project = $1 AND run = $2 AND id >= $3 AND id < $4 AND (started_at, id) > ($5::bigint, $6::uuid)
ORDER BY started_at, id LIMIT $7
"""

PARTS = "SELECT hash, body FROM parts WHERE project = $1 AND run = $2 AND day = $3 AND hash = ANY ($4::bytea[])"

UPSERT_PART = """
INSERT INTO parts (project, run, day, hash, body) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (project, run, day, hash) DO UPDATE SET body = excluded.body
"""

UPDATE_ROW = "UPDATE exchanges SET head = $3, request_body = $4, response_body = $5 WHERE project = $1 AND id = $2"

NEW_ENCODING = "UPDATE runs SET encoding = $3 WHERE project = $1 AND id = $2"

REPLAYS = "SELECT id, report FROM replays WHERE project = $1 AND id > $2 ORDER BY id LIMIT 100"
