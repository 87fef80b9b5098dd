"""Read exchanges as they crossed the wire: their rows, and the parts and objects to which these refer.

Whoever may not hold a large exchange in memory gets `TooLarge`, and has a helper process read it.
"""

import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

from calls.model import Exchange, Request, Response
from store.database.blobs import RAW, UNAVAILABLE, BodyUnavailable, referenced_parts, unpack, unpacked_size
from store.database.connection import Database
from store.database.object_forms import ObjectRef, fill_in, named_objects, objects_of
from store.database.rows import digest_text, read_exchange, read_request, read_response, read_without_bodies
from store.ingest.partitions import day_of

PAGE_LENGTHS = (20, 200)
"""Exchanges that are read at a time: in the first page, and at most, where they are small."""

PAGE_SIZE = 8 << 20
"""Bytes of a page, packed or unpacked; only its first exchange may exceed it."""

HELD_RUN = 16 << 20
"""Bytes of all bodies of a run up to which they may be held together."""

HELD_ROWS = 16 << 20
"""Bytes of all rows of a run up to which they may be held together."""

type _Part = tuple[str, Any, bytes]
"""Run, day and hash."""

type _Row = Mapping[str, Any]
"""A row of an exchange."""


class _NeededParts(NamedTuple):
    """The parts that rows need."""

    names: Collection[_Part]
    forms: Mapping[_Part, bytes]
    """As they are stored, those that were not loaded before."""


class ReadableExchanges(NamedTuple):
    """Exchanges, by their ids, and of those whose bodies cannot be had, why."""

    found: dict[str, Exchange]
    unavailable: dict[str, BodyUnavailable]


class TooLarge(Exception):
    """The result takes more memory than this process may use; a helper process can return it."""


def erased_bodies(run: str, count: int) -> BodyUnavailable:
    """Say that retention has erased bodies of a run."""
    return BodyUnavailable(
        "erased",
        f"retention has erased the bodies of {count} exchanges of run {run}, without which it cannot be replayed,"
        " exported, compared or forked; its calls, times and costs are still there (docs/retention.md)",
    )


