"""Keep the index of words: the texts of each call, each once for its run and day, at the first call that has it."""

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import batched
from typing import Final

import asyncpg

from calls.model import Call, Exchange
from store.database.blobs import CorruptData, pack
from store.database.connection import Database
from store.database.day_locks import share_any_day, share_days
from store.database.rows import storable_text
from store.database.tables import texts as texts_table
from store.feed.entries import CallStored, RunDeleted
from store.feed.feed import FeedRow
from store.ingest.array_text import array_text, columns_of, parameter_type
from store.ingest.partitions import Partitions, day_of
from store.large.summary import read_summary
from store.query.exchanges import ExchangeQueries
from store.search.call_texts import CallText, call_texts, summary_texts
from store.search.fresh_texts import FreshTexts
from store.search.text_hash import hash_text
from store.search.words import word_vector

BATCH: Final = 20
"""Calls whose bodies are held at a time."""

REBUILD_BATCH: Final = 100

FRESH_BATCH: Final = 200
"""Texts that are divided into words and inserted in one transaction."""

COUNTED_FROM: Final = 1 << 20
"""Bytes of a partition, without TOAST, from which its texts are counted: a thousand texts, about."""

type _Scope = tuple[str, dt.date]
"""Run and day."""

type _TextPlace = tuple[str, dt.date, bytes]
"""Run, day and hash."""

type _FoundText = tuple[_Scope, tuple[str, int], str, str]
"""Scope, call with its time, role and the text as it is stored."""

type _TextRow = tuple[str, str, dt.date, bytes, str, int, str, bytes, str]


