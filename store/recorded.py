"""Read what was recorded: exchanges as they crossed the wire, and the calls that they meant.

The big parts of a call (request, answer, text, tools) are not stored a second time beside the evidence: they are derived
again from it, which costs a millisecond, needs no column, and tells what the newest rules say.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

import asyncpg
from sqlalchemy import RowMapping, select

from calls.model import Call, Exchange
from store.blobs import parts_of, unpack
from store.database import Database
from store.filters import Cursor, Filters, of_calls, page
from store.partitions import day_of
from store.rows import exchange_of
from store.runs import Page, following
from store.shapes import Shape, call_shape, exchange_shape
from store.tables import calls

PAGE = 100

type _Part = tuple[str, Any, bytes]
"""Run, day and hash."""


class Recorded:
    """The exchanges and calls of a project. `derive` is `calls.derive.derive` under the current profiles."""

    def __init__(self, database: Database, derive: Callable[[Exchange], Call], project: str = "default") -> None:
        self._database = database
        self._derive = derive
        self._project = project

    async def exchange(self, id: str) -> Exchange | None:  # noqa: A002 - what it is
        """The evidence. Raises `Corrupt`."""
        return next(iter((await self._by_id([id])).values()), None)

    async def exchange_shape(self, id: str) -> Shape | None:  # noqa: A002
        """An exchange as the contract shows it."""
        if (found := await self.exchange(id)) is None:
            return None
        async with self._database.raw() as connection:
            steps = await connection.fetch(STEPS, self._project, [found.run], [found.id])
        return exchange_shape(found, steps[0]["step"])

    async def exchanges(self, run: str) -> AsyncIterator[Exchange]:
        """All exchanges of a run, in step order. Raises `Corrupt`."""
        parts: dict[_Part, bytes] = {}
        after: tuple[int, uuid.UUID] = (-1, uuid.UUID(int=0))
        while True:
            async with self._database.raw() as connection:
                rows = await connection.fetch(RUN_EXCHANGES, self._project, run, *after, PAGE)
                # What a page needs, most of the next one needs as well.
                parts = await self._parts(connection, rows, parts)
            for row in rows:
                yield _restored(row, parts)
            if len(rows) < PAGE:
                return
            after = (rows[-1]["started_at"], rows[-1]["id"])

    async def call(self, id: str) -> Shape | None:  # noqa: A002
        """One call, by the id of its first exchange."""
        if (wanted := _uuid(id)) is None:
            return None
        query = select(calls).where(calls.c.project == self._project, calls.c.id == wanted)
        async with self._database.transaction() as connection:
            found = (await connection.execute(query)).mappings().all()
        return next(iter(await self._shapes(found)), None)

    async def calls(self, filters: Filters, limit: int = 50, cursor: str | None = None) -> Page:
        """Calls of all runs, newest first. Raises `BadCursor`."""
        return await self._page(of_calls(filters), limit, cursor, newest_first=True)

    async def run_calls(self, run: str, limit: int = 50, cursor: str | None = None) -> Page:
        """The calls of a run, in step order. Raises `BadCursor`."""
        return await self._page([calls.c.run == run], limit, cursor, newest_first=False)

    async def _page(self, conditions: Iterable[Any], limit: int, cursor: str | None, *, newest_first: bool) -> Page:
        begin = Cursor.parse(cursor) if cursor else None
        query = select(calls).where(calls.c.project == self._project, *conditions)
        async with self._database.transaction() as connection:
            listed = page(query, calls, begin, limit, newest_first=newest_first)
            found = (await connection.execute(listed)).mappings().all()
        return Page(await self._shapes(found[:limit]), following(found, limit))

    async def _shapes(self, rows: Sequence[RowMapping]) -> list[Shape]:
        if not rows:
            return []
        ids = [row["id"] for row in rows]
        names = list({row["run"] for row in rows})
        evidence = await self._by_id(map(str, ids))
        async with self._database.raw() as connection:
            steps = {row["id"]: row["step"] for row in await connection.fetch(STEPS, self._project, names, ids)}
            nths = {row["id"]: row["nth"] for row in await connection.fetch(NTHS, self._project, names, ids)}
        # Beside the loop: a page of long conversations takes a while to derive.
        return await asyncio.to_thread(
            lambda: [self._shape(row, steps[row["id"]], nths[row["id"]], evidence[str(row["id"])]) for row in rows]
        )

    def _shape(self, row: RowMapping, step: int, nth: int, exchange: Exchange) -> Shape:
        return call_shape(row, step, nth, exchange, self._derive(exchange))

    async def _by_id(self, ids: Iterable[str]) -> dict[str, Exchange]:
        wanted = [one for text in ids if (one := _uuid(text))]
        async with self._database.raw() as connection:
            rows = await connection.fetch(EXCHANGES, self._project, wanted)
            parts = await self._parts(connection, rows, {})
        return {str(row["id"]): _restored(row, parts) for row in rows}

    async def _parts(
        self, connection: asyncpg.Connection, rows: Sequence[asyncpg.Record], had: Mapping[_Part, bytes]
    ) -> dict[_Part, bytes]:
        """The bytes of all parts that the rows' requests are composed of."""
        wanted = {(*_scope(row), part) for row in rows for part in parts_of(row["request_body"])}
        found = {part: had[part] for part in wanted & had.keys()}
        if lacking := list(wanted - had.keys()):
            fetched = await connection.fetch(PARTS, self._project, *map(list, zip(*lacking, strict=True)))
            found |= {(row["run"], row["day"], row["hash"]): unpack(row["body"]) for row in fetched}
        return found


def _restored(row: asyncpg.Record, parts: Mapping[_Part, bytes]) -> Exchange:
    scope = _scope(row)
    own = {part: parts[*scope, part] for part in parts_of(row["request_body"]) if (*scope, part) in parts}
    return exchange_of(row, own)


def _scope(row: asyncpg.Record) -> tuple[str, Any]:
    return row["run"], day_of(str(row["id"]))


def _uuid(text: str) -> uuid.UUID | None:
    """An id of ours; None for text that cannot be one."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


EXCHANGES = "SELECT * FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[])"

RUN_EXCHANGES = """
SELECT * FROM exchanges
WHERE project = $1 AND run = $2 AND (started_at, id) > ($3::bigint, $4::uuid)
ORDER BY started_at, id LIMIT $5
"""

PARTS = """
SELECT parts.run, parts.day, parts.hash, parts.body
FROM unnest($2::text[], $3::date[], $4::bytea[]) AS wanted (run, day, hash)
JOIN parts ON parts.project = $1 AND parts.run = wanted.run AND parts.day = wanted.day AND parts.hash = wanted.hash
"""

# A place in a run is counted, not stored: until a run is settled an earlier exchange may still come in.
STEPS = """
SELECT id, step FROM (
    SELECT id, row_number() OVER (PARTITION BY run ORDER BY started_at, id) AS step
    FROM exchanges WHERE project = $1 AND run = ANY ($2::text[])
) AS steps WHERE id = ANY ($3::uuid[])
"""

NTHS = """
SELECT id, nth FROM (
    SELECT id, row_number() OVER (PARTITION BY run, key ORDER BY started_at, id) - 1 AS nth
    FROM calls WHERE project = $1 AND run = ANY ($2::text[])
) AS nths WHERE id = ANY ($3::uuid[])
"""
