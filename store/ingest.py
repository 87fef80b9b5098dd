"""Write exchanges, calls, gaps and replay reports to Postgres: in batches, and as often as one likes with one result.

All ids are made before, every INSERT lets an existing row stand, so a batch that was sent twice (a killed keeper, a lost
answer to COMMIT) is stored once. Whatever `put` returned from is committed. A row that Postgres will not take is found
by halving its batch and kept in `gaps` with its evidence: one bad exchange never holds up the others, and is never lost.
"""

import asyncio
import datetime as dt
import hashlib
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import asyncpg
import msgspec

from calls.events import Gap, ReplayNoted
from calls.model import Call, Exchange
from store.blobs import Element, Place, elements, pack, plan
from store.database import BadValue, Database, Unavailable
from store.known import Known, Scope
from store.partitions import Partitions, day_of
from store.prices import Cost
from store.rows import body_digest, clean, digest_bytes, pack_head

PAUSES = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Seconds between tries when a transaction was in another's way."""

LONGEST_RUN = 255
LONGEST_NAME = 200
"""Of what is indexed (hosts, models): an entry of an index holds no more than a third of a page."""

LONGEST_REASON = 1000

PASSING = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
MALFORMED = (ValueError, OverflowError)
"""What making a row of an exchange raises when the exchange cannot be one: foreign ids, text that is none."""

POISON = (
    BadValue,
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)


@dataclass(frozen=True, slots=True)
class Kept:
    """One exchange with what was derived from it."""

    exchange: Exchange
    call: Call | None
    """None where nothing could be derived: the evidence is kept all the same."""

    sources: tuple[str, ...] = ()
    """Where it was read (spool and position), for the words of a gap."""

    cost: Cost | None = None
    """None where nobody can know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What became of a batch."""

    exchanges: int
    quarantined: tuple[Gap, ...]


