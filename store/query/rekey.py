"""Compute the keys of a run's stored calls again under the profiles in force, and report which keys join or separate.

All keys are computed first, then written in one transaction: after a crash, a run has either its old keys or its new ones.
Repeating it changes nothing. If the client disconnects meanwhile, the run does not change.
"""

import asyncio
import itertools
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

import asyncpg

from calls.keys.key import KeyResult, make_key
from calls.keys.profile import Profiles
from calls.model import Exchange
from store.database.connection import Database
from store.database.day_locks import share_any_day
from store.database.rows import body_digest, digest_bytes, digest_text, storable_text
from store.database.traits import TRAITS_OF_COLUMNS
from store.feed.entries import RunChanged
from store.feed.feed import append_entries
from store.ingest.insert_rows import MAX_NAME_LENGTH
from store.query.call_reader import CallReader

BATCH: Final = 100
"""Calls that are keyed between two progress reports."""

WRITE_BATCH: Final = 1000
"""Rows that one statement updates."""

MOST_LISTED: Final = 50
"""Joined and separated keys that are reported in full; the others are only counted."""


class _DerivedRow(NamedTuple):
    """The columns of a call that depend on its key, or are determined with it."""

    key: bytes
    profile: str
    kind: str
    provider: str
    dialect: str
    operation: str
    polls: str | None


