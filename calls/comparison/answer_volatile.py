"""Find the values that are new in each answer: times, request ids, and what a profile's `answer.ignore` names.

Two answers to the same request are compared without them. A time is treated as volatile only if it has the same distance
from its call as its counterpart has from the other call: a due date does not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final, NamedTuple

from calls.codec.json import dumps
from calls.comparison.field_heuristics import is_per_request_name, value_shape
from calls.keys.divergence import AbsentValue, Difference, differences
from calls.keys.rules import Node, Plan, rule_tree
from calls.model import Json

SECOND: Final = 10**9
_MAX_SKEW: Final = 60 * SECOND
"""The largest difference between the distances of two times from their calls, in nanoseconds."""

_STAMP: Final = re.compile(
    r"(?<![\w.])(?:"
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)(?P<zone> ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"|(?P<epoch>[1-3]\d{9}(?:\d{3}|\d{6}|\d{9})?(?:\.\d{1,9})?)"
    r"|(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
    r")(?![\w.]*\w)"
)


class VolatilePair(NamedTuple):
    """A volatile value and its counterpart in another answer, as texts."""

    one: str
    other: str
    name: str | None = None
    """The name of the member, if only the name distinguishes the value from others."""

    is_time: bool = False


@dataclass(frozen=True, slots=True)
class AnswerDifferences:
    """The differences of two answers."""

    volatile: tuple[VolatilePair, ...]
    is_all: bool
    """Whether the answers differ only in volatile values."""


def without_ignored(answer: Json, plan: Plan | None) -> Json:
    """Return an answer without the fields that a profile ignores."""
    return answer if plan is None else _remove_ignored(answer, _rule_tree(plan, answer))


def ignored_values(answer: Json, plan: Plan | None) -> Iterator[tuple[str, Json]]:
    """Yield the values that a profile ignores, each with the name of its member."""
    if plan is not None:
        yield from _ignored_leaves(answer, _rule_tree(plan, answer), "")


def compare_answers(one: Json, other: Json, at: tuple[int, int], *, ids: bool = False) -> AnswerDifferences:
    """Compare two answers to calls that began at these times. With `ids`, every random id is treated as volatile."""
    pairs: list[VolatilePair] = []
    is_all = True
    for difference in differences(one, other):
        found, whole = _volatile_pairs(difference, at, ids=ids)
        pairs += found
        is_all = is_all and whole
    return AnswerDifferences(tuple(pairs), is_all)


def _rule_tree(plan: Plan, answer: Json) -> Node:
    text = dumps(answer) if plan.queries else b""
    return rule_tree(plan, answer, text.__contains__)


def _remove_ignored(value: Json, node: Node | None) -> Json:
    if node is None:
        return value
    if isinstance(value, Mapping):
        below = {name: node.child(name, item) for name, item in value.items()}
        return {
            name: _remove_ignored(item, below[name]) for name, item in value.items() if not _is_ignored(below[name])
        }
    if isinstance(value, list | tuple):
        return [
            _remove_ignored(item, rules)
            for number, item in enumerate(value)
            if not _is_ignored(rules := node.child(number, item))
        ]
    return value


def _ignored_leaves(value: Json, node: Node | None, name: str) -> Iterator[tuple[str, Json]]:
    if node is None:
        return
    if _is_ignored(node):
        yield from ((name, leaf) for leaf in _leaves(value))
    elif isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _ignored_leaves(item, node.child(inner, item), inner)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _ignored_leaves(item, node.child(number, item), name)


def _is_ignored(node: Node | None) -> bool:
    return node is not None and node.field_class == "transient"


def _leaves(value: Json) -> Iterator[Json]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _volatile_pairs(difference: Difference, at: tuple[int, int], *, ids: bool) -> tuple[list[VolatilePair], bool]:
    one, other = _scalar_text(difference.recorded), _scalar_text(difference.now)
    if one is None or other is None:
        return [], False
    names = [step for step in difference.path if isinstance(step, str)][-2:]
    is_per_request = any(is_per_request_name(name) for name in (*names[-1:], "_".join(names)))
    shape = value_shape(difference.recorded) if not isinstance(difference.recorded, AbsentValue) else None
    if shape in ("a uuid", "a random id") and not isinstance(difference.now, AbsentValue):
        is_same = value_shape(difference.now) == shape and (ids or is_per_request)
        return ([VolatilePair(one, other)], True) if is_same else ([], False)
    return _pairs_within(one, other, at, ids=ids)


def _scalar_text(value: Json | AbsentValue) -> str | None:
    match value:
        case bool() | None:
            return None
        case str():
            return value
        case int() | float() | Decimal():
            return str(value)
        case _:
            return None


def _pairs_within(one: str, other: str, at: tuple[int, int], *, ids: bool) -> tuple[list[VolatilePair], bool]:
    """Return the differing times and ids in two texts with equally many, and whether nothing else differs."""
    here, there = list(_STAMP.finditer(one)), list(_STAMP.finditer(other))
    if not here or len(here) != len(there):
        return [], False
    pairs, is_all = [], _text_between(one, here) == _text_between(other, there)
    for a, b in zip(here, there, strict=True):
        if a[0] == b[0]:
            continue
        is_time = _is_same_age(a, b, at)
        if is_time or (ids and a["uuid"] and b["uuid"]):
            pairs.append(VolatilePair(a[0], b[0], is_time=is_time))
        else:
            is_all = False
    return pairs, is_all


def _text_between(text: str, matches: list[re.Match[str]]) -> list[str]:
    ends = [0, *(edge for match in matches for edge in match.span()), len(text)]
    return [text[start:end] for start, end in list(pairwise(ends))[::2]]


def _is_same_age(one: re.Match[str], other: re.Match[str], at: tuple[int, int]) -> bool:
    """Return whether two times have the same distance from their calls."""
    here, there = _nanoseconds(one), _nanoseconds(other)
    return here is not None and there is not None and abs((here - at[0]) - (there - at[1])) <= _MAX_SKEW


def _nanoseconds(stamp: re.Match[str]) -> int | None:
    """Return a time in nanoseconds since the Unix epoch. A time without a zone is read as UTC."""
    if epoch := stamp["epoch"]:
        whole, _, rest = epoch.partition(".")
        return int((whole + rest).ljust(19, "0")[:19])
    if not stamp["date"]:
        return None
    year, month, day = map(int, stamp["date"].split("-"))
    hour, minute, *seconds = stamp["clock"].replace(",", ".").split(":")
    second, _, rest = seconds[0].partition(".") if seconds else ("0", "", "")
    minutes = (
        (_days_since_epoch(year, month, day) * 24 + int(hour)) * 60 + int(minute) - _zone_offset(stamp["zone"] or "")
    )
    return (minutes * 60 + int(second)) * SECOND + int(rest.ljust(9, "0")[:9])


def _days_since_epoch(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 in the Gregorian calendar (Hinnant, `days_from_civil`)."""
    year -= month <= 2
    era, month = year // 400, (month + 9) % 12
    of_era = year - era * 400
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * month + 2) // 5 + day - 1 - 719_468


def _zone_offset(zone: str) -> int:
    """Return the offset of a zone in minutes east of UTC."""
    digits = re.sub(r"\D", "", zone)
    east = int(digits[:2]) * 60 + int(digits[2:]) if len(digits) == 4 else 0
    return -east if "-" in zone else east
