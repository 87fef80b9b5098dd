"""Find the recorded exchange that answers a request: in recorded order for equal keys, in any order across keys.

A request is looked up by the digest of its raw form first, which costs no parsing, and only then by its key. Among the
recorded exchanges of one key those of the same raw form come first: they are the better answer, and two requests that
differ outside their key do not trade answers because they came in another order.

Branches of a run are kept apart by their actors. One that the recording knows by name gets only what was its own. Another
one is paired with the actor whose exchange it was first given (agents make their names up anew), and gets what was that
one's first. Who has no name gets first what was nobody's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from calls.model import Exchange, Request
from store.bundle.exchange_summary import Brief
from store.database.blobs import Corrupt
from store.generations.build import lacking

type Actor = str | None

type Whose = tuple[Actor] | None
"""An actor's exchanges; None: everybody's."""

EVERYBODY: Final[tuple[Whose, ...]] = (None,)

type Policy = Literal["miss", "repeat-last", "cycle"]
"""What follows after the last recorded exchange of a key: nothing, the last one for ever, or all of them again."""


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedExchange:
    """A recorded exchange with what it is found by. All of it is unpacked when it is first asked for."""

    step: int
    """Its place in the run, from 1."""

    key: str
    raw: str
    """Digest of the raw request. Equal raw digests have equal keys."""

    brief: Brief
    actor: Actor = None
    recorded_key: str | None = None
    """The key under the rules of the recording's own time; None where it does not tell."""

    gap: str | None = None
    """What of it could not be recorded, in words."""

    loose: str | None = None
    """What could not be recorded of exchanges of its run that nobody can name."""

    told: bool = False
    """What it was asked was only told: it answers as often as it is told, and nobody lacks it (`Profile.told`)."""

    _exchange: Exchange | None = field(init=False, default=None, repr=False)
    _damage: str | None = field(init=False, default=None)

    @property
    def id(self) -> str:
        """The exchange's."""
        return self.brief.id

    @property
    def heavy(self) -> bool:
        """Whether it takes so long to unpack that others should not wait for it."""
        return self._exchange is None and self.brief.heavy

    @property
    def exchange(self) -> Exchange:
        """As it crossed the wire; without its bodies and its answer where these cannot be read any more (`lacking`)."""
        if self._exchange is None:
            try:
                self._exchange = self.brief.exchange()
            except Corrupt as why:
                self._exchange, self._damage = _remains(self.brief), str(why)
        return self._exchange

    @property
    def lacking(self) -> str | None:
        """Why it cannot answer, in words; None when it can."""
        exchange = self.exchange
        why = lacking(exchange)
        if exchange.truncated:
            # That bytes are lacking says nothing of why; a gap does.
            why = self.gap or "; ".join(filter(None, (why, self.loose)))
        return self._damage or why or self.gap

    @property
    def over(self) -> int:
        """When it was over, on the wall clock, or its last sign of life."""
        if self.brief.ended_at is not None:
            return self.brief.started_at + self.brief.ended_at
        exchange = self.exchange
        chunks = exchange.response.body.chunks if exchange.response else ()
        return exchange.started_at + (chunks[-1].at if chunks else exchange.first_byte_at or 0)


def _remains(brief: Brief) -> Exchange:
    request = Request(method=brief.method, url=brief.url, http_version=brief.http_version, headers=brief.headers)
    return Exchange(
        id=brief.id,
        run="",
        request=request,
        response=None,
        outcome="server_closed",
        started_at=brief.started_at,
        first_byte_at=None,
        ended_at=None,
        actor=brief.actor,
    )


@dataclass(slots=True)  # not frozen: see replay/answer.py
class ScriptMatch:
    """The exchange that answers, and how sure that is."""

    recorded: RecordedExchange
    exact: bool
    """The raw request is the recorded one."""

    again: bool = False
    """It has answered before: the policy lets it."""

    ambiguous: bool = False
    """Another one of its key was under way with it, so it may be the other one's answer."""