class TextIndex:
    """The consumer of the feed. `derive` derives the call of an exchange, redacted. Of large exchanges, the summary is indexed."""

    name = "texts/1"

    def __init__(self, database: Database, derive: Callable[[Exchange], Call], fresh: FreshTexts | None = None) -> None:
        """`fresh` has the texts of calls that this process has just stored."""
        self._database = database
        self._derive = derive
        self._fresh = fresh
        self._partitions = Partitions(database)
        self._counted: set[dt.date] = set()
        """Days of which Postgres knows how many texts they have."""

    async def process(self, _: asyncpg.Connection, project: str, rows: Sequence[FeedRow]) -> None:
        """Index the calls that were stored. In short transactions of its own: doing it twice has the same result."""
        calls: dict[str, None] = {}
        for entry in (entry for row in rows for entry in row.entries):
            if isinstance(entry, RunDeleted):
                if not entry.is_expired:
                    await self._execute("DELETE FROM texts WHERE project = $1 AND run = $2", project, entry.run)
            elif isinstance(entry, CallStored):
                calls[entry.id] = None
                if entry.previous_run is not None:
                    await self._execute(DELETE_MOVED, project, entry.previous_run, uuid.UUID(entry.id))
        await self._index_fresh(project, calls)
        if calls:
            await self.index_calls(project, calls)

    async def _index_fresh(self, project: str, calls: dict[str, None]) -> None:
        """Index the calls whose texts are held, and remove them from `calls`."""
        if self._fresh is None or not (fresh_calls := self._fresh.take_calls(project, calls)):
            return
        texts: dict[_TextPlace, _FoundText] = {}
        for one in sorted(fresh_calls.values(), key=lambda one: (one.started_at, one.id)):
            for digest, role, text in one.texts:
                place = (one.run, one.day, digest)
                texts.setdefault(place, ((one.run, one.day), (one.id, one.started_at), role, text))
        # Without asking which of them are stored: that they are new is known, but for those of a run that an earlier process began.
        for batch in batched(texts.items(), FRESH_BATCH):
            await self._insert(project, await asyncio.to_thread(_rows_of, project, dict(batch)))
        for name in fresh_calls:
            del calls[name]

    async def rebuild(self, project: str) -> AsyncIterator[None]:
        """Index everything anew, the newest calls last, as they were stored."""
        await self._execute("DELETE FROM texts WHERE project = $1", project)
        after = uuid.UUID(int=0)
        while True:
            async with self._database.connection() as connection:
                names = [row["id"] for row in await connection.fetch(CALLS, project, after, REBUILD_BATCH)]
            await self.index_calls(project, map(str, names))
            yield
            if len(names) < REBUILD_BATCH:
                return
            after = names[-1]

    async def _execute(self, statement: str, *values: object) -> None:
        async with self._database.connection() as connection, connection.transaction():
            await share_any_day(connection)
            await connection.execute(statement, *values)

    async def index_calls(self, project: str, calls: Iterable[str]) -> None:
        """Index calls; those that are indexed already change nothing."""
        queries = ExchangeQueries(self._database, self._derive, project, reads_large=False)
        names = list(calls)
        small = await queries.without_large(names)
        await self._index_large(project, set(names) - set(small))
        for batch in batched(small, BATCH):
            found, unreadable = await _load_readable(queries, batch)
            await self._index_large(project, unreadable)
            await self._insert_new(project, await asyncio.to_thread(self._texts_of, found))

    async def _insert_new(self, project: str, texts: dict[_TextPlace, _FoundText]) -> None:
        """Insert the texts that are not stored. A conversation repeats its texts with every call: only new ones are divided into words."""
        if not texts:
            return
        places = [list(column) for column in zip(*texts, strict=True)]
        async with self._database.connection() as connection:
            stored = {tuple(row) for row in await connection.fetch(STORED, project, *places)}
        new = {place: one for place, one in texts.items() if place not in stored}
        await self._insert(project, await asyncio.to_thread(_rows_of, project, new))
        await self._count_texts({day for _, day, _ in texts})

    async def _count_texts(self, days: set[dt.date]) -> None:
        """Have Postgres count what is in new partitions.

        Before, it believes that few texts have the day of their partition, and looks for each text among all of the day. Left alone,
        it counts once a minute, and a plan may last until then. Of a small partition it would learn that reading all is best.
        """
        for day in days - self._counted:
            async with self._database.connection() as connection:
                if (size := await connection.fetchrow(SIZE, texts_table.name, day)) is None or size[
                    "bytes"
                ] < COUNTED_FROM:
                    continue
                if not size["is_counted"]:
                    await connection.execute(f"ANALYZE (SKIP_LOCKED) {size['partition']}")
            self._counted.add(day)

    async def _index_large(self, project: str, calls: Iterable[str]) -> None:
        """Index large exchanges, and those whose bodies cannot be had, by their summaries (`store.large.summary`): the beginning of the answer, and small arguments."""
        ids = [uuid.UUID(call) for call in calls]
        async with self._database.connection() as connection:
            found = await connection.fetch(SUMMARIES, project, ids) if ids else ()
        for row in found:
            name = str(row["id"])
            scope, call = (row["run"], day_of(name)), (name, row["started_at"])
            texts = summary_texts(read_summary(row["summary"]))
            await self._insert(project, _rows_of(project, _found_texts(scope, call, texts)))

    async def _insert(self, project: str, rows: Sequence[_TextRow]) -> None:
        """Store texts in a transaction that is as short as it can be, because the feed waits for it."""
        if not rows:
            return
        await self._partitions.create_missing({day for _, _, day, *_ in rows})
        async with self._database.connection() as connection, connection.transaction():
            await share_days(connection, {day for _, _, day, *_ in rows})
            # Locked, so that a run that is deleted meanwhile, or a call that is erased from it, leaves no texts.
            locked = await connection.fetch(LOCK_RUNS, project, sorted({run for _, run, *_ in rows}))
            runs = {row["id"] for row in locked}
            calls = sorted({call for _, _, _, _, call, *_ in rows})
            rows_of_calls = await connection.fetch(EXISTING, project, array_text(calls), calls[0], calls[-1])
            existing = {(row["run"], row["id"]) for row in rows_of_calls if row["run"] in runs}
            if found := [row for row in rows if (row[1], row[4]) in existing]:
                await connection.execute(INSERT, project, *columns_of(found, TEXT_COLUMNS))

    def _texts_of(self, exchanges: Iterable[Exchange]) -> dict[_TextPlace, _FoundText]:
        """Return the texts of exchanges, each at the first one of its run and day that has it."""
        found: dict[_TextPlace, _FoundText] = {}
        for one in sorted(exchanges, key=lambda one: (one.started_at, one.id)):
            scope, call = (one.run, day_of(one.id)), (one.id, one.started_at)
            for place, text in _found_texts(scope, call, call_texts(self._derive(one))).items():
                found.setdefault(place, text)
        return found


