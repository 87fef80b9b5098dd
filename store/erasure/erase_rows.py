"""Delete the rows of runs and calls.

Exchanges of a run share bytes on each day: parts, and primers that others are compressed with. So when some of its calls are erased,
the others of those days are encoded anew, without the parts of before. `runs.encoding` then tells all caches of parts to forget them.
"""

import asyncio
import datetime as dt
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from calls.codec.elements import split_elements
from calls.proof.records import ErasedPart
from store.database.blobs import (
    COMPOSED,
    RAW,
    UNAVAILABLE,
    BodyUnavailable,
    CorruptData,
    ElementPlace,
    Primer,
    pack,
    part_hash,
    plan_form,
    referenced_parts,
    restore_body,
    split_composed,
    unpack,
)
from store.database.connection import Database
from store.database.day_locks import share_any_day, share_days
from store.database.object_forms import ObjectRef, ObjectStorage, ObjectStorageDown, fill_in, object_form, objects_of
from store.database.tables import PARTITIONED
from store.feed.entries import RunChanged, RunDeleted
from store.feed.feed import append_entries
from store.ingest.partitions import day_of, first_id_of
from store.objects.registry import forget_uses, note_uses
from store.proof.chain import append_erasures, forget_run
from store.sums.summed_days import delete_call_sums, forget_days

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
    addresses: set[bytes] = field(default_factory=set)
    """Of objects that the deleted rows named; others may name them, too."""

    damaged: set[str] = field(default_factory=set)
    """Exchanges that could not be encoded anew, because what is stored of them is damaged."""

    def add(self, other: "ErasedRows") -> None:
        """Add what was deleted by another step."""
        self.rows += other.rows
        self.days |= other.days
        self.runs |= other.runs
        self.exchanges |= other.exchanges
        self.addresses |= other.addresses
        self.damaged |= other.damaged


async def erase_run(database: Database, project: str, run: str, now: int) -> ErasedRows | None:
    """Delete a run with everything that was recorded in it; None if there is none."""
    erased_rows = ErasedRows(runs={run})
    async with database.connection() as connection, connection.transaction():
        await share_any_day(connection)
        # Then this row, because ingest locks it: what it stores later goes into a new run.
        incarnation = await connection.fetchval(LOCK_RUN, project, run)
        if incarnation is None:
            return None
        for row in await connection.fetch("SELECT id FROM exchanges WHERE project = $1 AND run = $2", project, run):
            erased_rows.exchanges.add(str(row["id"]))
        for row in await connection.fetch(
            "SELECT DISTINCT day FROM parts WHERE project = $1 AND run = $2", project, run
        ):
            erased_rows.days.add(row["day"])
        erased_rows.days |= {day_of(one) for one in erased_rows.exchanges}
        for table in (
            *(one.name for one in PARTITIONED),
            "gaps",
            "effects",
            "run_totals",
            "processes",
        ):
            erased_rows.rows[table] += await _delete(connection, table, "run = $2", project, run)
        erased_rows.addresses = await forget_uses(connection, project, [run])
        erased_rows.rows["call_sums"] += await delete_call_sums(connection, project, [run])
        erased_rows.rows["runs"] += await _delete(connection, "runs", "id = $2", project, run)
        erased_rows.rows["expirations"] += await _delete(
            connection, "expirations", "run = $2 AND part <> 'erased'", project, run
        )
        await note_erased(connection, project, run, erased_rows.days)
        await forget_run(connection, project, database.store_server, incarnation, now)
        await append_entries(connection, project, [RunDeleted(run, now)])
    return erased_rows


