"""List where two JSON values differ: pointers with the values of both sides, few and short enough to read."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Literal

from calls.codec.json import dumps
from calls.model import Json

type Path = tuple[str | int, ...]

_DEEPEST = 64
_EXCERPT = 160
_BEFORE = 60
_PLACE = 300
_ENDING = 99


class AbsentValue:
    """Nothing stands there, not even null."""


ABSENT: Final = AbsentValue()


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two values part."""

    path: Path
    recorded: Json | AbsentValue
    now: Json | AbsentValue

    @property
    def pointer(self) -> str:
        """The place by RFC 6901."""
        return "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in self.path)

    @property
    def place(self) -> str:
        """The same, short enough to read."""
        return readable(self.pointer)

    @property
    def only(self) -> Literal["recorded", "now"] | None:
        """The one side that has something there."""
        if isinstance(self.recorded, AbsentValue):
            return "now"
        return "recorded" if isinstance(self.now, AbsentValue) else None

    def told(self) -> dict[str, Json]:
        """The difference for a person: long values are cut around the point where they part, a long pointer in its middle."""
        recorded, now = excerpts(self.recorded, self.now)
        told: dict[str, Json] = {"pointer": self.place, "recorded": recorded, "now": now}
        return told | {"only": self.only} if self.only else told


def differences(recorded: Json | AbsentValue, now: Json | AbsentValue, path: Path = ()) -> Iterator[Difference]:
    """The places at which two values part, outermost first, in the order of the recorded one."""
    if isinstance(recorded, Mapping) and isinstance(now, Mapping) and len(path) < _DEEPEST:
        yield from _of_objects(recorded, now, path)
    elif isinstance(recorded, list | tuple) and isinstance(now, list | tuple) and len(path) < _DEEPEST:
        yield from _of_arrays(recorded, now, path)
    elif not same(recorded, now):
        yield Difference(path, recorded, now)


def same(one: Json | AbsentValue, other: Json | AbsentValue) -> bool:
    """Whether two values are the same JSON: 1 is 1.0, but neither of them is true."""
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping) and one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
        )
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def distance(recorded: Json, now: Json, limit: float = math.inf) -> float:
    """How far two values are apart: 0 for the same, about 1 for each leaf that changed. Not counted beyond the limit."""
    total = 0.0
    for difference in differences(recorded, now):
        total += _weight(difference)
        if total >= limit:
            break
    return total


def excerpts(recorded: Json | AbsentValue, now: Json | AbsentValue) -> tuple[Json, Json]:
    """Both values, short enough to read, from shortly before the point where they part."""
    if isinstance(recorded, str) and isinstance(now, str):
        start = max(0, common_prefix(recorded, now) - _BEFORE)
        return _cut(recorded, start), _cut(now, start)
    return _short(recorded), _short(now)


def readable(place: str) -> str:
    """A pointer or URL, short enough to read: a name in it may be as long as a body. What parts two long ones is mostly where
    they end."""
    return place if len(place) <= _PLACE else f"{place[: _PLACE - _ENDING - 1]}…{place[-_ENDING:]}"


def _of_objects(recorded: Mapping[str, Json], now: Mapping[str, Json], path: Path) -> Iterator[Difference]:
    for name, value in recorded.items():
        yield from differences(value, now.get(name, ABSENT), (*path, name))
    for name, value in now.items():
        if name not in recorded:
            yield Difference((*path, name), ABSENT, value)


def _of_arrays(recorded: Sequence[Json], now: Sequence[Json], path: Path) -> Iterator[Difference]:
    """Arrays of equal length are compared place by place; of others first the ends that agree are set aside, so that one
    message more is one difference and not one for each message after it."""
    before = after = 0
    if len(recorded) != len(now):
        before = _agreeing(recorded, now)
        after = _agreeing(recorded[before:][::-1], now[before:][::-1])
    here, there = recorded[before : len(recorded) - after], now[before : len(now) - after]
    for place, (value, other) in enumerate(zip(here, there, strict=False), before):
        yield from differences(value, other, (*path, place))
    for place in range(len(there), len(here)):
        yield Difference((*path, before + place), here[place], ABSENT)
    for place in range(len(here), len(there)):
        yield Difference((*path, before + place), ABSENT, there[place])


def _agreeing(one: Sequence[Json], other: Sequence[Json]) -> int:
    return sum(1 for _ in takewhile(bool, map(same, one, other)))


def _weight(difference: Difference) -> float:
    match difference:
        case Difference(_, str(recorded), str(now)):
            shared = common_prefix(recorded, now) + common_prefix(recorded[::-1], now[::-1])
            return max(0.1, 1 - shared / max(len(recorded), len(now)))
        case Difference(_, recorded, now):
            return 1 + math.log2(max(_leaves(recorded), _leaves(now)))


def _leaves(value: Json | AbsentValue, enough: int = 1000) -> int:
    """How many leaves a value has, roughly: counting stops when there are enough."""
    stack, found = [value], 0
    while stack and found < enough:
        match stack.pop():
            case Mapping() as members:
                stack.extend(members.values())
            case list() | tuple() as elements:
                stack.extend(elements)
            case _:
                found += 1
    return max(1, found)


def common_prefix(one: str, other: str) -> int:
    """How many characters agree, by bisection: comparing slices is faster than a loop."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _short(value: Json | AbsentValue) -> Json:
    if isinstance(value, AbsentValue):
        return None
    if isinstance(value, str):
        return _cut(value, 0)
    text = dumps(value).decode()
    # Read back plainly: what is shown need not be exact, but every JSON writer must take it.
    return json.loads(text) if len(text) <= _EXCERPT else _cut(text, 0)


def _cut(text: str, start: int) -> str:
    end = start + _EXCERPT
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
