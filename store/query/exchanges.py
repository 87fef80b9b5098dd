"""Read exchanges as they crossed the wire, and the calls that are derived from them.

The large parts of a call (request, answer, tool results) are not stored beside the exchanges: deriving them again takes a few
milliseconds, needs no column, and follows the newest rules. Lists, which show neither, read stored summaries instead.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import batched
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import ColumnElement, RowMapping, select

from calls.model import Call, Exchange, Request, Response
from store.call_graph.retry_query import RetryGroups, is_among, load_retry_groups
from store.database.asyncio_engine import AsyncConnection
from store.database.blobs import RAW, UNAVAILABLE, BodyUnavailable, referenced_parts, unpack, unpacked_size
from store.database.connection import Database
from store.database.object_forms import ObjectRef, fill_in, named_objects, objects_of
from store.database.plans import plan_without_workers, planned_for_any_values
from store.database.rows import ERASED, digest_text, read_exchange, read_request, read_response, read_without_bodies
from store.database.tables import calls, runs
from store.ingest.partitions import day_of
from store.large.summary import read_summary
from store.large.weight import body_weight
from store.query import mcp_late_calls as late
from store.query.call_graph import PageLinks, add_links, load_page_links
from store.query.call_summaries import (
    LINKED,
    Fields,
    cut_shape,
    is_listed_without_bodies,
    is_summary,
    select_fields,
    stored_facts,
    summary_shape,
)
from store.query.filters import Filters, call_conditions, run_conditions_of_calls
from store.query.pages import (
    NEWEST_FIRST,
    STEP_ORDER,
    Cursor,
    Sort,
    list_digest,
    load_sorted_page,
    next_cursor,
    parse_cursor,
)
from store.query.rest_shapes import CallExchange, CallPlace, Shape, call_shape, exchange_shape
from store.query.runs import Page
from store.sums.positions import has_sums

PAGE_LENGTHS = (20, 200)
"""Exchanges that are read at a time: in the first page, and at most, where they are small."""

PAGE_SIZE = 8 << 20
"""Bytes of a page, packed or unpacked; only its first exchange may exceed it."""

MOST_LOOKED_AT = 2000
"""Exchanges of which a page of calls is chosen at a time."""

FEW_RUNS = 100
"""Runs that fit a filter of runs, up to which their calls are looked up by run. Calls of more runs are soon found among all calls."""

SLICE_LENGTH = 10
"""Calls of a page that are derived at a time, after which their bodies are released."""

READ_FOR_LINKS = 16 << 20
"""Weight (`store.large.weight`) of the bodies that are held to match calls with tool calls. Beyond it, executions stay unknown."""

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


class ExchangeQueries:
    """The exchanges and calls of a project. `derive` is `calls.derive.derive_call` under the current profiles.

    Without `reads_large`, every method that would load a large exchange (`store.large`) raises `TooLarge`. `derive_unkeyed` derives a
    call without its parameters and warnings, where these are stored: lists use it.
    """

    def __init__(
        self,
        database: Database,
        derive: Callable[[Exchange], Call],
        project: str = "default",
        *,
        reads_large: bool = True,
        derive_unkeyed: Callable[[Exchange], Call] | None = None,
    ) -> None:
        self._database = database
        self._derive = derive
        self._derive_unkeyed = derive_unkeyed
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
        if (exchange_id := _parse_uuid(id)) is None:
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
            large = await self._large_among(connection, [one for text in names if (one := _parse_uuid(text))])
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

    async def check_large(self) -> None:
        """Raise `TooLarge` if there is a large exchange, which a list of whole calls may contain."""
        if not self._reads_large:
            async with self._database.connection() as connection:
                if await connection.fetchval(ANY_LARGE, self._project):
                    raise TooLarge

    async def exchange_shape(self, id: str) -> Shape | None:  # noqa: A002
        """Return an exchange as the API shows it."""
        if (loaded := await self.exchange_without_bodies(id)) is None:
            return None
        found, digests = loaded
        async with self._planned_for_any_ids() as connection:
            steps = await connection.fetch(STEPS, self._project, [found.run], [found.id])
        return exchange_shape(found, steps[0]["step"], *digests) if steps else None

    async def steps(self, places: Sequence[tuple[str, uuid.UUID]]) -> dict[uuid.UUID, int]:
        """Return the steps of exchanges, each given with its run."""
        names, ids = ({run for run, _ in places}, [one for _, one in places])
        async with self._planned_for_any_ids() as connection:
            rows = await connection.fetch(STEPS, self._project, list(names), ids)
        return {row["id"]: row["step"] for row in rows}

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

    async def exchange_ids(self, run: str) -> set[str]:
        """Return the ids of all exchanges of a run."""
        async with self._database.connection() as connection:
            return {str(row["id"]) for row in await connection.fetch(RUN_IDS, self._project, run)}

    async def call(self, id: str) -> Shape | None:  # noqa: A002
        """Return the call to which an exchange belongs."""
        if (exchange_id := _parse_uuid(id)) is None:
            return None
        async with self._database.transaction() as connection, planned_for_any_values(connection):
            found = await self._rows(connection, [exchange_id])
            groups = await load_retry_groups(connection, self._project, [row["run"] for row in found])
            if not found:
                return None
            links = await load_page_links(connection, self._project, found[0]["run"], groups, found)
        return next(iter(await self._add_links(await self._shapes(found, groups, None), links)), None)

    async def calls(
        self,
        filters: Filters,
        limit: int = 50,
        cursor: str | None = None,
        fields: Fields = None,
        sort: Sort = NEWEST_FIRST,
    ) -> Page:
        """Return a page of the calls of all runs with a matching exchange. Raises `BadCursor`."""
        digest = list_digest("calls", self._project, sort, filters)
        begin = parse_cursor(cursor, digest)
        rows: list[RowMapping] = []
        groups = RetryGroups()
        async with self._database.transaction() as connection:
            await plan_without_workers(connection)
            has_marks = bool(filters.error) and await has_sums(connection, self._project)
            run_ids = await self._few_run_ids(connection, filters)
            conditions = list(call_conditions(filters, self._project, has_marks=has_marks, run_ids=run_ids))
            size = limit
            while True:
                found = await self._page_rows(connection, conditions, size, begin, sort)
                groups |= await load_retry_groups(connection, self._project, [row["run"] for row in found])
                call_rows = await self._representative_rows(connection, conditions, found[:size], groups, sort)
                # Whether a call is complete or failed depends on its last exchange, and not on the one that matched.
                rows += [
                    row
                    for row in call_rows
                    if filters.incomplete in (None, not groups.is_complete(row))
                    and filters.error in (None, groups.has_failed(row))
                ]
                if len(rows) > limit:
                    # The next page begins after the last row of this one.
                    begin, rows = next_cursor(rows, limit, digest), rows[:limit]
                    break
                begin = next_cursor(found, size, digest)
                if begin is None or len(rows) == limit:
                    break
                # Most of what matched is shown at another exchange, or not at all: look at more at once.
                size = min(4 * size, MOST_LOOKED_AT)
        shapes = [select_fields(shape, fields) for shape in await self._shapes(rows, groups, fields)]
        return Page(shapes, None if begin is None else str(begin))

    async def _few_run_ids(self, connection: AsyncConnection, filters: Filters) -> list[str] | None:
        """Return the runs whose labels and parent fit; None if no filter is about them, or many fit."""
        if not (conditions := list(run_conditions_of_calls(filters))):
            return None
        statement = select(runs.c.id).where(runs.c.project == self._project, *conditions).limit(FEW_RUNS + 1)
        ids = [row[0] for row in await connection.execute(statement)]
        return ids if len(ids) <= FEW_RUNS else None

    async def _representative_rows(
        self,
        connection: AsyncConnection,
        conditions: Iterable[ColumnElement[bool]],
        rows: Sequence[RowMapping],
        groups: RetryGroups,
        sort: Sort,
    ) -> list[RowMapping]:
        """Return one row for each call: by time, a call is listed at the first of its exchanges that matches.

        Otherwise it is listed at the last one, whose cost, tokens and end it has.
        """
        by_time = sort.by == "time"
        others = {
            row["id"]: groups.earlier_exchanges(row["id"]) if by_time else groups.exchanges_after(row["id"])
            for row in rows
        }
        elsewhere = [name for names in others.values() for name in names]
        if not elsewhere:
            return list(rows)
        fitting = select(calls.c.id).where(calls.c.project == self._project, is_among(elsewhere), *conditions)
        fit = set((await connection.execute(fitting)).scalars())
        return [row for row in rows if fit.isdisjoint(others[row["id"]])]

    async def run_calls(
        self,
        run: str,
        limit: int = 50,
        cursor: str | None = None,
        fields: Fields = None,
        sort: Sort = STEP_ORDER,
    ) -> Page:
        """Return a page of the calls of a run. Raises `BadCursor`."""
        digest = list_digest(f"calls of {run}", self._project, sort)
        begin = parse_cursor(cursor, digest)
        async with self._database.transaction() as connection, planned_for_any_values(connection):
            groups = await load_retry_groups(connection, self._project, [run])
            hidden = groups.later_exchanges if sort.by == "time" else groups.superseded_exchanges
            conditions = (calls.c.run == run, ~is_among(hidden))
            found = await self._page_rows(connection, conditions, limit, begin, sort)
            in_order = sorted(found[:limit], key=lambda row: (row["started_at"], row["id"]))
            has_links = fields is None or bool(fields & LINKED)
            links = await load_page_links(connection, self._project, run, groups, in_order) if has_links else None
        shapes = await self._shapes(found[:limit], groups, fields)
        shapes = shapes if links is None else await self._add_links(shapes, links)
        following = next_cursor(found, limit, digest)
        return Page([select_fields(shape, fields) for shape in shapes], None if following is None else str(following))

    async def _add_links(self, shapes: Sequence[Shape], links: PageLinks) -> list[Shape]:
        """Add the links to other calls to the calls of one run."""
        links = links.with_executions(await self.read_for_links(links.calls_to_read))
        around = [uuid.UUID(name) for shape in shapes for name in links.linked_calls(shape["id"])]
        steps: dict[str, int] = {}
        if around:
            async with self._planned_for_any_ids() as connection:
                rows = await connection.fetch(STEPS, self._project, list({shape["run"] for shape in shapes}), around)
            steps = {str(row["id"]): row["step"] for row in rows}
        return [add_links(shape, links, steps) for shape in shapes]

    async def _page_rows(
        self,
        connection: AsyncConnection,
        conditions: Iterable[ColumnElement[bool]],
        limit: int,
        cursor: Cursor | None,
        sort: Sort,
    ) -> Sequence[RowMapping]:
        query = select(*_LISTED_COLUMNS).where(calls.c.project == self._project, *conditions)
        return await load_sorted_page(connection, query, calls, sort, cursor, limit)

    async def _rows(self, connection: AsyncConnection, ids: Iterable[uuid.UUID]) -> Sequence[RowMapping]:
        query = select(calls).where(calls.c.project == self._project, is_among(ids))
        return (await connection.execute(query)).mappings().all()

    async def read_for_links(self, exchange_ids: Iterable[str]) -> dict[str, tuple[Exchange, Call]]:
        """Load exchanges and their calls, as many as may be held at once."""
        read: dict[str, tuple[Exchange, Call]] = {}
        weight = 0
        for names in batched(await self.without_large(exchange_ids), SLICE_LENGTH):
            evidence, _ = await self.readable_exchanges(names)
            weight += sum(_weight(one) for one in evidence.values())
            if weight > READ_FOR_LINKS:
                break
            read |= await asyncio.to_thread(self._read_all, evidence)
        return read

    def _read_all(self, evidence: Mapping[str, Exchange]) -> dict[str, tuple[Exchange, Call]]:
        derive = self._derive_unkeyed or self._derive
        return {name: (one, derive(one)) for name, one in evidence.items()}

    async def _shapes(self, rows: Sequence[RowMapping], groups: RetryGroups, fields: Fields) -> list[Shape]:
        """Return the calls to which these exchanges belong, in the order of the rows."""
        if not rows:
            return []
        wholes = [groups.ids_and_attempts(row["id"]) for row in rows]
        firsts = [uuid.UUID(ids[0]) for ids, _ in wholes]
        ends = {uuid.UUID(name) for ids, _ in wholes for name in (ids[0], ids[-1])}
        names = list({row["run"] for row in rows})
        async with self._planned_for_any_ids() as connection:
            steps = await connection.fetch(STEPS, self._project, names, firsts)
            nths = await connection.fetch(NTHS, self._project, names, firsts, groups.later_exchanges)
            heads = {str(row["id"]): row for row in await connection.fetch(HEADS, self._project, list(ends))}
        end_rows: Sequence[RowMapping] = ()
        if others := ends - {row["id"] for row in rows}:
            async with self._database.transaction() as connection, planned_for_any_values(connection):
                end_rows = await self._rows(connection, others)
        step, nth = ({str(row["id"]): row[1] for row in found} for found in (steps, nths))
        by_id = {str(row["id"]): row for row in (*rows, *end_rows)}
        # Their run may have been deleted between two of these queries.
        first_ids, there = step.keys() & nth.keys(), by_id.keys() & heads.keys()
        places = [
            CallPlace(step=step[ids[0]], nth=nth[ids[0]], exchanges=ids, attempts=attempts)
            for ids, attempts in wholes
            if ids[0] in first_ids and there.issuperset((ids[0], ids[-1]))
        ]
        shapes: list[Shape] = []
        for some in batched(places, SLICE_LENGTH):
            if all(is_listed_without_bodies(place, by_id, fields) for place in some):
                why = [ERASED if _has_erased_bodies(place, heads) else None for place in some]
                shapes += [summary_shape(place, by_id, heads, one) for place, one in zip(some, why, strict=True)]
            else:
                shapes += await self._slice_shapes(some, by_id, heads, fields)
        return shapes

    async def _slice_shapes(
        self,
        places: Sequence[CallPlace],
        rows: Mapping[str, RowMapping],
        heads: Mapping[str, asyncpg.Record],
        fields: Fields,
    ) -> list[Shape]:
        """Return the shapes of some calls, without the members that are not requested, so that these are not held."""
        listed = {place for place in places if is_listed_without_bodies(place, rows, fields)}
        summed = {
            place
            for place in places
            if place not in listed and _is_shown_from_summary(place, rows, heads, fields, can_open=self._reads_large)
        }
        if not is_summary(fields) and not all(
            _is_underived(place, rows) or _has_erased_bodies(place, heads) for place in summed
        ):
            raise TooLarge
        summed |= listed
        opened = [place for place in places if place not in summed]
        evidence, unavailable = await self.readable_exchanges(
            {name for place in opened for name in (place.exchanges[0], place.exchanges[-1])}
        )
        reasons = {place: why for place in opened if (why := _unavailable_reason(place, unavailable))}
        reasons |= {place: ERASED for place in summed | listed if _has_erased_bodies(place, heads)}
        summed |= reasons.keys() & set(opened)
        opened = [place for place in opened if evidence.keys() >= {place.exchanges[0], place.exchanges[-1]}]
        # In a thread: deriving a page of long conversations takes a while.
        by_place: dict[CallPlace, Shape] = {}
        if opened:
            derived = await asyncio.to_thread(lambda: [self._shape(place, rows, heads, evidence) for place in opened])
            by_place.update(zip(opened, await self._with_late_answers(derived, evidence), strict=True))
        by_place = {place: cut_shape(shape, fields) for place, shape in by_place.items()}
        # These were shortened before they were stored, and `select_fields` leaves out what is not requested.
        by_place |= {place: summary_shape(place, rows, heads, reasons.get(place)) for place in summed}
        return [by_place[place] for place in places if place in by_place]

    async def _with_late_answers(self, shapes: list[Shape], evidence: Mapping[str, Exchange]) -> list[Shape]:
        """Add answers that arrived on other exchanges."""
        if not (waiting := late.unanswered_calls(shapes)):
            return shapes
        async with self._database.connection() as connection:
            names = await late.candidate_streams(connection, self._project, [evidence[call] for call in waiting])
        found, _ = await self.readable_exchanges(await self.without_large(names) if not self._reads_large else names)
        return await asyncio.to_thread(
            lambda: [
                late.add_late_answer(shape, evidence[shape["id"]], waiting[shape["id"]], found)
                if shape["id"] in waiting
                else shape
                for shape in shapes
            ]
        )

    def _shape(
        self,
        place: CallPlace,
        rows: Mapping[str, RowMapping],
        heads: Mapping[str, asyncpg.Record],
        evidence: Mapping[str, Exchange],
    ) -> Shape:
        names = dict.fromkeys((place.exchanges[0], place.exchanges[-1]))
        # Of a large exchange, and of one whose bodies are in object storage, less may be stored.
        is_cut = any(heads[n]["large"] or heads[n]["offloaded"] for n in names)
        stored = None if is_cut or self._derive_unkeyed is None else stored_facts(rows[place.exchanges[0]])
        derive = self._derive if stored is None or self._derive_unkeyed is None else self._derive_unkeyed
        exchanges = [CallExchange(row=rows[n], exchange=evidence[n], call=derive(evidence[n])) for n in names]
        return call_shape(place, exchanges[0], exchanges[-1]) | (stored or {})

    async def _by_id(self, ids: Iterable[str]) -> dict[str, Exchange]:
        rows, parts = await self._rows_by_id(ids)
        return {str(row["id"]): _restore_exchange(row, parts) for row in rows}

    async def _rows_by_id(self, ids: Iterable[str]) -> tuple[list[_Row], dict[_Part, bytes]]:
        uuids = [one for text in ids if (one := _parse_uuid(text))]
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

    @asynccontextmanager
    async def _planned_for_any_ids(self) -> AsyncIterator[asyncpg.Connection]:
        """Open a transaction whose statements are planned once (`store.database.plans`)."""
        async with self._database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
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


def _weight(exchange: Exchange) -> int:
    return body_weight(exchange.request.body.data) + (
        body_weight(exchange.response.body.data) if exchange.response else 0
    )


def _unavailable_reason(place: CallPlace, unavailable: Mapping[str, BodyUnavailable]) -> str | None:
    """Why the bodies of a call cannot be had; None if they can."""
    return next((why.reason for name in place.exchanges if (why := unavailable.get(name)) is not None), None)


def _has_erased_bodies(place: CallPlace, heads: Mapping[str, asyncpg.Record]) -> bool:
    return any(heads[name]["is_erased"] for name in (place.exchanges[0], place.exchanges[-1]))


def _is_shown_from_summary(
    place: CallPlace,
    rows: Mapping[str, RowMapping],
    heads: Mapping[str, asyncpg.Record],
    fields: Fields,
    *,
    can_open: bool,
) -> bool:
    """Whether a call is shown from summaries: it has no bodies any more; or a list would have to load it from object storage; or it is
    large, and may not be loaded here or could not be derived."""
    names = (place.exchanges[0], place.exchanges[-1])
    if _has_erased_bodies(place, heads):
        return True
    if is_summary(fields) and any(heads[name]["offloaded"] for name in names):
        return True
    return any(heads[name]["large"] for name in names) and (not can_open or _is_underived(place, rows))


def _is_underived(place: CallPlace, rows: Mapping[str, RowMapping]) -> bool:
    forms = [rows[name]["summary"] for name in (place.exchanges[0], place.exchanges[-1])]
    return any(form is not None and not read_summary(form).is_derived for form in forms)


def _restore_exchange(row: _Row, parts: Mapping[_Part, bytes]) -> Exchange:
    return read_exchange(row, _row_parts(row, parts))


def _scope(row: _Row) -> tuple[str, Any]:
    return row["run"], day_of(str(row["id"]))


def _parse_uuid(text: str) -> uuid.UUID | None:
    """Parse an id; None for text that is not a UUID."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


