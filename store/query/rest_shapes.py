"""Convert rows and values into the shapes of the REST API. Pure."""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from calls.comparison.envelope import EnvelopeBuilder
from calls.model import Body, Call, Exchange, ToolCall, Usage, is_answer_broken
from calls.retry_grouping import merge_calls
from store.attribution.certainty import level_name
from store.database.rows import digest_text
from store.feed.entries import IDLE

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)

type Shape = dict[str, Any]
"""A JSON object as an answer of the REST API has it."""

NO_STATS: Mapping[str, Any] = {
    "head": None,
    "calls": 0,
    "exchanges": 0,
    "gaps": 0,
    "unkept": 0,
    "cut": 0,
    "models": [],
    "known_cost_usd": None,
    "unpriced": 0,
    "attribution": None,
}


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - UTC, whose name is added to the text


def rfc3339(ns: int) -> str:
    """Format wall time as RFC 3339 UTC with microseconds."""
    seconds, rest = divmod(ns, 1_000_000_000)
    whole = _EPOCH + dt.timedelta(seconds=seconds, microseconds=rest // 1000)
    # Several times as fast as formatting by a pattern.
    return whole.isoformat(timespec="microseconds") + "Z"


def ns_of(text: object) -> int | None:
    """Parse the text that `rfc3339` returned; None for anything else."""
    if not isinstance(text, str) or not _RFC3339.fullmatch(text):
        return None
    try:
        since = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    except ValueError:
        return None
    return since // dt.timedelta(microseconds=1) * 1000


def milliseconds(ns: int | None) -> float | None:
    """Convert a duration to milliseconds."""
    return None if ns is None else ns / 1_000_000


def dollars(amount: Decimal | None) -> float | None:
    """Convert an amount to a JSON number."""
    return None if amount is None else float(amount)


def run_shape(row: Mapping[Any, Any], stats: Mapping[str, Any], now: int) -> Shape:
    """Return the shape of a run with its statistics (`run_stats.load_run_stats`)."""
    ended_at = row["ended_at"]
    if ended_at is None and row["active_at"] + IDLE <= now:
        ended_at = row["active_at"]
    return {
        "id": row["id"],
        "name": row["name"],
        "labels": row["labels"],
        "started_at": rfc3339(row["started_at"]),
        "active_at": rfc3339(row["active_at"]),
        "ended_at": None if ended_at is None else rfc3339(ended_at),
        "calls": stats["calls"],
        "exchanges": stats["exchanges"],
        "gaps": stats["gaps"],
        "complete": not (stats["gaps"] or stats["unkept"] or stats["cut"]),
        "pinned": row["pinned"],
        "parent": row["parent"],
        "forked_at": row["forked_at"],
        "models": stats["models"],
        "tokens": {name: stats.get(name) for name in Usage.__slots__},
        # The sum is null if the cost of a call is unknown; `known_cost_usd` is the sum of the others.
        "cost_usd": None if stats["unpriced"] else dollars(stats["known_cost_usd"]),
        "known_cost_usd": dollars(stats["known_cost_usd"]),
        "unpriced": stats["unpriced"],
        "profile": row["profile"],
        "attribution": level_name(stats["attribution"]),
        # A run that no Playhead command started has no value: nothing isolated it.
        "isolation": row["isolation"] or "none",
        "head": stats["head"],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallExchange:
    """One exchange of a call: its row in `calls`, the exchange, and the call derived from it."""

    row: Mapping[Any, Any]
    exchange: Exchange
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlace:
    """The place of a call in its run, its exchanges and attempts."""

    step: int
    nth: int
    exchanges: tuple[str, ...]
    attempts: int


def stored_members(place: CallPlace, first_row: Mapping[Any, Any], last_row: Mapping[Any, Any]) -> Shape:
    """Return the members of a call that its columns say, from its finish reason to its profile."""
    return {
        "finish_reason": last_row["finish_reason"],
        "answer_state": last_row["answer_state"],
        "usage": {name: last_row[name] for name in Usage.__slots__},
        "cost_usd": dollars(last_row["cost_usd"]),
        "prices": last_row["prices"],
        "streamed": last_row["streamed"],
        "complete": last_row["complete"],
        "failed": has_call_failed(first_row["kind"], last_row),
        "outcome": last_row["outcome"],
        "key": digest_text(first_row["key"]),
        "nth": place.nth,
        "profile": first_row["profile"],
    }


def call_shape(place: CallPlace, first: CallExchange, last: CallExchange) -> Shape:
    """Return the shape of a call: the request of its first exchange and the answer of its last, which are mostly the same."""
    call = first.call if first is last else merge_calls([first.call, last.call])
    first_row, last_row = first.row, last.row
    return {
        "id": str(first_row["id"]),
        "run": first_row["run"],
        "step": place.step,
        "exchanges": list(place.exchanges),
        "actor": first.exchange.actor,
        "kind": first_row["kind"],
        "provider": first_row["provider"],
        "dialect": first_row["dialect"],
        "operation": first_row["operation"],
        "host": first_row["host"],
        "method": first.exchange.request.method,
        "path": path_of(first.exchange.request.url),
        "status": last_row["status"],
        "model_requested": first_row["model_requested"],
        "model_returned": last_row["model_returned"],
        "system_fingerprint": call.system_fingerprint,
        "params": call.params,
        "request": call.request,
        "answer": call.answer,
        "text": call.text,
        "tool_calls": [_tool_shape(tool) for tool in call.tool_calls],
        "tool_results": list(call.tool_results),
        **stored_members(place, first_row, last_row),
        "warnings": list(call.warnings),
        "started_at": rfc3339(first_row["started_at"]),
        "first_byte_ms": milliseconds(_since_first(first.exchange, last.exchange, last.exchange.first_byte_at)),
        "duration_ms": milliseconds(_since_first(first.exchange, last.exchange, _end_time(last.exchange))),
        "attempts": place.attempts,
        # The links to the run's other calls are added later (`call_graph.add_links`).
        "branch": None,
        "follows": None,
        "executes": None,
    }


def has_call_failed(kind: str, last_row: Mapping[Any, Any]) -> bool:
    """Whether a call of this kind failed, by the row of its last exchange."""
    status = last_row["status"]
    columns = ("streamed", "outcome", "complete", "finish_reason", "answer_state")
    answer = {name: last_row[name] for name in columns}
    return status is None or status >= 400 or is_answer_broken(kind=kind, status=status, **answer)


def _tool_shape(tool: ToolCall) -> Shape:
    members = {"id": tool.id, "name": tool.name, "arguments": tool.arguments}
    return {**members, "executed_by": None, "answered_by": None}


def _since_first(first: Exchange, last: Exchange, at: int | None) -> int | None:
    """Convert a time of the last exchange into one since the beginning of the first: how long the caller waited."""
    return None if at is None else last.started_at - first.started_at + at


def exchange_shape(exchange: Exchange, step: int, request_digest: str | None, response_digest: str | None) -> Shape:
    """Return the shape of an exchange, without its bodies. A digest is None if the body was erased."""
    request, response = exchange.request, exchange.response
    answered = response.body if response else None
    return {
        "id": exchange.id,
        "run": exchange.run,
        "step": step,
        "client_step": exchange.step,
        "actor": exchange.actor,
        "format": exchange.format,
        "http_version": request.http_version or None,
        "method": request.method,
        "url": request.url,
        "request_headers": [list(pair) for pair in request.headers],
        "request_trailers": [list(pair) for pair in request.trailers],
        "status": response.status if response else None,
        "reason": response.reason if response else None,
        "response_headers": [list(pair) for pair in response.headers] if response else None,
        "response_trailers": [list(pair) for pair in response.trailers] if response else None,
        "request_size": request.body.size,
        "response_size": answered.size if answered else None,
        "request_digest": request_digest,
        "response_digest": response_digest,
        "chunks": len(answered.chunks) if answered else 0,
        "outcome": exchange.outcome,
        "error": exchange.error,
        "truncated": exchange.is_truncated,
        "reencoded": request.body.reencoded or bool(answered and answered.reencoded),
        "redactions": exchange.redactions,
        "run_evidence": [list(pair) for pair in exchange.run_evidence],
        "started_at": rfc3339(exchange.started_at),
        "first_byte_at": _after(exchange, exchange.first_byte_at),
        "ended_at": _after(exchange, _end_time(exchange)),
    }


def _end_time(exchange: Exchange) -> int | None:
    """Return when it ended; None for an import without times, which lacks that of the first byte."""
    return None if exchange.response is not None and exchange.first_byte_at is None else exchange.ended_at


def chunk_shapes(exchange: Exchange) -> list[Shape]:
    """Return the shapes of the chunks of both bodies, those of the request first."""
    sides = [("request", exchange.request.body)]
    if exchange.response:
        sides.append(("response", exchange.response.body))
    return [shape for side, body in sides for shape in _chunks(side, body)]


def path_of(url: str) -> str | None:
    """Return the path of a URL; None where the URL is invalid."""
    try:
        return urlsplit(url).path or "/"
    except ValueError:
        return None


def _chunks(side: str, body: Body) -> list[Shape]:
    return [
        {"side": side, "at_ns": chunk.at, "offset": chunk.offset, "size": chunk.size, "kind": chunk.kind}
        for chunk in body.chunks
    ]


def _after(exchange: Exchange, ns: int | None) -> str | None:
    return None if ns is None else rfc3339(exchange.started_at + ns)


def envelope_shape(builder: EnvelopeBuilder, run: Mapping[str, Any]) -> Shape:
    """Return what was captured of a run, its times as text; `run` is the run's shape."""
    found = builder.envelope(run["labels"], run["gaps"])
    times = found["times"]
    for name in ("first", "last"):
        if times[name] is not None:
            times[name] = rfc3339(times[name])
    return found
