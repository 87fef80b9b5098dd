"""Find the recorded exchange that answers a request: in recorded order for equal keys, in any order across keys.

A request is looked up by the digest of its raw form first, which costs no parsing, and only then by its key. Among the
recorded exchanges of one key those of the same raw form come first: they are the better answer, and two requests that
differ outside their key do not trade answers because they came in another order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from calls.model import Exchange

type Policy = Literal["miss", "repeat-last", "cycle"]
"""What follows after the last recorded exchange of a key: nothing, the last one for ever, or all of them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded exchange with what it is found by."""

    step: int
    """Its place in the run, from 1."""

    key: str
    raw: str
    """Digest of the raw request. Equal raw digests have equal keys."""

    exchange: Exchange
    recorded_key: str | None = None
    """The key under the rules of the recording's own time."""

    lacking: str | None = None
    """Why it cannot answer, in words; None when it can."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The exchange that answers, and how sure that is."""

    recorded: Recorded
    exact: bool
    """The raw request is the recorded one."""

    again: bool = False
    """It has answered before: the policy lets it."""

    ambiguous: bool = False
    """Another one of its key was under way with it, so it may be the other one's answer."""


@dataclass(frozen=True, slots=True)
class Index:
    """The recorded exchanges by what they are found by. Many scripts may share one."""

    entries: tuple[Recorded, ...]
    by_raw: dict[str, list[int]]
    by_key: dict[str, list[int]]
    overlapping: frozenset[int]
    """Those that were under way while another one of their key was: which answer is whose cannot be told."""


def index(entries: Sequence[Recorded]) -> Index:
    """The index of a run's exchanges, given in the order of their steps."""
    by_raw: dict[str, list[int]] = {}
    by_key: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        by_raw.setdefault(entry.raw, []).append(place)
        by_key.setdefault(entry.key, []).append(place)
    overlapping = frozenset(place for group in by_key.values() for place in _overlapping(entries, group))
    return Index(tuple(entries), by_raw, by_key, overlapping)


@dataclass(slots=True)
class Script:
    """One replay's position in a recording."""

    index: Index
    policy: Policy = "miss"
    _taken: bytearray = field(init=False)
    _played: bytearray = field(init=False)
    _raw_front: dict[str, int] = field(init=False, default_factory=dict)
    _key_front: dict[str, int] = field(init=False, default_factory=dict)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._left = len(self.index.entries)
        self._taken = bytearray(self._left)
        self._played = bytearray(self._left)

    def key_of(self, raw: str) -> str | None:
        """The key of a raw request that was recorded, without parsing it."""
        places = self.index.by_raw.get(raw)
        return self.index.entries[places[0]].key if places else None

    def take(self, key: str, raw: str) -> Taken | None:
        """The next exchange for a request. None when there is none, or none is left."""
        place = self._next(self._raw_front, raw, self.index.by_raw)
        if place is None:
            place = self._next(self._key_front, key, self.index.by_key)
        if place is None:
            return self._after_the_last(key, raw)
        return self._play(place, raw)

    def knows(self, key: str) -> bool:
        """Whether a request of this key was recorded at all."""
        return key in self.index.by_key

    @property
    def left(self) -> int:
        """How many exchanges have not answered yet."""
        return self._left

    def unplayed(self) -> Iterator[int]:
        """The places among the entries of those that have not answered yet, in the order of their steps."""
        place = self._played.find(0)
        while place >= 0:
            yield place
            place = self._played.find(0, place + 1)

    def _next(self, fronts: dict[str, int], name: str, groups: Mapping[str, Sequence[int]]) -> int | None:
        """The first of a group that is not taken. What has been passed is not looked at again."""
        group = groups.get(name)
        if not group:
            return None
        front = fronts.get(name, 0)
        while front < len(group) and self._taken[group[front]]:
            front += 1
        fronts[name] = front
        return group[front] if front < len(group) else None

    def _play(self, place: int, raw: str, *, again: bool = False) -> Taken:
        self._taken[place] = 1
        self._left -= not self._played[place]
        self._played[place] = 1
        recorded = self.index.entries[place]
        return Taken(recorded, recorded.raw == raw, again, place in self.index.overlapping)

    def _after_the_last(self, key: str, raw: str) -> Taken | None:
        group = self.index.by_key.get(key)
        if not group or self.policy == "miss":
            return None
        if self.policy == "cycle":
            self._rewind(key, group)
            return self._play((self.index.by_raw.get(raw) or group)[0], raw, again=True)
        return self._play((self.index.by_raw.get(raw) or group)[-1], raw, again=True)

    def _rewind(self, key: str, group: Sequence[int]) -> None:
        self._key_front.pop(key, None)
        for place in group:
            self._taken[place] = 0
            self._raw_front.pop(self.index.entries[place].raw, None)


def _overlapping(entries: Sequence[Recorded], group: Sequence[int]) -> Iterator[int]:
    """Those of a group, in order of their beginning, that began before an earlier one had ended."""
    latest = -1
    for earlier, later in pairwise(group):
        latest = max(latest, _end(entries[earlier].exchange))
        if entries[later].exchange.started_at < latest:
            yield earlier
            yield later


def _end(exchange: Exchange) -> int:
    """When an exchange was over, on the wall clock, or its last sign of life."""
    if exchange.ended_at is not None:
        return exchange.started_at + exchange.ended_at
    chunks = exchange.response.body.chunks if exchange.response else ()
    return exchange.started_at + (chunks[-1].at if chunks else exchange.first_byte_at or 0)
