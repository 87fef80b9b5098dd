"""Read calls, which are derived from exchanges when they are asked for.

The large parts of a call (request, answer, tool results) are not stored beside the exchanges: deriving them again takes a few
milliseconds, needs no column, and follows the newest rules. Lists, which show neither, read stored summaries instead.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import batched, chain

import asyncpg
from sqlalchemy import ColumnElement, RowMapping, select

from calls.model import Call, Exchange
from store.call_graph.retry_query import RetryGroups, is_among, load_retry_groups
from store.database.asyncio_engine import AsyncConnection
from store.database.blobs import BodyUnavailable
from store.database.connection import Database
from store.database.plans import plan_without_workers, planned_for_any_values
from store.database.rows import ERASED
from store.database.tables import calls, runs
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
from store.query.exchange_reader import ExchangeReader, TooLarge, parse_uuid
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
from store.query.run_graphs import RunGraphs
from store.query.runs import Page
from store.sums.positions import has_sums

MOST_LOOKED_AT = 2000
"""Exchanges of which a page of calls is chosen at a time."""

FEWEST_LOOKED_AT = 20
"""Exchanges that are looked at for what a page lacks, because each look takes several statements."""

FEW_RUNS = 100
"""Runs that fit a filter of runs, up to which their calls are looked up by run. Calls of more runs are soon found among all calls."""

SLICE_LENGTH = 10
"""Calls of a page that are derived at a time, after which their bodies are released."""

READ_FOR_LINKS = 16 << 20
"""Weight (`store.large.weight`) of the bodies that are held to match calls with tool calls. Beyond it, executions stay unknown."""


class CallReader(ExchangeReader):
    """The exchanges and calls of a project. `derive` is `calls.derive.derive_call` under the current profiles.

    `derive_unkeyed` derives a call without its parameters and warnings, where these are stored: lists use it.
    """

    def __init__(
        self,
        database: Database,
        derive: Callable[[Exchange], Call],
        project: str = "default",
        *,
        reads_large: bool = True,
        derive_unkeyed: Callable[[Exchange], Call] | None = None,
        graphs: RunGraphs | None = None,
    ) -> None:
        super().__init__(database, project, reads_large=reads_large)
        self._graphs = graphs or RunGraphs(most_bytes=0)
        self._derive = derive
        self._derive_unkeyed = derive_unkeyed

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

    async def call(self, id: str) -> Shape | None:  # noqa: A002
        """Return the call to which an exchange belongs."""
        if (exchange_id := parse_uuid(id)) is None:
            return None
        async with self._database.transaction() as connection, planned_for_any_values(connection):
            found = await self._rows(connection, [exchange_id])
            if not found:
                return None
            run = found[0]["run"]
            shared = await self._graphs.load(connection, self._project, run, has_links=True)
            links = await load_page_links(connection, self._project, run, shared.groups, found, shared.graph)
        return next(iter(await self._add_links(await self._shapes(found, shared.groups, None), links)), None)

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
            # A few more than are asked for: some are later attempts of a call.
            size = limit + 2 + limit // 25
            while True:
                found = await self._page_rows(connection, conditions, size, begin, sort)
                groups |= await load_retry_groups(connection, self._project, [row["run"] for row in found])
                call_rows = await self._representative_rows(connection, conditions, found[:size], groups, sort)
                # Whether a call is complete or failed depends on its last exchange, and not on the one that matched.
                fitting = [
                    row
                    for row in call_rows
                    if (filters.incomplete is None or filters.incomplete != groups.is_complete(row))
                    and (filters.error is None or filters.error == groups.has_failed(row))
                ]
                rows += fitting
                if len(rows) > limit:
                    # The next page begins after the last row of this one.
                    begin, rows = next_cursor(rows, limit, digest), rows[:limit]
                    break
                begin = next_cursor(found, size, digest)
                if begin is None or len(rows) == limit:
                    break
                size = _next_size(size, len(fitting), limit - len(rows))
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
        find_others = groups.earlier_exchanges if by_time else groups.exchanges_after
        others = {row["id"]: names for row in rows if (names := find_others(row["id"]))}
        if not others:
            return list(rows)
        elsewhere = chain.from_iterable(others.values())
        fitting = select(calls.c.id).where(calls.c.project == self._project, is_among(elsewhere), *conditions)
        fit = set((await connection.execute(fitting)).scalars())
        return [row for row in rows if fit.isdisjoint(others.get(row["id"], ()))]

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
        has_links = fields is None or bool(fields & LINKED)
        links: PageLinks | None = None
        async with self._database.transaction() as connection, planned_for_any_values(connection):
            shared = await self._graphs.load(connection, self._project, run, has_links=has_links)
            groups = shared.groups
            hidden = groups.later_exchanges if sort.by == "time" else groups.superseded_exchanges
            conditions = (calls.c.run == run, ~is_among(hidden))
            found = await self._page_rows(connection, conditions, limit, begin, sort)
            in_order = sorted(found[:limit], key=lambda row: (row["started_at"], row["id"]))
            if has_links:
                links = await load_page_links(connection, self._project, run, groups, in_order, shared.graph)
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
        query = select(*_LISTED_COLUMNS).where(calls.c.project == self._project, is_among(ids))
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
        firsts = [ids[0] for ids, _ in wholes]
        ends = {name for ids, _ in wholes for name in (ids[0], ids[-1])}
        names = list({row["run"] for row in rows})
        by_id = {str(row["id"]): row for row in rows}
        if others := ends - by_id.keys():
            async with self._database.transaction() as connection, planned_for_any_values(connection):
                by_id |= {str(row["id"]): row for row in await self._rows(connection, map(uuid.UUID, others))}
        async with self._planned_for_any_ids() as connection:
            steps = await connection.fetch(STEPS, self._project, names, firsts)
            nths = await connection.fetch(NTHS, self._project, names, firsts, groups.later_exchanges)
            heads = {str(row["id"]): row for row in await connection.fetch(HEADS, self._project, list(ends))}
        step, nth = ({str(row["id"]): row[1] for row in found} for found in (steps, nths))
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

    @asynccontextmanager
    async def _planned_for_any_ids(self) -> AsyncIterator[asyncpg.Connection]:
        """Open a transaction whose statements are planned once (`store.database.plans`)."""
        async with self._database.connection() as connection, connection.transaction(readonly=True):
            await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            yield connection


def _next_size(size: int, fitting: int, lacking: int) -> int:
    """Return how many exchanges to look at next for what a page lacks: more where few of those `size` were calls that fit."""
    size_for_all = 2 * lacking * size // fitting if fitting else 4 * size
    return max(min(size_for_all, 4 * size, MOST_LOOKED_AT), FEWEST_LOOKED_AT)


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


_UNSHOWN = frozenset(
    (
        *("traits", "tools", "created_ids", "returned_ids", "polls", "pending", "answer", "actor", "first_byte"),
        *("duration", "failed", "superseded", "repeated"),
    )
)
"""Columns that rows are found and counted by, and that no call is shown from. To read the arrays takes a third of a page's time."""

