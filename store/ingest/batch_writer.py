"""Write exchanges, calls, gaps and replay reports to Postgres in batches; writing twice has one result.

All ids are made before, every INSERT lets an existing row stand, so a batch that was sent twice (a killed store server, a lost
answer to COMMIT) is stored once. Whatever `put` returned from is committed. A row that Postgres will not take is found
by halving its batch and kept in `gaps` with its evidence: one bad exchange never holds up the others, and is never lost.
"""

import asyncio
import datetime as dt
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import asyncpg

from calls.events import Gap, ReplayNoted
from calls.model import Exchange
from store.database.blobs import Element, ElementPlace, Primer, elements, pack, plan
from store.database.connection import BadValue, Database, Unavailable
from store.database.rows import clean, encoded_head
from store.ingest.dedup_cache import DedupCache, Scope
from store.ingest.insert_rows import (
    EMPTY_RUNS,
    ID,
    INSERT_CALL,
    INSERT_EXCHANGE,
    INSERT_GAP,
    INSERT_PART,
    LEAVES,
    MALFORMED,
    RUNS_OF,
    UPSERT_REPLAY,
    DerivedExchange,
    call_row,
    exchange_row,
    gap_row,
    quarantine,
    run_name,
)
from store.ingest.partitions import Partitions, day_of

__all__ = ["BatchResult", "DerivedExchange", "Ingest"]

log = logging.getLogger(__name__)

PAUSES = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Seconds between tries when a transaction was in another's way."""

