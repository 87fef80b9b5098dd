"""Find texts by words: the newest first, in growing spans of days, so that a common word does not read all days."""

import datetime as dt
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Text, bindparam, exists, func, select
from sqlalchemy.dialects.postgresql import TSQUERY

from store.database.asyncio_engine import AsyncConnection
from store.database.blobs import unpack
from store.database.connection import Database
from store.database.tables import calls, runs, texts
from store.ingest.partitions import day_of
from store.query.filters import Filters, call_conditions, contains_run_text
from store.search.query import SearchQuery

MOST_CANDIDATES: Final = 1000
"""Texts, the newest that fit, that are ranked."""

MOST_CALLS: Final = 10_000
"""Calls, the newest that fit, among which a list with `q` selects."""

MOST_RUNS: Final = 1000
"""Runs, the newest whose id, name or labels fit, among which a list with `q` selects."""

FIRST_SPAN: Final = 1
"""Days that are searched first; each span is twice as long as the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundText:
    """A text that fits."""

    run: str
    call: uuid.UUID
    started_at: int
    role: str
    rank: float
    text: str


class TextLookup:
    """Searches the texts of a project."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def find_texts(self, query: SearchQuery, filters: Filters, limit: int) -> list[FoundText]:
        """Return the texts that fit best, among the newest `MOST_CANDIDATES` that fit."""
        fit = [*call_conditions(replace(filters, q=None))]
        is_call = exists().where(calls.c.project == texts.c.project, calls.c.id == texts.c.call, *fit)
        tsquery = _tsquery(query)
        columns = (texts.c.run, texts.c.call, texts.c.started_at, texts.c.role, texts.c.text)
        rank = func.ts_rank_cd(texts.c.words, tsquery, 4 | 1).label("rank")
        found: list[Any] = []
        async with self._database.transaction() as connection:
            async for is_in_span in self._spans(connection):
                conditions = [texts.c.project == self._project, texts.c.words.op("@@")(tsquery), *is_in_span]
                newest = select(*columns, rank).where(*conditions, *([is_call] if fit else []))
                newest = newest.order_by(texts.c.started_at.desc()).limit(MOST_CANDIDATES - len(found))
                found += (await connection.execute(newest)).all()
                if len(found) >= MOST_CANDIDATES:
                    break
        best = sorted(found, key=lambda row: (-row.rank, -row.started_at))[:limit]
        return [
            FoundText(
                run=row.run,
                call=row.call,
                started_at=row.started_at,
                role=row.role,
                rank=row.rank,
                text=unpack(row.text).decode(),
            )
            for row in best
        ]

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
        """Return the newest calls that have a text that fits, `MOST_CALLS` at most."""
        found: dict[uuid.UUID, None] = {}
        async with self._database.transaction() as connection:
            async for is_in_span in self._spans(connection):
                fits = (texts.c.project == self._project, texts.c.words.op("@@")(_tsquery(query)), *is_in_span)
                newest = select(texts.c.call).where(*fits).order_by(texts.c.started_at.desc()).limit(MOST_CALLS)
                found.update(dict.fromkeys((await connection.execute(newest)).scalars()))
                if len(found) >= MOST_CALLS:
                    break
        return tuple(found)

    async def _spans(self, connection: AsyncConnection) -> AsyncIterator[tuple[ColumnElement[bool], ...]]:
        """Yield the conditions for spans of days, the newest first, that cover what is stored."""
        # A text's day is that of its call's id. An import may have ids of other days than its times.
        ids = select(calls.c.id).where(calls.c.project == self._project).limit(1)
        oldest = await connection.scalar(ids.order_by(calls.c.id))
        newest = await connection.scalar(ids.order_by(calls.c.id.desc()))
        if oldest is None or newest is None:
            return
        first, last, length = day_of(str(oldest)), day_of(str(newest)), FIRST_SPAN
        while last >= first:
            begin = last - dt.timedelta(days=length)
            yield (texts.c.day > begin, texts.c.day <= last)
            last, length = begin, length * 2


def _tsquery(query: SearchQuery) -> ColumnElement[Any]:
    return bindparam("words", query.as_tsquery(), type_=Text).cast(TSQUERY)