async def erase_exchanges(
    database: Database, project: str, run: str, ids: Sequence[uuid.UUID], now: int
) -> ErasedRows | None:
    """Delete exchanges of a run with their calls, and encode anew what shares bytes with them; None if there is none."""
    erased_rows = ErasedRows(runs={run})
    async with database.connection() as connection, connection.transaction():
        await share_days(connection, {day_of(str(one)) for one in ids})
        incarnation = await connection.fetchval(LOCK_RUN, project, run)
        deleted_rows = await connection.fetch(DELETE_EXCHANGES, project, run, list(ids))
        if incarnation is None or not deleted_rows:
            return None
        erased_rows.exchanges = {str(row["id"]) for row in deleted_rows}
        erased_rows.days = {day_of(one) for one in erased_rows.exchanges}
        erased_rows.rows["exchanges"] = len(deleted_rows)
        erased_rows.rows["calls"] += await _delete(connection, "calls", "id = ANY ($2::uuid[])", project, list(ids))
        gaps = await connection.fetch(DELETE_GAPS, project, run, sorted(erased_rows.exchanges))
        erased_rows.rows["gaps"] += len(gaps)
        whole: ErasedPart = "whole"
        erased = [(row["id"], row["began"], whole) for row in (*deleted_rows, *gaps)]
        await append_erasures(connection, project, database.store_server, {incarnation: erased}, now)
        for day in sorted(erased_rows.days):
            encoding = _NewEncoding(connection, database.objects, project, run, day)
            erased_rows.rows["parts"] += await encoding.encode_all()
            erased_rows.damaged |= encoding.damaged
            erased_rows.addresses |= await forget_uses(connection, project, [run], day)
            await note_uses(connection, project, {(run, day): encoding.objects})
            # The index of words has each text at the first call that has it; `eraser` indexes the remaining calls again.
            for table in ("text_groups", "text_hashes"):
                erased_rows.rows[table] += await _delete(connection, table, "run = $2 AND day = $3", project, run, day)
        await connection.execute(NEW_ENCODING, project, run, uuid.uuid4())
        await note_erased(connection, project, run, erased_rows.days)
        # What is stored of days has ids and digests; the sums of the run are made again later.
        await forget_days(connection, project, {row["began"] for row in deleted_rows})
        await append_entries(connection, project, [RunChanged(run, now)])
    return erased_rows


async def note_erased(connection: asyncpg.Connection, project: str, run: str, days: Collection[dt.date]) -> None:
    """Note that the files of these days still have what was erased, so that whoever comes next rewrites them if this process dies."""
    await connection.execute(NOTE_ERASED, project, sorted(days), run)


async def find_replays(database: Database, project: str, is_meant: Callable[[bytes], bool]) -> list[str]:
    """Return the ids of the replays whose reports are meant. Reports may have edited answers, and what agents asked."""
    replay_ids: list[str] = []
    after = ""
    async with database.connection() as connection:
        while rows := await connection.fetch(REPLAYS, project, after):
            replay_ids += await asyncio.to_thread(
                lambda page: [row["id"] for row in page if is_meant(unpack(row["report"]))], rows
            )
            after = rows[-1]["id"]
    return replay_ids


async def erase_replays(database: Database, project: str, replay_ids: Sequence[str]) -> int:
    """Delete the reports of replays; return how many."""
    async with database.connection() as connection:
        return await _delete(connection, "replays", "id = ANY ($2::text[])", project, replay_ids)


async def _delete(connection: asyncpg.Connection, table: str, condition: str, *values: object) -> int:
    done = await connection.execute(f"DELETE FROM {table} WHERE project = $1 AND {condition}", *values)  # noqa: S608 - constants
    return int(done.rpartition(" ")[2])


