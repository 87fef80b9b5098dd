"""List where two JSON values differ: pointers with the values of both sides, few and short enough to read."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, Literal

import msgspec

from calls.codec.json import dumps
from calls.model import Json

type Path = tuple[str | int, ...]

_MAX_DEPTH = 64
_EXCERPT_LENGTH = 160
_CONTEXT_LENGTH = 60
_MAX_POINTER_LENGTH = 300
_POINTER_END_LENGTH = 99

_ENOUGH_LEAVES = 1000
"""Leaves of a value beyond which it makes no difference how many it has."""


class AbsentValue:
    """The value of a place at which there is nothing, not even null."""


ABSENT: Final = AbsentValue()


class Difference(msgspec.Struct, frozen=True):
    """One place at which two values differ."""

    path: Path
    recorded: Json | AbsentValue
    now: Json | AbsentValue

    @property
    def pointer(self) -> str:
        """The place as an RFC 6901 pointer."""
        return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in self.path)

    @property
    def readable_pointer(self) -> str:
        """The pointer, shortened for display."""
        return shorten_pointer(self.pointer)

    @property
    def only_side(self) -> Literal["recorded", "now"] | None:
        """The side that has a value there, if the other has none."""
        if isinstance(self.recorded, AbsentValue):
            return "now"
        return "recorded" if isinstance(self.now, AbsentValue) else None

    def as_json(self) -> dict[str, Json]:
        """Return the difference for display: long values are cut around the point of difference, a long pointer in the middle."""
        recorded, now = excerpts(self.recorded, self.now)
        found: dict[str, Json] = {"pointer": self.readable_pointer, "recorded": recorded, "now": now}
        return found | {"only": self.only_side} if self.only_side else found


def differences(recorded: Json | AbsentValue, now: Json | AbsentValue, path: Path = ()) -> Iterator[Difference]:
    """Yield the places at which two values differ, outermost first, in the order of the recorded one."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping) and len(path) < _MAX_DEPTH:
        yield from _object_differences(recorded, now, path)
    elif isinstance(recorded, list | tuple) and isinstance(now, list | tuple) and len(path) < _MAX_DEPTH:
        yield from _array_differences(recorded, now, path)
    elif not is_same_json(recorded, now):
        yield Difference(path, recorded, now)


def is_same_json(one: Json | AbsentValue, other: Json | AbsentValue) -> bool:
    """Return whether two values are the same JSON: 1 equals 1.0, but neither equals true."""
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(is_same_json(v, other[k]) for k, v in one.items())
        )
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(is_same_json, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def distance(recorded: Json, now: Json, limit: float = math.inf) -> float:
    """Return the distance of two values: 0 for equal ones, about 1 for each changed leaf. Counting stops at the limit."""
    total = 0.0
    for difference in differences(recorded, now):
        total += _weight(difference)
        if total >= limit:
            break
    return total


def excerpts(recorded: Json | AbsentValue, now: Json | AbsentValue) -> tuple[Json, Json]:
    """Return both values, shortened for display, from shortly before the point where they differ."""
    if isinstance(recorded, str) and isinstance(now, str):
        start = max(0, common_prefix_length(recorded, now) - _CONTEXT_LENGTH)
        return _excerpt(recorded, start), _excerpt(now, start)
    return _short_value(recorded), _short_value(now)


def shorten_pointer(pointer: str) -> str:
    """Shorten a pointer or URL for display; a name in it may be as long as a body. The end stays, where most differ."""
    return (
        pointer
        if len(pointer) <= _MAX_POINTER_LENGTH
        else f"{pointer[: _MAX_POINTER_LENGTH - _POINTER_END_LENGTH - 1]}…{pointer[-_POINTER_END_LENGTH:]}"
    )


def _object_differences(recorded: Mapping[str, Json], now: Mapping[str, Json], path: Path) -> Iterator[Difference]:
    for name, value in recorded.items():
        yield from differences(value, now.get(name, ABSENT), (*path, name))
    for name, value in now.items():
        if name not in recorded:
            yield Difference((*path, name), ABSENT, value)


def _array_differences(recorded: Sequence[Json], now: Sequence[Json], path: Path) -> Iterator[Difference]:
    """Compare arrays of equal length index by index. For others, equal beginnings and ends are skipped first, so that one
    inserted message is one difference, not one for each message after it."""
    before = after = 0
    if len(recorded) != len(now):
        before = _common_length(recorded, now)
        after = _common_length(recorded[before:][::-1], now[before:][::-1])
    recorded_middle, now_middle = recorded[before : len(recorded) - after], now[before : len(now) - after]
    for place, (value, other) in enumerate(zip(recorded_middle, now_middle, strict=False), before):
        yield from differences(value, other, (*path, place))
    for place in range(len(now_middle), len(recorded_middle)):
        yield Difference((*path, before + place), recorded_middle[place], ABSENT)
    for place in range(len(recorded_middle), len(now_middle)):
        yield Difference((*path, before + place), ABSENT, now_middle[place])


def _common_length(one: Sequence[Json], other: Sequence[Json]) -> int:
    return sum(1 for _ in takewhile(bool, map(is_same_json, one, other)))


def _weight(difference: Difference) -> float:
    match difference:
        case Difference(_, str(recorded), str(now)):
            shared = common_prefix_length(recorded, now) + common_prefix_length(recorded[::-1], now[::-1])
            return max(0.1, 1 - shared / max(len(recorded), len(now)))
        case Difference(_, recorded, now):
            return 1 + math.log2(max(_count_leaves(recorded), _count_leaves(now)))


def _count_leaves(value: Json | AbsentValue) -> int:
    """Return the approximate number of leaves of a value. Counting stops at `_ENOUGH_LEAVES`."""
    stack, found = [value], 0
    while stack and found < _ENOUGH_LEAVES:
        match stack.pop():
            case Mapping() as members:
                stack.extend(members.values())
            case list() | tuple() as elements:
                stack.extend(elements)
            case _:
                found += 1
    return max(1, found)


def common_prefix_length(one: str, other: str) -> int:
    """Return the length of the common prefix, by bisection: comparing slices is faster than a loop."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _short_value(value: Json | AbsentValue) -> Json:
    if isinstance(value, AbsentValue):
        return None
    if isinstance(value, str):
        return _excerpt(value, 0)
    text = dumps(value).decode()
    # Parsed by the standard library: the value need not be exact for display, but every JSON writer must accept it.
    return json.loads(text) if len(text) <= _EXCERPT_LENGTH else _excerpt(text, 0)


def _excerpt(text: str, start: int) -> str:
    end = start + _EXCERPT_LENGTH
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