class _Ready(NamedTuple):
    """An exchange with all of its row that does not depend on what was stored before."""

    kept: Kept
    scope: Scope
    cut: tuple[Element, ...]
    exchange: tuple[object, ...]
    call: tuple[object, ...] | None


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
        self._known = Known()

    async def ahead(self, today: dt.date) -> None:
        """Make the partitions of the days around today, so that midnight costs nothing."""
        await self._partitions.ahead(today)

    async def put(self, batch: Sequence[Kept], gaps: Sequence[Gap] = (), replays: Sequence[ReplayNoted] = ()) -> Stored:
        """Store all of it and commit. Raises `Unavailable` while Postgres is away: then send the same again."""
        ready: list[_Ready] = []
        refused: list[tuple[Kept, str]] = []
        for kept in batch:
            try:
                ready.append(self._prepare(kept))
            except MALFORMED as error:
                refused.append((kept, str(error)))
        await self._partitions.ensure(one.scope[1] for one in ready)
        refused += await self._store(ready)
        quarantined = tuple(_quarantine(kept, reason) for kept, reason in refused)
        told = [(gap, None) for gap in gaps]
        await self._note(told + [(gap, kept) for gap, (kept, _) in zip(quarantined, refused, strict=True)], replays)
        return Stored(exchanges=len(batch) - len(refused), quarantined=quarantined)

    def _prepare(self, kept: Kept) -> _Ready:
        exchange = kept.exchange
        scope = (_run(exchange.run), day_of(exchange.id))
        cut = () if exchange.request.body.truncated else elements(exchange.request.body.data)
        row = _exchange_row(exchange, self._project)
        return _Ready(kept, scope, cut, row, _call_row(kept, kept.call, self._project) if kept.call else None)

    async def _store(self, ready: Sequence[_Ready]) -> list[tuple[Kept, str]]:
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
        """One transaction. Its places are learnt when it has committed, not before."""
        fresh: defaultdict[Scope, dict[bytes, Place]] = defaultdict(dict)
        async with self._database.raw() as connection, connection.transaction():
            # First of all, because it locks the runs: who deletes one waits, or has done so before we look.
            lives = await self._open_runs(connection, _lives(one.kept.exchange for one in ready))
            rows, parts = self._plan(ready, lives, fresh)
            if parts:
                await connection.executemany(INSERT_PART, parts)
            await connection.executemany(INSERT_EXCHANGE, rows)
            if calls := [one.call for one in ready if one.call]:
                await connection.executemany(INSERT_CALL, calls)
        for scope, places in fresh.items():
            self._known.learn(scope, lives[scope[0]], places)

    def _plan(
        self,
        ready: Sequence[_Ready],
        lives: dict[str, uuid.UUID],
        fresh: defaultdict[Scope, dict[bytes, Place]],
    ) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        """The rows of exchanges and of new parts. `fresh` gains the places that this transaction makes."""
        rows: list[tuple[object, ...]] = []
        parts: list[tuple[object, ...]] = []
        for one in ready:
            body = one.kept.exchange.request.body.data
            if not one.cut:
                rows.append((*one.exchange, pack(body)))
                continue
            find = _either(fresh[one.scope], self._known.of(one.scope, lives[one.scope[0]]))
            made = plan(body, one.cut, find)
            rows.append((*one.exchange, made.form))
            parts += [(self._project, *one.scope, part, form) for part, form in made.parts.items()]
            fresh[one.scope].update(made.places)
        return rows, parts

    async def _open_runs(self, connection: asyncpg.Connection, lives: dict[str, _Life]) -> dict[str, uuid.UUID]:
        """Make or touch the runs, in one order for everybody; returns their incarnations."""
        names = sorted(lives)
        columns = [list(column) for column in zip(*(lives[name] for name in names), strict=True)]
        rows = await connection.fetch(OPEN_RUNS, self._project, uuid.uuid4(), self._profile, names, *columns)
        return {row["id"]: row["incarnation"] for row in rows}

    async def _note(self, gaps: Sequence[tuple[Gap, Kept | None]], replays: Sequence[ReplayNoted]) -> None:
        if not gaps and not replays:
            return
        gap_rows = [_gap_row(gap, kept, self._project) for gap, kept in gaps]
        replay_rows = [(self._project, clean(noted.replay), pack(noted.report)) for noted in replays]
        async with self._database.raw() as connection, connection.transaction():
            if gap_rows:
                await self._open_runs(connection, _gap_lives(gap_rows))
                await connection.executemany(INSERT_GAP, gap_rows)
            if replay_rows:
                await connection.executemany(UPSERT_REPLAY, replay_rows)


def _either(fresh: Mapping[bytes, Place], known: Mapping[bytes, Place]) -> Callable[[bytes], Place | None]:
    return lambda element: fresh.get(element) or known.get(element)


def _run(run: str) -> str:
    if not run or len(run) > LONGEST_RUN or clean(run) != run:
        raise ValueError(f"{run[:80]!r} cannot be the name of a run")
    return run


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


def _exchange_row(exchange: Exchange, project: str) -> tuple[object, ...]:
    """All columns but the last, the request's body."""
    request, response = exchange.request, exchange.response
    return (
        project,
        exchange.id,
        exchange.run,
        exchange.started_at,
        exchange.first_byte_at,
        exchange.ended_at,
        clean(request.method),
        clean(request.url),
        response.status if response else None,
        exchange.outcome,
        exchange.truncated,
        exchange.redactions,
        body_digest(request.body.data),
        body_digest(response.body.data) if response else None,
        pack_head(exchange),
        pack(response.body.data) if response else None,
    )


