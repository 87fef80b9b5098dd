"""Make the rows of an exchange, its call and a gap, and the statements that insert them.

Names and messages that Postgres cannot store as text are changed; the evidence is stored as bytes, unchanged.
"""

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from calls.comparison.answer_fingerprint import answer_digest
from calls.events import EffectBatch, Gap, ReplayReported
from calls.model import Call, Exchange, is_answer_broken
from calls.project_runs import DEFAULT_PROJECT
from store.attribution.certainty import certainty
from store.attribution.correlation_ids import id_ties, tool_ties
from store.attribution.run_assignment import assignable_trace
from store.call_graph.call_ids import created_ids, returned_ids
from store.database.blobs import pack
from store.database.rows import body_digest, digest_bytes, storable_text
from store.database.traits import Trait, trait_number
from store.feed.entries import CallStored, GapStored, ReplayStored
from store.ingest.array_text import parameter_type
from store.large.summary import encode_exact_summary, encode_summary
from store.pricing.prices import Cost

MAX_RUN_LENGTH = 255
MAX_NAME_LENGTH = 200
"""Characters of an indexed name (host, model) at most; an index entry holds no more than a third of a page."""

MAX_REASON_LENGTH = 1000

LONGEST_REMEMBERED_URL = 1024
"""Characters of a URL beyond which its host is not cached."""

ANSWER_DIGEST = 16
"""Bytes of the digest of an answer, which is only compared and proves nothing."""

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The form of an exchange's id."""

MALFORMED_ERRORS = (ValueError, OverflowError)
"""Errors of an exchange that no row can be made of, such as foreign ids and invalid text."""


class DerivedExchange(msgspec.Struct, frozen=True):
    """An exchange and what was derived from it."""

    exchange: Exchange
    call: Call | None
    """None if no call could be derived; the evidence is stored anyway."""

    sources: tuple[str, ...] = ()
    """The spools and positions it was read from, for the reason of a gap."""

    cost: Cost | None = None
    """None if the cost is unknown."""

    previous_run: str | None = None
    """The run that the worker named, if the exchange was moved to another (`store.attribution`)."""

    summary: bytes | None = None
    """The encoded summary of a large exchange (`store.large.summary`); None if it is not large."""

    project: str = DEFAULT_PROJECT


def validate_run_name(run: str) -> str:
    """Return the name if it is valid for a run. Raises ValueError."""
    if not run or len(run) > MAX_RUN_LENGTH or storable_text(run) != run:
        raise ValueError(f"{run[:80]!r} is not a valid name of a run")
    return run


type BodyDigests = tuple[bytes, bytes | None]
"""The SHA-256 of the bodies of a request and its response."""


def exchange_digests(exchange: Exchange) -> BodyDigests:
    """Return the digests of the bodies of an exchange."""
    response = exchange.response
    return body_digest(exchange.request.body.data), body_digest(response.body.data) if response else None


def exchange_row(
    exchange: Exchange,
    project: str,
    call: Call | None = None,
    *,
    is_large: bool = False,
    digests: BodyDigests | None = None,
) -> tuple[object, ...]:
    """All columns but the last three, which are in a form of `blobs`: head, response body and request body."""
    request, response = exchange.request, exchange.response
    request_digest, response_digest = digests or exchange_digests(exchange)
    return (
        project,
        exchange.id,
        exchange.run,
        exchange.started_at,
        exchange.first_byte_at,
        exchange.ended_at,
        storable_text(request.method),
        storable_text(request.url),
        response.status if response else None,
        exchange.outcome,
        exchange.is_truncated,
        exchange.redactions,
        request_digest,
        response_digest,
        _lone_trace(exchange),
        [*id_ties(exchange, call), *tool_ties(exchange, call)] or None,
        certainty(exchange),
        is_large or None,
    )


def _lone_trace(exchange: Exchange) -> str | None:
    """The trace by which a later exchange may be grouped with this one; None if this one is in the run of its trace."""
    trace = assignable_trace(exchange)
    return None if trace is None or trace == exchange.run else storable_text(trace, MAX_NAME_LENGTH)