@dataclass(frozen=True, slots=True)
class Index:
    """The recorded exchanges by what they are found by. Many scripts may share one."""

    entries: tuple[RecordedExchange, ...]
    groups: Mapping[str, Sequence[int]]
    """The places of each key and of each raw form, in the order of their steps."""

    of_actor: Mapping[tuple[Actor, str], Sequence[int]]
    """The same for each actor; empty where the recording knows but one."""

    actors: frozenset[str]
    overlapping: frozenset[int]
    """Those that were under way while another one of their key and actor was: which answer is whose cannot be told."""


def index(entries: Sequence[RecordedExchange]) -> Index:
    """The index of a run's exchanges, given in the order of their steps."""
    groups: dict[str, list[int]] = {}
    of_actor: dict[tuple[Actor, str], list[int]] = {}
    several = len({entry.actor for entry in entries}) > 1
    for place, entry in enumerate(entries):
        # Digests of both kinds share one table: each has its own domain.
        for name in (entry.raw, entry.key):
            groups.setdefault(name, []).append(place)
            if several:
                of_actor.setdefault((entry.actor, name), []).append(place)
    keys = {(entry.actor, entry.key) if several else entry.key for entry in entries}
    rivals = (of_actor[name] if isinstance(name, tuple) else groups[name] for name in keys)
    rivals = (group for group in rivals if not entries[group[0]].told)
    overlapping = frozenset(place for group in rivals for place in _overlapping(entries, group))
    actors = frozenset(entry.actor for entry in entries if entry.actor is not None)
    return Index(tuple(entries), groups, of_actor, actors, overlapping)


type Position = tuple[bytes, bytes, dict[str, Actor]]
"""What was taken and what was played, by place, and who was paired with whom."""


