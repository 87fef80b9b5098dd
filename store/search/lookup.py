"""Find texts by words: the newest first, in growing spans of days, so that a common word does not read all days."""

import datetime as dt
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Text, bindparam, exists, func, select, tuple_
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import TSQUERY

from store.database.asyncio_engine import AsyncConnection
from store.database.blobs import unpack
from store.database.connection import Database
from store.database.tables import calls, runs, texts
from store.ingest.partitions import day_of
from store.query.filters import Filters, call_conditions, contains_run_text
from store.query.pages import NEWEST_FIRST, list_digest
from store.search.pages import FoundPage, FoundText, SearchWindow, TextPlace, begin_window
from store.search.query import SearchQuery

MOST_CANDIDATES: Final = 1000
"""Texts, the newest that fit, that are ranked."""

MOST_TEXTS: Final = 10_000
"""Texts, the newest that fit, among whose calls a list with `q` selects."""

MOST_RUNS: Final = 1000
"""Runs, the newest whose id, name or labels fit, among which a list with `q` selects."""

SAMPLE: Final = 500
"""Texts, the newest, by which it is judged how many fit."""

FREQUENT: Final = 0.2
"""The part of them from which on the newest texts are walked until enough fit."""

FIRST_SPAN: Final = 1
"""Days that are searched first; each span is twice as long as the one before."""


