"""The types of overrides and their validation: answers that a replay or fork gives instead of recorded ones (docs/forks.md).

Overrides come from a file in TOML or JSON, or as a list over REST. Each entry names its place, by step or by properties of
the request, and one change: a whole answer, a text, an argument of a tool call, a JSON patch, a tool's result, or a fault.
They are only read and validated here; `replay.overrides` applies them.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, Literal

import msgspec

from calls.model import Headers, Json
from calls.overrides.effect_values import BadEffectValue, EffectValue, read_effect_value


class BadOverride(ValueError):
    """The overrides are invalid. The message says where, why, and what is allowed."""


class OverrideMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that a request must have. Unset ones match everything; host and path may contain `*`."""

    host: str | None = None
    method: str | None = None
    path: str | None = None
    operation: str | None = None
    """The operation as `playhead show` names it: `chat`, `execute_tool`, …"""

    model: str | None = None
    tool: str | None = None
    """A tool that the request calls (MCP), or that the recorded answer requests."""

    nth: int | None = None
    """The number of one call among the recorded calls that match, from 1. Unset: every match, recorded or not."""


class WholeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Another answer. Unset parts stay as recorded."""

    status: int | None = None
    headers: Headers = ()
    body: Json = None
    has_body: bool = False


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """Another text in a model's answer, in place of the whole text or of each occurrence of `find`."""

    text: str
    find: str | None = None


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Other arguments in a tool call that a model requests."""

    patch: tuple[Mapping[str, Any], ...]
    tool: str | None = None
    nth: int | None = None
    """The number of the call among several calls of that tool in one answer, from 1."""


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON Patch (RFC 6902) of the answer in its non-streamed shape."""

    patch: tuple[Mapping[str, Any], ...]


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Another result of a tool: the body of an HTTP tool, the result of an MCP tool."""

    value: Json


type FaultKind = Literal["status", "timeout", "cut", "malformed", "slow"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure before or during the answer."""

    kind: FaultKind
    amount: float = 0
    """The status; the seconds until the connection is closed, or between pieces; the bytes before the cut."""

    times: int = 1
    """The number of requests that fail before one gets the answer."""

    retry_after: float | None = None
    message: str | None = None
    piece: int | None = None


type AnswerChange = WholeAnswer | Text | Arguments | Patch | ToolResult | Fault
"""A change of an answer."""

type Change = AnswerChange | EffectValue


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """One override."""

    number: int
    """Its number in the file or list, from 1."""

    change: Change
    step: int | None = None
    match: OverrideMatch | None = None
    line: int | None = None

    def error(self, why: str) -> BadOverride:
        """Create an error about this override."""
        return _override_error(self.number, self.line, why)

    @property
    def place(self) -> str:
        """The step or request that it applies to, for display."""
        if isinstance(self.change, EffectValue):
            return f"effect {self.change.name}" + (f"#{self.change.nth}" if self.change.nth else "")
        if self.match is None:
            return f"step {self.step}"
        criteria = ((name, getattr(self.match, name)) for name in OverrideMatch.__struct_fields__)
        return ", ".join(f"{name} {value}" for name, value in criteria if value is not None)

    @property
    def change_name(self) -> str:
        """The change that it makes, for display."""
        match self.change:
            case Fault(kind=kind, amount=amount):
                return f"fault {kind} {amount:g}" if amount else f"fault {kind}"
            case WholeAnswer():
                return "answer"
            case ToolResult():
                return "tool_result"
            case EffectValue():
                return "value"
            case change:
                return type(change).__name__.lower()


type Lines = Sequence[int | None]


def read_overrides(entries: Sequence[Any], lines: Lines = ()) -> tuple[Override, ...]:
    """Validate a list of entries. Raises BadOverride."""
    places = enumerate(zip_longest(entries, lines), 1)
    return tuple(_read_override(number, line, entry) for number, (entry, line) in places)


def clean_entries(entries: Sequence[Any], clean: Callable[[str], str]) -> list[Any]:
    """Replace secrets in entries, which are stored with the report."""

    def clean_value(value: Any) -> Any:
        match value:
            case str():
                return clean(value)
            case Mapping():
                return {name: clean_value(one) for name, one in value.items()}
            case list():
                return [clean_value(one) for one in value]
            case _:
                return value

    return [clean_value(entry) for entry in entries]


# -- entries

_PLACE_MEMBERS: Final = ("step", "match")


def _read_override(number: int, line: int | None, entry: Any) -> Override:
    try:
        if isinstance(entry, dict) and "effect" in entry:
            return Override(number=number, line=line, change=read_effect_value(entry))
        return _build_override(number, line, _checked_table(entry, "an override", (*_PLACE_MEMBERS, *_CHANGES)))
    except (_InvalidEntry, BadEffectValue) as wrong:
        raise _override_error(number, line, str(wrong)) from None


