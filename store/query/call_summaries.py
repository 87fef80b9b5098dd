"""What a list shows of a call: a summary, or the requested fields.

A summary has all members of a call but those that are as large as its bodies. Its text and its tools' arguments are cut.
"""

from collections.abc import Mapping
from typing import Any, Final

from calls.codec.json import dumps
from calls.model import Usage
from store.database.rows import digest_text
from store.large.summary import SMALL, TEXT, parsed, read_summary
from store.query.rest_shapes import CallPlace, Shape, dollars, milliseconds, path_of, rfc3339

type Fields = frozenset[str] | None
"""The members that were asked for; none for all of them."""

BODIES: Final = frozenset(("request", "answer", "tool_results"))
"""Members that are as large as the exchange's bodies: no summary has them."""

CUT: Final = frozenset(("text", "tool_calls", "params", "warnings"))
"""Members that a summary has, up to a bounded size."""

MEMBERS: Final = frozenset(
    (
        *("id", "run", "step", "exchanges", "actor", "kind", "provider", "dialect", "operation", "host", "method"),
        *("path", "status", "model_requested", "model_returned", "system_fingerprint", "params", "request", "answer"),
        *("text", "tool_calls", "tool_results", "finish_reason", "usage", "cost_usd", "prices", "streamed", "complete"),
        *("outcome", "key", "nth", "profile", "warnings", "started_at", "first_byte_ms", "duration_ms", "attempts"),
        *("branch", "follows", "executes"),
    )
)
"""What can be asked for of a call."""

SUMMARY: Final[Fields] = MEMBERS - BODIES | {"summary"}
"""What a list shows where nothing else is asked for. `summary` is no member: it says that the others are cut."""

_NEEDED: Final = frozenset(("id", "run", "tool_calls"))
"""What the links between calls are made from."""


def is_summary(fields: Fields) -> bool:
    """Whether a summary is all that is asked for."""
    return fields is not None and "summary" in fields


def cut(shape: Shape, fields: Fields) -> Shape:
    """The call without what is not asked for, but with what its links are made from."""
    if fields is None:
        return shape
    kept = {name: value for name, value in shape.items() if name in fields or name in _NEEDED}
    if is_summary(fields):
        kept |= {"text": _cut_text(shape["text"]), "params": _if_short(shape["params"]) or {}}
        kept["tool_calls"] = [tool | {"arguments": _if_short(tool["arguments"])} for tool in shape["tool_calls"]]
        kept["warnings"] = shape["warnings"]
    return kept


def selected(shape: Shape, fields: Fields) -> Shape:
    """The call with the fields that were asked for, and its id."""
    return shape if fields is None else {name: shape[name] for name in shape if name in fields or name == "id"}


def summary_shape(place: CallPlace, rows: Mapping[str, Any], heads: Mapping[str, Any]) -> Shape:
    """A call of large exchanges, of which nothing is opened: its columns, and the summary that was stored."""
    first, last = place.exchanges[0], place.exchanges[-1]
    asked, answered = rows[first], rows[last]
    here, there = heads[first], heads[last]
    summaries = [read_summary(form) for name in (last, first) if (form := rows[name]["summary"]) is not None]
    said = summaries[0]
    begun = here["started_at"]
    return {
        "id": str(asked["id"]),
        "run": asked["run"],
        "step": place.step,
        "exchanges": list(place.exchanges),
        "actor": said.actor,
        **{name: asked[name] for name in ("kind", "provider", "dialect", "operation", "host")},
        "method": here["method"],
        "path": path_of(here["url"]),
        "status": answered["status"],
        "model_requested": asked["model_requested"],
        "model_returned": answered["model_returned"],
        "system_fingerprint": answered["fingerprint"],
        "params": parsed(said.params) or {},
        "request": None,
        "answer": None,
        "text": said.text,
        "tool_calls": [
            {"id": tool.id, "name": tool.name, "arguments": parsed(tool.arguments)}
            | {"executed_by": None, "answered_by": None}
            for tool in said.tool_calls
        ],
        "tool_results": [],
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
        "warnings": said.warnings,
        "started_at": rfc3339(asked["started_at"]),
        "first_byte_ms": _after(begun, there, there["first_byte_at"]),
        # A response whose first byte nobody timed was imported: nobody timed its end either.
        "duration_ms": None
        if there["first_byte_at"] is None and answered["status"] is not None
        else _after(begun, there, there["ended_at"]),
        "attempts": place.attempts,
        "branch": None,
        "follows": None,
        "executes": None,
    }


def _after(begun: int, head: Mapping[str, Any], at: int | None) -> float | None:
    return None if at is None else milliseconds(head["started_at"] - begun + at)


def _cut_text(text: str | None) -> str | None:
    return None if text is None else text[:TEXT]


def _if_short(value: Any) -> Any:
    return value if len(dumps(value)) <= SMALL else None