def call_row(derived: DerivedExchange, call: Call, project: str, *, is_offloaded: bool = False) -> tuple[object, ...]:
    """The row of a call. One whose bodies may be in object storage always has a summary, so that lists load nothing from there."""
    exchange, usage, cost = derived.exchange, call.usage, derived.cost
    summary = derived.summary or encode_exact_summary(exchange, call)
    if summary is None and is_offloaded:
        summary = encode_summary(exchange, call)
    return (
        project,
        exchange.id,
        exchange.run,
        exchange.started_at,
        call.kind,
        storable_text(call.provider, MAX_NAME_LENGTH),
        storable_text(call.dialect, MAX_NAME_LENGTH),
        storable_text(call.operation, MAX_NAME_LENGTH),
        request_host(exchange.request.url),
        exchange.response.status if exchange.response else None,
        exchange.outcome,
        _short_name(call.model_requested),
        _short_name(call.model_returned),
        [storable_text(tool.name, MAX_NAME_LENGTH) for tool in call.tool_calls] or None,
        _short_name(call.finish_reason),
        _valid_count(usage.input_tokens),
        _valid_count(usage.output_tokens),
        _valid_count(usage.cached_tokens),
        _valid_count(usage.reasoning_tokens),
        call.streamed,
        call.complete,
        digest_bytes(call.key),
        storable_text(call.profile, MAX_NAME_LENGTH),
        cost.usd if cost else None,
        cost.prices if cost else None,
        _short_name(call.polls),
        _short_name(call.pending),
        _short_names(created_ids(call)),
        _short_names(returned_ids(call)),
        _short_name(call.system_fingerprint),
        digest_bytes(answer_digest(exchange, call))[:ANSWER_DIGEST] if exchange.response else None,
        summary,
        _short_name(exchange.actor),
        exchange.first_byte_at,
        exchange_duration(exchange),
        call_trait_numbers(exchange, call),
        is_error(exchange, call) or None,
        call.answer_state,
    )


def exchange_duration(exchange: Exchange) -> int | None:
    """Nanoseconds until the exchange ended; None for an import without times, which lacks that of the first byte."""
    return None if exchange.response is not None and exchange.first_byte_at is None else exchange.ended_at


def call_trait_numbers(exchange: Exchange, call: Call) -> list[int]:
    """Return the numbers of the values that a call is filtered by. Migration 0013 does the same in SQL."""
    shared = _shared_trait_numbers(
        call.kind,
        storable_text(call.provider, MAX_NAME_LENGTH),
        storable_text(call.dialect, MAX_NAME_LENGTH),
        storable_text(call.operation, MAX_NAME_LENGTH),
        request_host(exchange.request.url),
        (_short_name(call.model_requested), _short_name(call.model_returned)),
        tuple([storable_text(tool.name, MAX_NAME_LENGTH) for tool in call.tool_calls]),
        exchange.response.status if exchange.response else None,
        _short_name(exchange.actor),
        call.complete,
        is_error(exchange, call),
    )
    return sorted(shared | {trait_number("key", digest_bytes(call.key).hex())})


@lru_cache(1024)
def _shared_trait_numbers(
    kind: str,
    provider: str,
    dialect: str,
    operation: str,
    host: str,
    models: tuple[str | None, str | None],
    tools: tuple[str, ...],
    status: int | None,
    actor: str | None,
    is_complete: bool,
    has_failed: bool,
) -> frozenset[int]:
    """The numbers of all traits of a call but its key: calls to one place have few different ones."""
    traits: list[Trait] = [
        ("kind", kind),
        ("provider", provider),
        ("dialect", dialect),
        ("operation", operation),
        ("host", host),
        *(("model", name) for name in models if name),
        *(("tool", name) for name in tools),
    ]
    if kind == "tool":
        traits += [("tool", operation), ("tool", host)]
    if status is not None:
        traits += [("status", str(status)), ("status", f"{str(status)[0]}xx")]
    if actor:
        traits.append(("actor", actor))
    if not is_complete:
        traits.append(("incomplete", "true"))
    if has_failed:
        traits.append(("error", "true"))
    return frozenset([trait_number(name, value) for name, value in traits])