def _build_override(number: int, line: int | None, entry: Mapping[str, Any]) -> Override:
    changes = [name for name in _CHANGES if name in entry]
    if len(changes) != 1:
        problem = f"it has {quote_names(changes)}" if changes else "it changes nothing"
        raise _InvalidEntry(f"{problem}; an override has exactly one of {', '.join(_CHANGES)}")
    if ("step" in entry) == ("match" in entry):
        raise _InvalidEntry("an override needs either step = N or match = { … }, and not both")
    step = _checked_integer(entry["step"], "step", 1) if "step" in entry else None
    match = _read_match(entry["match"]) if "match" in entry else None
    change = _CHANGES[changes[0]](entry[changes[0]])
    return Override(number=number, line=line, step=step, match=match, change=change)


def _read_match(value: Any) -> OverrideMatch:
    known = OverrideMatch.__struct_fields__
    table = _checked_table(value, "match", known)
    if not table:
        raise _InvalidEntry(f"match is empty and would match everything: set at least one of {', '.join(known)}")
    nth = _checked_integer(table["nth"], "match.nth", 1) if "nth" in table else None
    words = {name: _checked_text(table[name], f"match.{name}") for name in table if name != "nth"}
    return OverrideMatch(**words, nth=nth)


def _read_answer(value: Any) -> Change:
    table = _checked_table(value, "answer", ("status", "headers", "body"))
    if not table:
        raise _InvalidEntry("answer is empty: set at least one of status, headers, body")
    status = _checked_status(table["status"], "answer.status") if "status" in table else None
    headers = tuple(_read_headers(table.get("headers", {})))
    return WholeAnswer(
        status=status, headers=headers, body=_checked_value(table.get("body"), "body"), has_body="body" in table
    )


def _read_headers(value: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(value, dict):
        raise _InvalidEntry("answer.headers must be a table of names and values")
    for name, value_or_list in value.items():
        for one in value_or_list if isinstance(value_or_list, list) else [value_or_list]:
            text = _checked_text(one, f"answer.headers.{name}")
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", text):
                raise _InvalidEntry(f"answer.headers.{name} is not a valid HTTP header")
            yield name, text


def _read_text(value: Any) -> Change:
    if isinstance(value, str):
        return Text(text=value)
    table = _checked_table(value, "text", ("find", "replace"))
    if len(table) != 2:
        raise _InvalidEntry('text must be the new text, or { find = "…", replace = "…" }')
    return Text(
        text=_checked_text(table["replace"], "text.replace", empty=True), find=_checked_text(table["find"], "text.find")
    )


def _read_arguments(value: Any) -> Change:
    table = _checked_table(value, "arguments", ("tool", "nth", "patch"))
    if "patch" not in table:
        raise _InvalidEntry("arguments needs a patch, a list of RFC 6902 operations")
    tool = _checked_text(table["tool"], "arguments.tool") if "tool" in table else None
    nth = _checked_integer(table["nth"], "arguments.nth", 1) if "nth" in table else None
    return Arguments(tool=tool, nth=nth, patch=_read_operations(table["patch"], "arguments.patch"))


def _read_patch(value: Any) -> Change:
    return Patch(patch=_read_operations(value, "patch"))


_OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("path", "value"),
    "replace": ("path", "value"),
    "test": ("path", "value"),
    "remove": ("path",),
    "move": ("from", "path"),
    "copy": ("from", "path"),
}