PASSING = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
POISON = (
    BadValue,
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of a batch."""

    exchanges: int
    quarantined: tuple[Gap, ...]


class _Ready(NamedTuple):
    """An exchange with all of its row that does not depend on what was stored before."""

    kept: DerivedExchange
    scope: Scope
    cut: tuple[Element, ...]
    head: bytes
    exchange: tuple[object, ...]
    call: tuple[object, ...] | None


@dataclass(slots=True)
class _Fresh:
    """What a transaction brings of a run."""

    places: dict[bytes, ElementPlace] = field(default_factory=dict)
    primer: Primer | None = None


class _Life(NamedTuple):
    """What a batch says about a run."""

    started_at: int
    newest_at: int
    active_at: int


class Ingest:
    """The one way into the tables. One at a time: `put` is not for concurrent use."""

    def __init__(self, database: Database, *, project: str = "default", profile: str | None = None) -> None:
        self._database = database
        self._project = project
        self._profile = profile
        self._partitions = Partitions(database)
        self._known = DedupCache()

    @property
    def database(self) -> Database:
        """Where it all goes."""
        return self._database

    @property
    def project(self) -> str:
        """Whose it is."""
        return self._project

    async def ahead(self, today: dt.date) -> None:
        """Make the partitions of the days around today, so that midnight costs nothing."""
        await self._partitions.ahead(today)

    async def put(
        self, batch: Sequence[DerivedExchange], gaps: Sequence[Gap] = (), replays: Sequence[ReplayNoted] = ()
    ) -> BatchResult:
        """Store all of it and commit. Raises `Unavailable` while Postgres is away: then send the same again."""
        ready: list[_Ready] = []
        refused: list[tuple[DerivedExchange, str]] = []
        for kept in batch:
            try:
                ready.append(self._prepared(kept))
            except MALFORMED as error:
                refused.append((kept, str(error)))
        await self._partitions.ensure(one.scope[1] for one in ready)
        refused += await self._store(ready)
        quarantined = tuple(quarantine(kept, reason) for kept, reason in refused)
        told = [(gap, None) for gap in gaps]
        await self._note(told + [(gap, kept) for gap, (kept, _) in zip(quarantined, refused, strict=True)], replays)
        return BatchResult(exchanges=len(batch) - len(refused), quarantined=quarantined)

    def _prepared(self, kept: DerivedExchange) -> _Ready:
        """With nothing derived, where a mistake of ours stands in the way: its evidence is stored all the same."""
        try:
            return self._prepare(kept)
        except MALFORMED:
            raise
        except Exception:
            log.exception("what exchange %s means could not be made a row; its evidence is kept", kept.exchange.id)
            return self._prepare(replace(kept, call=None, cost=None))

    def _prepare(self, kept: DerivedExchange) -> _Ready:
        exchange = kept.exchange
        scope = (run_name(exchange.run), day_of(exchange.id))
        cut = () if exchange.request.body.truncated else elements(exchange.request.body.data)
        row = exchange_row(exchange, self._project, kept.call, is_large=kept.summary is not None)
        head = encoded_head(exchange)
        return _Ready(kept, scope, cut, head, row, call_row(kept, kept.call, self._project) if kept.call else None)

    async def _store(self, ready: Sequence[_Ready]) -> list[tuple[DerivedExchange, str]]:
        """Commit them, and return those that cannot be."""
        if not ready:
            return []
        try:
            await self._patiently(ready)
        except POISON as error:
            if len(ready) == 1:
                return [(ready[0].kept, str(error))]
            half = len(ready) // 2
            return await self._store(ready[:half]) + await self._store(ready[half:])
        return []

    async def _patiently(self, ready: Sequence[_Ready]) -> None:
        for pause in PAUSES:
            try:
                return await self._commit(ready)
            except PASSING:
                await asyncio.sleep(pause)
        raise Unavailable("Postgres could not order our writes among those of others.")

    async def _commit(self, ready: Sequence[_Ready]) -> None:
        """One transaction. What it brings is learnt when it has committed, not before."""
        fresh: dict[Scope, _Fresh] = {}
        async with self._database.raw() as connection, connection.transaction():
            # First of all, because it locks the runs: who deletes one waits, or has done so before we look.
            lives = await self._open_runs(connection, _lives(one.kept.exchange for one in ready))
            rows, parts = self._plan(ready, lives, fresh)
            left = [(kept.exchange.id, kept.was, kept.exchange.run) for kept, *_ in ready if kept.was]
            for leave in LEAVES if left else ():
                await connection.execute(leave, self._project, *map(list, zip(*left, strict=True)))
            if parts:
                await connection.executemany(INSERT_PART, parts)
            await connection.executemany(INSERT_EXCHANGE, rows)
            if calls := [one.call for one in ready if one.call]:
                await connection.executemany(INSERT_CALL, calls)
            if left:
                await connection.execute(EMPTY_RUNS, self._project, [was for _, was, _ in left])
        for scope, brought in fresh.items():
            self._known.learn(scope, lives[scope[0]], brought.places, brought.primer)

    def _plan(
        self,
        ready: Sequence[_Ready],
        lives: dict[str, uuid.UUID],
        fresh: dict[Scope, _Fresh],
    ) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        """The rows of exchanges and of new parts. `fresh` gains what this transaction makes."""
        rows: list[tuple[object, ...]] = []
        parts: list[tuple[object, ...]] = []
        for one in ready:
            exchange, before = one.kept.exchange, self._known.of(one.scope, lives[one.scope[0]])
            head, body, answer = one.head, exchange.request.body.data, exchange.response
            seen = before.seen or one.scope in fresh
            mine = fresh.setdefault(one.scope, _Fresh())
            primer = mine.primer or before.primer
            if primer is None and seen:
                primer = mine.primer = Primer.of(head, body)
                parts.append((self._project, *one.scope, primer.part, pack(primer.data)))
            made = plan(body, one.cut, _either(mine.places, before.places), primer)
            packed = pack(head, primer), None if answer is None else pack(answer.body.data, primer)
            rows.append((*one.exchange, *packed, made.form))
            parts += [(self._project, *one.scope, part, form) for part, form in made.parts.items()]
            mine.places.update(made.places)
        return rows, parts

    async def _open_runs(self, connection: asyncpg.Connection, lives: dict[str, _Life]) -> dict[str, uuid.UUID]:
        """Make or touch the runs, in one order for everybody; returns their incarnations."""
        names = sorted(lives)
        columns = [list(column) for column in zip(*(lives[name] for name in names), strict=True)]
        rows = await connection.fetch(OPEN_RUNS, self._project, uuid.uuid4(), self._profile, names, *columns)
        return {row["id"]: row["incarnation"] for row in rows}

    async def _note(self, gaps: Sequence[tuple[Gap, DerivedExchange | None]], replays: Sequence[ReplayNoted]) -> None:
        if not gaps and not replays:
            return
        replay_rows = [(self._project, clean(noted.replay), pack(noted.report)) for noted in replays]
        async with self._database.raw() as connection, connection.transaction():
            if gaps:
                runs = await self._runs_of(connection, [gap.exchange for gap, _ in gaps])
                gap_rows = [gap_row(gap, kept, self._project, runs.get(gap.exchange)) for gap, kept in gaps]
                await self._open_runs(connection, _gap_lives(gap_rows))
                await connection.executemany(INSERT_GAP, gap_rows)
            if replay_rows:
                await connection.executemany(UPSERT_REPLAY, replay_rows)

    async def _runs_of(self, connection: asyncpg.Connection, ids: Iterable[str | None]) -> dict[str | None, str]:
        """The runs that these exchanges were filed under: what is told of one belongs where it is."""
        named = [one for one in ids if one and ID.fullmatch(one)]
        rows = await connection.fetch(RUNS_OF, self._project, named) if named else []
        return {str(row["id"]): row["run"] for row in rows}


def _either(
    fresh: Mapping[bytes, ElementPlace], known: Mapping[bytes, ElementPlace]
) -> Callable[[bytes], ElementPlace | None]:
    return lambda element: fresh.get(element) or known.get(element)


def _lives(exchanges: Iterable[Exchange]) -> dict[str, _Life]:
    lives: dict[str, _Life] = {}
    for one in exchanges:
        seen = _Life(one.started_at, one.started_at, one.started_at + (one.ended_at or one.first_byte_at or 0))
        lives[one.run] = _joined(lives.get(one.run, seen), seen)
    return lives


def _gap_lives(rows: Sequence[tuple[object, ...]]) -> dict[str, _Life]:
    lives: dict[str, _Life] = {}
    for _, _, run, happened_at, *_ in rows:
        assert isinstance(run, str)
        assert isinstance(happened_at, int)
        seen = _Life(happened_at, happened_at, happened_at)
        lives[run] = _joined(lives.get(run, seen), seen)
    return lives


def _joined(one: _Life, other: _Life) -> _Life:
    return _Life(
        min(one.started_at, other.started_at),
        max(one.newest_at, other.newest_at),
        max(one.active_at, other.active_at),
    )


OPEN_RUNS = """
INSERT INTO runs (project, id, incarnation, profile, started_at, newest_at, active_at)
SELECT $1::text, life.id, $2::uuid, $3::text, life.started_at, life.newest_at, life.active_at
FROM unnest($4::text[], $5::bigint[], $6::bigint[], $7::bigint[]) AS life (id, started_at, newest_at, active_at)
ON CONFLICT (project, id) DO UPDATE SET
    started_at = least(runs.started_at, excluded.started_at),
    newest_at = greatest(runs.newest_at, excluded.newest_at),
    active_at = greatest(runs.active_at, excluded.active_at),
    profile = coalesce(runs.profile, excluded.profile),
    -- A request after its end opens a run again.
    ended_at = CASE WHEN excluded.newest_at <= runs.ended_at THEN runs.ended_at END
RETURNING id, incarnation
"""