class ExchangeReader:
    """The exchanges of a project. Without `reads_large`, what would load a large one (`store.large`) raises `TooLarge`."""

    def __init__(self, database: Database, project: str = "default", *, reads_large: bool = True) -> None:
        self._database = database
        self._project = project
        self._reads_large = reads_large

    async def exchange(self, id: str) -> Exchange | None:  # noqa: A002 - what it is
        """Load an exchange. Raises `CorruptData`."""
        return next(iter((await self._by_id([id])).values()), None)

    async def request(self, id: str) -> Request | None:  # noqa: A002
        """Load the request of an exchange, whatever became of its response. Raises `CorruptData`."""
        rows, parts = await self._rows_by_id([id])
        return read_request(rows[0], _row_parts(rows[0], parts)) if rows else None

    async def response(self, id: str) -> Response | None:  # noqa: A002
        """Load the response of an exchange, whatever became of its request; None without an exchange or a response. Raises `CorruptData`."""
        rows, parts = await self._rows_by_id([id])
        return read_response(rows[0], _row_parts(rows[0], parts)) if rows else None

    async def exchanges_by_id(self, ids: Iterable[str]) -> dict[str, Exchange]:
        """Load exchanges, by their ids; unknown ids are omitted. Raises `CorruptData`."""
        return await self._by_id(ids)

    async def readable_exchanges(self, ids: Iterable[str]) -> ReadableExchanges:
        """Load exchanges whose bodies can be had. Raises `CorruptData` for other damage."""
        rows, parts = await self._rows_by_id(ids)
        readable = ReadableExchanges({}, {})
        for row in rows:
            try:
                readable.found[str(row["id"])] = _restore_exchange(row, parts)
            except BodyUnavailable as error:
                readable.unavailable[str(row["id"])] = error
        return readable

    async def exchange_without_bodies(self, id: str) -> tuple[Exchange, tuple[str | None, str | None]] | None:  # noqa: A002
        """Load an exchange without the bytes of its bodies, and the digests of these; None if there is none. Raises `CorruptData`."""
        if (exchange_id := parse_uuid(id)) is None:
            return None
        async with self._snapshot() as connection:
            row = await connection.fetchrow(EXCHANGE_HEAD, self._project, exchange_id)
            if row is None:
                return None
            stored_parts = await self._needed_parts(connection, [row], {})
        found = read_without_bodies(row, _row_parts(row, _unpack_parts(stored_parts, {}, {})[0]))
        digests = row["request_digest"], row["response_digest"]
        return found, (digests[0] and digest_text(digests[0]), digests[1] and digest_text(digests[1]))

    async def without_large(self, ids: Iterable[str]) -> list[str]:
        """Remove the ids of large exchanges."""
        names = list(ids)
        async with self._database.connection() as connection:
            large = await self._large_among(connection, [one for text in names if (one := parse_uuid(text))])
        return [name for name in names if name not in large]

    async def check_run(self, run: str, *, is_held: bool = False, needs_bodies: bool = True) -> None:
        """Raise `TooLarge` if the run has a large exchange or, with `is_held`, is too large to be held as a whole.

        Raises `BodyUnavailable` if it `needs_bodies` and retention has erased some of them.
        """
        if needs_bodies:
            await self._check_bodies(run)
        if self._reads_large:
            return
        async with self._database.connection() as connection:
            if await connection.fetchval(HAS_LARGE, self._project, run):
                raise TooLarge
            if is_held and await self._is_heavy(connection, run):
                raise TooLarge

    async def check_objects(self, run: str) -> None:
        """Raise `BodyUnavailable` if an object that the run needs is missing: for answers that can only break off later."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(RUN_OBJECTS, self._project, run)
        refs = [ObjectRef(row["key_id"], row["address"], row["size"]) for row in rows]
        why = await self._database.objects.find_absence(self._project, refs) if refs else None
        if why is not None:
            raise BodyUnavailable(why.kind, f"run {run} is not whole: {why.reason}")

    async def check_large(self) -> None:
        """Raise `TooLarge` if there is a large exchange, which a list of whole calls may contain."""
        if not self._reads_large:
            async with self._database.connection() as connection:
                if await connection.fetchval(ANY_LARGE, self._project):
                    raise TooLarge

    async def exchanges(self, run: str) -> AsyncIterator[Exchange]:
        """Yield all exchanges of a run, in step order. Raises `CorruptData`."""
        await self.check_run(run)
        parts: dict[_Part, bytes] = {}
        after: tuple[int, uuid.UUID] = (-1, uuid.UUID(int=0))
        size, most = PAGE_LENGTHS
        while True:
            async with self._snapshot() as connection:
                found = await connection.fetch(RUN_EXCHANGES, self._project, run, *after, size, PAGE_SIZE)
                is_last = not found or found[0]["fetched"] < size
                rows = _first_page(found)
                is_last = is_last and (not found or len(rows) == found[0]["fetched"])
                del found
                # Most parts that a page needs, the next page needs as well.
                stored_parts = await self._needed_parts(connection, rows, parts)
            rows, parts = await self._load_objects(rows, stored_parts, parts)
            if rows:
                after = (rows[-1]["started_at"], rows[-1]["id"])
            size = min(2 * len(rows), most)
            while rows:
                yield _restore_exchange(rows.pop(0), parts)
            if is_last:
                return

    async def exchange_count(self, run: str) -> int:
        """Return the number of exchanges of a run."""
        async with self._database.connection() as connection:
            return int(await connection.fetchval(RUN_COUNT, self._project, run))

    async def exchange_ids(self, run: str) -> set[str]:
        """Return the ids of all exchanges of a run."""
        async with self._database.connection() as connection:
            return {str(row["id"]) for row in await connection.fetch(RUN_IDS, self._project, run)}

    async def _check_bodies(self, run: str) -> None:
        async with self._database.connection() as connection:
            count = await connection.fetchval(ERASED_COUNT, self._project, run)
        if count:
            raise erased_bodies(run, count)

    async def _is_heavy(self, connection: asyncpg.Connection, run: str) -> bool:
        """Whether its bodies are too large to be held together."""
        size = 0
        async with connection.transaction(readonly=True):
            async for row in connection.cursor(FORMS, self._project, run):
                size += row["head"] + _form_size(row["request"] or RAW, row["packed"])
                size += _form_size(row["response"] or RAW, row["packed"])
                if size > HELD_RUN:
                    return True
        return False

    async def _by_id(self, ids: Iterable[str]) -> dict[str, Exchange]:
        rows, parts = await self._rows_by_id(ids)
        return {str(row["id"]): _restore_exchange(row, parts) for row in rows}

    async def _rows_by_id(self, ids: Iterable[str]) -> tuple[list[_Row], dict[_Part, bytes]]:
        uuids = [one for text in ids if (one := parse_uuid(text))]
        if not uuids:
            return [], {}
        async with self._snapshot() as connection:
            if not self._reads_large and await self._large_among(connection, uuids):
                raise TooLarge
            rows = await connection.fetch(EXCHANGES, self._project, uuids)
            stored_parts = await self._needed_parts(connection, rows, {})
        return await self._load_objects(rows, stored_parts, {})

    async def _large_among(self, connection: asyncpg.Connection, ids: Sequence[uuid.UUID]) -> set[str]:
        return {str(row["id"]) for row in await connection.fetch(LARGE_AMONG, self._project, ids)}

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[asyncpg.Connection]:
        """Open a snapshot of the database: a run that is deleted meanwhile would look as if its bodies were lost."""
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    async def _needed_parts(
        self, connection: asyncpg.Connection, rows: Sequence[_Row], loaded_parts: Mapping[_Part, bytes]
    ) -> _NeededParts:
        """Load the parts to which the rows refer, as they are stored."""
        part_names = {(*_scope(row), part) for row in rows for part in _named_parts(row)}
        forms = await self._forms(connection, part_names - loaded_parts.keys())
        primers = {(run, day, primer) for (run, day, _), form in forms.items() for primer in referenced_parts(form)}
        forms |= await self._forms(connection, primers - forms.keys() - loaded_parts.keys())
        return _NeededParts(part_names | primers, forms)

    async def _load_objects(
        self, rows: Sequence[asyncpg.Record], stored_parts: _NeededParts, loaded_parts: Mapping[_Part, bytes]
    ) -> tuple[list[_Row], dict[_Part, bytes]]:
        """Load what is in object storage, after the transaction; return the rows with it, and the bytes of all parts.

        What cannot be loaded is in the rows that need it as the form of its absence.
        """
        refs = objects_of([form for row in rows for form in (row["request_body"], row["response_body"])])
        refs |= objects_of(stored_parts.forms.values())
        contents = await self._database.objects.load(self._project, refs) if refs else {}
        parts, unavailable = _unpack_parts(stored_parts, contents, loaded_parts)
        return [_fill_row(row, contents, unavailable) for row in rows], parts

    async def _forms(self, connection: asyncpg.Connection, parts: Collection[_Part]) -> dict[_Part, bytes]:
        """Return these parts as they are stored."""
        if not parts:
            return {}
        fetched = await connection.fetch(PARTS, self._project, *map(list, zip(*parts, strict=True)))
        return {(row["run"], row["day"], row["hash"]): row["body"] for row in fetched}


def _unpack_parts(
    stored_parts: _NeededParts, contents: Mapping[ObjectRef, bytes], loaded_parts: Mapping[_Part, bytes]
) -> tuple[dict[_Part, bytes], dict[_Part, bytes]]:
    """Return the bytes of parts; of those that cannot be had, the forms of their absence."""
    forms = {part: fill_in(form, contents) for part, form in stored_parts.forms.items()}
    unavailable = {part: form for part, form in forms.items() if form[:1] == UNAVAILABLE}
    found = {part: loaded_parts[part] for part in stored_parts.names if part in loaded_parts}
    found |= {
        part: unpack(form) for part, form in forms.items() if part not in unavailable and not referenced_parts(form)
    }
    for (run, day, part), form in forms.items():
        if leaning := referenced_parts(form):
            # If a primer is missing, `unpack` raises with its name.
            own = {primer: found[run, day, primer] for primer in leaning if (run, day, primer) in found}
            found[run, day, part] = unpack(form, own)
    return found, unavailable


def _fill_row(row: _Row, contents: Mapping[ObjectRef, bytes], unavailable: Mapping[_Part, bytes]) -> _Row:
    """Put what was loaded from object storage into a row."""
    bodies = {name: row[name] for name in ("request_body", "response_body")}
    filled = {name: fill_in(form, contents) for name, form in bodies.items() if any(named_objects(form))}
    for part in referenced_parts(row["request_body"] or RAW) if unavailable else ():
        if (*_scope(row), part) in unavailable:
            filled["request_body"] = unavailable[*_scope(row), part]
    return {**row, **filled} if filled else row


def _named_parts(row: _Row) -> frozenset[bytes]:
    """Return the hashes of the parts to which a row refers."""
    forms = (row[name] for name in ("head", "response_body", "request_body") if row.get(name))
    return frozenset(part for form in forms for part in referenced_parts(form))


def _row_parts(row: _Row, parts: Mapping[_Part, bytes]) -> dict[bytes, bytes]:
    scope = _scope(row)
    return {part: parts[*scope, part] for part in _named_parts(row) if (*scope, part) in parts}


def _restore_exchange(row: _Row, parts: Mapping[_Part, bytes]) -> Exchange:
    return read_exchange(row, _row_parts(row, parts))


def _scope(row: _Row) -> tuple[str, Any]:
    return row["run"], day_of(str(row["id"]))


def _first_page(rows: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    """Return the first rows, as many as may be unpacked together, and at least one."""
    size = 0
    for count, row in enumerate(rows):
        size += unpacked_size(row["request_body"] or RAW) + unpacked_size(row["response_body"] or RAW)
        if size > PAGE_SIZE:
            return list(rows[: count or 1])
    return list(rows)


def _form_size(beginning: bytes, packed: int) -> int:
    """Return the unpacked size of a stored form, by its beginning; an uncompressed one is at most as long as it is stored."""
    return packed if beginning[:1] == RAW and len(beginning) > 1 else unpacked_size(beginning)


def parse_uuid(text: str) -> uuid.UUID | None:
    """Parse an id; None for text that is not a UUID."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


