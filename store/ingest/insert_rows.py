"""Make the rows of an exchange, its call and a gap, and the statements that insert them.

Text that Postgres cannot hold is cleaned where it is a name or a word for people; the evidence itself goes in as bytes.
"""

import hashlib
import re
import uuid
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from calls.comparison.answer_fingerprint import meaning_digest
from calls.events import Gap
from calls.model import Call, Exchange
from store.attribution.certainty import certainty
from store.attribution.correlation_ids import marks, ties
from store.attribution.run_assignment import trace_of
from store.call_graph.call_ids import gives, takes
from store.database.blobs import pack
from store.database.rows import body_digest, clean, digest_bytes
from store.prices import Cost

LONGEST_RUN = 255
LONGEST_NAME = 200
"""Of what is indexed (hosts, models): an entry of an index holds no more than a third of a page."""

LONGEST_REASON = 1000

ANSWER_DIGEST = 16
"""Bytes of the digest of what an answer says: it is compared, and proves nothing."""

ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""What can be an exchange's id."""

MALFORMED = (ValueError, OverflowError)
"""What making a row of an exchange raises when the exchange cannot be one: foreign ids, text that is none."""


@dataclass(frozen=True, slots=True)
class DerivedExchange:
    """One exchange with what was derived from it."""

    exchange: Exchange
    call: Call | None
    """None where nothing could be derived: the evidence is kept all the same."""

    sources: tuple[str, ...] = ()
    """Where it was read (spool and position), for the words of a gap."""

    cost: Cost | None = None
    """None where nobody can know."""

    was: str | None = None
    """The run that it came in under, where it was filed under another (`filing`, `kin`)."""

    summary: bytes | None = None
    """What lists show of a large exchange (`store.large.summary`); None where it is not large."""


def run_name(run: str) -> str:
    """The name, where it can be a run's. Raises ValueError."""
    if not run or len(run) > LONGEST_RUN or clean(run) != run:
        raise ValueError(f"{run[:80]!r} cannot be the name of a run")
    return run


def exchange_row(
    exchange: Exchange, project: str, call: Call | None = None, *, is_large: bool = False
) -> tuple[object, ...]:
    """All columns but those in a form of `blobs`: head, the response's body and the request's, which come last."""
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
        _lone_trace(exchange),
        [*ties(exchange, call), *marks(exchange, call)] or None,
        certainty(exchange),
        is_large or None,
    )


def _lone_trace(exchange: Exchange) -> str | None:
    """The trace that another exchange may come to share; None once it is in the run of that trace."""
    trace = trace_of(exchange)
    return None if trace is None or trace == exchange.run else clean(trace, LONGEST_NAME)


def call_row(kept: DerivedExchange, call: Call, project: str) -> tuple[object, ...]:
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
        _names(gives(call)),
        _names(takes(call)),
        _name(call.system_fingerprint),
        digest_bytes(meaning_digest(exchange, call))[:ANSWER_DIGEST] if exchange.response else None,
        kept.summary,
    )


def host_of(url: str) -> str:
    """The host that was asked, without its port; empty where the URL is none."""
    try:
        return clean(urlsplit(url).hostname or "", LONGEST_NAME)
    except ValueError:
        return ""


def _name(text: str | None) -> str | None:
    return None if text is None else clean(text, LONGEST_NAME)


def _names(ids: list[str]) -> list[str] | None:
    return [clean(one, LONGEST_NAME) for one in ids] or None


def _count(number: int | None) -> int | None:
    """A provider's number, where it can be one of tokens."""
    return number if number is not None and 0 <= number < 1 << 63 else None


def quarantine(kept: DerivedExchange, reason: str) -> Gap:
    """The gap that stands for an exchange that cannot be stored."""
    exchange = kept.exchange
    read = f" (read from {', '.join(kept.sources)})" if kept.sources else ""
    happened = min(max(exchange.started_at, 0), (1 << 63) - 1)
    return Gap(exchange.run, happened, f"The exchange could not be stored: {reason}{read}", exchange.id)