async def _load_readable(queries: ExchangeQueries, ids: Sequence[str]) -> tuple[list[Exchange], list[str]]:
    """Load exchanges; return them, and the ids of those whose bodies cannot be had. A damaged one prevents no other."""
    try:
        loaded = await queries.readable_exchanges(ids)
    except CorruptData:
        if len(ids) == 1:
            return [], list(ids)
        each = [await _load_readable(queries, [one]) for one in ids]
        return [one for found, _ in each for one in found], [
            one for _, unavailable_ids in each for one in unavailable_ids
        ]
    return list(loaded.found.values()), list(loaded.unavailable)


def _found_texts(scope: _Scope, call: tuple[str, int], texts: Iterable[CallText]) -> dict[_TextPlace, _FoundText]:
    """The texts of a call by their places, in the form in which they are stored."""
    stored = [(role, storable_text(text)) for role, text in texts]
    return {(*scope, hash_text(role, text)): (scope, call, role, text) for role, text in stored}


def _rows_of(project: str, texts: Mapping[_TextPlace, _FoundText]) -> list[_TextRow]:
    """The rows of texts. It is called in a thread: of all that follows the record, words take longest."""
    return [
        (project, *place, *call, role, pack(text.encode()), word_vector(text))
        for place, (_, call, role, text) in texts.items()
    ]


CALLS = "SELECT id FROM calls WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3"

SUMMARIES = """
SELECT calls.id, calls.run, calls.started_at, calls.summary FROM calls JOIN runs ON runs.project = $1 AND runs.id = calls.run
WHERE calls.project = $1 AND calls.id = ANY ($2::uuid[]) AND summary IS NOT NULL
"""

STORED = """
SELECT texts.run, texts.day, texts.hash FROM unnest($2::text[], $3::date[], $4::bytea[]) AS wanted (run, day, hash)
JOIN texts ON texts.project = $1 AND texts.run = wanted.run AND texts.day = wanted.day AND texts.hash = wanted.hash
"""

# Nothing has been counted where it is -1.
SIZE = """
SELECT oid::regclass::text AS partition, pg_relation_size(oid) AS bytes, reltuples >= 0 AS is_counted
FROM pg_class WHERE oid = to_regclass($1 || to_char($2::date, '_YYYYMMDD'))
"""

# The bounds of the ids say which days are read, as an array of them does not in a plan for any values.
EXISTING = """
SELECT run, id::text FROM calls WHERE project = $1 AND id = ANY ($2::text::uuid[]) AND id BETWEEN $3 AND $4
"""

# If the host dies before the texts are on disk, the position in the feed is lost with them (`feed.consumer`). The other statements are
# planned once for a connection: over all daily partitions, that takes longer than they do.
LOCK_RUNS = """
SELECT id, set_config('synchronous_commit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true) FROM runs
WHERE project = $1 AND id = ANY ($2::text[]) ORDER BY id FOR KEY SHARE
"""

TEXT_COLUMNS: Final = {
    "run": "text",
    "day": "date",
    "hash": "bytea",
    "call": "uuid",
    "started_at": "bigint",
    "role": "text",
    "text": "bytea",
    "words": "tsvector",
}
"""The columns of a row after the project."""

# One statement for all rows: a statement for each takes Postgres a fifth longer.
INSERT = f"""
INSERT INTO texts (project, run, day, hash, call, started_at, role, text, words)
SELECT $1::text, run, day, hash, call, started_at, role, text, words::tsvector
FROM unnest({", ".join(f"${number}::{parameter_type(kind)}" for number, kind in enumerate(TEXT_COLUMNS.values(), 2))})
    AS new (run, day, hash, call, started_at, role, text, words)
ON CONFLICT DO NOTHING
"""  # noqa: S608 - constants

DELETE_MOVED = "DELETE FROM texts WHERE project = $1 AND run = $2 AND call = $3"