@dataclass(slots=True)
class Script:
    """One replay's position in a recording."""

    index: Index
    policy: Policy = "miss"
    _taken: bytearray = field(init=False)
    _played: bytearray = field(init=False)
    _fronts: dict[str | tuple[Actor, str], int] = field(init=False, default_factory=dict)
    _pairs: dict[str, Actor] = field(init=False, default_factory=dict)
    _left: int = field(init=False)

    def __post_init__(self) -> None:
        self._taken = bytearray(len(self.index.entries))
        self._played = bytearray(entry.told for entry in self.index.entries)
        self._left = self._played.count(0)

    def key_of(self, raw: str) -> str | None:
        """The key of a raw request that was recorded, without parsing it."""
        places = self.index.groups.get(raw)
        return self.index.entries[places[0]].key if places else None

    def take(self, key: str, raw: str, actor: Actor = None) -> ScriptMatch | None:
        """The next exchange for a request. None when there is none, or none is left."""
        for whose in self._order(actor):
            if (place := self._next(whose, key, raw)) is not None:
                return self._play(place, raw, actor)
        again = (self._again(whose, key, raw) for whose in self._order(actor))
        place = next((place for place in again if place is not None), None)
        return None if place is None else self._play(place, raw, actor, again=True)

    def recorded(self, key: str, actor: Actor = None) -> list[RecordedExchange]:
        """All that was recorded under a key and may answer this actor, in the order of their steps."""
        places = {place for whose in self._order(actor) for place in self._group(whose, key)}
        return [self.index.entries[place] for place in sorted(places)]

    @property
    def position(self) -> Position:
        """Where it stands."""
        return bytes(self._taken), bytes(self._played), self._pairs

    @position.setter
    def position(self, position: Position) -> None:
        taken, played, self._pairs = position
        # Of a run that has grown meanwhile, what is new was not taken.
        size = len(self.index.entries)
        self._taken, self._played = (bytearray(place[:size].ljust(size, b"\0")) for place in (taken, played))
        self._left = self._played.count(0)
        self._fronts.clear()

    def put_back(self, recorded: RecordedExchange) -> None:
        """Let an exchange answer once more. It counts as asked for all the same."""
        place = recorded.step - self.index.entries[0].step if self.index.entries else -1
        if 0 <= place < len(self.index.entries):
            self._rewind(place)

    def untaken(self, key: str, actor: Actor = None) -> Iterator[RecordedExchange]:
        """Exchanges of a key that may answer this actor and have not been taken, in the order of their steps."""
        return (one for one in self.recorded(key, actor) if not self._taken[one.step - self.index.entries[0].step])

    def trade(self, given: RecordedExchange, fits: Callable[[RecordedExchange], bool]) -> RecordedExchange | None:
        """Take another exchange of the same key that fits, in the place of one that was taken before anybody could know which
        of them was meant. None where none fits."""
        places = self.index.groups.get(given.key, ())
        fitting = (place for place in places if not self._taken[place] and fits(self.index.entries[place]))
        if (place := next(fitting, None)) is None:
            return None
        self.put_back(given)
        back = given.step - self.index.entries[0].step
        self._taken[place] = self._played[place] = 1
        self._played[back] = 0
        return self.index.entries[place]

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

    def _order(self, actor: Actor) -> tuple[Whose, ...]:
        """Whose exchanges may answer, best first."""
        if not self.index.of_actor:
            return EVERYBODY
        if actor in self.index.actors:
            return ((actor,),)
        if actor is not None and actor not in self._pairs:
            return EVERYBODY
        return (self._pairs[actor] if actor is not None else None,), None

    def _group(self, whose: Whose, name: str) -> Sequence[int]:
        return self.index.groups.get(name, ()) if whose is None else self.index.of_actor.get((whose[0], name), ())

    def _next(self, whose: Whose, key: str, raw: str) -> int | None:
        """The first that is not taken, of the same raw form where there is one."""
        place = self._first(whose, raw)
        return self._first(whose, key) if place is None else place

    def _first(self, whose: Whose, name: str) -> int | None:
        """The first of a group that is not taken. What has been passed is not looked at again."""
        group = self._group(whose, name)
        if not group:
            return None
        label = name if whose is None else (whose[0], name)
        front = self._fronts.get(label, 0)
        while front < len(group) and self._taken[group[front]]:
            front += 1
        self._fronts[label] = front
        return group[front] if front < len(group) else None

    def _play(self, place: int, raw: str, actor: Actor, *, again: bool = False) -> ScriptMatch:
        self._taken[place] = 1
        self._left -= not self._played[place]
        self._played[place] = 1
        recorded = self.index.entries[place]
        if actor is not None and self.index.of_actor and actor not in self.index.actors:
            self._pairs.setdefault(actor, recorded.actor)
        return ScriptMatch(recorded, recorded.raw == raw, again, place in self.index.overlapping)

    def _again(self, whose: Whose, key: str, raw: str) -> int | None:
        """What the policy gives a second time."""
        if not (group := self._group(whose, key)):
            return None
        same = self._group(whose, raw) or group
        policy = "repeat-last" if self.index.entries[group[0]].told else self.policy
        if policy == "miss":
            return None
        if policy == "repeat-last":
            return same[-1]
        for place in group:
            self._rewind(place)
        return same[0]

    def _rewind(self, place: int) -> None:
        self._taken[place] = 0
        entry = self.index.entries[place]
        for name in (entry.raw, entry.key):
            self._fronts.pop(name, None)
            self._fronts.pop((entry.actor, name), None)


def _overlapping(entries: Sequence[RecordedExchange], group: Sequence[int]) -> Iterator[int]:
    """Those of a group, in order of their beginning, that began before an earlier one had ended."""
    latest = -1
    for earlier, later in pairwise(group):
        latest = max(latest, entries[earlier].over)
        if entries[later].brief.started_at < latest:
            yield earlier
            yield later
