"""Find texts by words: the newest first, in growing spans of days, so that a common word does not read all days."""

import datetime as dt
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from sqlalchemy import select

from store.database.asyncio_engine import AsyncConnection
from store.database.connection import Database
from store.database.tables import calls, runs
from store.ingest.partitions import day_of
from store.query.filters import Filters, contains_run_text
from store.query.pages import NEWEST_FIRST, list_digest
from store.search.group_lookup import GroupLookup
from store.search.lookup_plans import DaySpan, plan_for_values
from store.search.pages import FoundPage, FoundText, SearchWindow, begin_window
from store.search.query import SearchQuery

MOST_CANDIDATES: Final = 1000
"""Texts, the newest that fit, that are ranked."""

MOST_TEXTS: Final = 10_000
"""Texts, the newest that fit, among whose calls a list with `q` selects."""

MOST_RUNS: Final = 1000
"""Runs, the newest whose id, name or labels fit, among which a list with `q` selects."""

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
            await plan_for_values(connection)
            groups = GroupLookup(self._project, query, filters, is_ranked=True)
            while True:
                most = MOST_CANDIDATES if window.bottom is None else 2 * MOST_CANDIDATES
                found = await self._newest(connection, groups, window, most)
                found = await groups.rank(connection, found)
                rest = window.rest(found)
                page, is_last = rest[:limit], len(found) < MOST_CANDIDATES and window.bottom is None
                if page or is_last:
                    break
                window = window.before(found)
        window = window.with_ends(found, is_last=is_last)
        if len(rest) > limit:
            following: SearchWindow | None = window.after(page[-1])
        else:
            following = None if is_last else window.before(found)
        return FoundPage(list(page), None if following is None else str(following))

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
        async with self._database.transaction() as connection:
            await plan_for_values(connection)
            groups = GroupLookup(self._project, query, Filters(), is_ranked=False)
            found = await self._newest(connection, groups, SearchWindow(""), MOST_TEXTS)
        return tuple(dict.fromkeys(one.place.call for one in found))

    async def _newest(
        self, connection: AsyncConnection, groups: GroupLookup, window: SearchWindow, most: int
    ) -> list[FoundText]:
        """Return the newest texts of a window that fit, the newest first."""
        found: list[FoundText] = []
        async for span in self._spans(connection, window):
            found += await groups.find_newest(connection, span, window, most - len(found))
            if len(found) >= most:
                break
        return found

    async def _spans(self, connection: AsyncConnection, window: SearchWindow) -> AsyncIterator[DaySpan]:
        """Yield spans of days, the newest first, that cover a window of what is stored."""
        # A text's day is that of its call's id. An import may have ids of other days than its times.
        ids = select(calls.c.id).where(calls.c.project == self._project).limit(1)
        oldest = await connection.scalar(ids.order_by(calls.c.id))
        newest = await connection.scalar(ids.order_by(calls.c.id.desc()))
        if oldest is None or newest is None:
            return
        first, last, length = day_of(str(oldest)), day_of(str(newest)), FIRST_SPAN
        first = max(first, window.bottom.day) if window.bottom else first
        last = min(last, window.top.day) if window.top else last
        while last >= first:
            begin = last - dt.timedelta(days=length)
            yield DaySpan(begin, last)
            last, length = begin, length * 2