_LISTED_COLUMNS = [column for column in calls.c if column.name != "traits"]
"""All columns but the numbers of the index, which nobody is shown."""

LARGE_AMONG = "SELECT id FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[]) AND large"

HAS_LARGE = "SELECT EXISTS (SELECT FROM exchanges WHERE project = $1 AND run = $2 AND large)"

RUN_OBJECTS = """
SELECT DISTINCT objects.key_id, objects.address, objects.size FROM object_uses AS uses
JOIN objects ON objects.project = $1 AND objects.address = uses.address WHERE uses.project = $1 AND uses.run = $2
"""

ERASED_COUNT = """
SELECT count(*) FROM exchanges WHERE project = $1 AND run = $2 AND request_digest IS NULL
    AND EXISTS (SELECT FROM runs WHERE runs.project = $1 AND runs.id = $2 AND bodies_erased_at IS NOT NULL)
"""

ANY_LARGE = "SELECT EXISTS (SELECT FROM exchanges WHERE project = $1 AND large)"

# The beginning of each form has its unpacked size; a composed form has those of its slices, and is short.
FORMS = """
SELECT substring(response_body FOR 64) AS response, octet_length(head) AS head, CASE
    WHEN octet_length(request_body) > 64 AND get_byte(request_body, 0) <> 2 THEN substring(request_body FOR 64)
    ELSE request_body
END AS request, coalesce(octet_length(request_body), 0) + coalesce(octet_length(response_body), 0) AS packed
FROM exchanges WHERE project = $1 AND run = $2
"""

PACKED_SIZE = """
SELECT coalesce((
    SELECT sum(coalesce(octet_length(request_body), 0) + coalesce(octet_length(response_body), 0) + octet_length(head))
    FROM exchanges WHERE project = $1 AND run = $2
), 0) + coalesce((SELECT sum(octet_length(body)) FROM parts WHERE project = $1 AND run = $2), 0)
"""

HEADS = """
SELECT id, large, offloaded, request_digest IS NULL AS is_erased, method, url, started_at, first_byte_at, ended_at FROM exchanges
WHERE project = $1 AND id = ANY ($2::uuid[])
"""

EXCHANGE_HEAD = """
SELECT id, run, started_at, first_byte_at, ended_at, method, url, status, outcome, redactions, head, request_digest, response_digest
FROM exchanges WHERE project = $1 AND id = $2
"""

EXCHANGES = "SELECT * FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[])"

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

# Steps are computed, not stored: an earlier exchange may still arrive.
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
