"""Rows and values in the shapes of the REST API. Pure."""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from calls.model import Body, Call, Exchange, ToolCall, Usage
from calls.retry_grouping import joined
from store.attribution.certainty import level_name
from store.database.rows import body_digest, digest_text

IDLE = 30 * 60 * 1_000_000_000
"""A run that showed no sign of life for so many nanoseconds has ended; a later request opens it again."""

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)

type Shape = dict[str, Any]

NO_STATS: Mapping[str, Any] = {
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


def rfc3339(ns: int) -> str:
    """Wall time as RFC 3339 UTC with microseconds."""
    seconds, rest = divmod(ns, 1_000_000_000)
    whole = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds, microseconds=rest // 1000)
    return f"{whole:%Y-%m-%dT%H:%M:%S.%f}Z"


def ns_of(text: object) -> int | None:
    """The wall time that `rfc3339` wrote; None for anything else."""
    if not isinstance(text, str) or not _RFC3339.fullmatch(text):
        return None
    try:
        since = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    except ValueError:
        return None
    return since // dt.timedelta(microseconds=1) * 1000


def milliseconds(ns: int | None) -> float | None:
    """A duration, as a number of milliseconds."""
    return None if ns is None else ns / 1_000_000


def dollars(amount: Decimal | None) -> float | None:
    """An amount as JSON has it."""
    return None if amount is None else float(amount)


def run_shape(row: Mapping[Any, Any], stats: Mapping[str, Any], now: int) -> Shape:
    """A run, with what was counted about it (`runs.counted`)."""
    ended = row["ended_at"]
    if ended is None and row["active_at"] + IDLE <= now:
        ended = row["active_at"]
    return {
        "id": row["id"],
        "name": row["name"],
        "labels": row["labels"],
        "started_at": rfc3339(row["started_at"]),
        "active_at": rfc3339(row["active_at"]),
        "ended_at": None if ended is None else rfc3339(ended),
        "calls": stats["calls"],
        "exchanges": stats["exchanges"],
        "gaps": stats["gaps"],
        "complete": not (stats["gaps"] or stats["unkept"] or stats["cut"]),
        "pinned": row["pinned"],
        "parent": row["parent"],
        "forked_at": row["forked_at"],
        "models": stats["models"],
        "tokens": {name: stats.get(name) for name in Usage.__slots__},
        # A sum that lacks a part is none; what is known of it stands beside.
        "cost_usd": None if stats["unpriced"] else dollars(stats["known_cost_usd"]),
        "known_cost_usd": dollars(stats["known_cost_usd"]),
        "unpriced": stats["unpriced"],
        "profile": row["profile"],
        "attribution": level_name(stats["attribution"]),
        # Nobody said so of what was not started by us, and so nothing kept it from the network.
        "isolation": row["isolation"] or "none",
        "head": None,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """One exchange of a call: its row, its evidence, and the call that is derived from it again."""

    row: Mapping[Any, Any]
    exchange: Exchange
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlace:
    """Where a call stands in its run."""

    step: int
    nth: int
    exchanges: tuple[str, ...]
    attempts: int


def call_shape(place: CallPlace, first: AnswerShape, last: AnswerShape) -> Shape:
    """A call: asked as in its first exchange, answered as in its last. Mostly they are one."""
    call = first.call if first is last else joined([first.call, last.call])
    asked, answered = first.row, last.row
    return {
        "id": str(asked["id"]),
        "run": asked["run"],
        "step": place.step,
        "exchanges": list(place.exchanges),
        "actor": first.exchange.actor,
        "kind": asked["kind"],
        "provider": asked["provider"],
        "dialect": asked["dialect"],
        "operation": asked["operation"],
        "host": asked["host"],
        "method": first.exchange.request.method,
        "path": path_of(first.exchange.request.url),
        "status": answered["status"],
        "model_requested": asked["model_requested"],
        "model_returned": answered["model_returned"],
        "system_fingerprint": call.system_fingerprint,
        "params": call.params,
        "request": call.request,
        "answer": call.answer,
        "text": call.text,
        "tool_calls": [_tool_shape(tool) for tool in call.tool_calls],
        "tool_results": list(call.tool_results),
        "finish_reason": answered["finish_reason"],
        "usage": {name: answered[name] for name in Usage.__slots__},
        "cost_usd": dollars(answered["cost_usd"]),
        "prices": answered["prices"],
        "streamed": answered["streamed"],
        "complete": answered["complete"],
        "outcome": answered["outcome"],
        "key": digest_text(asked["key"]),
        "nth": place.nth,
        "profile": asked["profile"],
        "warnings": list(call.warnings),
        "started_at": rfc3339(asked["started_at"]),
        "first_byte_ms": milliseconds(_since(first.exchange, last.exchange, last.exchange.first_byte_at)),
        "duration_ms": milliseconds(_since(first.exchange, last.exchange, _end(last.exchange))),
        "attempts": place.attempts,
        # What ties it to the run's other calls is told where a run is looked at (`linked`).
        "branch": None,
        "follows": None,
        "executes": None,
    }


def _tool_shape(tool: ToolCall) -> Shape:
    told = {"id": tool.id, "name": tool.name, "arguments": tool.arguments}
    return {**told, "executed_by": None, "answered_by": None}


def _since(first: Exchange, last: Exchange, at: int | None) -> int | None:
    """A time of the last exchange, counted from the beginning of the first: what the caller waited."""
    return None if at is None else last.started_at - first.started_at + at


def exchange_shape(exchange: Exchange, step: int) -> Shape:
    """An exchange, without its bytes."""
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
        "request_digest": digest_text(body_digest(request.body.data)),
        "response_digest": digest_text(body_digest(answered.data)) if answered else None,
        "chunks": len(answered.chunks) if answered else 0,
        "outcome": exchange.outcome,
        "error": exchange.error,
        "truncated": exchange.truncated,
        "reencoded": request.body.reencoded or bool(answered and answered.reencoded),
        "redactions": exchange.redactions,
        "run_evidence": [list(pair) for pair in exchange.run_evidence],
        "started_at": rfc3339(exchange.started_at),
        "first_byte_at": _after(exchange, exchange.first_byte_at),
        "ended_at": _after(exchange, _end(exchange)),
    }


def _end(exchange: Exchange) -> int | None:
    """When it ended. A response whose first byte nobody timed was imported: nobody timed its end either."""
    return None if exchange.response is not None and exchange.first_byte_at is None else exchange.ended_at


def chunk_shapes(exchange: Exchange) -> list[Shape]:
    """The chunks of both bodies, the request's first."""
    sides = [("request", exchange.request.body)]
    if exchange.response:
        sides.append(("response", exchange.response.body))
    return [shape for side, body in sides for shape in _chunks(side, body)]


def path_of(url: str) -> str | None:
    """The path of a URL; None where it is none."""
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