def is_error(exchange: Exchange, call: Call) -> bool:
    """Whether the exchange has an error status, no response, or an answer that failed or did not end."""
    if exchange.response is None or (status := exchange.response.status) >= 400:
        return True
    return is_answer_broken(
        kind=call.kind,
        streamed=call.streamed,
        status=status,
        outcome=exchange.outcome,
        complete=call.complete,
        finish_reason=call.finish_reason,
        answer_state=call.answer_state,
    )


def call_entry(derived: DerivedExchange, call: Call) -> CallStored:
    """The entry of the feed for an exchange and its call."""
    exchange, usage, cost = derived.exchange, call.usage, derived.cost
    return CallStored(
        run=exchange.run,
        at=exchange.started_at,
        id=exchange.id,
        kind=call.kind,
        provider=storable_text(call.provider, MAX_NAME_LENGTH),
        dialect=storable_text(call.dialect, MAX_NAME_LENGTH),
        operation=storable_text(call.operation, MAX_NAME_LENGTH),
        host=request_host(exchange.request.url),
        model=_short_name(call.model_requested) or _short_name(call.model_returned),
        model_returned=_short_name(call.model_returned),
        fingerprint=_short_name(call.system_fingerprint),
        tools=tuple(storable_text(tool.name, MAX_NAME_LENGTH) for tool in call.tool_calls),
        status=exchange.response.status if exchange.response else None,
        outcome=exchange.outcome,
        is_complete=call.complete,
        is_error=is_error(exchange, call),
        input_tokens=_valid_count(usage.input_tokens),
        output_tokens=_valid_count(usage.output_tokens),
        cached_tokens=_valid_count(usage.cached_tokens),
        reasoning_tokens=_valid_count(usage.reasoning_tokens),
        cost_usd=str(cost.usd) if cost else None,
        actor=_short_name(exchange.actor),
        first_byte=exchange.first_byte_at,
        duration=exchange_duration(exchange),
        previous_run=derived.previous_run,
    )


def request_host(url: str) -> str:
    """The host of a URL without its port; empty if the URL is invalid."""
    return _remembered_host(url) if len(url) <= LONGEST_REMEMBERED_URL else _host_of(url)


def _host_of(url: str) -> str:
    try:
        return storable_text(urlsplit(url).hostname or "", MAX_NAME_LENGTH)
    except ValueError:
        return ""


# It is asked for several times for each exchange.
_remembered_host = lru_cache(1024)(_host_of)


def _short_name(text: str | None) -> str | None:
    return None if text is None else storable_text(text, MAX_NAME_LENGTH)


def _short_names(ids: list[str]) -> list[str] | None:
    return [storable_text(one, MAX_NAME_LENGTH) for one in ids] or None


def _valid_count(number: int | None) -> int | None:
    """A provider's number, if it is a valid count of tokens."""
    return number if number is not None and 0 <= number < 1 << 63 else None


def quarantine_gap(derived: DerivedExchange, reason: str) -> Gap:
    """The gap that replaces an exchange that cannot be stored."""
    exchange = derived.exchange
    source = f" (read from {', '.join(derived.sources)})" if derived.sources else ""
    happened_at = min(max(exchange.started_at, 0), (1 << 63) - 1)
    return Gap(exchange.run, happened_at, f"The exchange could not be stored: {reason}{source}", exchange.id)


def gap_row(
    gap: Gap, derived: DerivedExchange | None, project: str, assigned_run: str | None = None
) -> tuple[object, ...]:
    """The row of a gap. `assigned_run` is the run of its exchange if that is not the one that the worker named."""
    run = storable_text(assigned_run or gap.run, MAX_RUN_LENGTH) or "unknown"
    exchange = None if gap.exchange is None else storable_text(gap.exchange, MAX_NAME_LENGTH)
    reason = storable_text(gap.reason, MAX_REASON_LENGTH)
    return (project, gap_id(gap), run, gap.happened_at, reason, exchange, _evidence(derived), gap.count)


