"""Write exchanges, calls, gaps, effects and replay reports to Postgres in batches; writing twice has one result.

All ids exist before the batch is written and every INSERT leaves an existing row unchanged, so a batch that is sent twice
(after a killed store server or a lost answer to COMMIT) is stored once. When `write_batch` returns, the batch is committed.
A row that Postgres rejects is found by halving its batch and stored in `gaps` with its evidence, so one bad exchange
neither delays the others nor is lost.
"""

import asyncio
import datetime as dt
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import asyncpg
import msgspec
from msgspec.structs import replace

from calls.codec.elements import Element, split_elements
from calls.events import EffectBatch, Gap, ReplayReported
from calls.model import Call, Exchange
from calls.project_runs import DEFAULT_PROJECT
from calls.proof.records import ChainRecord
from store.database.blobs import ElementPlace, Pack, Primer, pack, part_hash, plan_form
from store.database.conflicts import TransactionConflict, retry_conflicts
from store.database.connection import BadValue, Database, note_changed_runs
from store.database.day_locks import share_days
from store.database.object_forms import ObjectRef, WrittenObject, object_form, objects_of
from store.database.rows import encode_head, storable_text
from store.feed.entries import FeedEntry, RunBegan, RunChanged, RunDeleted
from store.feed.feed import append_entries
from store.feed.signal import FeedSignal
from store.ingest.array_text import columns_of
from store.ingest.dedup_cache import DedupCache, Scope
from store.ingest.insert_rows import (
    CALL_COLUMNS,
    DELETE_EMPTY_RUNS,
    EXCHANGE_COLUMNS,
    FETCH_RUNS,
    ID,
    INSERT_CALLS,
    INSERT_EFFECTS,
    INSERT_EXCHANGES,
    INSERT_GAP,
    INSERT_PARTS,
    LOCK_RUNS,
    MALFORMED_ERRORS,
    MOVE_GAPS,
    OPEN_RUNS,
    REMOVE_CALLS,
    REMOVE_EXCHANGES,
    UPSERT_REPLAY,
    DerivedExchange,
    call_entry,
    call_row,
    effects_row,
    exchange_digests,
    exchange_row,
    gap_entry,
    gap_row,
    quarantine_gap,
    replay_entry,
    validate_run_name,
)
from store.ingest.partitions import Partitions, day_of, is_partition_missing
from store.objects.registry import forget_uses, lock_objects, note_uses
from store.proof.chain import NO_END, ChainEnds, NewRecords, append_records, dissolve_runs
from store.proof.commitments import make_salts
from store.proof.evidence import effects_record, exchange_record, exchange_salts, gap_record
from store.retention.remains import remove_remains

__all__ = ["BatchResult", "BatchWriter", "DerivedExchange"]

log = logging.getLogger(__name__)

BAD_ROW_ERRORS = (
    BadValue,
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)


type NoteCall = Callable[[str, Exchange, Call, uuid.UUID, Sequence[Element]], None]
"""Is given the project, the exchange, its call, the encoding of its run, and the elements of its request."""

type SplitBody = Callable[[bytes], tuple[Element, ...]]
"""Divides a body into elements, as `calls.codec.elements.split_elements` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What was stored of a batch."""

    exchanges: int
    quarantined: tuple[Gap, ...]


class _PreparedExchange(NamedTuple):
    """An exchange with the parts of its row that do not depend on stored content."""

    derived: DerivedExchange
    scope: Scope
    elements: tuple[Element, ...]
    head: bytes
    exchange: tuple[object, ...]
    call: tuple[object, ...] | None
    salt: bytes | None
    record: ChainRecord | None
    """Its record in the chain of its run; None where nothing is proven."""


@dataclass(slots=True)
class _NewContent:
    """New content of a run that a transaction stores."""

    places: dict[bytes, ElementPlace] = field(default_factory=dict)
    primer: Primer | None = None


class _OpenRuns(NamedTuple):
    """The runs of a batch, by their names."""

    incarnations: dict[str, uuid.UUID]
    encodings: dict[str, uuid.UUID]
    """What the content that caches remember must have been stored under."""

    began: list[FeedEntry]
    """Entries for those that are new."""

    ends: ChainEnds
    """The ends of their chains."""


class _RunTimes(NamedTuple):
    """The times of a run that a batch may change."""

    started_at: int
    newest_at: int
    active_at: int


