"""Find texts in groups of texts: the groups by the index of words, then the texts of each group that fit."""

import asyncio
import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import ColumnElement, Integer, Select, Text, Uuid, bindparam, exists, select, tuple_
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import ARRAY

from store.database.asyncio_engine import AsyncConnection
from store.database.tables import calls, text_groups
from store.ingest.partitions import first_id_of
from store.query.filters import Filters, call_conditions
from store.search.groups import read_group
from store.search.lookup_plans import DaySpan, newest_first, tsquery
from store.search.matching import TextMatcher
from store.search.pages import FoundText, SearchWindow, TextPlace
from store.search.query import SearchQuery

SAMPLE_SIZE: Final = 50
"""Groups, the newest, by which it is judged how many fit."""

FIRST_PAGE: Final = 32
"""Groups that are read first; each page is twice as long as the one before."""

MOST_GROUPS: Final = 256
"""Groups of a page: 16 MB of text at most, and usually 5."""


class GroupLookup:
    """Searches the groups of a project."""

    def __init__(self, project: str, query: SearchQuery, filters: Filters, *, is_ranked: bool) -> None:
        self._project = project
        self._text_query = query.as_tsquery()
        self._query = tsquery(query.as_group_tsquery())
        self._matcher = TextMatcher(query)
        self._is_ranked = is_ranked
        self._call_conditions = [*call_conditions(replace(filters, q=None), project)]

    async def find_newest(
        self, connection: AsyncConnection, span: DaySpan, window: SearchWindow, most: int
    ) -> list[FoundText]:
        """Return the newest texts of a span and window that fit, the newest first."""
        in_span = (text_groups.c.project == self._project, *span.conditions(text_groups))
        newest = select(text_groups.c.words).where(*in_span)
        newest = newest.order_by(text_groups.c.day.desc(), text_groups.c.newest_at.desc()).limit(SAMPLE_SIZE)
        order = await newest_first(connection, _ORDER, newest, self._query)
        columns = (*_ORDER, text_groups.c.run, text_groups.c.texts)
        groups = select(*columns).where(*in_span, *self._conditions(span, window)).order_by(*order)
        return await self._read_pages(connection, groups, window, most)

    def _conditions(self, span: DaySpan, window: SearchWindow) -> Iterator[ColumnElement[bool]]:
        yield text_groups.c.words.op("@@")(self._query)
        if window.bottom is not None:
            place = tuple_(text_groups.c.day, text_groups.c.newest_at)
            yield place >= _literals((window.bottom.day, window.bottom.started_at))
        if self._call_conditions:
            # Each text is checked, too. This keeps groups of other runs from being read.
            ids = (calls.c.id >= first_id_of(span.after), calls.c.id < first_id_of(span.last + dt.timedelta(days=1)))
            same_run = (calls.c.project == text_groups.c.project, calls.c.run == text_groups.c.run)
            yield exists().where(*same_run, *ids, *self._call_conditions)

    async def _read_pages(
        self, connection: AsyncConnection, groups: Select[Any], window: SearchWindow, most: int
    ) -> list[FoundText]:
        """Read groups, the newest first, until no text of the others can be among those that are wanted."""
        found: list[FoundText] = []
        size = FIRST_PAGE
        page = groups
        while True:
            rows = (await connection.execute(page.limit(size))).all()
            found += await self._among_calls(connection, await asyncio.to_thread(self._texts_of, rows, window))
            if len(rows) < size:
                break
            last = rows[-1]
            if len(found) >= most and _count_newer(found, last.day, last.newest_at) >= most:
                break
            page = groups.where(tuple_(*_ORDER) < _literals((last.day, last.newest_at, last.id)))
            size = min(2 * size, MOST_GROUPS)
        return sorted(found, key=attrgetter("place"), reverse=True)[:most]

    def _texts_of(self, rows: Sequence[Any], window: SearchWindow) -> list[FoundText]:
        """Return the texts of groups that fit. It is called in a thread."""
        found = []
        for row in rows:
            for one in read_group(row.texts):
                place = TextPlace(row.day, one.started_at, one.call, one.hash)
                if _is_in(window, place) and self._matcher.is_fitting(one.text):
                    found.append(FoundText(row.run, place, one.role, text=one.text if self._is_ranked else ""))
        return found

    async def _among_calls(self, connection: AsyncConnection, found: list[FoundText]) -> list[FoundText]:
        """Return the texts whose calls fit the filters."""
        if not found or not self._call_conditions:
            return found
        ids = bindparam(None, list({one.place.call for one in found}), type_=ARRAY(Uuid))
        fitting = select(calls.c.id).where(
            calls.c.project == self._project, calls.c.id == ids.any_(), *self._call_conditions
        )
        call_ids = set((await connection.execute(fitting)).scalars())
        return [one for one in found if one.place.call in call_ids]

    async def rank(self, connection: AsyncConnection, found: Sequence[FoundText]) -> list[FoundText]:
        """Return the same with their ranks. PostgreSQL ranks a text by the places of the words, and by how many words it has."""
        if not found:
            return []
        places = await asyncio.to_thread(lambda: [self._matcher.places(one.text) for one in found])
        vectors, lengths = map(list, zip(*places, strict=True))
        values = {"vectors": vectors, "lengths": lengths, "query": self._text_query}
        ranks = (await connection.execute(_RANKS, values)).scalars()
        return [one._replace(rank=rank) for one, rank in zip(found, ranks, strict=True)]


def _count_newer(found: Sequence[FoundText], day: dt.date, newest_at: int) -> int:
    """Count the texts that are newer than all groups that were not read."""
    return sum((one.place.day, one.place.started_at) > (day, newest_at) for one in found)


def _is_in(window: SearchWindow, place: TextPlace) -> bool:
    """Whether a place is in a window."""
    if window.top is not None and (place > window.top or (window.is_below and place == window.top)):
        return False
    return window.bottom is None or place >= window.bottom


_ORDER: Final = (text_groups.c.day, text_groups.c.newest_at, text_groups.c.id)


def _literals(values: tuple[dt.date, int] | tuple[dt.date, int, uuid.UUID]) -> ColumnElement[Any]:
    return tuple_(*(bindparam(None, one, type_=column.type) for one, column in zip(values, _ORDER, strict=False)))


# What `ts_rank_cd` divides by the logarithm of the length with 1 is divided here: the vectors have the words of the query only.
_RANKS: Final = sql("""
SELECT (ts_rank_cd(vector::tsvector, CAST(:query AS tsquery), 4) / ln(length + 1.0::float8))::real
FROM unnest(CAST(:vectors AS text[]), CAST(:lengths AS int[])) WITH ORDINALITY AS one (vector, length, n) ORDER BY n
""").bindparams(
    bindparam("vectors", type_=ARRAY(Text)), bindparam("lengths", type_=ARRAY(Integer)), bindparam("query", type_=Text)
)
