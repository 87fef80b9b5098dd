"""Find texts that earlier versions have stored one by one, until retention has removed them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import ColumnElement, bindparam, exists, func, select, tuple_
from sqlalchemy import text as sql

from store.database.asyncio_engine import AsyncConnection
from store.database.blobs import unpack
from store.database.tables import calls, texts
from store.query.filters import Filters, call_conditions
from store.search.lookup_plans import DaySpan, newest_first, tsquery
from store.search.pages import FoundText, SearchWindow, TextPlace
from store.search.query import SearchQuery

SAMPLE_SIZE: Final = 500
"""Texts, the newest, by which it is judged how many fit."""


async def has_single_texts(connection: AsyncConnection) -> bool:
    """Whether the database may have any. The days of a new one have no partitions for them."""
    return bool(await connection.scalar(_HAS_PARTITIONS))


class SingleTextLookup:
    """Searches such texts of a project."""

    def __init__(self, project: str, query: SearchQuery, filters: Filters) -> None:
        self._project = project
        self._query = tsquery(query.as_tsquery())
        self._call_conditions = [*call_conditions(replace(filters, q=None), project)]

    async def find_newest(
        self, connection: AsyncConnection, span: DaySpan, window: SearchWindow, most: int
    ) -> list[FoundText]:
        """Return the newest texts of a span and window that fit, the newest first."""
        is_call = exists().where(calls.c.project == texts.c.project, calls.c.id == texts.c.call, *self._call_conditions)
        conditions = [texts.c.words.op("@@")(self._query), *([is_call] if self._call_conditions else [])]
        if window.top is not None:
            conditions.append(
                _place < _place_literal(window.top) if window.is_below else _place <= _place_literal(window.top)
            )
        if window.bottom is not None:
            conditions.append(_place >= _place_literal(window.bottom))
        in_span = (texts.c.project == self._project, *span.conditions(texts))
        newest = select(texts.c.words).where(*in_span)
        newest = newest.order_by(texts.c.day.desc(), texts.c.started_at.desc()).limit(SAMPLE_SIZE)
        order = await newest_first(connection, _PLACE, newest, self._query)
        rank = func.ts_rank_cd(texts.c.words, self._query, 4 | 1).label("rank")
        fitting = select(texts.c.run, *_PLACE, texts.c.role, rank).where(*conditions, *in_span).order_by(*order)
        return [
            FoundText(run=run, place=TextPlace(*place), role=role, rank=ranked)
            for run, *place, role, ranked in await connection.execute(fitting.limit(most))
        ]

    async def load_texts(self, connection: AsyncConnection, page: Sequence[FoundText]) -> dict[TextPlace, str]:
        """Load the contents of texts; those that were deleted meanwhile are missing."""
        keys = [(one.run, one.place.day, one.place.hash) for one in page if not one.text]
        if not keys:
            return {}
        key = tuple_(texts.c.run, texts.c.day, texts.c.hash)
        query = select(*_PLACE, texts.c.text).where(texts.c.project == self._project, key.in_(keys))
        return {TextPlace(*place): unpack(text).decode() for *place, text in await connection.execute(query)}


_HAS_PARTITIONS: Final = sql("SELECT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'texts'::regclass)")

_PLACE: Final = (texts.c.day, texts.c.started_at, texts.c.call, texts.c.hash)
_place = tuple_(*_PLACE)


def _place_literal(place: TextPlace) -> ColumnElement[Any]:
    values = (place.day, place.started_at, place.call, place.hash)
    return tuple_(*(bindparam(None, one, type_=column.type) for one, column in zip(values, _PLACE, strict=True)))
