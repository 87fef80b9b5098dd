"""Keep the index of words: the texts of each call, each once for its run and day, at the first call that has it.

Texts of a run that are indexed at the same time are stored as groups (`store.search.groups`).
"""

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from itertools import batched
from typing import Final

import asyncpg

from calls.model import Call, Exchange
from store.database.blobs import CorruptData
from store.database.connection import Database
from store.database.day_locks import share_any_day, share_days
from store.database.rows import storable_text
from store.feed.entries import CallStored, RunDeleted
from store.feed.feed import FeedRow
from store.ingest.array_text import array_text
from store.ingest.partitions import Partitions, day_of
from store.large.summary import read_summary
from store.query.call_reader import CallReader
from store.search.call_texts import CallText, call_texts, summary_texts
from store.search.fresh_texts import FreshTexts
from store.search.groups import GroupText, StoredGroup, divide_texts, make_group, read_group
from store.search.text_hash import hash_text

BATCH: Final = 20
"""Calls whose bodies are held at a time."""

REBUILD_BATCH: Final = 100

FRESH_BATCH: Final = 256
"""Texts that are divided into words and inserted in one transaction."""

TABLES: Final = ("text_hashes", "text_groups")

type _Scope = tuple[str, dt.date]
"""Run and day."""

type _Texts = dict[tuple[_Scope, bytes], GroupText]
"""Texts by their scope and hash."""

type _Groups = dict[uuid.UUID, tuple[_Scope, list[GroupText]]]
"""Groups of texts by their ids."""


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
                    await self._delete("run = $2", project, entry.run)
            elif isinstance(entry, CallStored):
                calls[entry.id] = None
                if entry.previous_run is not None:
                    await self._remove_call(project, entry.previous_run, entry.id)
        await self._index_fresh(project, calls)
        if calls:
            await self.index_calls(project, calls)

    async def _index_fresh(self, project: str, calls: dict[str, None]) -> None:
        """Index the calls whose texts are held, and remove them from `calls`."""
        if self._fresh is None or not (fresh_calls := self._fresh.take_calls(project, calls)):
            return
        texts: _Texts = {}
        # Run by run, so that the texts of a run are together.
        for one in sorted(fresh_calls.values(), key=lambda one: (one.run, one.started_at, one.id)):
            call = uuid.UUID(one.id)
            for digest, role, text in one.texts:
                texts.setdefault(((one.run, one.day), digest), GroupText(digest, call, one.started_at, role, text))
        for batch in batched(texts.items(), FRESH_BATCH):
            await self._insert(project, dict(batch))
        for name in fresh_calls:
            del calls[name]

    async def rebuild(self, project: str) -> AsyncIterator[None]:
        """Index everything anew, the newest calls last, as they were stored."""
        await self._delete("true", project)
        after = uuid.UUID(int=0)
        while True:
            async with self._database.connection() as connection:
                names = [row["id"] for row in await connection.fetch(CALLS, project, after, REBUILD_BATCH)]
            await self.index_calls(project, map(str, names))
            yield
            if len(names) < REBUILD_BATCH:
                return
            after = names[-1]

    async def _delete(self, condition: str, *values: object) -> None:
        async with self._database.connection() as connection, connection.transaction():
            await share_any_day(connection)
            for table in TABLES:
                await connection.execute(f"DELETE FROM {table} WHERE project = $1 AND {condition}", *values)  # noqa: S608 - constants

    async def _remove_call(self, project: str, run: str, call: str) -> None:
        """Remove the texts of a call that has gone to another run, also their words from the groups that have other texts, too."""
        scope = (project, run, day_of(call))
        async with self._database.connection() as connection, connection.transaction():
            await share_days(connection, [scope[2]])
            hashes = await connection.fetch(DELETE_HASHES, *scope, uuid.UUID(call))
            for row in await connection.fetch(GROUPS, *scope, list({one["text_group"] for one in hashes})):
                texts = [one for one in read_group(row["texts"]) if str(one.call) != call]
                if texts:
                    await connection.execute(UPDATE_GROUP, *scope, row["id"], *make_group(texts))
                else:
                    await connection.execute(DELETE_GROUP, *scope, row["id"])

    async def index_calls(self, project: str, calls: Iterable[str]) -> None:
        """Index calls; those that are indexed already change nothing."""
        queries = CallReader(self._database, self._derive, project, reads_large=False)
        names = list(calls)
        small = await queries.without_large(names)
        await self._index_large(project, set(names) - set(small))
        for batch in batched(small, BATCH):
            found, unreadable = await _load_readable(queries, batch)
            await self._index_large(project, unreadable)
            await self._insert(project, await asyncio.to_thread(self._texts_of, found))

    async def _index_large(self, project: str, calls: Iterable[str]) -> None:
        """Index large exchanges, and those whose bodies cannot be had, by their summaries (`store.large.summary`): the beginning of the answer, and small arguments."""
        ids = [uuid.UUID(call) for call in calls]
        async with self._database.connection() as connection:
            found = await connection.fetch(SUMMARIES, project, ids) if ids else ()
        for row in found:
            name = str(row["id"])
            texts = summary_texts(read_summary(row["summary"]))
            await self._insert(project, _group_texts(row["run"], name, row["started_at"], texts))

    async def _insert(self, project: str, texts: _Texts) -> None:
        """Store those texts that are not stored, in a transaction that is as short as it can be, because the feed waits for it."""
        if not texts:
            return
        await self._partitions.create_missing({day for (_, day), _ in texts})
        async with self._database.connection() as connection, connection.transaction():
            await share_days(connection, {day for (_, day), _ in texts})
            existing = await _existing_calls(connection, project, texts)
            groups = _divide({place: one for place, one in texts.items() if (place[0][0], one.call.int) in existing})
            if not groups:
                return
            # A conversation repeats its texts with every call: only new ones are divided into words.
            rows = await connection.fetch(INSERT_HASHES, project, *_hash_columns(groups))
            new = {(row["text_group"], row["hash"]) for row in rows}
            columns = await asyncio.to_thread(_group_columns, groups, new)
            if columns:
                await connection.execute(INSERT_GROUPS, project, *columns)

    def _texts_of(self, exchanges: Iterable[Exchange]) -> _Texts:
        """Return the texts of exchanges, each at the first one of its run and day that has it."""
        found: _Texts = {}
        for one in sorted(exchanges, key=lambda one: (one.run, one.started_at, one.id)):
            texts = _group_texts(one.run, one.id, one.started_at, call_texts(self._derive(one)))
            for place, text in texts.items():
                found.setdefault(place, text)
        return found