def _call_row(kept: Kept, call: Call, project: str) -> tuple[object, ...]:
    exchange, usage, cost = kept.exchange, call.usage, kept.cost
    return (
        project,
        exchange.id,
        exchange.run,
        exchange.started_at,
        call.kind,
        clean(call.provider, LONGEST_NAME),
        clean(call.dialect, LONGEST_NAME),
        clean(call.operation, LONGEST_NAME),
        host_of(exchange.request.url),
        exchange.response.status if exchange.response else None,
        exchange.outcome,
        _name(call.model_requested),
        _name(call.model_returned),
        [clean(tool.name, LONGEST_NAME) for tool in call.tool_calls] or None,
        _name(call.finish_reason),
        _count(usage.input_tokens),
        _count(usage.output_tokens),
        _count(usage.cached_tokens),
        _count(usage.reasoning_tokens),
        call.streamed,
        call.complete,
        digest_bytes(call.key),
        clean(call.profile, LONGEST_NAME),
        cost.usd if cost else None,
        cost.prices if cost else None,
        _name(call.polls),
        _name(call.pending),
    )


def host_of(url: str) -> str:
    """The host that was asked, without its port; empty where the URL is none."""
    try:
        return clean(urlsplit(url).hostname or "", LONGEST_NAME)
    except ValueError:
        return ""


def _name(text: str | None) -> str | None:
    return None if text is None else clean(text, LONGEST_NAME)


def _count(number: int | None) -> int | None:
    """A provider's number, where it can be one of tokens."""
    return number if number is not None and 0 <= number < 1 << 63 else None


def _quarantine(kept: Kept, reason: str) -> Gap:
    """The gap that stands for an exchange that cannot be stored."""
    exchange = kept.exchange
    read = f" (read from {', '.join(kept.sources)})" if kept.sources else ""
    happened = min(max(exchange.started_at, 0), (1 << 63) - 1)
    return Gap(exchange.run, happened, f"The exchange could not be stored: {reason}{read}", exchange.id)


def _gap_row(gap: Gap, kept: Kept | None, project: str) -> tuple[object, ...]:
    run = clean(gap.run, LONGEST_RUN) or "unknown"
    exchange = None if gap.exchange is None else clean(gap.exchange, LONGEST_NAME)
    reason = clean(gap.reason, LONGEST_REASON)
    return (project, _gap_id(gap), run, gap.happened_at, reason, exchange, _evidence(kept))


def _gap_id(gap: Gap) -> uuid.UUID:
    """A uuidv7 of when it happened, whose random bits are a digest of the gap: the same gap has the same id."""
    said = repr((gap.run, gap.happened_at, gap.reason, gap.exchange)).encode("utf-8", "surrogatepass")
    value = int.from_bytes(hashlib.sha256(said).digest()[:10])
    milliseconds = (gap.happened_at // 1_000_000) & (1 << 48) - 1
    value = (value & ~(0xF << 76) & ~(0x3 << 62)) | 0x7 << 76 | 0x2 << 62
    return uuid.UUID(int=milliseconds << 80 | value)


def _evidence(kept: Kept | None) -> bytes | None:
    if kept is None:
        return None
    try:
        return pack(msgspec.msgpack.encode(kept.exchange))
    except MALFORMED:
        # Text that is none (lone surrogates), numbers that are none: then as Python writes it.
        return pack(repr(kept.exchange).encode("utf-8", "backslashreplace"))


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

INSERT_PART = """
INSERT INTO parts (project, run, day, hash, body) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING
"""

INSERT_EXCHANGE = """
INSERT INTO exchanges (
    project, id, run, started_at, first_byte_at, ended_at, method, url, status, outcome, truncated, redactions,
    request_digest, response_digest, head, response_body, request_body
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) ON CONFLICT DO NOTHING
"""

INSERT_CALL = """
INSERT INTO calls (
    project, id, run, started_at, kind, provider, dialect, operation, host, status, outcome, model_requested,
    model_returned, tools, finish_reason, input_tokens, output_tokens, cached_tokens, reasoning_tokens, streamed,
    complete, key, profile, cost_usd, prices, polls, pending
) VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27
) ON CONFLICT DO NOTHING
"""

INSERT_GAP = """
INSERT INTO gaps (project, id, run, happened_at, reason, exchange, evidence) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
"""

UPSERT_REPLAY = """
INSERT INTO replays (project, id, report) VALUES ($1, $2, $3)
ON CONFLICT (project, id) DO UPDATE SET report = excluded.report
"""
