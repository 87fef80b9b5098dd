"""The statements that a proof commits to: what a bundle says of an exchange, gap or run, without bodies, as canonical JSON.

The statement of an exchange or gap is the `exchange` or `gap` of a line of a bundle (docs/trace-format.md), without those members of its
bodies that show or digest their bytes. So anybody who has the bundle can make it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from calls.codec.canonical import canonical_json
from calls.events import EffectBatch, Gap
from calls.model import FORMAT, Body, Exchange, Headers, Response
from store.bundle.trace import Piece, chunk_to_json, effects_to_json, gap_to_json, rfc3339_ns

RUN_FACTS: Final = ("forked_at", "id", "isolation", "labels", "name", "parent")
"""The members of a run that are said about it; the others are counted over its exchanges, or change without anybody's doing."""

# Member names are ASCII and stand in their order, and there are no floats, so this is the form of RFC 8785.
_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class _BodyStatement(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A body in a statement. Statements are structs because they are part of storing every exchange: a dict takes twice as long."""

    chunks: list[Piece] = []
    reencoded: bool = False
    size: int
    truncated: bool = False


class _RequestStatement(msgspec.Struct, kw_only=True, omit_defaults=True):
    body: _BodyStatement | None = None
    headers: Headers
    http_version: str
    method: str
    trailers: Headers = ()
    url: str


class _ResponseStatement(msgspec.Struct, kw_only=True, omit_defaults=True):
    body: _BodyStatement | None = None
    headers: Headers
    http_version: str
    reason: str
    status: int
    trailers: Headers = ()


class _ExchangeStatement(msgspec.Struct, kw_only=True, omit_defaults=True):
    actor: str | None = None
    ended_ns: int | None = None
    error: str | None = None
    first_byte_ns: int | None = None
    format: int
    id: str
    outcome: str
    redactions: int = 0
    request: _RequestStatement
    response: _ResponseStatement | None
    run: str
    run_evidence: tuple[tuple[str, str], ...] = ()
    started_at: str
    step: int | None = None


def exchange_statement(exchange: Exchange) -> bytes:
    """Return the statement of an exchange. Raises ValueError for text that no JSON can hold."""
    request, response = exchange.request, exchange.response
    statement = _ExchangeStatement(
        actor=exchange.actor,
        ended_ns=exchange.ended_at,
        error=exchange.error,
        first_byte_ns=exchange.first_byte_at,
        format=FORMAT,
        id=exchange.id,
        outcome=exchange.outcome,
        redactions=exchange.redactions,
        request=_RequestStatement(
            body=_body_statement(request.body),
            headers=request.headers,
            http_version=request.http_version,
            method=request.method,
            trailers=request.trailers or (),
            url=request.url,
        ),
        response=None if response is None else _response_statement(response),
        run=exchange.run,
        run_evidence=exchange.run_evidence or (),
        started_at=rfc3339_ns(exchange.started_at),
        step=exchange.step,
    )
    return _encode(statement)


def gap_statement(gap: Gap) -> bytes:
    """Return the statement of a gap."""
    return _encode_sorted(gap_to_json(gap))


def effects_statement(batch: EffectBatch) -> bytes:
    """Return the statement of a batch of effects: all of it but the effects themselves, which have a commitment of their own."""
    whole = effects_to_json(batch)
    return _encode_sorted({name: getattr(whole, name) for name in whole.__struct_fields__ if name != "items"})


def run_statement(run: Mapping[str, Any]) -> bytes:
    """Return the statement of a run; `run` has at least `RUN_FACTS`."""
    # A run that nothing isolated has no value in the database, and "none" everywhere else.
    return canonical_json({name: run.get(name) for name in RUN_FACTS} | {"isolation": run.get("isolation") or "none"})


def has_body(body: Body) -> bool:
    """Return whether a message has a body, as a bundle shows it: whether it is not `EMPTY_BODY`."""
    # Comparing would take as long as all the rest: this is part of storing every exchange.
    return bool(body.data or body.size or body.chunks or body.truncated or body.reencoded)


def _response_statement(response: Response) -> _ResponseStatement:
    return _ResponseStatement(
        body=_body_statement(response.body),
        headers=response.headers,
        http_version=response.http_version,
        reason=response.reason,
        status=response.status,
        trailers=response.trailers or (),
    )


def _body_statement(body: Body) -> _BodyStatement | None:
    if not has_body(body):
        return None
    chunks = [chunk_to_json(chunk) for chunk in body.chunks]
    return _BodyStatement(chunks=chunks, reencoded=body.reencoded, size=body.size, truncated=body.truncated)
