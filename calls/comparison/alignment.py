"""Match the calls of two runs even if some were added, removed, repeated or changed.

Each call has marks, from the strictest to the loosest: its key, the new part of its input, its destination. Calls are paired
in order by the strictest mark first; the calls between two pairs are then paired by the next mark. The longest common
subsequence of two stretches is a longest increasing sequence of the positions at which they agree.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from operator import eq


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedCall:
    """The properties of a call by which it is aligned."""

    marks: tuple[Hashable, ...]
    """The marks from the strictest to the loosest; every call has the same number."""

    lane: str | None = None
    """The agent that made the call: the agents of a run work in parallel, each in its own order."""


@dataclass(frozen=True, slots=True)
class AlignedPair:
    """The positions of two corresponding calls; None if a call has no counterpart on that side."""

    one: int | None
    other: int | None
    is_moved: bool = False
    """Whether the call is the same but at another position relative to its neighbours."""


_MAX_MATCHES = 50_000

type _Stretch = tuple[Sequence[int], Sequence[int]]
"""Positions in both runs that are still unpaired, between two pairs."""


def align(one: Sequence[AlignedCall], other: Sequence[AlignedCall]) -> list[AlignedPair]:
    """Align the calls of two runs. The result has every call once, in the order of the first run."""
    stretches = list(_matching_lanes(one, other))
    pairs: list[AlignedPair] = []
    for level in range(len(one[0].marks) if one else 0):
        matched, stretches = _pair_level(one, other, stretches, level)
        pairs += matched
        if level == 0:
            moved = _moved_pairs(one, other, stretches)
            pairs += moved
            stretches = _without_pairs(stretches, moved)
    return _in_order(one, other, pairs)


def _pair_level(
    one: Sequence[AlignedCall], other: Sequence[AlignedCall], stretches: Iterable[_Stretch], level: int
) -> tuple[list[AlignedPair], list[_Stretch]]:
    """Pair calls by one mark; return the pairs and the stretches between them."""
    waiting, remainder = list(stretches), []
    pairs: list[AlignedPair] = []
    while waiting:
        here, there = waiting.pop()
        common = _common_order([one[n].marks[level] for n in here], [other[n].marks[level] for n in there])
        if not common:
            remainder.append((here, there))
            continue
        pairs += [AlignedPair(here[a], there[b]) for a, b in common]
        # Between the pairs, a repeated mark may still have a counterpart.
        cuts = [(-1, -1), *common, (len(here), len(there))]
        waiting += [(here[a + 1 : c], there[b + 1 : d]) for (a, b), (c, d) in pairwise(cuts)]
    return pairs, [(here, there) for here, there in remainder if here or there]


def _common_order(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the longest common subsequence of two sequences. Equal beginnings and ends are always part of it."""
    before = _common_length(one, other)
    after = _common_length(one[before:][::-1], other[before:][::-1])
    here, there = one[before : len(one) - after], other[before : len(other) - after]
    found = (
        _matching_places(here, there)
        or _matching_places(list(_number_repeats(here)), list(_number_repeats(there)))
        or []
    )
    return [
        *((n, n) for n in range(before)),
        *((before + a, before + b) for a, b in _longest_increasing(found)),
        *((len(one) - n, len(other) - n) for n in range(after, 0, -1)),
    ]


def _common_length(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    return sum(1 for _ in takewhile(bool, map(eq, one, other)))


def _matching_places(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]] | None:
    """Return the positions at which two sequences agree, ordered so that none is used twice (Hunt and Szymanski 1977).

    None if there are too many: repeated marks are then distinguished by how often they occurred before.
    """
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place in reversed(range(len(one))):
        places[one[place]].append(place)
    if sum(len(places.get(mark, ())) for mark in other) > _MAX_MATCHES:
        return None
    return [(place, there) for there, mark in enumerate(other) for place in places.get(mark, ())]


def _number_repeats(marks: Iterable[Hashable]) -> Iterator[tuple[Hashable, int]]:
    counts: Counter[Hashable] = Counter()
    for mark in marks:
        yield mark, counts[mark]
        counts[mark] += 1


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of pairs with increasing first members, by patience sorting.

    Their second members increase already.
    """
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


def _moved_pairs(
    one: Sequence[AlignedCall], other: Sequence[AlignedCall], stretches: Iterable[_Stretch]
) -> list[AlignedPair]:
    """Pair calls with the same strictest mark that are left on both sides, in any stretch or lane."""
    alone = [*zip(*stretches, strict=True)] or [(), ()]
    here, there = (sorted(n for part in side for n in part) for side in alone)
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for n in reversed(there):
        waiting[other[n].marks[0]].append(n)
    return [AlignedPair(n, waiting[mark].pop(), is_moved=True) for n in here if waiting.get(mark := one[n].marks[0])]


def _without_pairs(stretches: Iterable[_Stretch], pairs: Iterable[AlignedPair]) -> list[_Stretch]:
    positions = [(pair.one, pair.other) for pair in pairs]
    ones, others = {a for a, _ in positions}, {b for _, b in positions}
    return [([n for n in here if n not in ones], [n for n in there if n not in others]) for here, there in stretches]


def _matching_lanes(one: Sequence[AlignedCall], other: Sequence[AlignedCall]) -> Iterator[_Stretch]:
    """Yield the corresponding lanes of both runs: by name, else by the number of common calls, else by order."""
    here, there = _places_by_lane(one), _places_by_lane(other)
    shared = here.keys() & there.keys()
    for lane in [lane for lane in here if lane in shared]:
        yield here.pop(lane), there.pop(lane)
    while here:
        lane, places = next(iter(here.items()))
        partner = _most_similar_lane([one[n].marks[0] for n in places], there, other)
        yield here.pop(lane), there.pop(partner) if partner is not None else []
    yield from (([], places) for places in there.values())


def _places_by_lane(items: Sequence[AlignedCall]) -> dict[str, list[int]]:
    lanes: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        lanes.setdefault(item.lane or "", []).append(place)
    return lanes


def _most_similar_lane(
    marks: Sequence[Hashable], there: Mapping[str, Sequence[int]], other: Sequence[AlignedCall]
) -> str | None:
    own = set(marks)

    def similarity(lane: str) -> int:
        return len(own & {other[n].marks[0] for n in there[lane]})

    return max(there, key=similarity, default=None)


def _in_order(
    one: Sequence[AlignedCall], other: Sequence[AlignedCall], pairs: Sequence[AlignedPair]
) -> list[AlignedPair]:
    """Return the pairs and the unpaired calls in the order of the first run."""
    paired = {pair.one for pair in pairs}
    partners = {pair.other: pair for pair in pairs}
    rows = [((pair.one or 0, 0, 0), pair) for pair in pairs]
    rows += [((n, 0, 0), AlignedPair(n, None)) for n in range(len(one)) if n not in paired]
    following = len(one)
    for n in reversed(range(len(other))):
        if (pair := partners.get(n)) is None:
            rows.append(((following, -1, n), AlignedPair(None, n)))
        elif pair.one is not None and not pair.is_moved:
            following = pair.one
    return [pair for _, pair in sorted(rows, key=lambda row: row[0])]