class _KeyedCall(NamedTuple):
    """One call: its step, its columns before and after, and its answer (status and digest of the body)."""

    step: int
    id: uuid.UUID
    was: _DerivedRow
    now: _DerivedRow
    answer: tuple[int | None, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedKeys:
    """Calls that had different keys and now have the same one, with different answers."""

    key: str
    steps: tuple[int, ...]
    answers: int
    """The number of different answers. Calls with the same answer may share a key and are not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedKeys:
    """Calls that had the same key and now have different ones."""

    key: str
    """The key that they had."""
    steps: tuple[tuple[int, ...], ...]
    """The steps, grouped by the new key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyResult:
    """The changes of one run."""

    run: str
    calls: int
    changed: int
    collide: tuple[JoinedKeys, ...]
    part: tuple[SeparatedKeys, ...]


class Rekeyer:
    """Computes the keys of runs again."""

    def __init__(self, database: Database, recorded: CallReader, profiles: Profiles, project: str = "default") -> None:
        self._database = database
        self._recorded = recorded
        self._profiles = profiles
        self._project = project

    async def rekey_run(self, rekey_run: str, *, dry: bool) -> AsyncGenerator[int | RekeyResult]:
        """Rekey a run; yield the number of exchanges done so far, repeatedly, and at the end the result. Raises `CorruptData`."""
        keyed_calls: list[_KeyedCall] = []
        step = 0
        async for batch in _batch_exchanges(self._recorded.exchanges(rekey_run)):
            keyed_calls += await self._key_batch(batch, step)
            step += len(batch)
            yield step
        if not dry:
            # Closed together with this generator, so that the transaction ends when the client disconnects.
            async with aclosing(self._write(rekey_run, [one for one in keyed_calls if one.now != one.was])) as writing:
                async for _ in writing:
                    yield step
        yield RekeyResult(
            run=rekey_run,
            calls=len(keyed_calls),
            changed=sum(one.now.key != one.was.key for one in keyed_calls),
            collide=tuple(_joined_keys(keyed_calls)),
            part=tuple(_separated_keys(keyed_calls)),
        )

    async def _key_batch(self, batch: Sequence[Exchange], before: int) -> list[_KeyedCall]:
        derived_rows = await asyncio.to_thread(
            lambda: [_derived_row(make_key(one.request, self._profiles)) for one in batch]
        )
        async with self._database.connection() as connection:
            rows = await connection.fetch(STORED, self._project, [one.id for one in batch])
        stored = {str(row["id"]): _DerivedRow(*row[1:]) for row in rows}
        return [
            _KeyedCall(step, uuid.UUID(one.id), stored[one.id], now, _answer(one))
            for step, (one, now) in enumerate(zip(batch, derived_rows, strict=True), before + 1)
            # An exchange from which no call could be derived has no key.
            if one.id in stored
        ]

    async def _write(self, run: str, changed: Sequence[_KeyedCall]) -> AsyncGenerator[None]:
        async with self._database.connection() as connection, connection.transaction():
            await share_any_day(connection)
            # Then this, as in ingest, because it locks the run.
            await connection.execute(SET_PROFILE, self._project, run, self._profiles.digest)
            for batch in itertools.batched(changed, WRITE_BATCH):
                columns = zip(*((one.id, *one.now) for one in batch), strict=True)
                await connection.execute(UPDATE, self._project, run, *map(list, columns))
                await connection.execute(UPDATE_TRAITS, self._project, run, [one.id for one in batch])
                yield
            await append_entries(connection, self._project, [RunChanged(run, time.time_ns())])


async def stored_keys(database: Database, run: str, project: str = "default") -> dict[str, tuple[str, str]]:
    """Return the stored keys of a run and the names of their profiles, by exchange id."""
    async with database.connection() as connection:
        return await read_keys(connection, run, project)


async def read_keys(connection: asyncpg.Connection, run: str, project: str) -> dict[str, tuple[str, str]]:
    """Return the same over a connection that is open."""
    rows = await connection.fetch(KEYS, project, run)
    return {str(row["id"]): (digest_text(row["key"]), row["profile"]) for row in rows}


async def read_keys_of_many(
    connection: asyncpg.Connection, runs: Sequence[str], project: str
) -> dict[str, tuple[str, str]]:
    """Return the keys and profiles of the calls of several runs, by their ids."""
    rows = await connection.fetch(KEYS_OF_MANY, project, runs)
    return {str(row["id"]): (digest_text(row["key"]), row["profile"]) for row in rows}


async def _batch_exchanges(exchanges: AsyncIterator[Exchange]) -> AsyncIterator[list[Exchange]]:
    batch: list[Exchange] = []
    async for one in exchanges:
        batch.append(one)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _derived_row(key: KeyResult) -> _DerivedRow:
    return _DerivedRow(
        key=digest_bytes(key.key),
        profile=_name(key.profile),
        kind=key.kind,
        provider=_name(key.route.provider),
        dialect=_name(key.dialect),
        operation=_name(key.operation),
        polls=None if key.route.polls is None else _name(key.route.polls),
    )


def _name(text: str) -> str:
    return storable_text(text, MAX_NAME_LENGTH)


def _answer(exchange: Exchange) -> tuple[int | None, bytes]:
    response = exchange.response
    return (None, b"") if response is None else (response.status, body_digest(response.body.data))


def _joined_keys(keyed_calls: Iterable[_KeyedCall]) -> Iterator[JoinedKeys]:
    """Yield joined keys with different answers: which of these a request receives now depends on the order."""
    for key, group in _group_by(keyed_calls, lambda one: one.now.key).items():
        answers = {one.answer for one in group}
        if len({one.was.key for one in group}) > 1 and len(answers) > 1:
            yield JoinedKeys(key=digest_text(key), steps=tuple(one.step for one in group), answers=len(answers))


def _separated_keys(keyed_calls: Iterable[_KeyedCall]) -> Iterator[SeparatedKeys]:
    for key, group in _group_by(keyed_calls, lambda one: one.was.key).items():
        parts = _group_by(group, lambda one: one.now.key)
        if len(parts) > 1:
            yield SeparatedKeys(
                key=digest_text(key), steps=tuple(tuple(one.step for one in part) for part in parts.values())
            )


def _group_by(keyed_calls: Iterable[_KeyedCall], by: Callable[[_KeyedCall], bytes]) -> dict[bytes, list[_KeyedCall]]:
    groups: defaultdict[bytes, list[_KeyedCall]] = defaultdict(list)
    for one in keyed_calls:
        groups[by(one)].append(one)
    return groups


STORED = """
SELECT id, key, profile, kind, provider, dialect, operation, polls FROM calls
WHERE project = $1 AND id = ANY ($2::uuid[])
"""

KEYS = "SELECT id, key, profile FROM calls WHERE project = $1 AND run = $2"

KEYS_OF_MANY = "SELECT id, key, profile FROM calls WHERE project = $1 AND run = ANY($2::text[])"

SET_PROFILE = "UPDATE runs SET profile = $3 WHERE project = $1 AND id = $2"

UPDATE = """
UPDATE calls SET
    key = made.key, profile = made.profile, kind = made.kind, provider = made.provider, dialect = made.dialect,
    operation = made.operation, polls = made.polls,
    -- Other profiles may derive another call. That of a large exchange cannot be derived when it is listed.
    summary = CASE WHEN (
        SELECT large FROM exchanges WHERE exchanges.project = $1 AND exchanges.id = calls.id
    ) THEN summary END
FROM unnest($3::uuid[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[])
    AS made (id, key, profile, kind, provider, dialect, operation, polls)
WHERE calls.project = $1 AND calls.run = $2 AND calls.id = made.id
"""

UPDATE_TRAITS = f"""
UPDATE calls SET traits = {TRAITS_OF_COLUMNS} WHERE project = $1 AND run = $2 AND id = ANY ($3::uuid[])
"""  # noqa: S608 - a constant