async def _load_readable(queries: CallReader, ids: Sequence[str]) -> tuple[list[Exchange], list[str]]:
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


async def _existing_calls(connection: asyncpg.Connection, project: str, texts: _Texts) -> set[tuple[str, int]]:
    """Lock the runs of texts, and return the calls that they have, by run and the number of the id."""
    # Locked, so that a run that is deleted meanwhile, or a call that is erased from it, leaves no texts.
    locked = await connection.fetch(LOCK_RUNS, project, sorted({run for (run, _), _ in texts}))
    runs = {row["id"] for row in locked}
    # Numbers and texts of ids: Python compares ids slowly.
    calls = sorted({one.call.int for one in texts.values()})
    first, last = uuid.UUID(int=calls[0]), uuid.UUID(int=calls[-1])
    rows = await connection.fetch(EXISTING, project, array_text([f"{call:032x}" for call in calls]), first, last)
    return {(row["run"], row["id"].int) for row in rows if row["run"] in runs}


def _group_texts(run: str, call: str, started_at: int, texts: Iterable[CallText]) -> _Texts:
    """The texts of a call by their places, in the form in which they are stored."""
    scope, id_of_call = (run, day_of(call)), uuid.UUID(call)
    stored = [(role, storable_text(text)) for role, text in texts]
    return {
        (scope, digest): GroupText(digest, id_of_call, started_at, role, text)
        for role, text in stored
        for digest in [hash_text(role, text)]
    }