class BatchWriter:
    """Writes batches to the tables, one at a time: `write_batch` must not be called concurrently."""

    def __init__(
        self,
        database: Database,
        *,
        project: str = DEFAULT_PROJECT,
        profile: str | None = None,
        signal: FeedSignal | None = None,
        partitions: Partitions | None = None,
        dedup_cache: DedupCache | None = None,
        note_call: NoteCall | None = None,
        split: SplitBody = split_elements,
    ) -> None:
        """`signal` is sent after each commit, before which `note_call` is given each call that was new.

        `split` divides the body of a request. Writers of several projects may share the partitions and the cache.
        """
        self._signal = signal or FeedSignal()
        self._database = database
        self._project = project
        self._profile = profile
        self._partitions = partitions or Partitions(database)
        self._dedup_cache = dedup_cache or DedupCache()
        self._note_call = note_call
        self._split = split

    @property
    def database(self) -> Database:
        """The database that is written to."""
        return self._database

    @property
    def project(self) -> str:
        """The project that the rows belong to."""
        return self._project

    def for_project(self, project: str) -> "BatchWriter":
        """Return a writer of a project with the same caches; this one if it is its project. Use one of them at a time."""
        if project == self._project:
            return self
        return BatchWriter(
            self._database,
            project=project,
            profile=self._profile,
            signal=self._signal,
            partitions=self._partitions,
            dedup_cache=self._dedup_cache,
            note_call=self._note_call,
            split=self._split,
        )

    async def create_upcoming_partitions(self, today: dt.date) -> None:
        """Create the partitions of the days around today, so that no batch has to wait for one after midnight."""
        await self._partitions.create_upcoming(today)

    async def create_partitions(self, days: Collection[dt.date]) -> None:
        """Create the partitions of days of which exchanges will be written, so that each new one does not cost all statements their plans."""
        await self._partitions.create_missing(days)

    async def write_batch(
        self,
        batch: Sequence[DerivedExchange],
        gaps: Sequence[Gap] = (),
        replays: Sequence[ReplayReported] = (),
        effects: Sequence[EffectBatch] = (),
    ) -> BatchResult:
        """Store the batch and commit. Raises `DatabaseUnavailable`: then write the same batch again."""
        # In a thread, because whoever asks the API meanwhile would wait for all of it.
        prepared, refused = await asyncio.to_thread(self._prepare_batch, batch)
        await self._partitions.create_missing(one.scope[2] for one in prepared)
        refused += await self._store(prepared, await self._write_objects(prepared))
        quarantined = tuple(quarantine_gap(derived, reason) for derived, reason in refused)
        new_gaps = [(gap, derived) for gap, (derived, _) in zip(quarantined, refused, strict=True)]
        await self._write_gaps_and_replays([*((gap, None) for gap in gaps), *new_gaps], replays)
        if effects:
            await self._write_effects(effects)
        return BatchResult(exchanges=len(batch) - len(refused), quarantined=quarantined)

    def _prepare_batch(
        self, batch: Sequence[DerivedExchange]
    ) -> tuple[list[_PreparedExchange], list[tuple[DerivedExchange, str]]]:
        """Prepare exchanges; return them, and those that no row can be made of, each with the reason."""
        prepared: list[_PreparedExchange] = []
        refused: list[tuple[DerivedExchange, str]] = []
        for derived in batch:
            try:
                prepared.append(self._prepare_or_drop_call(derived))
            except MALFORMED_ERRORS as error:
                refused.append((derived, str(error)))
        return prepared, refused

    def _prepare_or_drop_call(self, derived: DerivedExchange) -> _PreparedExchange:
        """Prepare an exchange. If a bug makes its call no valid row, prepare its evidence without the call."""
        try:
            return self._prepare(derived)
        except MALFORMED_ERRORS:
            raise
        except Exception:
            log.exception(
                "no row could be made of the call of exchange %s; its evidence is stored", derived.exchange.id
            )
            return self._prepare(replace(derived, call=None, cost=None))

    def _prepare(self, derived: DerivedExchange) -> _PreparedExchange:
        exchange = derived.exchange
        scope = (self._project, validate_run_name(exchange.run), day_of(exchange.id))
        elements = () if exchange.request.body.truncated else self._split(exchange.request.body.data)
        digests = exchange_digests(exchange)
        row = exchange_row(exchange, self._project, derived.call, is_large=derived.summary is not None, digests=digests)
        head = encode_head(exchange)
        is_offloaded = self._may_be_offloaded(exchange)
        call = call_row(derived, derived.call, self._project, is_offloaded=is_offloaded) if derived.call else None
        salt = None if self._database.store_server is None else exchange_salts(exchange)
        record = None if salt is None else exchange_record(exchange, salt, *digests)
        return _PreparedExchange(derived, scope, elements, head, row, call, salt, record)

    def _may_be_offloaded(self, exchange: Exchange) -> bool:
        """Whether a body is so large that some of it may become an object."""
        threshold, response = self._database.objects.threshold, exchange.response
        sizes = (len(exchange.request.body.data), len(response.body.data) if response else 0)
        return threshold is not None and max(sizes) >= threshold

    async def _write_objects(self, prepared: Sequence[_PreparedExchange]) -> Mapping[bytes, WrittenObject]:
        """Write what is large and new into object storage, and return it by the hashes of the contents. Raises `DatabaseUnavailable`.

        Whether something is new is decided finally in the transaction: what was written here and is not needed there, nothing names.
        """
        large = [one for one in prepared if self._may_be_offloaded(one.derived.exchange)]
        if not large:
            return {}
        contents = _large_contents(
            prepared,
            {one.scope for one in large},
            self._dedup_cache.likely_places,
            self._database.objects.threshold or 0,
        )
        return await self._database.objects.write(self._project, contents)

    async def _store(
        self, prepared: Sequence[_PreparedExchange], objects: Mapping[bytes, WrittenObject]
    ) -> list[tuple[DerivedExchange, str]]:
        """Commit the exchanges; return those that Postgres rejects, each with the reason."""
        if not prepared:
            return []
        try:
            await retry_conflicts(partial(self._commit_with_partitions, prepared, objects))
        except BAD_ROW_ERRORS as error:
            if len(prepared) == 1:
                return [(prepared[0].derived, str(error))]
            half = len(prepared) // 2
            return await self._store(prepared[:half], objects) + await self._store(prepared[half:], objects)
        return []

    async def _commit_with_partitions(
        self, prepared: Sequence[_PreparedExchange], objects: Mapping[bytes, WrittenObject]
    ) -> None:
        """Write the exchanges; where the partition of a day is gone, see to it that the next attempt has one."""
        try:
            await self._commit(prepared, objects)
        except asyncpg.CheckViolationError as error:
            if not is_partition_missing(error):
                raise
            await self._partitions.create_dropped(one.scope[2] for one in prepared)
            raise TransactionConflict from error

    async def _commit(self, prepared: Sequence[_PreparedExchange], objects: Mapping[bytes, WrittenObject]) -> None:
        """Write the exchanges in one transaction, and remember its content once it is committed."""
        fresh: dict[Scope, _NewContent] = {}
        async with self._database.connection() as connection, connection.transaction():
            await share_days(connection, {one.scope[2] for one in prepared})
            # Then the runs: a process that deletes one either waits or has finished before.
            incarnations, encodings, began, ends = await self._open_runs(
                connection, _run_times(one.derived.exchange for one in prepared)
            )
            there = await lock_objects(connection, self._project, objects.values()) if objects else set()
            encode = _form_encoder({content: one.ref for content, one in objects.items() if one in there})
            rows, parts = self._plan_rows(prepared, encodings, fresh, encode)
            if there:
                await note_uses(connection, self._project, _named_by_scope(prepared, rows, parts))
            moves = [(one.exchange.id, one.previous_run, one.exchange.run) for one, *_ in prepared if one.previous_run]
            records = NewRecords()
            if moves:
                await self._move(connection, moves, incarnations, records)
            if parts:
                _, *by_column = zip(*parts, strict=True)
                await connection.execute(INSERT_PARTS, self._project, *by_column)
            stored = await connection.fetch(INSERT_EXCHANGES, self._project, *columns_of(rows, EXCHANGE_COLUMNS))
            inserted = {row["id"] for row in stored}
            for one in prepared:
                if one.record is not None and one.derived.exchange.id in inserted:
                    records.add(incarnations[one.scope[1]], one.record)
            await append_records(connection, self._project, self._database.store_server, records, ends)
            if calls := [one.call for one in prepared if one.call]:
                await connection.execute(INSERT_CALLS, self._project, *columns_of(calls, CALL_COLUMNS))
            deleted = await self._delete_empty_runs(connection, [name for _, name, _ in moves]) if moves else ()
            entries = [*began, *_stored_entries(one.derived for one in prepared if one.derived.exchange.id in inserted)]
            entries += [RunDeleted(row["id"], time.time_ns()) for row in deleted]
            await append_entries(connection, self._project, entries)
        self._note_calls([one for one in prepared if one.derived.exchange.id in inserted], encodings)
        self._signal.send(self._project)
        for scope, content in fresh.items():
            self._dedup_cache.remember(scope, encodings[scope[1]], content.places, content.primer)

    def _note_calls(self, stored: Sequence[_PreparedExchange], encodings: Mapping[str, uuid.UUID]) -> None:
        for derived, scope, elements, *_ in stored:
            if self._note_call and derived.call is not None and derived.summary is None:
                self._note_call(self._project, derived.exchange, derived.call, encodings[scope[1]], elements)

    def _plan_rows(
        self,
        prepared: Sequence[_PreparedExchange],
        encodings: dict[str, uuid.UUID],
        fresh: dict[Scope, _NewContent],
        encode: Pack,
    ) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
        """The rows of the exchanges and of new parts. The content of the new parts is added to `fresh`."""
        rows: list[tuple[object, ...]] = []
        parts: list[tuple[object, ...]] = []
        for one in prepared:
            exchange = one.derived.exchange
            stored = self._dedup_cache.stored_content(one.scope, encodings[one.scope[1]])
            body, response = exchange.request.body.data, exchange.response
            new = fresh.get(one.scope)
            is_first = new is None and not stored.is_stored
            if new is None:
                new = fresh[one.scope] = _NewContent()
            primer = new.primer or stored.primer
            if primer is None and not is_first:
                primer = new.primer = Primer.create(one.head, body)
                parts.append((*one.scope, primer.part, pack(primer.data)))
            plan = plan_form(body, one.elements, _place_finder(new.places, stored.places), primer, encode)
            packed = pack(one.head, primer), None if response is None else encode(response.body.data, primer)
            is_offloaded = self._may_be_offloaded(exchange) or None
            rows.append((*one.exchange, *packed, plan.form, one.salt, is_offloaded))
            parts += [(*one.scope, part, form) for part, form in plan.parts.items()]
            new.places.update(plan.places)
        return rows, parts

    async def _move(
        self,
        connection: asyncpg.Connection,
        moves: Sequence[tuple[str, str, str]],
        incarnations: Mapping[str, uuid.UUID],
        records: "NewRecords",
    ) -> None:
        """Take exchanges and their gaps out of the runs they were stored in before: (exchange, previous run, run)."""
        columns = list(map(list, zip(*moves, strict=True)))
        previous = await connection.fetch(LOCK_RUNS, self._project, sorted(set(columns[1])))
        all_incarnations = {row["id"]: row["incarnation"] for row in previous} | dict(incarnations)
        for row in await connection.fetch(REMOVE_EXCHANGES, self._project, *columns):
            moved = ChainRecord(kind="moved", id=str(row["id"]), began=row["started_at"])
            records.add(all_incarnations.get(row["run"]), moved)
        await connection.execute(REMOVE_CALLS, self._project, *columns)
        for row in await connection.fetch(MOVE_GAPS, self._project, *columns):
            records.add(
                all_incarnations.get(row["was"]), ChainRecord(kind="moved", id=str(row["id"]), began=row["happened_at"])
            )
            if row["salt"] is not None:
                gap = Gap(row["run"], row["happened_at"], row["reason"], row["exchange"], row["count"])
                records.add(all_incarnations.get(row["run"]), gap_record(row["id"], gap, row["evidence"], row["salt"]))

    async def _delete_empty_runs(self, connection: asyncpg.Connection, names: Sequence[str]) -> list[asyncpg.Record]:
        deleted: list[asyncpg.Record] = await connection.fetch(DELETE_EMPTY_RUNS, self._project, names)
        incarnations = [row["incarnation"] for row in deleted]
        await dissolve_runs(connection, self._project, self._database.store_server, incarnations)
        if deleted:
            await forget_uses(connection, self._project, [row["id"] for row in deleted])
        return deleted

    async def _open_runs(self, connection: asyncpg.Connection, times: dict[str, _RunTimes]) -> _OpenRuns:
        """Create or update the runs, always in the same order."""
        names = sorted(times)
        fresh = {name: uuid.uuid4() for name in names}
        columns = [list(column) for column in zip(*(times[name] for name in names), strict=True)]
        server = self._database.store_server
        rows = await connection.fetch(
            OPEN_RUNS, self._project, self._profile, names, list(fresh.values()), *columns, server
        )
        began = [
            RunBegan(row["id"], times[row["id"]].started_at) for row in rows if row["incarnation"] == fresh[row["id"]]
        ]
        await remove_remains(connection, self._project, [entry.run for entry in began])
        incarnations = {row["id"]: row["incarnation"] for row in rows}
        encodings = {row["id"]: row["encoding"] or row["incarnation"] for row in rows}
        ends = {row["incarnation"]: NO_END if row["size"] is None else (row["size"], row["head"]) for row in rows}
        return _OpenRuns(incarnations, encodings, [*began], ends)

    async def _write_gaps_and_replays(
        self, gaps: Sequence[tuple[Gap, DerivedExchange | None]], replays: Sequence[ReplayReported]
    ) -> None:
        if not gaps and not replays:
            return
        replay_rows = [(self._project, storable_text(replay.replay), pack(replay.report)) for replay in replays]
        entries: list[FeedEntry] = []
        async with self._database.connection() as connection, connection.transaction():
            if gaps:
                runs = await self._runs_by_exchange(connection, [gap.exchange for gap, _ in gaps])
                gap_rows = [gap_row(gap, derived, self._project, runs.get(gap.exchange)) for gap, derived in gaps]
                incarnations, _, began, _ = await self._open_runs(connection, _gap_run_times(gap_rows))
                salted = [(*row, self._gap_salts(row)) for row in gap_rows]
                inserted = {row["id"] for row in await connection.fetchmany(INSERT_GAP, salted)}
                await self._append_gaps(connection, salted, inserted, incarnations)
                entries += [*began, *(gap_entry(row) for row in gap_rows if row[1] in inserted)]
            if replay_rows:
                await connection.executemany(UPSERT_REPLAY, replay_rows)
                entries += [replay_entry(replay, time.time_ns()) for replay in replays]
            await append_entries(connection, self._project, entries)
        self._signal.send(self._project)

    async def _write_effects(self, effects: Sequence[EffectBatch]) -> None:
        """Store batches of effects, with their records in the chains of their runs."""
        # Once each: what is read from a spool again may come beside what was read before.
        by_row = [(effects_row(one, self._project), one) for one in {one.id: one for one in effects}.values()]
        async with self._database.connection() as connection, connection.transaction():
            opened = await self._open_runs(connection, _gap_run_times([row for row, _ in by_row]))
            is_proven = self._database.store_server is not None
            salts = [make_salts(True, True) if is_proven else None for _ in by_row]
            salted = [(*row, salt) for (row, _), salt in zip(by_row, salts, strict=True)]
            inserted = {row["id"] for row in await connection.fetchmany(INSERT_EFFECTS, salted)}
            records = NewRecords()
            for salt, (row, batch) in zip(salts, by_row, strict=True):
                if salt is not None and uuid.UUID(batch.id) in inserted:
                    stored = msgspec.structs.replace(batch, run=str(row[2]))
                    records.add(opened.incarnations[stored.run], effects_record(stored, salt))
            await append_records(connection, self._project, self._database.store_server, records)
            await append_entries(connection, self._project, opened.began)
            # Effects have no entries of their own.
            note_changed_runs(connection, self._project, opened.incarnations)
        self._signal.send(self._project)

    def _gap_salts(self, row: tuple[object, ...]) -> bytes | None:
        evidence = row[6]
        return None if self._database.store_server is None else make_salts(True, evidence is not None)

    async def _append_gaps(
        self,
        connection: asyncpg.Connection,
        rows: Sequence[tuple[Any, ...]],
        inserted: Collection[uuid.UUID],
        incarnations: Mapping[str, uuid.UUID],
    ) -> None:
        """Append the records of new gaps to the chains of their runs."""
        records = NewRecords()
        for _, gap_id, run, happened_at, reason, exchange, evidence, count, salt in rows:
            if salt is not None and gap_id in inserted:
                gap = Gap(run, happened_at, reason, exchange, count)
                records.add(incarnations[run], gap_record(gap_id, gap, evidence, salt))
        await append_records(connection, self._project, self._database.store_server, records)

    async def _runs_by_exchange(
        self, connection: asyncpg.Connection, ids: Iterable[str | None]
    ) -> dict[str | None, str]:
        """The runs that these exchanges are in, so that a gap is stored in the run of its exchange."""
        valid = [one for one in ids if one and ID.fullmatch(one)]
        rows = await connection.fetch(FETCH_RUNS, self._project, valid) if valid else []
        return {str(row["id"]): row["run"] for row in rows}