def gap_row(gap: Gap, kept: DerivedExchange | None, project: str, filed: str | None = None) -> tuple[object, ...]:
    """The row of a gap; `filed` is the run of its exchange, where that is another than the worker told."""
    run = clean(filed or gap.run, LONGEST_RUN) or "unknown"
    exchange = None if gap.exchange is None else clean(gap.exchange, LONGEST_NAME)
    reason = clean(gap.reason, LONGEST_REASON)
    return (project, gap_id(gap), run, gap.happened_at, reason, exchange, _evidence(kept), gap.count)


def gap_id(gap: Gap) -> uuid.UUID:
    """A uuidv7 of when it happened, whose random bits are a digest of the gap: the same gap has the same id."""
    said = repr((gap.run, gap.happened_at, gap.reason, gap.exchange)).encode("utf-8", "surrogatepass")
    value = int.from_bytes(hashlib.sha256(said).digest()[:10])
    milliseconds = (gap.happened_at // 1_000_000) & (1 << 48) - 1
    value = (value & ~(0xF << 76) & ~(0x3 << 62)) | 0x7 << 76 | 0x2 << 62
    return uuid.UUID(int=milliseconds << 80 | value)


def _evidence(kept: DerivedExchange | None) -> bytes | None:
    if kept is None:
        return None
    try:
        return pack(msgspec.msgpack.encode(kept.exchange))
    except MALFORMED:
        # Text that is none (lone surrogates), numbers that are none: then as Python writes it.
        return pack(repr(kept.exchange).encode("utf-8", "backslashreplace"))


INSERT_PART = """
INSERT INTO parts (project, run, day, hash, body) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING
"""

INSERT_EXCHANGE = """
INSERT INTO exchanges (
    project, id, run, started_at, first_byte_at, ended_at, method, url, status, outcome, truncated, redactions,
    request_digest, response_digest, trace, ties, attribution, large, head, response_body, request_body
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT DO NOTHING
"""

INSERT_CALL = """
INSERT INTO calls (
    project, id, run, started_at, kind, provider, dialect, operation, host, status, outcome, model_requested,
    model_returned, tools, finish_reason, input_tokens, output_tokens, cached_tokens, reasoning_tokens, streamed,
    complete, key, profile, cost_usd, prices, polls, pending, gives, takes,
    fingerprint, answer, summary
) VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32
) ON CONFLICT DO NOTHING
"""

INSERT_GAP = """
INSERT INTO gaps (project, id, run, happened_at, reason, exchange, evidence, count)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING
"""

RUNS_OF = "SELECT id, run FROM exchanges WHERE project = $1 AND id = ANY ($2::uuid[])"

LEAVES = (
    """
    DELETE FROM exchanges USING unnest($2::uuid[], $3::text[], $4::text[]) AS one (exchange, was, filed)
    WHERE project = $1 AND id = one.exchange AND run = was AND was <> filed
    """,
    """
    DELETE FROM calls USING unnest($2::uuid[], $3::text[], $4::text[]) AS one (exchange, was, filed)
    WHERE project = $1 AND id = one.exchange AND run = was AND was <> filed
    """,
    """
    UPDATE gaps SET run = filed FROM unnest($2::uuid[], $3::text[], $4::text[]) AS one (exchange, was, filed)
    WHERE project = $1 AND gaps.exchange = one.exchange::text AND run = was
    """,
)
"""Take exchanges out of the runs that they came in under, with what was told of them, for those they belong to."""

EMPTY_RUNS = """
DELETE FROM runs WHERE project = $1 AND id = ANY ($2::text[])
    AND name IS NULL AND labels = '{}' AND NOT pinned AND parent IS NULL
    AND NOT EXISTS (SELECT FROM exchanges WHERE exchanges.project = $1 AND exchanges.run = runs.id)
    AND NOT EXISTS (SELECT FROM gaps WHERE gaps.project = $1 AND gaps.run = runs.id)
"""
"""A run that only held what has left it never was one."""

UPSERT_REPLAY = """
INSERT INTO replays (project, id, report) VALUES ($1, $2, $3)
ON CONFLICT (project, id) DO UPDATE SET report = excluded.report
"""
