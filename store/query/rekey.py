"""Key the stored calls of a run again under the rules in force, and report which keys join or separate.

All keys are made first, then written in one transaction: a run has its old keys or its new ones, whenever we die. What is
written twice is the same. Whoever leaves while it is done leaves the run as it was.
"""

import asyncio
import itertools
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

from calls.keys.key import KeyResult, keyed
from calls.keys.profile import Profiles
from calls.model import Exchange
from store.database.connection import Database
from store.database.rows import body_digest, clean, digest_bytes, digest_text
from store.ingest.insert_rows import LONGEST_NAME
from store.query.exchanges import ExchangeQueries

BATCH: Final = 100
"""Calls that are keyed between two signs of life."""

WRITTEN: Final = 1000
"""Rows that one statement changes."""

LISTED: Final = 50
"""Meetings and partings that are told in full; the others are counted."""


class _Derived(NamedTuple):
    """What of a call's row hangs on its key, or was found with it."""

    key: bytes
    profile: str
    kind: str
    provider: str
    dialect: str
    operation: str
    polls: str | None


class _Known(NamedTuple):
    """One call: where it stands, its row as it was and as it is, and what it answered."""

    step: int
    id: uuid.UUID
    was: _Derived
    now: _Derived
    answer: tuple[int | None, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedKeys:
    """Calls that had keys of their own and have one key now."""

    key: str
    steps: tuple[int, ...]
    answers: int
    """How many different answers they had: more than one, or they would do no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatedKeys:
    """Calls that had one key and have several now."""

    key: str
    """The one that they had."""
    steps: tuple[tuple[int, ...], ...]
    """By the key that they have now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyResult:
    """What became of a run."""

    run: str
    calls: int
    changed: int
    collide: tuple[JoinedKeys, ...]
    part: tuple[SeparatedKeys, ...]


class Rekeyer:
    """Keys runs again. `recorded` gives their evidence."""

    def __init__(
        self, database: Database, recorded: ExchangeQueries, profiles: Profiles, project: str = "default"
    ) -> None:
        self._database = database
        self._recorded = recorded
        self._profiles = profiles
        self._project = project

    async def run(self, run: str, *, dry: bool) -> AsyncGenerator[int | RekeyResult]:
        """One run: how many of its exchanges are keyed, again and again, and at last what became of it. Raises `Corrupt`."""
        known: list[_Known] = []
        step = 0
        async for batch in _batched(self._recorded.exchanges(run)):
            known += await self._keyed(batch, step)
            step += len(batch)
            yield step
        if not dry:
            # Closed with us, so that a transaction does not outlive whoever asked for it.
            async with aclosing(self._write(run, [one for one in known if one.now != one.was])) as writing:
                async for _ in writing:
                    yield step
        yield RekeyResult(
            run=run,
            calls=len(known),
            changed=sum(one.now.key != one.was.key for one in known),
            collide=tuple(_met(known)),
            part=tuple(_parted(known)),
        )

    async def _keyed(self, batch: Sequence[Exchange], before: int) -> list[_Known]:
        made = await asyncio.to_thread(lambda: [_derived(keyed(one.request, self._profiles)) for one in batch])
        async with self._database.raw() as connection:
            rows = await connection.fetch(STORED, self._project, [one.id for one in batch])
        stored = {str(row["id"]): _Derived(*row[1:]) for row in rows}
        return [
            _Known(step, uuid.UUID(one.id), stored[one.id], now, _answer(one))
            for step, (one, now) in enumerate(zip(batch, made, strict=True), before + 1)
            # What no call could be derived from has no key.
            if one.id in stored
        ]

    async def _write(self, run: str, changed: Sequence[_Known]) -> AsyncGenerator[None]:
        async with self._database.raw() as connection, connection.transaction():
            # First of all, because ingest does so too: it locks the run.
            await connection.execute(SEALED, self._project, run, self._profiles.digest)
            for batch in itertools.batched(changed, WRITTEN):
                columns = zip(*((one.id, *one.now) for one in batch), strict=True)
                await connection.execute(UPDATE, self._project, run, *map(list, columns))
                yield


async def stored_keys(database: Database, run: str, project: str = "default") -> dict[str, tuple[str, str]]:
    """The keys of a run as they are stored, with the names of their profiles, by the ids of the exchanges."""
    async with database.raw() as connection:
        rows = await connection.fetch(KEYS, project, run)
    return {str(row["id"]): (digest_text(row["key"]), row["profile"]) for row in rows}


async def _batched(exchanges: AsyncIterator[Exchange]) -> AsyncIterator[list[Exchange]]:
    batch: list[Exchange] = []
    async for one in exchanges:
        batch.append(one)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _derived(key: KeyResult) -> _Derived:
    return _Derived(
        key=digest_bytes(key.key),
        profile=_name(key.profile),
        kind=key.kind,
        provider=_name(key.route.provider),
        dialect=_name(key.dialect),
        operation=_name(key.operation),
        polls=None if key.route.polls is None else _name(key.route.polls),
    )


def _name(text: str) -> str:
    return clean(text, LONGEST_NAME)


def _answer(exchange: Exchange) -> tuple[int | None, bytes]:
    response = exchange.response
    return (None, b"") if response is None else (response.status, body_digest(response.body.data))


def _met(known: Iterable[_Known]) -> Iterator[JoinedKeys]:
    """Those whose answers are not the same: which of them a request is given would now hang on the order."""
    for key, group in _grouped(known, lambda one: one.now.key).items():
        answers = {one.answer for one in group}
        if len({one.was.key for one in group}) > 1 and len(answers) > 1:
            yield JoinedKeys(key=digest_text(key), steps=tuple(one.step for one in group), answers=len(answers))


def _parted(known: Iterable[_Known]) -> Iterator[SeparatedKeys]:
    for key, group in _grouped(known, lambda one: one.was.key).items():
        parts = _grouped(group, lambda one: one.now.key)
        if len(parts) > 1:
            yield SeparatedKeys(
                key=digest_text(key), steps=tuple(tuple(one.step for one in part) for part in parts.values())
            )


def _grouped(known: Iterable[_Known], by: Callable[[_Known], bytes]) -> dict[bytes, list[_Known]]:
    groups: defaultdict[bytes, list[_Known]] = defaultdict(list)
    for one in known:
        groups[by(one)].append(one)
    return groups


STORED = """
SELECT id, key, profile, kind, provider, dialect, operation, polls FROM calls
WHERE project = $1 AND id = ANY ($2::uuid[])
"""

KEYS = "SELECT id, key, profile FROM calls WHERE project = $1 AND run = $2"

SEALED = "UPDATE runs SET profile = $3 WHERE project = $1 AND id = $2"

UPDATE = """
UPDATE calls SET
    key = made.key, profile = made.profile, kind = made.kind, provider = made.provider, dialect = made.dialect,
    operation = made.operation, polls = made.polls
FROM unnest($3::uuid[], $4::bytea[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[])
    AS made (id, key, profile, kind, provider, dialect, operation, polls)
WHERE calls.project = $1 AND calls.run = $2 AND calls.id = made.id
"""
