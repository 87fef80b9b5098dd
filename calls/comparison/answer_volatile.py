"""Find the values that are new in each answer: times, request ids, and what a profile's `answer.ignore` names.

Two answers to the same request are compared without them. A time is only taken for one of these where it is as far from
its own call as its counterpart is from the other: a due date is not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Final, NamedTuple

from calls.codec.json import dumps
from calls.comparison.field_heuristics import looks, names_a_sending
from calls.keys.divergence import AbsentValue, Difference, differences
from calls.keys.rules import Node, Plan, tree
from calls.model import Json

SECOND: Final = 10**9
_APART: Final = 60 * SECOND
"""How much further from its call a time may be than its counterpart from the other."""

_STAMP: Final = re.compile(
    r"(?<![\w.])(?:"
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<clock>\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?)(?P<zone> ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
    r"|(?P<epoch>[1-3]\d{9}(?:\d{3}|\d{6}|\d{9})?(?:\.\d{1,9})?)"
    r"|(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
    r")(?![\w.]*\w)"
)


class Twins(NamedTuple):
    """The same volatile value in two answers, as texts."""

    one: str
    other: str
    name: str | None = None
    """The member that holds it, where only that tells it from other values."""

    is_time: bool = False


@dataclass(frozen=True, slots=True)
class AnswerDifferences:
    """What two answers differ in."""

    volatile: tuple[Twins, ...]
    is_all: bool
    """Whether they differ in nothing else."""


def without_ignored(answer: Json, plan: Plan | None) -> Json:
    """An answer without what a profile says to ignore."""
    return answer if plan is None else _kept(answer, _rules(plan, answer))


def ignored(answer: Json, plan: Plan | None) -> Iterator[tuple[str, Json]]:
    """The values that a profile says to ignore, each with the name of the member that holds it."""
    if plan is not None:
        yield from _dropped(answer, _rules(plan, answer), "")


def compared(one: Json, other: Json, at: tuple[int, int], *, ids: bool = False) -> AnswerDifferences:
    """What two answers differ in that were begun at these times. With `ids` every random id is taken for volatile."""
    twins: list[Twins] = []
    is_all = True
    for difference in differences(one, other):
        found, whole = _twins(difference, at, ids=ids)
        twins += found
        is_all = is_all and whole
    return AnswerDifferences(tuple(twins), is_all)


def _rules(plan: Plan, answer: Json) -> Node:
    return tree(plan, answer, dumps(answer) if plan.queries else b"")


def _kept(value: Json, node: Node | None) -> Json:
    if node is None:
        return value
    if isinstance(value, Mapping):
        below = {name: node.below(name, item) for name, item in value.items()}
        return {name: _kept(item, below[name]) for name, item in value.items() if not _is_ignored(below[name])}
    if isinstance(value, list | tuple):
        return [
            _kept(item, rules)
            for number, item in enumerate(value)
            if not _is_ignored(rules := node.below(number, item))
        ]
    return value


def _dropped(value: Json, node: Node | None, name: str) -> Iterator[tuple[str, Json]]:
    if node is None:
        return
    if _is_ignored(node):
        yield from ((name, leaf) for leaf in _leaves(value))
    elif isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _dropped(item, node.below(inner, item), inner)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _dropped(item, node.below(number, item), name)


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


def _twins(difference: Difference, at: tuple[int, int], *, ids: bool) -> tuple[list[Twins], bool]:
    one, other = _text(difference.recorded), _text(difference.now)
    if one is None or other is None:
        return [], False
    names = [step for step in difference.path if isinstance(step, str)][-2:]
    made_anew = any(names_a_sending(name) for name in (*names[-1:], "_".join(names)))
    shape = looks(difference.recorded) if not isinstance(difference.recorded, AbsentValue) else None
    if shape in ("a uuid", "a random id") and not isinstance(difference.now, AbsentValue):
        is_same = looks(difference.now) == shape and (ids or made_anew)
        return ([Twins(one, other)], True) if is_same else ([], False)
    return _within(one, other, at, ids=ids)


def _text(value: Json | AbsentValue) -> str | None:
    match value:
        case bool() | None:
            return None
        case str():
            return value
        case int() | float() | Decimal():
            return str(value)
        case _:
            return None


def _within(one: str, other: str, at: tuple[int, int], *, ids: bool) -> tuple[list[Twins], bool]:
    """The times and ids in two texts, where both have equally many; and whether they differ in nothing else."""
    here, there = list(_STAMP.finditer(one)), list(_STAMP.finditer(other))
    if not here or len(here) != len(there):
        return [], False
    twins, is_all = [], _between(one, here) == _between(other, there)
    for a, b in zip(here, there, strict=True):
        if a[0] == b[0]:
            continue
        is_time = _is_now(a, b, at)
        if is_time or (ids and a["uuid"] and b["uuid"]):
            twins.append(Twins(a[0], b[0], is_time=is_time))
        else:
            is_all = False
    return twins, is_all


def _between(text: str, found: list[re.Match[str]]) -> list[str]:
    ends = [0, *(edge for match in found for edge in match.span()), len(text)]
    return [text[start:end] for start, end in list(pairwise(ends))[::2]]


def _is_now(one: re.Match[str], other: re.Match[str], at: tuple[int, int]) -> bool:
    """Whether two times are equally far from their calls."""
    here, there = _nanoseconds(one), _nanoseconds(other)
    return here is not None and there is not None and abs((here - at[0]) - (there - at[1])) <= _APART


def _nanoseconds(stamp: re.Match[str]) -> int | None:
    """Since the Unix epoch; a time without a zone is taken for UTC, as is its counterpart."""
    if epoch := stamp["epoch"]:
        whole, _, rest = epoch.partition(".")
        return int((whole + rest).ljust(19, "0")[:19])
    if not stamp["date"]:
        return None
    year, month, day = map(int, stamp["date"].split("-"))
    hour, minute, *seconds = stamp["clock"].replace(",", ".").split(":")
    second, _, rest = seconds[0].partition(".") if seconds else ("0", "", "")
    minutes = (_days(year, month, day) * 24 + int(hour)) * 60 + int(minute) - _offset(stamp["zone"] or "")
    return (minutes * 60 + int(second)) * SECOND + int(rest.ljust(9, "0")[:9])


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the Gregorian calendar (Hinnant, `days_from_civil`)."""
    year -= month <= 2
    era, month = year // 400, (month + 9) % 12
    of_era = year - era * 400
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * month + 2) // 5 + day - 1 - 719_468


def _offset(zone: str) -> int:
    """Minutes east of UTC."""
    digits = re.sub(r"\D", "", zone)
    east = int(digits[:2]) * 60 + int(digits[2:]) if len(digits) == 4 else 0
    return -east if "-" in zone else east
