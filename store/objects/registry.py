"""The tables `objects`, a row for each object, and `object_uses`, a row for each run and day whose rows name it."""

import datetime as dt
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import asyncpg

from store.database.connection import Database
from store.database.object_forms import ObjectRef, WrittenObject


class Reservation(NamedTuple):
    """The row of an object that is about to be written."""

    generation: uuid.UUID
    is_new: bool


async def reserve_objects(
    database: Database, project: str, refs: Sequence[ObjectRef], now: int
) -> dict[bytes, Reservation]:
    """Make or renew the rows of objects, in a transaction of its own, and return them by address."""
    ordered = sorted(refs, key=lambda ref: ref.address)
    columns = [[ref.address for ref in ordered], [ref.key_id for ref in ordered], [ref.size for ref in ordered]]
    fresh = [uuid.uuid4() for _ in ordered]
    async with database.connection() as connection:
        rows = await connection.fetch(RESERVE, project, *columns, fresh, now)
    return {row["address"]: Reservation(row["generation"], row["generation"] in fresh) for row in rows}


async def lock_objects(
    connection: asyncpg.Connection, project: str, written: Iterable[WrittenObject]
) -> set[WrittenObject]:
    """Lock the rows of objects until the end of the transaction; return those that are still there and may be named."""
    by_address = {one.ref.address: one for one in written}
    if not by_address:
        return set()
    rows = await connection.fetch(LOCK, project, list(by_address))
    return {one for row in rows if (one := by_address[row["address"]]).generation == row["generation"]}


async def note_uses(
    connection: asyncpg.Connection, project: str, uses: Mapping[tuple[str, dt.date], Collection[ObjectRef]]
) -> None:
    """Note by run and day which objects their rows name, in the transaction that stores these rows."""
    rows = sorted((run, day, ref.address) for (run, day), refs in uses.items() for ref in refs)
    if rows:
        await connection.execute(NOTE, project, *map(list, zip(*rows, strict=True)))


async def forget_uses(
    connection: asyncpg.Connection, project: str, runs: Sequence[str], day: dt.date | None = None
) -> set[bytes]:
    """Delete what notes that these runs name objects, on a day or on all; return the addresses of the objects."""
    rows = await connection.fetch(FORGET, project, list(runs), day)
    return {row["address"] for row in rows}


LOCK = "SELECT address, generation FROM objects WHERE project = $1 AND address = ANY ($2::bytea[]) ORDER BY address FOR KEY SHARE"

RESERVE = """
INSERT INTO objects (project, address, key_id, size, generation, touched_at)
SELECT $1::text, one.address, one.key_id, one.size, one.generation, $6::bigint
FROM unnest($2::bytea[], $3::bytea[], $4::bigint[], $5::uuid[]) AS one (address, key_id, size, generation)
ON CONFLICT (project, address) DO UPDATE SET touched_at = greatest(objects.touched_at, excluded.touched_at)
RETURNING address, generation
"""

NOTE = """
INSERT INTO object_uses (project, run, day, address)
SELECT $1::text, one.run, one.day, one.address
FROM unnest($2::text[], $3::date[], $4::bytea[]) AS one (run, day, address)
ON CONFLICT DO NOTHING
"""

FORGET = """
DELETE FROM object_uses WHERE project = $1 AND run = ANY ($2::text[]) AND ($3::date IS NULL OR day = $3) RETURNING address
"""

UNUSED = """
SELECT address, key_id, generation FROM objects
WHERE project = $1 AND touched_at < $2 AND address > $3
    AND NOT EXISTS (SELECT FROM object_uses AS uses WHERE uses.project = $1 AND uses.address = objects.address)
ORDER BY address LIMIT $4
"""

LOCK_UNUSED = """
SELECT key_id, generation FROM objects WHERE project = $1 AND address = $2 FOR UPDATE SKIP LOCKED
"""

IS_USED = "SELECT EXISTS (SELECT FROM object_uses WHERE project = $1 AND address = $2)"

DELETE = "DELETE FROM objects WHERE project = $1 AND address = $2"

CLAIM_STRAY = """
INSERT INTO objects (project, address, key_id, size, generation, touched_at) VALUES ($1, $2, $3, 0, $4, 0)
ON CONFLICT DO NOTHING RETURNING address
"""

KNOWN = "SELECT address FROM objects WHERE project = $1 AND address = ANY ($2::bytea[])"

KEY_IDS = "SELECT DISTINCT key_id FROM objects WHERE project = $1"
