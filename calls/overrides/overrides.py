"""Overrides: the answers that a replay or fork gives instead of the recorded ones (docs/forks.md).

A file in TOML or JSON, or a list over REST. Each entry says where, by step or by what the request looks like, and one change:
a whole answer, a text, an argument of a tool call, a JSON patch, a tool's result, or a fault. Here they are only read and checked;
`edits` says what they do to an exchange, and `editor` when.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any, Final, Literal

from calls.model import Headers, Json


class BadOverride(ValueError):
    """The overrides cannot be used as they are written. The message says where, why, and what is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideMatch:
    """What a request must look like. What is not given fits everything; hosts and paths may hold `*`."""

    host: str | None = None
    method: str | None = None
    path: str | None = None
    operation: str | None = None
    """`chat`, `execute_tool`, …: as `playhead show` names it."""

    model: str | None = None
    tool: str | None = None
    """A tool that is called by the request (MCP), or that the recorded answer asks for."""

    nth: int | None = None
    """The one of that place among the recorded calls that fit, from 1. Without it: every one that fits, recorded or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Another answer. What is not given stays as it was recorded."""

    status: int | None = None
    headers: Headers = ()
    body: Json = None
    has_body: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Another text in a model's answer: instead of all of it, or of each place where `find` stands."""

    text: str
    find: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Other arguments in a tool call that a model asks for."""

    patch: tuple[Mapping[str, Any], ...]
    tool: str | None = None
    nth: int | None = None
    """Which of several calls of that tool in the one answer, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A JSON Patch (RFC 6902) of the answer, in the shape that it has when it is not streamed."""

    patch: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool answered instead: the body of an HTTP tool, the result of an MCP tool."""

    value: Json