def _stored_entries(stored: Iterable[DerivedExchange]) -> Iterator[FeedEntry]:
    for derived in stored:
        exchange = derived.exchange
        yield (
            RunChanged(exchange.run, exchange.started_at) if derived.call is None else call_entry(derived, derived.call)
        )


def _large_contents(
    prepared: Sequence[_PreparedExchange],
    scopes: Collection[Scope],
    likely_places: Callable[[Scope], Mapping[bytes, ElementPlace]],
    threshold: int,
) -> dict[bytes, bytes]:
    """Return what is large of what these exchanges will probably store for the first time, by its hash."""
    found: dict[bytes, bytes] = {}

    def note_if_large(data: bytes, _: Primer | None) -> bytes:
        if len(data) >= threshold:
            found[part_hash(data)] = data
        return b""

    fresh: dict[Scope, dict[bytes, ElementPlace]] = {scope: {} for scope in scopes}
    for one in (one for one in prepared if one.scope in fresh):
        exchange, new = one.derived.exchange, fresh[one.scope]
        if exchange.response is not None:
            note_if_large(exchange.response.body.data, None)
        finder = _place_finder(new, likely_places(one.scope))
        new.update(plan_form(exchange.request.body.data, one.elements, finder, None, note_if_large).places)
    return found


def _form_encoder(objects: Mapping[bytes, ObjectRef]) -> Pack:
    """Return a function that encodes contents: those that are objects by naming these."""
    if not objects:
        return pack
    least = min(ref.size for ref in objects.values())

    def encode(data: bytes, primer: Primer | None) -> bytes:
        ref = objects.get(part_hash(data)) if len(data) >= least else None
        return pack(data, primer) if ref is None else object_form(ref)

    return encode