_LISTED_COLUMNS = [column for column in calls.c if column.name not in _UNSHOWN]

HEADS = """
SELECT id, large, offloaded, request_digest IS NULL AS is_erased, method, url, started_at, first_byte_at, ended_at FROM exchanges
WHERE project = $1 AND id = ANY ($2::uuid[])
"""

# Steps are computed, not stored: an earlier exchange may still arrive.
# `IN (SELECT unnest(...)) IS TRUE` is a look-up in a hash table; `= ANY` of a parameter compares each row with each of its members.
STEPS = """
SELECT id, step FROM (
    SELECT id, row_number() OVER (PARTITION BY run ORDER BY started_at, id) AS step
    FROM exchanges WHERE project = $1 AND run = ANY ($2::text[])
) AS steps WHERE (id IN (SELECT unnest($3::uuid[]))) IS TRUE
"""

# The keys are read here, not with the rows before: the run may get new ones between the two.
NTHS = """
SELECT id, nth FROM (
    SELECT id, row_number() OVER (PARTITION BY run, key ORDER BY started_at, id) - 1 AS nth
    FROM calls WHERE project = $1 AND run = ANY ($2::text[]) AND id NOT IN (SELECT unnest($4::uuid[]))
        AND (key IN (SELECT key FROM calls WHERE project = $1 AND id = ANY ($3::uuid[]))) IS TRUE
) AS nths WHERE (id IN (SELECT unnest($3::uuid[]))) IS TRUE
"""