type FaultKind = Literal["status", "timeout", "cut", "malformed", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, before the answer is given or while it is."""

    kind: FaultKind
    amount: float = 0
    """The status; the seconds until we break off, or between pieces; the bytes before the cut."""

    times: int = 1
    """How many requests are answered so, before one gets the answer."""

    retry_after: float | None = None
    message: str | None = None
    piece: int | None = None


type Change = Whole | Text | Arguments | Patch | ToolResult | Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One entry."""

    number: int
    """Its place among the others, from 1."""

    change: Change
    step: int | None = None
    match: OverrideMatch | None = None
    line: int | None = None

    def wrong(self, why: str) -> BadOverride:
        """A complaint about this entry."""
        return _complaint(self.number, self.line, why)

    @property
    def where(self) -> str:
        """Where it holds, for a person."""
        if self.match is None:
            return f"step {self.step}"
        given = ((field.name, getattr(self.match, field.name)) for field in fields(OverrideMatch))
        return ", ".join(f"{name} {value}" for name, value in given if value is not None)

    @property
    def what(self) -> str:
        """What it does, for a person."""
        match self.change:
            case Fault(kind=kind, amount=amount):
                return f"fault {kind} {amount:g}" if amount else f"fault {kind}"
            case Whole():
                return "answer"
            case ToolResult():
                return "tool_result"
            case change:
                return type(change).__name__.lower()


type Lines = Sequence[int | None]


def listed(entries: Sequence[Any], lines: Lines = ()) -> tuple[Override, ...]:
    """The overrides of a list of entries. Raises BadOverride."""
    places = enumerate(zip_longest(entries, lines), 1)
    return tuple(_override(number, line, entry) for number, (entry, line) in places)


def cleaned(entries: Sequence[Any], clean: Callable[[str], str]) -> list[Any]:
    """Entries without the secrets that somebody wrote into them: they are kept with the report."""

    def without(value: Any) -> Any:
        match value:
            case str():
                return clean(value)
            case Mapping():
                return {name: without(one) for name, one in value.items()}
            case list():
                return [without(one) for one in value]
            case _:
                return value

    return [without(entry) for entry in entries]


# -- entries

_WHERE: Final = ("step", "match")


def _override(number: int, line: int | None, entry: Any) -> Override:
    try:
        return _made(number, line, _table(entry, "an override", (*_WHERE, *_CHANGES)))
    except _Wrong as wrong:
        raise _complaint(number, line, str(wrong)) from None


def _made(number: int, line: int | None, entry: Mapping[str, Any]) -> Override:
    changes = [name for name in _CHANGES if name in entry]
    if len(changes) != 1:
        said = f"it has {named(changes)}" if changes else "it changes nothing"
        raise _Wrong(f"{said}; an override has exactly one of {', '.join(_CHANGES)}")
    if ("step" in entry) == ("match" in entry):
        raise _Wrong("say where it holds: by step = N, or by match = { … }, and not by both")
    step = _whole(entry["step"], "step", 1) if "step" in entry else None
    match = _match(entry["match"]) if "match" in entry else None
    change = _CHANGES[changes[0]](entry[changes[0]])
    return Override(number=number, line=line, step=step, match=match, change=change)


def _match(value: Any) -> OverrideMatch:
    known = tuple(field.name for field in fields(OverrideMatch))
    given = _table(value, "match", known)
    if not given:
        raise _Wrong(f"match is empty, and would fit everything; say at least one of {', '.join(known)}")
    nth = _whole(given["nth"], "match.nth", 1) if "nth" in given else None
    words = {name: _word(given[name], f"match.{name}") for name in given if name != "nth"}
    return OverrideMatch(**words, nth=nth)


def _answer(value: Any) -> Change:
    given = _table(value, "answer", ("status", "headers", "body"))
    if not given:
        raise _Wrong("answer is empty; say at least one of status, headers, body")
    status = _status(given["status"], "answer.status") if "status" in given else None
    headers = tuple(_headers(given.get("headers", {})))
    return Whole(status=status, headers=headers, body=_value(given.get("body"), "body"), has_body="body" in given)


def _headers(value: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(value, dict):
        raise _Wrong("answer.headers must be a table of names and values")
    for name, said in value.items():
        for one in said if isinstance(said, list) else [said]:
            text = _word(one, f"answer.headers.{name}")
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\x00-\x08\x0a-\x1f\x7f]", text):
                raise _Wrong(f"answer.headers.{name} cannot stand in a message of HTTP")
            yield name, text


def _text(value: Any) -> Change:
    if isinstance(value, str):
        return Text(text=value)
    given = _table(value, "text", ("find", "replace"))
    if len(given) != 2:
        raise _Wrong('text is the new text, or { find = "…", replace = "…" }')
    return Text(text=_word(given["replace"], "text.replace", empty=True), find=_word(given["find"], "text.find"))


def _arguments(value: Any) -> Change:
    given = _table(value, "arguments", ("tool", "nth", "patch"))
    if "patch" not in given:
        raise _Wrong("arguments needs a patch, a list of operations of RFC 6902")
    tool = _word(given["tool"], "arguments.tool") if "tool" in given else None
    nth = _whole(given["nth"], "arguments.nth", 1) if "nth" in given else None
    return Arguments(tool=tool, nth=nth, patch=_operations(given["patch"], "arguments.patch"))


def _patch(value: Any) -> Change:
    return Patch(patch=_operations(value, "patch"))


_OPERATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": ("path", "value"),
    "replace": ("path", "value"),
    "test": ("path", "value"),
    "remove": ("path",),
    "move": ("from", "path"),
    "copy": ("from", "path"),
}