class TextLookup:
    """Searches the texts of a project."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def find_texts(
        self, query: SearchQuery, filters: Filters, limit: int, cursor: str | None = None
    ) -> FoundPage:
        """Return a page of the texts that fit, the best of the newest `MOST_CANDIDATES` first, then of those before. Raises `BadCursor`."""
        digest = list_digest("search", self._project, NEWEST_FIRST, filters)
        window = begin_window(cursor, digest)
        async with self._database.transaction() as connection:
            while True:
                found = await self._candidates(connection, query, filters, window)
                rest = window.rest(found)
                page, is_last = rest[:limit], len(found) < MOST_CANDIDATES and window.bottom is None
                if page or is_last:
                    break
                window = window.before(found)
            bodies = await self._load_texts(connection, page)
        window = window.with_ends(found, is_last=is_last)
        if len(rest) > limit:
            following: SearchWindow | None = window.after(page[-1])
        else:
            following = None if is_last else window.before(found)
        texts_found = [replace(one, text=bodies[one.place]) for one in page if one.place in bodies]
        return FoundPage(texts_found, None if following is None else str(following))

    async def _candidates(
        self, connection: AsyncConnection, query: SearchQuery, filters: Filters, window: SearchWindow
    ) -> list[FoundText]:
        """Return the newest texts of a window, `MOST_CANDIDATES` at most unless its end is known."""
        fit = [*call_conditions(replace(filters, q=None), self._project)]
        is_call = exists().where(calls.c.project == texts.c.project, calls.c.id == texts.c.call, *fit)
        tsquery = _tsquery(query)
        conditions = [texts.c.project == self._project, texts.c.words.op("@@")(tsquery), *([is_call] if fit else [])]
        if window.top is not None:
            conditions.append(
                _place < _place_literal(window.top) if window.is_below else _place <= _place_literal(window.top)
            )
        if window.bottom is not None:
            conditions.append(_place >= _place_literal(window.bottom))
        limit = MOST_CANDIDATES if window.bottom is None else 2 * MOST_CANDIDATES
        rank = func.ts_rank_cd(texts.c.words, tsquery, 4 | 1).label("rank")
        newest = select(texts.c.run, *_PLACE, texts.c.role, rank)
        found: list[FoundText] = []
        async for is_in_span in self._spans(connection, window):
            order = await self._newest_first(connection, query, is_in_span)
            in_order = newest.where(*conditions, *is_in_span).order_by(*order)
            rows = await connection.execute(in_order.limit(limit - len(found)))
            for run, day, started_at, call, digest, role, ranked in rows:
                place = TextPlace(day, started_at, call, digest)
                found.append(FoundText(run=run, place=place, role=role, rank=ranked))
            if len(found) >= limit:
                break
        return found

    async def _load_texts(self, connection: AsyncConnection, page: Sequence[FoundText]) -> dict[TextPlace, str]:
        """Load the contents of texts; those that were deleted meanwhile are missing."""
        if not page:
            return {}
        keys = [(one.run, one.place.day, one.place.hash) for one in page]
        key = tuple_(texts.c.run, texts.c.day, texts.c.hash)
        query = select(*_PLACE, texts.c.text).where(texts.c.project == self._project, key.in_(keys))
        return {TextPlace(*place): unpack(text).decode() for *place, text in await connection.execute(query)}

    async def resolve(self, filters: Filters) -> Filters:
        """Look up the words of the filters: add the calls and runs that they find. Raises `InvalidQuery`."""
        if not filters.q:
            return filters
        found = await self.find_calls(SearchQuery.parse(filters.q))
        return replace(filters, matching_calls=found, matching_runs=await self._find_runs(filters.q))

    async def _find_runs(self, text: str) -> tuple[str, ...]:
        query = select(runs.c.id).where(runs.c.project == self._project, contains_run_text(text))
        async with self._database.transaction() as connection:
            newest = query.order_by(runs.c.started_at.desc()).limit(MOST_RUNS)
            return tuple((await connection.execute(newest)).scalars())

    async def find_calls(self, query: SearchQuery) -> tuple[uuid.UUID, ...]:
        """Return the calls of the newest texts that fit, of `MOST_TEXTS` at most."""
        found: list[uuid.UUID] = []
        async with self._database.transaction() as connection:
            async for is_in_span in self._spans(connection):
                order = await self._newest_first(connection, query, is_in_span)
                fits = (texts.c.project == self._project, texts.c.words.op("@@")(_tsquery(query)), *is_in_span)
                newest = select(texts.c.call).where(*fits).order_by(*order)
                found += (await connection.execute(newest.limit(MOST_TEXTS - len(found)))).scalars()
                if len(found) >= MOST_TEXTS:
                    break
        return tuple(dict.fromkeys(found))

    async def _newest_first(
        self, connection: AsyncConnection, query: SearchQuery, is_in_span: Sequence[ColumnElement[bool]]
    ) -> Sequence[ColumnElement[Any]]:
        """Return the order of texts, in a form by which Postgres walks the newest texts if many of them fit, and else looks words up.

        It cannot know how many fit: it has statistics of words, and none of phrases and beginnings of words. What is said changes with
        time, so each span has a sample of its own.
        """
        await connection.execute(_PLAN_FOR_VALUES)
        newest = select(texts.c.words).where(texts.c.project == self._project, *is_in_span)
        newest = newest.order_by(texts.c.day.desc(), texts.c.started_at.desc()).limit(SAMPLE)
        sample = newest.subquery("sample")
        fitting = func.count().filter(sample.c.words.op("@@")(_tsquery(query)))
        fits, number = (await connection.execute(select(fitting, func.count()).select_from(sample))).one()
        if fits < number * FREQUENT:
            # No index has these expressions.
            await connection.execute(_USE_WORDS)
            return [(column + 0).desc() for column in _PLACE[:2]] + [column.desc() for column in _PLACE[2:]]
        await connection.execute(_USE_NO_WORDS)
        return [column.desc() for column in _PLACE]

    async def _spans(
        self, connection: AsyncConnection, window: SearchWindow | None = None
    ) -> AsyncIterator[tuple[ColumnElement[bool], ...]]:
        """Yield the conditions for spans of days, the newest first, that cover what is stored, or a window of it."""
        # A text's day is that of its call's id. An import may have ids of other days than its times.
        ids = select(calls.c.id).where(calls.c.project == self._project).limit(1)
        oldest = await connection.scalar(ids.order_by(calls.c.id))
        newest = await connection.scalar(ids.order_by(calls.c.id.desc()))
        if oldest is None or newest is None:
            return
        first, last, length = day_of(str(oldest)), day_of(str(newest)), FIRST_SPAN
        if window is not None:
            first = max(first, window.bottom.day) if window.bottom else first
            last = min(last, window.top.day) if window.top else last
        while last >= first:
            begin = last - dt.timedelta(days=length)
            yield (texts.c.day > begin, texts.c.day <= last)
            last, length = begin, length * 2


# Until the end of the transaction. A plan for any days and any words would read all texts.
_PLAN_FOR_VALUES: Final = sql("SET LOCAL plan_cache_mode = force_custom_plan")
_USE_WORDS: Final = sql(
    "SELECT set_config(name, 'on', true) FROM unnest(ARRAY['enable_bitmapscan', 'enable_sort']) AS name"
)
# Without sorts, so that the texts are read in their order even if Postgres believes that few of them fit.
_USE_NO_WORDS: Final = sql(
    "SELECT set_config(name, 'off', true) FROM unnest(ARRAY['enable_bitmapscan', 'enable_sort']) AS name"
)

_PLACE: Final = (texts.c.day, texts.c.started_at, texts.c.call, texts.c.hash)
_place = tuple_(*_PLACE)


def _place_literal(place: TextPlace) -> ColumnElement[Any]:
    values = (place.day, place.started_at, place.call, place.hash)
    return tuple_(*(bindparam(None, one, type_=column.type) for one, column in zip(values, _PLACE, strict=True)))


def _tsquery(query: SearchQuery) -> ColumnElement[Any]:
    return bindparam("words", query.as_tsquery(), type_=Text).cast(TSQUERY)
