"""The statements that a proof commits to: what a bundle says of an exchange, gap or run, without bodies, as canonical JSON.

The statement of an exchange or gap is the `exchange` or `gap` of a line of a bundle (docs/trace-format.md), without those members of its
bodies that show or digest their bytes. So anybody who has the bundle can make it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from calls.codec.canonical import canonical_json
from calls.events import EffectBatch, Gap
from calls.model import FORMAT, Body, Exchange, Request, Response
from store.bundle.trace import chunk_to_json, effects_to_json, gap_to_json, rfc3339_ns

BODY_BYTES: Final = ("base64", "digest", "opened", "prefix", "suffix", "text")
"""The members of a body that a statement leaves out: its bytes have a commitment of their own."""

RUN_FACTS: Final = ("forked_at", "id", "isolation", "labels", "name", "parent")
"""The members of a run that are said about it; the others are counted over its exchanges, or change without anybody's doing."""

# Member names are ASCII and there are no floats, so this is the form of RFC 8785.
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def exchange_statement(exchange: Exchange) -> bytes:
    """Return the statement of an exchange. Raises ValueError for text that no JSON can hold."""
    request, response = exchange.request, exchange.response
    members: dict[str, Any] = {
        "format": FORMAT,
        "id": exchange.id,
        "outcome": exchange.outcome,
        "request": _message_members(request, {"method": request.method, "url": request.url}),
        "response": response and _message_members(response, {"reason": response.reason, "status": response.status}),
        "run": exchange.run,
        "started_at": rfc3339_ns(exchange.started_at),
    }
    optional = {
        "actor": exchange.actor,
        "ended_ns": exchange.ended_at,
        "error": exchange.error,
        "first_byte_ns": exchange.first_byte_at,
        "step": exchange.step,
    }
    members |= {name: value for name, value in optional.items() if value is not None}
    if exchange.redactions:
        members["redactions"] = exchange.redactions
    if exchange.run_evidence:
        members["run_evidence"] = exchange.run_evidence
    return _encode(members)


def exchange_statement_of_json(exchange: Mapping[str, Any]) -> bytes:
    """Return the statement of an exchange as a line of a bundle shows it."""
    members = dict(exchange)
    for side in ("request", "response"):
        message = members.get(side)
        if isinstance(message, Mapping) and isinstance(body := message.get("body"), Mapping):
            without_bytes = {name: value for name, value in body.items() if name not in BODY_BYTES}
            members[side] = {**message, "body": without_bytes}
    return canonical_json(members)


def gap_statement(gap: Gap) -> bytes:
    """Return the statement of a gap."""
    return _encode(gap_to_json(gap))


def effects_statement(batch: EffectBatch) -> bytes:
    """Return the statement of a batch of effects: all of it but the effects themselves, which have a commitment of their own."""
    whole = effects_to_json(batch)
    return _encode({name: getattr(whole, name) for name in whole.__struct_fields__ if name != "items"})


def run_statement(run: Mapping[str, Any]) -> bytes:
    """Return the statement of a run; `run` has at least `RUN_FACTS`."""
    # A run that nothing isolated has no value in the database, and "none" everywhere else.
    return canonical_json({name: run.get(name) for name in RUN_FACTS} | {"isolation": run.get("isolation") or "none"})


def has_body(body: Body) -> bool:
    """Return whether a message has a body, as a bundle shows it: whether it is not `EMPTY_BODY`."""
    # Comparing would take as long as all the rest: this is part of storing every exchange.
    return bool(body.data or body.size or body.chunks or body.truncated or body.reencoded)


def _message_members(message: Request | Response, members: dict[str, Any]) -> dict[str, Any]:
    members |= {"headers": message.headers, "http_version": message.http_version}
    if has_body(message.body):
        members["body"] = _body_members(message.body)
    if message.trailers:
        members["trailers"] = message.trailers
    return members


def _body_members(body: Body) -> dict[str, Any]:
    members: dict[str, Any] = {"size": body.size}
    if body.chunks:
        members["chunks"] = [chunk_to_json(chunk) for chunk in body.chunks]
    if body.truncated:
        members["truncated"] = True
    if body.reencoded:
        members["reencoded"] = True
    return members