def effects_row(batch: EffectBatch, project: str) -> tuple[object, ...]:
    """The row of a batch of effects, without its salt."""
    run = storable_text(batch.run, MAX_RUN_LENGTH) or "unknown"
    process = storable_text(batch.process, MAX_NAME_LENGTH)
    return (project, batch.id, run, batch.observed_at, process, batch.number, batch.count, pack(batch.items))


def gap_entry(row: Sequence[Any]) -> GapStored:
    """The entry of the feed for the row of a gap."""
    _, _, run, happened_at, reason, exchange, _, count = row
    return GapStored(run=run, at=happened_at, reason=reason, exchange=exchange, count=count)


class _ReportCounts(msgspec.Struct, frozen=True):
    """The members of a replay report that the feed has. All may be missing: the report comes from another process."""

    run: str | None = None
    verdict: str | None = None
    served: int = 0
    missed: int = 0
    unused: int = 0
    live: int = 0
    edited: int = 0
    drift: list[msgspec.Raw] = []


def replay_entry(replay: ReplayReported, now: int) -> ReplayStored:
    """The entry of the feed for the report of a replay."""
    try:
        report = msgspec.json.decode(replay.report, type=_ReportCounts)
    except msgspec.DecodeError:
        report = _ReportCounts()
    return ReplayStored(
        replay=storable_text(replay.replay),
        at=now,
        run=report.run,
        verdict=report.verdict,
        served=report.served,
        missed=report.missed,
        unused=report.unused,
        live=report.live,
        edited=report.edited,
        drifted=len(report.drift),
    )


