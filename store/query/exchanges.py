"""Read exchanges as they crossed the wire, and the calls that they meant.

The big parts of a call (request, answer, text, tools) are not stored a second time beside the evidence: they are derived
again from it, which costs a millisecond, needs no column, and tells what the newest rules say.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import batched
from typing import Any

import asyncpg
from sqlalchemy import ColumnElement, RowMapping, select
from sqlalchemy.ext.asyncio import AsyncConnection

from calls.model import Call, Exchange
from store.call_graph.retry_query import Folds, among, folds
from store.database.blobs import RAW, Corrupt, parts_of, unpack, unpacked_size
from store.database.connection import Database
from store.database.rows import exchange_of, response_of
from store.database.tables import calls
from store.ingest.partitions import day_of
from store.large.summary import read_summary
from store.large.weight import weight_of
from store.query import mcp_late_calls as late
from store.query.answer_search import could_say, said
from store.query.call_graph import Links, linked, links_of
from store.query.call_summaries import Fields, cut, is_summary, selected, summary_shape
from store.query.filters import Cursor, Filters, of_calls, page
from store.query.rest_shapes import AnswerShape, CallPlace, Shape, call_shape, exchange_shape
from store.query.runs import Page, following

PAGES = (20, 200)
"""Exchanges that are read at a time: at first, and at most where they are small."""

PAGE_SIZE = 8 << 20
"""Bytes of a page, packed or unpacked, but for its first exchange."""

SLICE = 10
"""Calls of a page that are derived at a time: none of their bodies is held longer than that."""

READ_FOR_LINKS = 16 << 20
"""What the bodies weigh (`store.large.weight`) that are held to tell which call did what; beyond, it stays unknown."""

HELD_RUN = 16 << 20
"""Bytes of bodies of a run that may be held as a whole."""

HELD_ROWS = 16 << 20
"""Bytes of a run, as it is stored, that may be held as a whole."""

NEWEST = 10_000
"""How many calls are searched for words, counted from where a page begins."""

LISTENED = 20
"""How many answers are held at a time."""

type _Part = tuple[str, Any, bytes]
"""Run, day and hash."""


class TooLarge(Exception):
    """Something was asked for that takes more memory than this process may have: a helper process can answer it."""


class ExchangeQueries:
    """The exchanges and calls of a project. `derive` is `calls.derive.derive` under the current profiles.

    Where it does not read large exchanges (`store.large`), all that would have to open one raises `TooLarge`.
    """

    def __init__(
        self,
        database: Database,
        derive: Callable[[Exchange], Call],
        project: str = "default",
        *,
        reads_large: bool = True,
    ) -> None:
        self._database = database
        self._derive = derive
        self._project = project
        self._reads_large = reads_large

    async def exchange(self, id: str) -> Exchange | None:  # noqa: A002 - what it is
        """The evidence. Raises `Corrupt`."""
        return next(iter((await self._by_id([id])).values()), None)

    async def evidence(self, ids: Iterable[str]) -> dict[str, Exchange]:
        """Those of these exchanges that are here, by their ids. Raises `Corrupt`."""
        return await self._by_id(ids)

    async def not_large(self, ids: Iterable[str]) -> list[str]:
        """These ids without those of large exchanges."""
        wanted = list(ids)
        async with self._database.raw() as connection:
            large = await self._large_among(connection, [one for text in wanted if (one := _uuid(text))])
        return [name for name in wanted if name not in large]

    async def check_run(self, run: str, *, is_held: bool = False) -> None:
        """Raise `TooLarge` where the run has a large exchange, or where all of it is to be held and is too much for that."""
        if self._reads_large:
            return
        async with self._database.raw() as connection:
            if await connection.fetchval(HAS_LARGE, self._project, run):
                raise TooLarge
            if is_held and await self._is_heavy(connection, run):
                raise TooLarge

    async def _is_heavy(self, connection: asyncpg.Connection, run: str) -> bool:
        """Whether its bodies are too much to be held together."""
        size = 0
        async with connection.transaction(readonly=True):
            async for row in connection.cursor(FORMS, self._project, run):
                size += row["head"] + _told_size(row["request"], row["packed"])
                size += _told_size(row["response"] or RAW, row["packed"])
                if size > HELD_RUN:
                    return True
        return False

    async def check_rows(self, run: str) -> int:
        """How many of its rows may be held at a time. Raises `TooLarge` where that is not for this process to say."""
        async with self._database.raw() as connection:
            if await connection.fetchval(HAS_LARGE, self._project, run):
                size, batch = HELD_ROWS + 1, 1
            else:
                size, batch = await connection.fetchval(PACKED_SIZE, self._project, run), 20
        if size <= HELD_ROWS:
            return 1000
        if not self._reads_large:
            raise TooLarge
        return batch

    async def check_search(self, filters: Filters) -> None:
        """Raise `TooLarge` where words are searched for, and there is a large exchange that may hold them."""
        if filters.q and not self._reads_large:
            async with self._database.raw() as connection:
                if await connection.fetchval(ANY_LARGE, self._project):
                    raise TooLarge

    async def exchange_shape(self, id: str) -> Shape | None:  # noqa: A002
        """An exchange as the contract shows it."""
        if (found := await self.exchange(id)) is None:
            return None
        async with self._database.raw() as connection:
            steps = await connection.fetch(STEPS, self._project, [found.run], [found.id])
        return exchange_shape(found, steps[0]["step"]) if steps else None

    async def exchanges(self, run: str) -> AsyncIterator[Exchange]:
        """All exchanges of a run, in step order. Raises `Corrupt`."""
        await self.check_run(run)
        parts: dict[_Part, bytes] = {}
        after: tuple[int, uuid.UUID] = (-1, uuid.UUID(int=0))
        size, most = PAGES
        while True:
            async with self._still() as connection:
                found = await connection.fetch(RUN_EXCHANGES, self._project, run, *after, size, PAGE_SIZE)
                is_last = not found or found[0]["fetched"] < size
                rows = _first_page(found)
                is_last = is_last and (not found or len(rows) == found[0]["fetched"])
                del found
                # What a page needs, most of the next one needs as well.
                parts = await self._parts(connection, rows, parts)
            if rows:
                after = (rows[-1]["started_at"], rows[-1]["id"])
            size = min(2 * len(rows), most)
            while rows:
                yield _restored(rows.pop(0), parts)
            if is_last:
                return

    async def ids(self, run: str) -> set[str]:
        """The ids of all exchanges of a run."""
        async with self._database.raw() as connection:
            return {str(row["id"]) for row in await connection.fetch(RUN_IDS, self._project, run)}

    async def call(self, id: str) -> Shape | None:  # noqa: A002
        """One call, by the id of one of its exchanges."""
        if (wanted := _uuid(id)) is None:
            return None
        async with self._database.transaction() as connection:
            found = await self._rows(connection, [wanted])
            folded = await folds(connection, self._project, [row["run"] for row in found])
            if not found:
                return None
            links = await links_of(connection, self._project, found[0]["run"], folded, found)
        return next(iter(await self._linked(await self._shapes(found, folded, None), links)), None)

    async def calls(self, filters: Filters, limit: int = 50, cursor: str | None = None, fields: Fields = None) -> Page:
        """Calls of all runs, newest first, that have an exchange which fits, with these fields. Raises `BadCursor`."""
        conditions = list(of_calls(filters))
        rows: list[RowMapping] = []
        folded = Folds()
        async with self._database.transaction() as connection:
            while True:
                lacking = limit - len(rows)
                found = await self._listed(connection, conditions, lacking, cursor, newest_first=True)
                folded |= await folds(connection, self._project, [row["run"] for row in found])
                shown = await self._shown(connection, conditions, found[:lacking], folded)
                # A call of several exchanges is as complete as the last of them, whichever it was found by.
                rows += [row for row in shown if filters.incomplete in (None, not folded.complete(row))]
                cursor = following(found, lacking)
                if cursor is None or len(rows) == limit:
                    break
        return Page([selected(shape, fields) for shape in await self._shapes(rows, folded, fields)], cursor)

    async def _shown(
        self,
        connection: AsyncConnection,
        conditions: Iterable[ColumnElement[bool]],
        rows: Sequence[RowMapping],
        folded: Folds,
    ) -> list[RowMapping]:
        """Those that stand for their calls: a call is shown at the first of its exchanges that fits."""
        before = {row["id"]: folded.before(row["id"]) for row in rows}
        earlier = [name for names in before.values() for name in names]
        if not earlier:
            return list(rows)
        fitting = select(calls.c.id).where(calls.c.project == self._project, among(earlier), *conditions)
        fit = set((await connection.execute(fitting)).scalars())
        return [row for row in rows if fit.isdisjoint(before[row["id"]])]

    async def heard(self, filters: Filters, cursor: str | None = None) -> Filters:
        """The same filters; where they look for words, with the newest calls (from the cursor on) whose answers hold them.

        Raises `BadCursor`.
        """
        if not filters.q:
            return filters
        begin = Cursor.parse(cursor) if cursor else None
        fit = of_calls(replace(filters, q=None, incomplete=None))
        query = select(calls.c.id).where(calls.c.project == self._project, *fit)
        async with self._database.transaction() as connection:
            newest = page(query, calls, begin, NEWEST, newest_first=True)
            names: Sequence[uuid.UUID] = (await connection.execute(newest)).scalars().all()
        found: list[uuid.UUID] = []
        wanted = filters.q.casefold()
        async with self._database.raw() as connection:
            for batch in batched(names, 1 if self._reads_large else LISTENED):
                rows = await connection.fetch(ANSWERS, self._project, batch)
                parts = await self._parts(connection, rows, {})
                # Beside the loop: others ask meanwhile.
                found += await asyncio.to_thread(_saying, wanted, rows, parts)
        return replace(filters, heard=tuple(found))

    async def run_calls(self, run: str, limit: int = 50, cursor: str | None = None, fields: Fields = None) -> Page:
        """The calls of a run, in step order, with these fields. Raises `BadCursor`."""
        async with self._database.transaction() as connection:
            folded = await folds(connection, self._project, [run])
            conditions = (calls.c.run == run, ~among(folded.later))
            found = await self._listed(connection, conditions, limit, cursor, newest_first=False)
            links = await links_of(connection, self._project, run, folded, found[:limit])
        shapes = await self._linked(await self._shapes(found[:limit], folded, fields), links)
        return Page([selected(shape, fields) for shape in shapes], following(found, limit))

    async def _linked(self, shapes: Sequence[Shape], links: Links) -> list[Shape]:
        """Calls of one run with their links to others of it."""
        links = links.judged(await self._read_for_links(links.wanted))
        around = [uuid.UUID(name) for shape in shapes for name in links.around(shape["id"])]
        steps: dict[str, int] = {}
        if around:
            async with self._database.raw() as connection:
                rows = await connection.fetch(STEPS, self._project, list({shape["run"] for shape in shapes}), around)
            steps = {str(row["id"]): row["step"] for row in rows}
        return [linked(shape, links, steps) for shape in shapes]

    async def _listed(
        self,
        connection: AsyncConnection,
        conditions: Iterable[ColumnElement[bool]],
        limit: int,
        cursor: str | None,
        *,
        newest_first: bool,
    ) -> Sequence[RowMapping]:
        begin = Cursor.parse(cursor) if cursor else None
        query = select(calls).where(calls.c.project == self._project, *conditions)
        listed = page(query, calls, begin, limit, newest_first=newest_first)
        found: Sequence[RowMapping] = (await connection.execute(listed)).mappings().all()
        return found

    async def _rows(self, connection: AsyncConnection, ids: Iterable[uuid.UUID]) -> Sequence[RowMapping]:
        wanted = select(calls).where(calls.c.project == self._project, among(ids))
        return (await connection.execute(wanted)).mappings().all()

    async def _read_for_links(self, wanted: Iterable[str]) -> dict[str, tuple[Exchange, Call]]:
        """These exchanges and their calls, as far as they may be held at once."""
        read: dict[str, tuple[Exchange, Call]] = {}
        held = 0
        for names in batched(await self.not_large(wanted), SLICE):
            evidence = await self._by_id(names)
            held += sum(_weight(one) for one in evidence.values())
            if held > READ_FOR_LINKS:
                break
            read |= await asyncio.to_thread(
                lambda found: {name: (one, self._derive(one)) for name, one in found.items()}, evidence
            )
        return read

    async def _shapes(self, rows: Sequence[RowMapping], folded: Folds, fields: Fields) -> list[Shape]:
        """The calls that these exchanges belong to, each at the place of its exchange here."""
        if not rows:
            return []
        wholes = [folded.whole(row["id"]) for row in rows]
        firsts = [uuid.UUID(ids[0]) for ids, _ in wholes]
        ends = {uuid.UUID(name) for ids, _ in wholes for name in (ids[0], ids[-1])}
        names = list({row["run"] for row in rows})
        async with self._database.raw() as connection:
            steps = await connection.fetch(STEPS, self._project, names, firsts)
            nths = await connection.fetch(NTHS, self._project, names, firsts, folded.later)
            heads = {str(row["id"]): row for row in await connection.fetch(HEADS, self._project, list(ends))}
        async with self._database.transaction() as connection:
            held = await self._rows(connection, ends - {row["id"] for row in rows})
        step, nth = ({str(row["id"]): row[1] for row in found} for found in (steps, nths))
        by_id = {str(row["id"]): row for row in (*rows, *held)}
        # Their run may have been deleted between two of these questions.
        begun, there = step.keys() & nth.keys(), by_id.keys() & heads.keys()
        places = [
            CallPlace(step=step[ids[0]], nth=nth[ids[0]], exchanges=ids, attempts=attempts)
            for ids, attempts in wholes
            if ids[0] in begun and there.issuperset((ids[0], ids[-1]))
        ]
        shapes: list[Shape] = []
        for some in batched(places, SLICE):
            shapes += await self._slice(some, by_id, heads, fields)
        return shapes

    async def _slice(
        self,
        places: Sequence[CallPlace],
        rows: Mapping[str, RowMapping],
        heads: Mapping[str, asyncpg.Record],
        fields: Fields,
    ) -> list[Shape]:
        """The shapes of some calls; what is not asked for is left out of them, so that it need not be held."""
        summed = {place for place in places if _is_summed(place, rows, heads, can_open=self._reads_large)}
        if summed and not is_summary(fields) and not all(_is_underived(place, rows) for place in summed):
            raise TooLarge
        opened = [place for place in places if place not in summed]
        evidence = await self._by_id({name for place in opened for name in (place.exchanges[0], place.exchanges[-1])})
        opened = [place for place in opened if evidence.keys() >= {place.exchanges[0], place.exchanges[-1]}]
        # Beside the loop: a page of long conversations takes a while to derive.
        derived = await asyncio.to_thread(lambda: [self._shape(place, rows, evidence) for place in opened])
        by_place = dict(zip(opened, await self._with_late_answers(derived, evidence), strict=True))
        by_place |= {place: summary_shape(place, rows, heads) for place in summed}
        return [cut(by_place[place], fields) for place in places if place in by_place]

    async def _with_late_answers(self, shapes: list[Shape], evidence: Mapping[str, Exchange]) -> list[Shape]:
        """The same, with answers that came on other exchanges."""
        if not (waiting := late.waiting(shapes)):
            return shapes
        async with self._database.raw() as connection:
            names = await late.streams(connection, self._project, [evidence[call] for call in waiting])
        found = await self._by_id(await self.not_large(names) if not self._reads_large else names)
        return await asyncio.to_thread(
            lambda: [
                late.brought(shape, evidence[shape["id"]], waiting[shape["id"]], found)
                if shape["id"] in waiting
                else shape
                for shape in shapes
            ]
        )

    def _shape(self, place: CallPlace, rows: Mapping[str, RowMapping], evidence: Mapping[str, Exchange]) -> Shape:
        names = dict.fromkeys((place.exchanges[0], place.exchanges[-1]))
        told = [AnswerShape(row=rows[n], exchange=evidence[n], call=self._derive(evidence[n])) for n in names]
        return call_shape(place, told[0], told[-1])

    async def _by_id(self, ids: Iterable[str]) -> dict[str, Exchange]:
        wanted = [one for text in ids if (one := _uuid(text))]
        if not wanted:
            return {}
        async with self._still() as connection:
            if not self._reads_large and await self._large_among(connection, wanted):
                raise TooLarge
            rows = await connection.fetch(EXCHANGES, self._project, wanted)
            parts = await self._parts(connection, rows, {})
        return {str(row["id"]): _restored(row, parts) for row in rows}

    async def _large_among(self, connection: asyncpg.Connection, ids: Sequence[uuid.UUID]) -> set[str]:
        return {str(row["id"]) for row in await connection.fetch(LARGE_AMONG, self._project, ids)}

    @asynccontextmanager
    async def _still(self) -> AsyncIterator[asyncpg.Connection]:
        """The store as it is at one moment: a run that is deleted meanwhile would look as if its bodies were lost."""
        async with (
            self._database.raw() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield connection

    async def _parts(
        self, connection: asyncpg.Connection, rows: Sequence[asyncpg.Record], had: Mapping[_Part, bytes]
    ) -> dict[_Part, bytes]:
        """The bytes of all parts that the rows' forms name."""
        wanted = {(*_scope(row), part) for row in rows for part in _named(row)}
        forms = await self._forms(connection, wanted - had.keys())
        primers = {(run, day, primer) for (run, day, _), form in forms.items() for primer in parts_of(form)}
        forms |= await self._forms(connection, primers - forms.keys() - had.keys())
        found = {part: had[part] for part in (wanted | primers) & had.keys()}
        found |= {part: unpack(form) for part, form in forms.items() if not parts_of(form)}
        for (run, day, part), form in forms.items():
            if leaning := parts_of(form):
                # It says what is gone, where it is.
                own = {primer: found[run, day, primer] for primer in leaning if (run, day, primer) in found}
                found[run, day, part] = unpack(form, own)
        return found

    async def _forms(self, connection: asyncpg.Connection, wanted: Collection[_Part]) -> dict[_Part, bytes]:
        """These parts as they are stored."""
        if not wanted:
            return {}
        fetched = await connection.fetch(PARTS, self._project, *map(list, zip(*wanted, strict=True)))
        return {(row["run"], row["day"], row["hash"]): row["body"] for row in fetched}


