"""Propose a spec from good runs: what all of them agree on. What varies between them is left out."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from calls.checking.checked_run import CheckedRun, parse_if_json, walk_values
from calls.checking.conditions import equal_values, schema_type
from calls.checking.rules import path_error, values_at
from calls.codec.json import dumps
from calls.model import Json
from calls.placeholder import PATTERN

MOST_ARGUMENTS: Final = 40
"""Paths into the arguments of one tool for which rules are proposed."""

_ROOM: Final = 1.5
"""A budget is this many times the most that a run used."""

_LONGEST_CONSTANT: Final = 80
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER: Final = re.compile(PATTERN)


class SpecEntry(NamedTuple):
    """A rule as it is written, and why."""

    comment: str
    members: Mapping[str, Any]


def propose_spec(runs: Sequence[CheckedRun]) -> str:
    """Return the text of a spec that all these runs satisfy. They are the same work, done well."""
    names = ", ".join(run.name for run in runs)
    head = f"# Made by playhead check --init from {names}. Read it, and delete what does not matter."
    if len(runs) == 1:
        head += "\n# From two or more runs of the same work, what varies between them is left out: playhead check --init RUN RUN"
    return "\n\n".join([head, *map(_write_rule, _proposed_rules(runs))]) + "\n"


def _proposed_rules(runs: Sequence[CheckedRun]) -> Iterator[SpecEntry]:
    yield from _tool_rules(runs)
    yield from _place_rules(runs)
    for name in _tool_names(runs):
        yield from _argument_rules(runs, name)
    yield from _answer_rules(runs)
    if not any(_has_placeholder(step.call.request) for run in runs for step in run.steps if step.call.kind == "model"):
        yield SpecEntry("No prompt has a secret.", {"kind": "no-secret"})
    yield from _budget_rules(runs)


def _tool_names(runs: Iterable[CheckedRun]) -> list[str]:
    return list(dict.fromkeys(tool.name for run in runs for tool in run.tools))


def _tool_rules(runs: Sequence[CheckedRun]) -> Iterator[SpecEntry]:
    orders = [[tool.name for tool in run.tools] for run in runs]
    if all(order == orders[0] for order in orders):
        yield SpecEntry(
            "These tools, in this order, and no others.",
            {"kind": "tools", "tools": list(map(_escape_pattern, orders[0]))},
        )
    elif all(set(order) == set(orders[0]) for order in orders):
        tools = list(map(_escape_pattern, dict.fromkeys(orders[0])))
        yield SpecEntry(
            "These tools and no others; their order varied.", {"kind": "tools", "tools": tools, "order": "any"}
        )
    else:
        tools = list(map(_escape_pattern, _tool_names(runs)))
        yield SpecEntry("No tools but these; which of them were used varied.", {"kind": "only", "tools": tools})


def _place_rules(runs: Sequence[CheckedRun]) -> Iterator[SpecEntry]:
    hosts = sorted({_escape_pattern(step.host) for run in runs for step in run.steps if step.host})
    models = sorted({_escape_pattern(step.model) for run in runs for step in run.steps if step.model})
    members = {"kind": "only", "hosts": hosts} | ({"models": models} if models else {})
    if hosts:
        yield SpecEntry("Nothing else is called.", members)
    unsafe = sorted({_escape_pattern(step.target) for run in runs for step in run.steps if step.is_unsafe})
    if unsafe:
        yield SpecEntry("Nothing else is changed. * stands for any letters.", {"kind": "target", "allow": unsafe})


def _argument_rules(runs: Sequence[CheckedRun], name: str) -> Iterator[SpecEntry]:
    """Propose the types of the arguments of a tool, and the values that are the same in several runs."""
    documents = [tool.arguments for run in runs for tool in run.tools if tool.name == name]
    paths = dict.fromkeys(path for document in documents for path in _scalar_paths(document))
    # python-jsonpath refuses some names, such as those with escaped control characters.
    for path in [path for path in paths if path_error(path) is None][:MOST_ARGUMENTS]:
        found = [[value for _, value in values_at(path, document)] for document in documents]
        values = [value for each in found for value in each]
        is_constant = (
            len(runs) > 1 and _is_short_scalar(values[0]) and all(equal_values(one, values[0]) for one in values)
        )
        condition = {"equals": values[0]} if is_constant else {"type": _types_of(values)}
        members: dict[str, Any] = {"kind": "argument", "tool": _escape_pattern(name), "at": path, "is": condition}
        yield SpecEntry("", members if all(found) else members | {"optional": True})


def _scalar_paths(document: Json) -> Iterator[str]:
    """Yield the paths to the values of a document that contain no others; elements of lists have one path."""
    for pointer, value in walk_values(document):
        if pointer and not isinstance(value, Mapping | list | tuple):
            yield _path_of(document, pointer)


def _path_of(document: Json, pointer: str) -> str:
    """Return the RFC 9535 path of a JSON pointer, with `[*]` for each index of a list."""
    path, value = "$", document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list | tuple):
            path, value = f"{path}[*]", value[int(name)]
        elif isinstance(value, Mapping):
            path = f"{path}.{name}" if _PLAIN_NAME.fullmatch(name) else f"{path}[{_quoted_name(name)}]"
            value = value[name]
    return path


def _quoted_name(name: str) -> str:
    """Quote a name for a path (RFC 9535 2.3.1.1), whose escapes are those of JSON."""
    return dumps(name).decode("utf-8", "replace")


def _is_short_scalar(value: Json) -> bool:
    # TOML has no null, and its integers have 64 bits.
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) < 2**63
    return isinstance(value, str) and len(value) <= _LONGEST_CONSTANT


def _types_of(values: Iterable[Json]) -> str | list[str]:
    names = sorted({str(schema_type(value)) for value in values})
    names = [name for name in names if not (name == "integer" and "number" in names)]
    return names[0] if len(names) == 1 else names


def _answer_rules(runs: Sequence[CheckedRun]) -> Iterator[SpecEntry]:
    """Propose a schema where the last answers of all runs are JSON objects."""
    answers = [parse_if_json(_last_text(run)) for run in runs]
    if not all(isinstance(answer, Mapping) for answer in answers):
        return
    documents = [answer for answer in answers if isinstance(answer, Mapping)]
    required = [name for name in documents[0] if all(name in document for document in documents)]
    properties = {
        name: {"type": _types_of(document[name] for document in documents)}
        for name in required
        if _PLAIN_NAME.fullmatch(name)
    }
    schema = {"type": "object", "required": list(properties), "properties": properties}
    yield SpecEntry("The last answer is JSON of this form.", {"kind": "answer", "schema": schema})


def _last_text(run: CheckedRun) -> str | None:
    final = [step for step in run.steps if step.call.kind == "model" and not step.call.tool_calls]
    return final[-1].call.text if final else None


def _has_placeholder(request: Json) -> bool:
    return any(isinstance(value, str) and _PLACEHOLDER.search(value) for _, value in walk_values(request))


def _budget_rules(runs: Sequence[CheckedRun]) -> Iterator[SpecEntry]:
    members: dict[str, Any] = {"kind": "budget"}
    costs = [_sum([step.usd for step in run.steps if step.can_cost]) for run in runs]
    if all(cost is not None for cost in costs) and (most := max(float(cost or 0) for cost in costs)) > 0:
        members["max_cost_usd"] = _round_up(most * _ROOM)
    for kind in ("input_tokens", "output_tokens"):
        sums = [
            _sum(
                [
                    _decimal(getattr(step.call.usage, kind))
                    for step in run.steps
                    if step.call.kind == "model" and (step.status or 500) < 400
                ]
            )
            for run in runs
        ]
        if all(sums):
            members[f"max_{kind}"] = int(_round_up(max(float(one or 0) for one in sums) * _ROOM))
    members["max_steps"] = math.ceil(max(len(run.steps) for run in runs) * _ROOM)
    yield SpecEntry(f"At most {_ROOM:g} times what was used.", members)


def _decimal(number: int | None) -> Decimal | None:
    return None if number is None else Decimal(number)


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def _round_up(number: float) -> float:
    """Round up to two digits that count."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    rounded = math.ceil(round(number / unit, 9)) * unit
    return float(f"{rounded:.6g}")


def _escape_pattern(text: str) -> str:
    """Escape what patterns would match more than."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _write_rule(rule: SpecEntry) -> str:
    lines = [f"# {rule.comment}"] if rule.comment else []
    return "\n".join([*lines, "[[rule]]", *(f"{name} = {_toml_value(value)}" for name, value in rule.members.items())])


def _toml_value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{value:f}".rstrip("0").rstrip(".") or "0"
        case str():
            return _toml_string(value)
        case Mapping():
            return "{ " + ", ".join(f"{_toml_key(name)} = {_toml_value(item)}" for name, item in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(_toml_value, value)) + "]"
        case _:
            raise TypeError(f"{type(value).__name__} has no form in TOML")


def _toml_string(text: str) -> str:
    """Write a basic string: JSON's, except that TOML also escapes DEL."""
    return dumps(text).decode("utf-8", "replace").replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _toml_string(name)
