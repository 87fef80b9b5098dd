"""Select the members of a call for a list: a summary, or the requested fields.

A summary has all members of a call except those that are as large as its bodies. Its text and tool arguments are shortened.
"""

from collections.abc import Mapping
from typing import Any, Final

from calls.codec.json import dumps
from store.large.summary import (
    EMPTY_SUMMARY,
    MAX_TEXT_LENGTH,
    MAX_VALUE_SIZE,
    VERSION,
    CallSummary,
    parse_value,
    read_summary,
)
from store.query.rest_shapes import CallPlace, Shape, milliseconds, path_of, rfc3339, stored_members

type Fields = frozenset[str] | None
"""The requested members; None for all of them."""

BODIES: Final = frozenset(("request", "answer", "tool_results"))
"""Members that are as large as the exchange's bodies: no summary has them."""

CUT: Final = frozenset(("text", "tool_calls", "params", "warnings"))
"""Members that a summary has up to a limited size."""

MEMBERS: Final = frozenset(
    (
        *("id", "run", "step", "exchanges", "actor", "kind", "provider", "dialect", "operation", "host", "method"),
        *("path", "status", "model_requested", "model_returned", "system_fingerprint", "params", "request", "answer"),
        *("text", "tool_calls", "tool_results", "finish_reason", "usage", "cost_usd", "prices", "streamed", "complete"),
        *("outcome", "key", "nth", "profile", "warnings", "started_at", "first_byte_ms", "duration_ms", "attempts"),
        *("branch", "follows", "executes", "answer_state", "failed"),
    )
)
"""The members of a call that can be requested."""

SUMMARY: Final[Fields] = MEMBERS - BODIES | {"summary"}
"""What a list shows by default. `summary` is not a member, but says that others are shortened."""

_IN_COLUMNS: Final = frozenset(
    (
        *("id", "run", "step", "kind", "provider", "dialect", "operation", "host", "status", "model_requested"),
        *("model_returned", "finish_reason", "usage", "cost_usd", "prices", "outcome", "key", "nth", "profile"),
        *("started_at", "first_byte_ms", "attempts", "answer_state", "failed"),
    )
)
"""Members that need neither the bodies nor a summary."""

LINKED: Final = frozenset(("branch", "follows", "executes", "tool_calls"))
"""Members that tell of the links between calls."""

_NEEDED: Final = frozenset(("id", "run", "tool_calls"))
"""The members from which the links between calls are made."""


def is_summary(fields: Fields) -> bool:
    """Whether a summary is requested."""
    return fields is not None and "summary" in fields


def cut_shape(shape: Shape, fields: Fields) -> Shape:
    """Remove the members that are not requested, except those from which links are made; shorten those of a summary."""
    if fields is None:
        return shape
    members = {name: value for name, value in shape.items() if name in fields or name in _NEEDED}
    if is_summary(fields):
        members |= {"text": _cut_text(shape["text"]), "params": _if_short(shape["params"]) or {}}
        members["tool_calls"] = [tool | {"arguments": _if_short(tool["arguments"])} for tool in shape["tool_calls"]]
        members["warnings"] = shape["warnings"]
    return members


def select_fields(shape: Shape, fields: Fields) -> Shape:
    """Return the call with the requested fields and its id."""
    return shape if fields is None else {name: shape[name] for name in shape if name in fields or name == "id"}


def is_listed_without_bodies(place: CallPlace, rows: Mapping[str, Any], fields: Fields) -> bool:
    """Whether the columns and summaries of a call have all requested members as they would be derived."""
    if fields is None or fields & BODIES:
        return False
    if fields <= _IN_COLUMNS:
        return True
    forms = [rows[name]["summary"] for name in (place.exchanges[0], place.exchanges[-1])]
    if None in forms:
        return False
    first, last = map(read_summary, forms)
    return first.version == last.version == VERSION and (is_summary(fields) or _has_whole(last, fields))


def _has_whole(last: CallSummary, fields: frozenset[str]) -> bool:
    """Whether the text and arguments of the answer are not shortened, where these are requested."""
    return ("text" not in fields or last.text is None or len(last.text) < MAX_TEXT_LENGTH) and (
        "tool_calls" not in fields or all(tool.arguments is not None for tool in last.tool_calls)
    )


def stored_facts(row: Mapping[Any, Any]) -> Shape | None:
    """Return what a profile says of a call, beside its key, as it was derived when it was stored; None if that is not stored whole."""
    if row["summary"] is None or (stored := read_summary(row["summary"])).version != VERSION or not stored.is_derived:
        return None
    return {"params": parse_value(stored.params) or {}, "warnings": list(stored.warnings)}


def summary_shape(
    place: CallPlace, rows: Mapping[str, Any], heads: Mapping[str, Any], unavailable: str | None = None
) -> Shape:
    """Return the shape of a call from its columns and stored summaries, without loading its bodies.

    `unavailable`: why it has no bodies, which becomes a warning.
    """
    first, last = place.exchanges[0], place.exchanges[-1]
    first_row, last_row = rows[first], rows[last]
    first_head, last_head = heads[first], heads[last]
    forms = (last_row["summary"], first_row["summary"])
    summary = next((read_summary(form) for form in forms if form is not None), EMPTY_SUMMARY)
    last_summary = summary if first == last or forms[1] is None else read_summary(forms[1])
    started_at = first_head["started_at"]
    return {
        "id": str(first_row["id"]),
        "run": first_row["run"],
        "step": place.step,
        "exchanges": list(place.exchanges),
        "actor": last_summary.actor,
        **{name: first_row[name] for name in ("kind", "provider", "dialect", "operation", "host")},
        "method": first_head["method"],
        "path": path_of(first_head["url"]),
        "status": last_row["status"],
        "model_requested": first_row["model_requested"],
        "model_returned": last_row["model_returned"],
        "system_fingerprint": last_row["fingerprint"],
        "params": parse_value(last_summary.params) or {},
        "request": None,
        "answer": None,
        "text": summary.text,
        "tool_calls": [
            {"id": tool.id, "name": tool.name, "arguments": parse_value(tool.arguments)}
            | {"executed_by": None, "answered_by": None}
            for tool in summary.tool_calls
        ],
        "tool_results": [],
        **stored_members(place, first_row, last_row),
        "warnings": [*last_summary.warnings, *([unavailable] if unavailable else ())],
        "started_at": rfc3339(first_row["started_at"]),
        "first_byte_ms": _milliseconds_after(started_at, last_head, last_head["first_byte_at"]),
        # A response without the time of its first byte was imported, and has no time of its end either.
        "duration_ms": None
        if last_head["first_byte_at"] is None and last_row["status"] is not None
        else _milliseconds_after(started_at, last_head, last_head["ended_at"]),
        "attempts": place.attempts,
        "branch": None,
        "follows": None,
        "executes": None,
    }


def _milliseconds_after(started_at: int, head: Mapping[str, Any], at: int | None) -> float | None:
    return None if at is None else milliseconds(head["started_at"] - started_at + at)


def _cut_text(text: str | None) -> str | None:
    return None if text is None else text[:MAX_TEXT_LENGTH]


def _if_short(value: Any) -> Any:
    return value if len(dumps(value)) <= MAX_VALUE_SIZE else None