def _operations(value: Any, name: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise _Wrong(f"{name} must be a list of operations of RFC 6902")
    return tuple(_operation(one, f"{name}[{place}]") for place, one in enumerate(value))


def _operation(value: Any, name: str) -> Mapping[str, Any]:
    operation = value.get("op") if isinstance(value, dict) else None
    if not isinstance(operation, str) or operation not in _OPERATIONS:
        raise _Wrong(f"{name} needs an op; known are {', '.join(_OPERATIONS)}")
    needed = _OPERATIONS[operation]
    if lacking := [member for member in needed if member not in value]:
        raise _Wrong(f"{name} ({operation}) lacks {named(lacking)}")
    for pointer in filter(needed.__contains__, ("from", "path")):
        if not isinstance(value[pointer], str) or (value[pointer] and not value[pointer].startswith("/")):
            raise _Wrong(f'{name}.{pointer} is no JSON pointer; it begins with "/"')
    return {"op": operation, **{member: _value(value[member], f"{name}.{member}") for member in needed}}


def _tool_result(value: Any) -> Change:
    return ToolResult(value=_value(value, "tool_result"))


_FAULTS: Final[Mapping[str, str]] = {
    "status": "a status from 400 to 599",
    "timeout": "seconds until we break off, or true: as long as the client waits",
    "cut": "how many bytes of the body still come",
    "malformed": "true",
    "slow": "seconds between the pieces of the answer",
}
_FOREVER: Final = 86_400.0


def _fault(value: Any) -> Change:
    given = _table(value, "fault", (*_FAULTS, "times", "retry_after", "message", "piece"))
    kinds = [kind for kind in _FAULTS if kind in given]
    if len(kinds) != 1:
        raise _Wrong(f"fault has exactly one of {', '.join(_FAULTS)}")
    (kind,) = kinds
    for member, only in (("retry_after", "status"), ("message", "status"), ("piece", "slow")):
        if member in given and kind != only:
            raise _Wrong(f"fault.{member} goes with fault.{only} only")
    return Fault(
        kind=kind,  # type: ignore[arg-type] # one of its names
        amount=_amount(kind, given[kind]),
        times=_whole(given.get("times", 1), "fault.times", 1),
        retry_after=_number(given["retry_after"], "fault.retry_after") if "retry_after" in given else None,
        message=_word(given["message"], "fault.message") if "message" in given else None,
        piece=_whole(given["piece"], "fault.piece", 1) if "piece" in given else None,
    )


def _amount(kind: str, value: Any) -> float:
    match kind:
        case "status":
            status = _status(value, "fault.status")
            if status < 400:
                raise _Wrong(f"fault.status is {_FAULTS['status']}; for another answer use answer = {{ … }}")
            return status
        case "timeout":
            return _FOREVER if value is True else _number(value, "fault.timeout")
        case "cut":
            return _whole(value, "fault.cut", 0)
        case "malformed":
            if value is not True:
                raise _Wrong("fault.malformed is true, or not there")
            return 0
        case _:
            return _number(value, "fault.slow")


_CHANGES: Final[Mapping[str, Callable[[Any], Change]]] = {
    "answer": _answer,
    "text": _text,
    "arguments": _arguments,
    "patch": _patch,
    "tool_result": _tool_result,
    "fault": _fault,
}


# -- values


class _Wrong(ValueError):
    """What is wrong with an entry; where it stands is known further out."""


def _complaint(number: int, line: int | None, why: str) -> BadOverride:
    place = f"override {number}" if line is None else f"line {line}: override {number}"
    return BadOverride(f"{place}: {why}")


def _table(value: Any, name: str, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(f"{name} must be a table; known in it are {', '.join(known)}")
    if unknown := [member for member in value if member not in known]:
        raise _Wrong(f"{named(unknown)} is not known in {name}; known are {', '.join(known)}")
    return value


def _word(value: Any, name: str, *, empty: bool = False) -> str:
    if isinstance(value, str) and (value or empty):
        return value
    raise _Wrong(f"{name} must be a text{'' if empty else ' that is not empty'}")


def _whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 53:
        return value
    raise _Wrong(f"{name} must be a whole number from {least} on")


def _status(value: Any, name: str) -> int:
    status = _whole(value, name, 0)
    if not 200 <= status <= 599:
        raise _Wrong(f"{name} must be a final status of HTTP, from 200 to 599")
    return status


def _number(value: Any, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _FOREVER:
        return float(value)
    raise _Wrong(f"{name} must be seconds from 0 to {_FOREVER:g}")


def _value(value: Any, name: str) -> Json:
    """A value of TOML that JSON has too."""
    match value:
        case dict():
            return {member: _value(one, f"{name}.{member}") for member, one in value.items()}
        case list():
            return [_value(one, f"{name}[{place}]") for place, one in enumerate(value)]
        case float() if not math.isfinite(value):
            raise _Wrong(f"{name} is {value}, which JSON cannot say")
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise _Wrong(f"{name} is a {type(value).__name__}, which JSON does not have; write it as a text")


def named(names: Sequence[str]) -> str:
    """Names in quotes, for a sentence."""
    return ", ".join(f'"{name}"' for name in names)