def _named(row: asyncpg.Record) -> frozenset[bytes]:
    """The parts that a row's forms name."""
    forms = (row[name] for name in ("head", "response_body", "request_body") if row.get(name))
    return frozenset(part for form in forms for part in parts_of(form))


def _own(row: asyncpg.Record, parts: Mapping[_Part, bytes]) -> dict[bytes, bytes]:
    scope = _scope(row)
    return {part: parts[*scope, part] for part in _named(row) if (*scope, part) in parts}


def _saying(words: str, rows: Iterable[asyncpg.Record], parts: Mapping[_Part, bytes]) -> list[uuid.UUID]:
    """The calls whose answers hold these words."""
    found = []
    for row in rows:
        try:
            response = response_of(row, _own(row, parts))
        except Corrupt:
            continue  # whoever opens it is told
        if could_say(words, response) and words in said(row["dialect"], response):
            found.append(row["id"])
    return found


def _first_page(rows: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
    """The first of these rows, as many as may be unpacked together; at least one."""
    size = 0
    for count, row in enumerate(rows):
        size += unpacked_size(row["request_body"]) + unpacked_size(row["response_body"] or RAW)
        if size > PAGE_SIZE:
            return list(rows[: count or 1])
    return list(rows)


def _told_size(beginning: bytes, packed: int) -> int:
    """How long a form is unpacked, by its beginning; one that stands as it is, is no longer than it is packed."""
    return packed if beginning[:1] == RAW and len(beginning) > 1 else unpacked_size(beginning)


def _weight(exchange: Exchange) -> int:
    return weight_of(exchange.request.body.data) + (weight_of(exchange.response.body.data) if exchange.response else 0)


def _is_summed(
    place: CallPlace, rows: Mapping[str, RowMapping], heads: Mapping[str, asyncpg.Record], *, can_open: bool
) -> bool:
    """Whether a call is shown from summaries: it is large, and cannot be opened here or could not be derived."""
    names = (place.exchanges[0], place.exchanges[-1])
    return any(heads[name]["large"] for name in names) and (not can_open or _is_underived(place, rows))


def _is_underived(place: CallPlace, rows: Mapping[str, RowMapping]) -> bool:
    forms = [rows[name]["summary"] for name in (place.exchanges[0], place.exchanges[-1])]
    return any(form is not None and not read_summary(form).is_derived for form in forms)


def _restored(row: asyncpg.Record, parts: Mapping[_Part, bytes]) -> Exchange:
    return exchange_of(row, _own(row, parts))


def _scope(row: asyncpg.Record) -> tuple[str, Any]:
    return row["run"], day_of(str(row["id"]))


def _uuid(text: str) -> uuid.UUID | None:
    """An id of ours; None for text that cannot be one."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


ANSWERS = """
SELECT exchanges.id, exchanges.run, exchanges.status, exchanges.head, exchanges.response_body,
    exchanges.response_digest, calls.dialect
FROM exchanges JOIN calls USING (project, id)
WHERE project = $1 AND id = ANY ($2::uuid[]) AND response_body IS NOT NULL
    AND calls.dialect <> 'generic' AND calls.operation <> 'embeddings'  -- neither says anything
"""

LARGE_AMONG = "SELECT id FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[]) AND large"

HAS_LARGE = "SELECT EXISTS (SELECT FROM exchanges WHERE project = $1 AND run = $2 AND large)"

ANY_LARGE = "SELECT EXISTS (SELECT FROM exchanges WHERE project = $1 AND large)"

# What begins each form says how long it is unpacked; a composed one says it of its slices, and is short.
FORMS = """
SELECT substring(response_body FOR 64) AS response, octet_length(head) AS head, CASE
    WHEN octet_length(request_body) > 64 AND get_byte(request_body, 0) <> 2 THEN substring(request_body FOR 64)
    ELSE request_body
END AS request, octet_length(request_body) + coalesce(octet_length(response_body), 0) AS packed
FROM exchanges WHERE project = $1 AND run = $2
"""

PACKED_SIZE = """
SELECT coalesce((
    SELECT sum(octet_length(request_body) + coalesce(octet_length(response_body), 0) + octet_length(head))
    FROM exchanges WHERE project = $1 AND run = $2
), 0) + coalesce((SELECT sum(octet_length(body)) FROM parts WHERE project = $1 AND run = $2), 0)
"""

HEADS = """
SELECT id, large, method, url, started_at, first_byte_at, ended_at FROM exchanges
WHERE project = $1 AND id = ANY ($2::uuid[])
"""

EXCHANGES = "SELECT * FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[])"

RUN_IDS = "SELECT id FROM exchanges WHERE project = $1 AND run = $2"

# As many of the next ones as $6 bytes may hold, and the first whatever it is. To tell how long a value is does not read it.
RUN_EXCHANGES = """
SELECT * FROM (
    SELECT *, count(*) OVER () AS fetched, row_number() OVER steps AS place, sum(
        octet_length(request_body) + coalesce(octet_length(response_body), 0) + octet_length(head)
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
    FROM calls WHERE project = $1 AND run = ANY ($2::text[]) AND id <> ALL ($4::uuid[])
) AS nths WHERE id = ANY ($3::uuid[])
"""
