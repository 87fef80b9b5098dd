"""The summary that is stored of a large call, so that a list can show it."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from calls.codec.canonical import digest
from calls.codec.json import dumps
from calls.derive import derive
from calls.keys.profile import Profiles
from calls.model import EMPTY, Body, Call, Exchange
from store.database.blobs import pack, unpack
from store.large.weight import is_large

TEXT: Final = 500
"""Characters of an answer's text that a summary has."""

SMALL: Final = 4096
"""Bytes of parameters or of a tool's arguments up to which a summary has them."""

TOOLS: Final = 100
WARNINGS: Final = 20
WARNING: Final = 300


class ToolSummary(msgspec.Struct, frozen=True, array_like=True):
    """A tool that was asked for; its arguments where they are short."""

    id: str | None
    name: str
    arguments: str | None


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a call that no column holds, each cut to a bounded size."""

    actor: str | None
    text: str | None
    params: str
    tool_calls: list[ToolSummary]
    warnings: list[str]
    is_derived: bool
    """Whether the call was derived; if not, the last warning says why."""


_decoder = msgspec.msgpack.Decoder(Summary)


def summary_of(exchange: Exchange, call: Call, *, is_derived: bool = True) -> bytes:
    """The form of a summary, as the column holds it."""
    summary = Summary(
        exchange.actor,
        None if call.text is None else _written(call.text[:TEXT]),
        _short(call.params) or "{}",
        [ToolSummary(one.id, _written(one.name[:200]), _short(one.arguments)) for one in call.tool_calls[:TOOLS]],
        [_written(warning[:WARNING]) for warning in call.warnings[-WARNINGS:]],
        is_derived,
    )
    return pack(msgspec.msgpack.encode(summary))


def summary_if_large(exchange: Exchange, call: Call) -> bytes | None:
    """The same, where the exchange is large."""
    return summary_of(exchange, call) if is_large(exchange) else None


def read_summary(form: bytes) -> Summary:
    """The summary of a form."""
    return _decoder.decode(unpack(form))


def parsed(text: str | None) -> Any:
    """A value that a summary holds as JSON."""
    return None if text is None else msgspec.json.decode(text)


def underived(exchange: Exchange, profiles: Profiles, reason: str) -> Call:
    """The call of an exchange that could not be derived: what its heads tell, and the reason as a warning.

    Its key is one of the raw bytes, so that no other request is taken for it.
    """
    response = exchange.response
    bodiless = replace(
        exchange,
        request=replace(exchange.request, body=EMPTY),
        response=None if response is None else replace(response, body=EMPTY),
    )
    call = derive(bodiless, profiles)
    is_whole = exchange.outcome == "completed" and not exchange.truncated
    return replace(call, key=_raw_key(exchange), request=None, answer=None, warnings=(reason,), complete=is_whole)


def _raw_key(exchange: Exchange) -> str:
    body: Body = exchange.request.body
    text = f"{exchange.request.method} {exchange.request.url}\n{hashlib.sha256(body.data).hexdigest()}"
    return digest("raw/1", text.encode("utf-8", "backslashreplace"))


def _short(value: Any) -> str | None:
    """A value as JSON, where that is short."""
    if isinstance(value, Mapping) and not value:
        return "{}"
    written = dumps(value)
    return written.decode() if len(written) <= SMALL else None


def _written(text: str) -> str:
    """Text without lone surrogates, which no encoding takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
