"""Match the calls of two runs although some were added, left out, repeated or changed.

Each call comes with marks, from the strictest to the loosest: its key, what its request brings that is new, where it
goes. Calls are paired by the strictest mark first, in order; what stands between two pairs is then paired by the next
one. The longest common order of two stretches is a longest increasing sequence of the places at which they agree.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from operator import eq


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One call of a run, as far as it is aligned by."""

    marks: tuple[Hashable, ...]
    """From the strictest to the loosest; of all items equally many."""

    lane: str | None = None
    """Whose call it is: the agents of a run go on side by side, each in an order of its own."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two calls that stand for each other, by their places; None where there is none on that side."""

    one: int | None
    other: int | None
    moved: bool = False
    """The same call, and not where its neighbours are."""


_TOO_MANY = 50_000

type _Stretch = tuple[Sequence[int], Sequence[int]]
"""Places of both runs that are still alone, between two pairs."""


def align(one: Sequence[Item], other: Sequence[Item]) -> list[Pair]:
    """All calls of both runs, each once: in the order of the first, what only the other has where it came there."""
    stretches = list(_lanes(one, other))
    pairs: list[Pair] = []
    for level in range(len(one[0].marks) if one else 0):
        matched, stretches = _level(one, other, stretches, level)
        pairs += matched
        if level == 0:
            moved = _moved(one, other, stretches)
            pairs += moved
            stretches = _without(stretches, moved)
    return _ordered(one, other, pairs)


def _level(
    one: Sequence[Item], other: Sequence[Item], stretches: Iterable[_Stretch], level: int
) -> tuple[list[Pair], list[_Stretch]]:
    """What one mark pairs, and what is left between."""
    waiting, left = list(stretches), []
    pairs: list[Pair] = []
    while waiting:
        here, there = waiting.pop()
        common = _common([one[n].marks[level] for n in here], [other[n].marks[level] for n in there])
        if not common:
            left.append((here, there))
            continue
        pairs += [Pair(here[a], there[b]) for a, b in common]
        # Between the pairs a repeated mark may still find a partner.
        cuts = [(-1, -1), *common, (len(here), len(there))]
        waiting += [(here[a + 1 : c], there[b + 1 : d]) for (a, b), (c, d) in pairwise(cuts)]
    return pairs, [(here, there) for here, there in left if here or there]


def _common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The longest common order of two sequences. Equal ends are always part of it, and mostly all of it."""
    before = _agreeing(one, other)
    after = _agreeing(one[before:][::-1], other[before:][::-1])
    here, there = one[before : len(one) - after], other[before : len(other) - after]
    found = _matches(here, there) or _matches(list(_numbered(here)), list(_numbered(there))) or []
    return [
        *((n, n) for n in range(before)),
        *((before + a, before + b) for a, b in _increasing(found)),
        *((len(one) - n, len(other) - n) for n in range(after, 0, -1)),
    ]


def _agreeing(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def _matches(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """Every place at which the two agree, so ordered that no place is taken twice (Hunt and Szymanski 1977). None where
    there are too many: marks that repeat are then told apart by how often they were seen before."""
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place in reversed(range(len(one))):
        places[one[place]].append(place)
    if sum(len(places.get(mark, ())) for mark in other) > _TOO_MANY:
        return None
    return [(place, there) for there, mark in enumerate(other) for place in places.get(mark, ())]


def _numbered(marks: Iterable[Hashable]) -> Iterator[tuple[Hashable, int]]:
    seen: Counter[Hashable] = Counter()
    for mark in marks:
        yield mark, seen[mark]
        seen[mark] += 1


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of the pairs whose first members increase (their second members do): patience sorting."""
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for number, (place, _) in enumerate(pairs):
        pile = bisect_left(tops, place)
        before.append(ends[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [place]
        ends[pile : pile + 1] = [number]
    chain: list[tuple[int, int]] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        chain.append(pairs[at])
        at = before[at]
    return chain[::-1]


def _moved(one: Sequence[Item], other: Sequence[Item], stretches: Iterable[_Stretch]) -> list[Pair]:
    """Calls that are the same by the strictest mark and are left over on both sides, in whatever stretch or lane."""
    alone = [*zip(*stretches, strict=True)] or [(), ()]
    here, there = (sorted(n for part in side for n in part) for side in alone)
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for n in reversed(there):
        waiting[other[n].marks[0]].append(n)
    return [Pair(n, waiting[mark].pop(), moved=True) for n in here if waiting.get(mark := one[n].marks[0])]


def _without(stretches: Iterable[_Stretch], pairs: Iterable[Pair]) -> list[_Stretch]:
    taken = [(pair.one, pair.other) for pair in pairs]
    ones, others = {a for a, _ in taken}, {b for _, b in taken}
    return [([n for n in here if n not in ones], [n for n in there if n not in others]) for here, there in stretches]


def _lanes(one: Sequence[Item], other: Sequence[Item]) -> Iterator[_Stretch]:
    """The lanes of both runs that stand for each other: by name, else by what they have in common, else by their turn."""
    here, there = _by_lane(one), _by_lane(other)
    shared = here.keys() & there.keys()
    for lane in [lane for lane in here if lane in shared]:
        yield here.pop(lane), there.pop(lane)
    while here:
        lane, places = next(iter(here.items()))
        partner = _most_alike([one[n].marks[0] for n in places], there, other)
        yield here.pop(lane), there.pop(partner) if partner is not None else []
    yield from (([], places) for places in there.values())


def _by_lane(items: Sequence[Item]) -> dict[str, list[int]]:
    lanes: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        lanes.setdefault(item.lane or "", []).append(place)
    return lanes


def _most_alike(marks: Sequence[Hashable], there: Mapping[str, Sequence[int]], other: Sequence[Item]) -> str | None:
    wanted = set(marks)

    def alike(lane: str) -> int:
        return len(wanted & {other[n].marks[0] for n in there[lane]})

    return max(there, key=alike, default=None)


def _ordered(one: Sequence[Item], other: Sequence[Item], pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs and what is alone, in the order of the first run."""
    paired = {pair.one for pair in pairs}
    partners = {pair.other: pair for pair in pairs}
    rows = [((pair.one or 0, 0, 0), pair) for pair in pairs]
    rows += [((n, 0, 0), Pair(n, None)) for n in range(len(one)) if n not in paired]
    following = len(one)
    for n in reversed(range(len(other))):
        if (pair := partners.get(n)) is None:
            rows.append(((following, -1, n), Pair(None, n)))
        elif pair.one is not None and not pair.moved:
            following = pair.one
    return [pair for _, pair in sorted(rows, key=lambda row: row[0])]