class _NewEncoding:
    """Encodes the exchanges of a run and day without the parts of before.

    What is in an object stays in it, if the same bytes are needed; other bytes are stored in the database. An exchange that needs an
    object which is lost, or that is damaged, stays as it is: nobody can read it.
    """

    def __init__(
        self, connection: asyncpg.Connection, storage: ObjectStorage, project: str, run: str, day: dt.date
    ) -> None:
        self._connection = connection
        self._storage = storage
        self._place = (project, run, day)
        self._places: dict[bytes, ElementPlace] = {}
        self._kept: set[bytes] = set()
        self._refs: dict[bytes, ObjectRef] = {}
        """The objects that were loaded, by the hashes of their bytes."""

        self.objects: set[ObjectRef] = set()
        """The objects that the rows name from now on."""

        self.damaged: set[str] = set()

    async def encode_all(self) -> int:
        """Encode all exchanges; return how many parts went. Raises `ObjectStorageDown`."""
        project, run, day = self._place
        bounds = (first_id_of(day), first_id_of(day + dt.timedelta(days=1)))
        after = (-1, uuid.UUID(int=0))
        while rows := await self._connection.fetch(ROWS, project, run, *bounds, *after, PAGE):
            await self._encode_page([dict(row) for row in rows])
            after = (rows[-1]["started_at"], rows[-1]["id"])
        condition = "run = $2 AND day = $3 AND hash <> ALL ($4::bytea[])"
        return await _delete(self._connection, "parts", condition, project, run, day, list(self._kept))

    async def _encode_page(self, rows: Sequence[dict[str, Any]]) -> None:
        project, run, day = self._place
        forms = await _load_parts(self._connection, project, run, day, rows)
        refs = objects_of([*forms.values(), *(row["request_body"] for row in rows)])
        contents = await self._load_objects(refs)
        filled = {part: fill_in(form, contents) for part, form in forms.items()}
        lost_parts = {part for part, form in filled.items() if form[:1] == UNAVAILABLE}
        parts = _unpack_parts({part: form for part, form in filled.items() if part not in lost_parts})
        for row in rows:
            request = row["request_body"] and fill_in(row["request_body"], contents)
            if request is not None and _is_lost(request, lost_parts):
                self._keep(row, forms)
                continue
            try:
                fresh, values = self._encode_row(row | {"request_body": request}, parts)
            except CorruptData:
                self._keep(row, forms)
                self.damaged.add(str(row["id"]))
                continue
            for part, form in fresh.items():
                await self._connection.execute(UPSERT_PART, project, run, day, part, form)
            self._kept |= fresh.keys()
            self.objects |= objects_of((*fresh.values(), *values))
            await self._connection.execute(UPDATE_ROW, project, row["id"], *values)

    async def _load_objects(self, refs: Collection[ObjectRef]) -> dict[ObjectRef, bytes]:
        """Load objects. Raises `ObjectStorageDown` if some may be had later."""
        contents = await self._storage.load(self._place[0], refs) if refs else {}
        for ref, form in contents.items():
            try:
                self._refs[part_hash(unpack(form))] = ref
            except BodyUnavailable as error:
                if error.is_temporary:
                    raise ObjectStorageDown(error.reason) from error
        return contents

    def _keep(self, row: Mapping[str, Any], forms: Mapping[bytes, bytes]) -> None:
        """Leave a row as it is, with its parts and their primers."""
        row_parts = frozenset(
            part
            for form in (row["head"], row["request_body"], row["response_body"])
            for part in referenced_parts(form or RAW)
        )
        primers = {primer for part in row_parts if part in forms for primer in referenced_parts(forms[part])}
        self._kept |= row_parts | primers
        own = (row["request_body"], row["response_body"], *(forms[part] for part in row_parts if part in forms))
        self.objects |= objects_of(own)

    def _encode_row(
        self, row: Mapping[str, Any], parts: Mapping[bytes, bytes]
    ) -> tuple[dict[bytes, bytes], tuple[bytes, bytes | None, bytes | None]]:
        """Return the new parts of a row, and its head and bodies as they are stored from now on."""
        head, response = pack(unpack(row["head"], parts)), row["response_body"]
        if response is not None and not objects_of((response,)):
            response = pack(unpack(response, parts))
        if row["request_body"] is None:
            return {}, (head, None, response)
        body = restore_body(row["request_body"], parts)
        plan = plan_form(body, split_elements(body), self._places.get, None, self._encode)
        self._places |= plan.places
        return plan.parts, (head, plan.form, response)

    def _encode(self, data: bytes, primer: Primer | None) -> bytes:
        ref = self._refs.get(part_hash(data)) if self._refs else None
        return pack(data, primer) if ref is None else object_form(ref)


def _is_lost(form: bytes, lost_parts: Collection[bytes]) -> bool:
    """Whether a body cannot be decoded, because of bytes that cannot be had."""
    own = split_composed(form)[1] if form[:1] == COMPOSED else form
    return own[:1] == UNAVAILABLE or not referenced_parts(form).isdisjoint(lost_parts)


async def _load_parts(
    connection: asyncpg.Connection, project: str, run: str, day: dt.date, rows: Sequence[Mapping[str, Any]]
) -> dict[bytes, bytes]:
    """Load the parts that rows refer to, and the primers that these need, as they are stored."""
    forms = [
        form for row in rows for form in (row["head"], row["request_body"], row["response_body"]) if form is not None
    ]
    part_hashes = {part for form in forms for part in referenced_parts(form)}
    found = {row["hash"]: row["body"] for row in await connection.fetch(PARTS, project, run, day, list(part_hashes))}
    primers = {part for form in found.values() for part in referenced_parts(form)} - found.keys()
    found |= {row["hash"]: row["body"] for row in await connection.fetch(PARTS, project, run, day, list(primers))}
    return found


def _unpack_parts(forms: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the bytes of parts, without those that are damaged."""
    # Primers are compressed with nothing, so they come first.
    parts: dict[bytes, bytes] = {}
    for part, form in sorted(forms.items(), key=lambda one: bool(referenced_parts(one[1]))):
        with suppress(CorruptData):
            parts[part] = unpack(form, parts)
    return parts


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

NOTE_ERASED = """
INSERT INTO expirations (project, day, run, part) SELECT $1, day, $3, 'erased' FROM unnest($2::date[]) AS day
ON CONFLICT DO NOTHING
"""

REPLAYS = "SELECT id, report FROM replays WHERE project = $1 AND id > $2 ORDER BY id LIMIT 100"