def _named_by_scope(
    prepared: Sequence[_PreparedExchange], rows: Sequence[tuple[Any, ...]], parts: Sequence[tuple[Any, ...]]
) -> dict[tuple[str, dt.date], set[ObjectRef]]:
    """Return the objects that the rows name, by run and day."""
    by_scope: defaultdict[tuple[str, dt.date], set[ObjectRef]] = defaultdict(set)
    for one, row in zip(prepared, rows, strict=True):
        *_, response, request, _, _ = row
        by_scope[one.scope[1:]] |= objects_of((response, request))
    for _, run, day, _, form in parts:
        by_scope[run, day] |= objects_of((form,))
    return by_scope


def _place_finder(
    fresh: Mapping[bytes, ElementPlace], stored: Mapping[bytes, ElementPlace]
) -> Callable[[bytes], ElementPlace | None]:
    return (lambda element: fresh.get(element) or stored.get(element)) if fresh else stored.get


def _run_times(exchanges: Iterable[Exchange]) -> dict[str, _RunTimes]:
    times: dict[str, _RunTimes] = {}
    for one in exchanges:
        new = _RunTimes(one.started_at, one.started_at, one.started_at + (one.ended_at or one.first_byte_at or 0))
        times[one.run] = _merge_times(times.get(one.run, new), new)
    return times


def _gap_run_times(rows: Sequence[tuple[object, ...]]) -> dict[str, _RunTimes]:
    times: dict[str, _RunTimes] = {}
    for _, _, run, happened_at, *_ in rows:
        assert isinstance(run, str)
        assert isinstance(happened_at, int)
        new = _RunTimes(happened_at, happened_at, happened_at)
        times[run] = _merge_times(times.get(run, new), new)
    return times


def _merge_times(one: _RunTimes, other: _RunTimes) -> _RunTimes:
    return _RunTimes(
        min(one.started_at, other.started_at),
        max(one.newest_at, other.newest_at),
        max(one.active_at, other.active_at),
    )