EXCHANGES = "SELECT * FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[])"

RUN_COUNT = "SELECT count(*) FROM exchanges WHERE project = $1 AND run = $2"

RUN_IDS = "SELECT id FROM exchanges WHERE project = $1 AND run = $2"

# As many of the next ones as fit into $6 bytes, and at least one. `octet_length` does not read the value.
RUN_EXCHANGES = """
SELECT * FROM (
    SELECT *, count(*) OVER () AS fetched, row_number() OVER steps AS place, sum(
        coalesce(octet_length(request_body), 0) + coalesce(octet_length(response_body), 0) + octet_length(head)
    ) OVER steps AS size
    FROM (
        SELECT * FROM exchanges
        WHERE project = $1 AND run = $2 AND (started_at, id) > ($3::bigint, $4::uuid)
        ORDER BY started_at, id LIMIT $5
    ) AS next
    WINDOW steps AS (ORDER BY started_at, id)
) AS counted WHERE size <= $6 OR place = 1 ORDER BY started_at, id
"""

PARTS = """
SELECT parts.run, parts.day, parts.hash, parts.body
FROM unnest($2::text[], $3::date[], $4::bytea[]) AS wanted (run, day, hash)
JOIN parts ON parts.project = $1 AND parts.run = wanted.run AND parts.day = wanted.day AND parts.hash = wanted.hash
"""