def _divide(texts: _Texts) -> _Groups:
    scopes: dict[_Scope, list[GroupText]] = {}
    for (scope, _), one in texts.items():
        scopes.setdefault(scope, []).append(one)
    return {uuid.uuid4(): (scope, group) for scope, some in scopes.items() for group in divide_texts(some)}


def _hash_columns(groups: _Groups) -> tuple[object, ...]:
    """The values of `INSERT_HASHES` after the project."""
    rows = [
        (run, day, one.call.hex, group, one.hash)
        for name, ((run, day), texts) in groups.items()
        for group in [name.hex]
        for one in texts
    ]
    *columns, hashes = zip(*rows, strict=True)
    return (*map(array_text, columns), hashes)


def _group_columns(groups: _Groups, new: Collection[tuple[uuid.UUID, bytes]]) -> tuple[object, ...]:
    """The values of `INSERT_GROUPS` after the project, of new texts. It is called in a thread: of all that follows the record,
    words take longest.
    """
    rows: list[tuple[str, dt.date, uuid.UUID, StoredGroup]] = []
    for name, (scope, texts) in groups.items():
        if some := [one for one in texts if (name, one.hash) in new]:
            rows.append((*scope, name, make_group(some)))
    if not rows:
        return ()
    runs, days, names, stored = zip(*rows, strict=True)
    times, words, forms = zip(*stored, strict=True)
    return (*map(array_text, (runs, days, names, times)), words, forms)


CALLS = "SELECT id FROM calls WHERE project = $1 AND id > $2 ORDER BY id LIMIT $3"

SUMMARIES = """
SELECT calls.id, calls.run, calls.started_at, calls.summary FROM calls JOIN runs ON runs.project = $1 AND runs.id = calls.run
WHERE calls.project = $1 AND calls.id = ANY ($2::uuid[]) AND summary IS NOT NULL
"""

# The bounds of the ids say which days are read, as an array of them does not in a plan for any values.
EXISTING = """
SELECT run, id FROM calls WHERE project = $1 AND id = ANY ($2::text::uuid[]) AND id BETWEEN $3 AND $4
"""

# If the host dies before the texts are on disk, the position in the feed is lost with them (`feed.consumer`). The other statements are
# planned once for a connection: over all daily partitions, that takes longer than they do.
LOCK_RUNS = """
SELECT id, set_config('synchronous_commit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true) FROM runs
WHERE project = $1 AND id = ANY ($2::text[]) ORDER BY id FOR KEY SHARE
"""

INSERT_HASHES = """
INSERT INTO text_hashes (project, run, day, hash, call, text_group)
SELECT $1::text, run, day, hash, call, text_group
FROM unnest($2::text::text[], $3::text::date[], $4::text::uuid[], $5::text::uuid[], $6::bytea[]) AS new (run, day, call, text_group, hash)
ON CONFLICT DO NOTHING RETURNING text_group, hash
"""

INSERT_GROUPS = """
INSERT INTO text_groups (project, run, day, id, newest_at, words, texts)
SELECT $1::text, run, day, id, newest_at, words::tsvector, texts
FROM unnest($2::text::text[], $3::text::date[], $4::text::uuid[], $5::text::bigint[], $6::text[], $7::bytea[])
    AS new (run, day, id, newest_at, words, texts)
"""

DELETE_HASHES = """
DELETE FROM text_hashes WHERE project = $1 AND run = $2 AND day = $3 AND call = $4 RETURNING text_group
"""

GROUPS = """
SELECT id, texts FROM text_groups WHERE project = $1 AND run = $2 AND day = $3 AND id = ANY ($4::uuid[]) ORDER BY id FOR UPDATE
"""

UPDATE_GROUP = """
UPDATE text_groups SET newest_at = $5, words = $6::text::tsvector, texts = $7
WHERE project = $1 AND run = $2 AND day = $3 AND id = $4
"""

DELETE_GROUP = "DELETE FROM text_groups WHERE project = $1 AND run = $2 AND day = $3 AND id = $4"
