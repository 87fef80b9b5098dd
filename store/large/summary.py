"""Encode the summary of a call, so that lists can show the call without reading its bodies.

A large call always has one. Any other call has one if it is exact: if a list shows no more of the call than the summary has.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from calls.codec.canonical import digest
from calls.codec.json import dumps, parse_json_leniently
from calls.derive import derive_call
from calls.dialects.protocols import mcp
from calls.keys.profile import Profiles
from calls.mcp_late_answers import unanswered_id
from calls.model import EMPTY_BODY, Body, Call, Exchange
from store.database.blobs import pack, unpack
from store.database.rows import storable_text
from store.large.weight import is_large

MAX_TEXT_LENGTH: Final = 500
"""Characters of an answer's text in a summary."""

MAX_VALUE_SIZE: Final = 4096
"""Bytes up to which parameters and a tool's arguments are in a summary."""

MAX_TOOLS: Final = 100
MAX_WARNINGS: Final = 20
MAX_WARNING_LENGTH: Final = 300
MAX_FINGERPRINT_LENGTH: Final = 200

VERSION: Final = 1
"""The version of the rules by which calls are derived: increment it when they change what a list shows. Calls whose exact summary
has another version are derived when they are listed."""


class ToolSummary(msgspec.Struct, frozen=True, array_like=True):
    """A requested tool call, with its arguments if they are short."""

    id: str | None
    name: str
    arguments: str | None


class CallSummary(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a call that have no column, each cut to a bounded size."""

    actor: str | None
    text: str | None
    params: str
    tool_calls: list[ToolSummary]
    warnings: list[str]
    is_derived: bool
    """Whether the call was derived; if not, the last warning says why."""

    version: int = 0
    """`VERSION` when it was made."""


EMPTY_SUMMARY: Final = CallSummary(None, None, "{}", [], [], is_derived=True)

_decoder = msgspec.msgpack.Decoder(CallSummary)


def encode_summary(exchange: Exchange, call: Call, *, is_derived: bool = True) -> bytes:
    """Encode the summary of a call in a form of `blobs`."""
    return pack(msgspec.msgpack.encode(_summary(exchange, call, is_derived=is_derived)))


def encode_exact_summary(exchange: Exchange, call: Call) -> bytes | None:
    """Encode the summary of a call if lists show the call as the summary has it, else return None."""
    if _may_be_answered_late(exchange, call) or not _is_storable(exchange, call):
        return None
    try:
        if call.text is None and not (call.params or call.tool_calls or call.warnings):
            return _empty_summary(exchange.actor)  # nearly every call of a tool
        summary = _summary(exchange, call, is_derived=True)
        return pack(msgspec.msgpack.encode(summary)) if _is_exact(summary, call) else None
    except UnicodeEncodeError:
        return None


@lru_cache(256)
def _empty_summary(actor: str | None) -> bytes:
    return pack(msgspec.msgpack.encode(CallSummary(actor, None, "{}", [], [], True, VERSION)))


def _summary(exchange: Exchange, call: Call, *, is_derived: bool) -> CallSummary:
    return CallSummary(
        exchange.actor,
        None if call.text is None else _encodable_text(call.text[:MAX_TEXT_LENGTH]),
        _short_json(call.params) or "{}",
        [
            ToolSummary(one.id, _encodable_text(one.name[:200]), _short_json(one.arguments))
            for one in call.tool_calls[:MAX_TOOLS]
        ],
        [_encodable_text(warning[:MAX_WARNING_LENGTH]) for warning in call.warnings[-MAX_WARNINGS:]],
        is_derived,
        VERSION,
    )


def _is_exact(summary: CallSummary, call: Call) -> bool:
    """Whether the summary has everything that a list shows, unchanged."""
    return (
        summary.text == (call.text if call.text is None else call.text[:MAX_TEXT_LENGTH])
        and (summary.params != "{}" or not call.params)
        and [tool.name for tool in summary.tool_calls] == [tool.name for tool in call.tool_calls]
        and summary.warnings == list(call.warnings)
    )


def _is_storable(exchange: Exchange, call: Call) -> bool:
    """Whether the columns have the method, URL and fingerprint unchanged."""
    url, fingerprint = exchange.request.url, call.system_fingerprint or ""
    names = (exchange.request.method, url, fingerprint[:MAX_FINGERPRINT_LENGTH])
    return len(fingerprint) <= MAX_FINGERPRINT_LENGTH and all(storable_text(name) == name for name in names)


def _may_be_answered_late(exchange: Exchange, call: Call) -> bool:
    """Whether the answer may arrive on another exchange, from which lists take it (`query.mcp_late_calls`)."""
    status = exchange.response.status if exchange.response else None
    is_post = call.dialect == mcp.DIALECT.name and exchange.request.method == "POST"
    return is_post and unanswered_id(call.request, call.answer, status) is not None


def encode_summary_if_large(exchange: Exchange, call: Call) -> bytes | None:
    """Encode the summary if the exchange is large, else return None."""
    return encode_summary(exchange, call) if is_large(exchange) else None


@lru_cache(maxsize=1024)
def read_summary(form: bytes) -> CallSummary:
    """Decode a summary. A list reads each several times."""
    return _decoder.decode(unpack(form))


def parse_value(text: str | None) -> Any:
    """Parse a value that a summary has as JSON."""
    return None if text is None else parse_json_leniently(text.encode())


def underived_call(exchange: Exchange, profiles: Profiles, reason: str) -> Call:
    """The call of an exchange that no call could be derived from: derived from its heads, with the reason as a warning.

    Its key is a digest of the raw bytes, so that no other request has the same key.
    """
    response = exchange.response
    bodiless = replace(
        exchange,
        request=replace(exchange.request, body=EMPTY_BODY),
        response=None if response is None else replace(response, body=EMPTY_BODY),
    )
    call = derive_call(bodiless, profiles)
    is_whole = exchange.outcome == "completed" and not exchange.is_truncated
    return replace(call, key=_raw_key(exchange), request=None, answer=None, warnings=(reason,), complete=is_whole)


def _raw_key(exchange: Exchange) -> str:
    body: Body = exchange.request.body
    text = f"{exchange.request.method} {exchange.request.url}\n{hashlib.sha256(body.data).hexdigest()}"
    return digest("raw/1", text.encode("utf-8", "backslashreplace"))


def _short_json(value: Any) -> str | None:
    """A value as JSON; None if that is long."""
    if isinstance(value, Mapping) and not value:
        return "{}"
    encoded = dumps(value)
    return encoded.decode() if len(encoded) <= MAX_VALUE_SIZE else None


def _encodable_text(text: str) -> str:
    """Text without lone surrogates, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