EXCHANGE_HEAD = """
SELECT id, run, started_at, first_byte_at, ended_at, method, url, status, outcome, redactions, head, request_digest, response_digest
FROM exchanges WHERE project = $1 AND id = $2
"""

LARGE_AMONG = "SELECT id FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[]) AND large"

HAS_LARGE = "SELECT EXISTS (SELECT FROM exchanges WHERE project = $1 AND run = $2 AND large)"

ANY_LARGE = "SELECT EXISTS (SELECT FROM exchanges WHERE project = $1 AND large)"

RUN_OBJECTS = """
SELECT DISTINCT objects.key_id, objects.address, objects.size FROM object_uses AS uses
JOIN objects ON objects.project = $1 AND objects.address = uses.address WHERE uses.project = $1 AND uses.run = $2
"""

ERASED_COUNT = """
SELECT count(*) FROM exchanges WHERE project = $1 AND run = $2 AND request_digest IS NULL
    AND EXISTS (SELECT FROM runs WHERE runs.project = $1 AND runs.id = $2 AND bodies_erased_at IS NOT NULL)
"""

# The beginning of each form has its unpacked size; a composed form has those of its slices, and is short.
FORMS = """
SELECT substring(response_body FOR 64) AS response, octet_length(head) AS head, CASE
    WHEN octet_length(request_body) > 64 AND get_byte(request_body, 0) <> 2 THEN substring(request_body FOR 64)
    ELSE request_body
END AS request, coalesce(octet_length(request_body), 0) + coalesce(octet_length(response_body), 0) AS packed
FROM exchanges WHERE project = $1 AND run = $2
"""