def _read_operations(value: Any, name: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise _InvalidEntry(f"{name} must be a list of RFC 6902 operations")
    return tuple(_read_operation(one, f"{name}[{place}]") for place, one in enumerate(value))


def _read_operation(value: Any, name: str) -> Mapping[str, Any]:
    operation = value.get("op") if isinstance(value, dict) else None
    if not isinstance(operation, str) or operation not in _OPERATIONS:
        raise _InvalidEntry(f"{name} needs an op: use {', '.join(_OPERATIONS)}")
    members = _OPERATIONS[operation]
    if missing := [member for member in members if member not in value]:
        raise _InvalidEntry(f"{name} ({operation}) lacks {quote_names(missing)}")
    for pointer in filter(members.__contains__, ("from", "path")):
        if not isinstance(value[pointer], str) or (value[pointer] and not value[pointer].startswith("/")):
            raise _InvalidEntry(f'{name}.{pointer} is not a JSON pointer: it must begin with "/"')
    return {"op": operation, **{member: _checked_value(value[member], f"{name}.{member}") for member in members}}


def _read_tool_result(value: Any) -> Change:
    return ToolResult(value=_checked_value(value, "tool_result"))


_FAULTS: Final[Mapping[str, str]] = {
    "status": "a status from 400 to 599",
    "timeout": "seconds until the connection is closed, or true: as long as the client waits",
    "cut": "the number of bytes of the body before the cut",
    "malformed": "true",
    "slow": "seconds between the pieces of the answer",
}
_FOREVER: Final = 86_400.0


def _read_fault(value: Any) -> Change:
    table = _checked_table(value, "fault", (*_FAULTS, "times", "retry_after", "message", "piece"))
    kinds = [kind for kind in _FAULTS if kind in table]
    if len(kinds) != 1:
        raise _InvalidEntry(f"fault must have exactly one of {', '.join(_FAULTS)}")
    (kind,) = kinds
    for member, only in (("retry_after", "status"), ("message", "status"), ("piece", "slow")):
        if member in table and kind != only:
            raise _InvalidEntry(f"fault.{member} is only allowed with fault.{only}")
    return Fault(
        kind=kind,  # type: ignore[arg-type] # one of its names
        amount=_read_fault_amount(kind, table[kind]),
        times=_checked_integer(table.get("times", 1), "fault.times", 1),
        retry_after=_checked_seconds(table["retry_after"], "fault.retry_after") if "retry_after" in table else None,
        message=_checked_text(table["message"], "fault.message") if "message" in table else None,
        piece=_checked_integer(table["piece"], "fault.piece", 1) if "piece" in table else None,
    )


def _read_fault_amount(kind: str, value: Any) -> float:
    """Return `Fault.amount`, whose meaning depends on the kind. Raises _InvalidEntry."""
    match kind:
        case "status":
            status = _checked_status(value, "fault.status")
            if status < 400:
                raise _InvalidEntry(
                    f"fault.status must be {_FAULTS['status']}; for other statuses use answer = {{ … }}"
                )
            return status
        case "timeout":
            return _FOREVER if value is True else _checked_seconds(value, "fault.timeout")
        case "cut":
            return _checked_integer(value, "fault.cut", 0)
        case "malformed":
            if value is not True:
                raise _InvalidEntry("fault.malformed must be true or absent")
            return 0
        case _:
            return _checked_seconds(value, "fault.slow")


_CHANGES: Final[Mapping[str, Callable[[Any], Change]]] = {
    "answer": _read_answer,
    "text": _read_text,
    "arguments": _read_arguments,
    "patch": _read_patch,
    "tool_result": _read_tool_result,
    "fault": _read_fault,
}


# -- values


class _InvalidEntry(ValueError):
    """An entry is invalid; the caller adds its number and line."""


def _override_error(number: int, line: int | None, why: str) -> BadOverride:
    place = f"override {number}" if line is None else f"line {line}: override {number}"
    return BadOverride(f"{place}: {why}")


def _checked_table(value: Any, name: str, members: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _InvalidEntry(f"{name} must be a table of {', '.join(members)}")
    if unknown := [member for member in value if member not in members]:
        raise _InvalidEntry(f"unknown {quote_names(unknown)} in {name}: use {', '.join(members)}")
    return value


def _checked_text(value: Any, name: str, *, empty: bool = False) -> str:
    if isinstance(value, str) and (value or empty):
        return value
    raise _InvalidEntry(f"{name} must be a {'' if empty else 'non-empty '}string")


def _checked_integer(value: Any, name: str, least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 53:
        return value
    raise _InvalidEntry(f"{name} must be a whole number of at least {least}")


def _checked_status(value: Any, name: str) -> int:
    status = _checked_integer(value, name, 0)
    if not 200 <= status <= 599:
        raise _InvalidEntry(f"{name} must be a final HTTP status, from 200 to 599")
    return status


def _checked_seconds(value: Any, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _FOREVER:
        return float(value)
    raise _InvalidEntry(f"{name} must be a number of seconds from 0 to {_FOREVER:g}")


def _checked_value(value: Any, name: str) -> Json:
    """Check that a TOML value is also valid in JSON."""
    match value:
        case dict():
            return {member: _checked_value(one, f"{name}.{member}") for member, one in value.items()}
        case list():
            return [_checked_value(one, f"{name}[{place}]") for place, one in enumerate(value)]
        case float() if not math.isfinite(value):
            raise _InvalidEntry(f"{name} is {value}, which JSON cannot represent: use a finite number")
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise _InvalidEntry(f"{name} is a {type(value).__name__}, which JSON does not have: write it as a string")


def quote_names(names: Sequence[str]) -> str:
    """Return the names in quotes, separated by commas."""
    return ", ".join(f'"{name}"' for name in names)