def gap_id(gap: Gap) -> uuid.UUID:
    """A uuidv7 of its time, with a digest of the gap as its random bits, so that the same gap always has the same id."""
    content = repr((gap.run, gap.happened_at, gap.reason, gap.exchange)).encode("utf-8", "surrogatepass")
    value = int.from_bytes(hashlib.sha256(content).digest()[:10])
    milliseconds = (gap.happened_at // 1_000_000) & (1 << 48) - 1
    value = (value & ~(0xF << 76) & ~(0x3 << 62)) | 0x7 << 76 | 0x2 << 62
    return uuid.UUID(int=milliseconds << 80 | value)


def _evidence(derived: DerivedExchange | None) -> bytes | None:
    if derived is None:
        return None
    try:
        return pack(msgspec.msgpack.encode(derived.exchange))
    except MALFORMED_ERRORS:
        # Text with lone surrogates and numbers that are too large are stored as Python writes them.
        return pack(repr(derived.exchange).encode("utf-8", "backslashreplace"))


# A chain that another process has appended to while this waited for the run is found by `append_records`, and all of it is tried again.
OPEN_RUNS = """
WITH opened AS (
INSERT INTO runs (project, id, incarnation, profile, started_at, newest_at, active_at)
SELECT $1::text, life.id, life.incarnation, $2::text, life.started_at, life.newest_at, life.active_at
FROM unnest($3::text[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[])
    AS life (id, incarnation, started_at, newest_at, active_at)
ON CONFLICT (project, id) DO UPDATE SET
    started_at = least(runs.started_at, excluded.started_at),
    newest_at = greatest(runs.newest_at, excluded.newest_at),
    active_at = greatest(runs.active_at, excluded.active_at),
    profile = coalesce(runs.profile, excluded.profile),
    -- A request after the end of a run opens it again.
    ended_at = CASE WHEN excluded.newest_at <= runs.ended_at THEN runs.ended_at END
RETURNING id, incarnation, encoding
)
SELECT id, opened.incarnation, encoding, size, head FROM opened
LEFT JOIN chains ON chains.project = $1 AND chains.incarnation = opened.incarnation AND server = $8::uuid
"""

INSERT_PARTS = """
INSERT INTO parts (project, run, day, hash, body)
SELECT $1::text, run, day, hash, body FROM unnest($2::text[], $3::date[], $4::bytea[], $5::bytea[])
    AS new (run, day, hash, body)
ON CONFLICT DO NOTHING
"""


def _columns(text: str) -> dict[str, str]:
    """Names of columns and their types."""
    return dict(one.split() for one in text.split(","))


EXCHANGE_COLUMNS: Final = _columns("""
    id uuid, run text, started_at bigint, first_byte_at bigint, ended_at bigint, method text, url text, status integer,
    outcome text, truncated boolean, redactions integer, request_digest bytea, response_digest bytea, trace text,
    ties bigint[], attribution smallint, large boolean, head bytea, response_body bytea, request_body bytea, salt bytea,
    offloaded boolean
""")
CALL_COLUMNS: Final = _columns("""
    id uuid, run text, started_at bigint, kind text, provider text, dialect text, operation text, host text,
    status integer, outcome text, model_requested text, model_returned text, tools text[], finish_reason text,
    input_tokens bigint, output_tokens bigint, cached_tokens bigint, reasoning_tokens bigint, streamed boolean,
    complete boolean, key bytea, profile text, cost_usd numeric, prices text, polls text, pending text,
    created_ids text[], returned_ids text[], fingerprint text, answer bytea, summary bytea, actor text,
    first_byte bigint, duration bigint, traits integer[], failed boolean,
    answer_state text
""")
"""The columns of the rows after the project."""


def _insert_statement(table: str, columns: Mapping[str, str]) -> str:
    """A statement for all rows of a batch, whose values are given by column: a statement for each takes Postgres twice as long.

    They are given as `store.ingest.array_text` has them.
    """
    names = ", ".join(columns)
    values = ", ".join(f"{name}::{kind}" if kind.endswith("[]") else name for name, kind in columns.items())
    arrays = ", ".join(f"${number}::{parameter_type(kind)}" for number, kind in enumerate(columns.values(), 2))
    return f"""
INSERT INTO {table} (project, {names}) SELECT $1::text, {values} FROM unnest({arrays}) AS new ({names})
ON CONFLICT DO NOTHING
"""  # noqa: S608 - constants


INSERT_EXCHANGES: Final = _insert_statement("exchanges", EXCHANGE_COLUMNS) + "RETURNING id::text"
INSERT_CALLS: Final = _insert_statement("calls", CALL_COLUMNS)


INSERT_GAP = """
INSERT INTO gaps (project, id, run, happened_at, reason, exchange, evidence, count, salt)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING RETURNING id
"""

INSERT_EFFECTS = """
INSERT INTO effects (project, id, run, observed_at, process, number, count, items, salt)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT DO NOTHING RETURNING id
"""

FETCH_RUNS = "SELECT id, run FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[])"

# Exchanges that were stored in other runs before: ids, previous runs, runs. Calls without a change of their run are left alone.
_MOVES = "unnest($2::uuid[], $3::text[], $4::text[]) AS one (exchange, was, filed)"

LOCK_RUNS = "SELECT id, incarnation FROM runs WHERE project = $1 AND id = ANY ($2::text[]) ORDER BY id FOR UPDATE"

REMOVE_EXCHANGES = f"""
DELETE FROM exchanges USING {_MOVES}
WHERE project = $1 AND id = one.exchange AND run = was AND was <> filed RETURNING id, run, started_at
"""  # noqa: S608 - a constant

REMOVE_CALLS = f"""
DELETE FROM calls USING {_MOVES} WHERE project = $1 AND id = one.exchange AND run = was AND was <> filed
"""  # noqa: S608 - a constant

MOVE_GAPS = f"""
UPDATE gaps SET run = filed FROM {_MOVES}
WHERE project = $1 AND gaps.exchange = one.exchange::text AND run = was RETURNING gaps.*, was
"""  # noqa: S608 - a constant

DELETE_EMPTY_RUNS = """
DELETE FROM runs WHERE project = $1 AND id = ANY ($2::text[])
    AND name IS NULL AND labels = '{}' AND NOT pinned AND parent IS NULL
    AND NOT EXISTS (SELECT FROM exchanges WHERE exchanges.project = $1 AND exchanges.run = runs.id)
    AND NOT EXISTS (SELECT FROM gaps WHERE gaps.project = $1 AND gaps.run = runs.id)
RETURNING id, incarnation
"""
"""Delete runs that are empty because all their exchanges were moved."""

UPSERT_REPLAY = """
INSERT INTO replays (project, id, report) VALUES ($1, $2, $3)
ON CONFLICT (project, id) DO UPDATE SET report = excluded.report
"""
