"""Find the recorded exchange that answers a request: in recorded order for equal keys, in any order across keys.

A request is looked up by the digest of its raw form first, which costs no parsing, and only then by its key. Among the
recorded exchanges of one key, those of the same raw form come first. They are the better answer, and requests that differ
only outside their key do not swap answers when they arrive in another order. Those of the same key that name the same MCP
session and continue a stream from the same event, or whose head has the same secret (a cookie, a token), come before both:
the sessions of a server ask the same questions, each about its own state, and raw forms do not contain what names a session.

Actors keep the branches of a run apart. An actor that occurs in the recording gets only its own exchanges. Any other actor
is paired with the recorded actor of the first exchange it gets (agents generate new names in each run), and gets that
actor's exchanges first. A request without an actor gets exchanges without an actor first.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

import msgspec

from calls import placeholder
from calls.model import Exchange, Headers, Request
from store.bundle.exchange_summary import ExchangeSummary
from store.database.blobs import CorruptData
from store.generations.build import unreplayable_reason

type Actor = str | None

type ActorScope = tuple[Actor] | None
"""The exchanges of one actor; None means the exchanges of all actors."""

ANY_ACTOR: Final[tuple[ActorScope, ...]] = (None,)

type Policy = Literal["miss", "repeat-last", "cycle"]
"""What follows the last recorded exchange of a key: a miss, the last one again and again, or all of them again."""


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedExchange:
    """A recorded exchange with its lookup keys. The bodies are unpacked on first use."""

    step: int
    """The place in the run, from 1."""

    key: str
    raw: str
    """Digest of the raw request. Equal raw digests have equal keys."""

    summary: ExchangeSummary
    session: str = ""
    """The session and the place in its stream that the request names (`session_place`)."""

    secrets: tuple[str, ...] = ()
    """The secrets in the head of the request (`head_secrets`)."""

    actor: Actor = None
    recorded_key: str | None = None
    """The key under the profiles of the recording; None if the recording does not state it."""

    gap: str | None = None
    """A phrase that says what part of this exchange could not be recorded."""

    run_gap: str | None = None
    """A phrase that says what could not be recorded of unidentified exchanges of the run."""

    is_telemetry: bool = False
    """True if the request only reports something (`Profile.is_telemetry`): it may repeat any number of times, or never come."""

    _exchange: Exchange | None = field(init=False, default=None, repr=False)
    _damage: str | None = field(init=False, default=None)

    @property
    def id(self) -> str:
        """The id of the exchange."""
        return self.summary.id

    @property
    def names(self) -> tuple[str, ...]:
        """The session and the secrets that the request names."""
        return (self.session, *self.secrets) if self.session else self.secrets

    @property
    def is_heavy(self) -> bool:
        """Whether the exchange takes so long to unpack that this should happen on a thread."""
        return self._exchange is None and self.summary.is_heavy

    @property
    def exchange(self) -> Exchange:
        """The exchange as recorded; without bodies and response if the stored data is corrupt."""
        if self._exchange is None:
            try:
                self._exchange = self.summary.load_exchange()
            except CorruptData as why:
                self._exchange, self._damage = _unreadable_exchange(self.summary), str(why)
        return self._exchange

    @property
    def unreplayable_reason(self) -> str | None:
        """A phrase that says why the exchange cannot be replayed; None if it can."""
        exchange = self.exchange
        why = unreplayable_reason(exchange)
        if exchange.is_truncated:
            # Missing bytes do not say why they are missing; a gap does.
            why = self.gap or "; ".join(filter(None, (why, self.run_gap)))
        return self._damage or why or self.gap

    @property
    def end_time(self) -> int:
        """The wall-clock time of the end, or of the last recorded data."""
        if self.summary.ended_at is not None:
            return self.summary.started_at + self.summary.ended_at
        exchange = self.exchange
        chunks = exchange.response.body.chunks if exchange.response else ()
        return exchange.started_at + (chunks[-1].at if chunks else exchange.first_byte_at or 0)


def _unreadable_exchange(summary: ExchangeSummary) -> Exchange:
    request = Request(
        method=summary.method, url=summary.url, http_version=summary.http_version, headers=summary.headers
    )
    return Exchange(
        id=summary.id,
        run="",
        request=request,
        response=None,
        outcome="server_closed",
        started_at=summary.started_at,
        first_byte_at=None,
        ended_at=None,
        actor=summary.actor,
    )


_SESSION_HEADERS: Final = frozenset(("mcp-session-id", "mcp-protocol-version", "last-event-id"))
"""Headers in which a client repeats what an answer told it, so that in a replay it sends the recorded value."""


def session_place(headers: Headers) -> str:
    """Return the session and the place in its stream that a request names; "" if it names none."""
    found = [f"{lowered}:{value}" for name, value in headers if (lowered := name.lower()) in _SESSION_HEADERS]
    return "\0".join(sorted(found)) if found else ""


_PLACEHOLDERS: Final = re.compile(placeholder.PATTERN)
_DIGEST_AT: Final = len(placeholder.PREFIX) + 1


def head_secrets(url: str, headers: Headers) -> tuple[str, ...]:
    """Return the secrets in the head of a (redacted) request, each by the digest in its placeholder.

    An answer of the recording that gave the client a cookie or a token gives it the same placeholder in a replay.
    """
    texts = [value for _, value in headers if "PLAYHEAD_" in value]
    if "PLAYHEAD_" in url:
        texts.append(url)
    if not texts:
        return ()
    return tuple({found[_DIGEST_AT:]: None for text in texts for found in _PLACEHOLDERS.findall(text)})


_RIVALS_CONSIDERED: Final = 8
"""Maximum number of exchanges before and after one of which is asked whether they overlapped it."""


class ScriptMatch(msgspec.Struct):  # not frozen: see replay/answer.py
    """The exchange that answers, and how certain the match is."""

    recorded: RecordedExchange
    is_exact: bool
    """True if the raw request equals the recorded one."""

    is_repeat: bool = False
    """True if the exchange has answered before and the policy allows another answer."""

    is_ambiguous: bool = False
    """True if another exchange of the same key overlapped it in the recording, so their answers may be swapped."""

    name: str | None = None
    """The session, or the secret in its head, by which the exchange was chosen."""


class ScriptIndex(msgspec.Struct, frozen=True):
    """The recorded exchanges, indexed by lookup keys. Several scripts may share one index."""

    entries: tuple[RecordedExchange, ...]
    groups: Mapping[str, Sequence[int]]
    """The places (indexes into `entries`) of each key and of each raw digest, in the order of their steps; and of each key with
    a session, or with a secret that not all of its requests have."""

    actor_groups: Mapping[tuple[Actor, str], Sequence[int]]
    """The same for each actor; empty if the recording has only one actor."""

    actors: frozenset[str]
    overlapping: frozenset[int]
    """The places of exchanges that overlapped another one of the same key and actor, so their answers may be swapped."""

    has_sessions: bool = False
    """Whether any exchange names a session or the place in a stream: most recordings need not look for them."""

    has_secrets: bool = False
    """Whether secrets tell apart exchanges of any key."""

    def request_names(self, request: Request) -> tuple[str, ...]:
        """Return the session and the secrets that a request names, as far as they tell exchanges apart."""
        session = session_place(request.headers) if self.has_sessions else ""
        secrets = head_secrets(request.url, request.headers) if self.has_secrets else ()
        return (session, *secrets) if session else secrets


def build_index(entries: Sequence[RecordedExchange]) -> ScriptIndex:
    """Index the exchanges of a run, given in the order of their steps."""
    groups: dict[str, list[int]] = {}
    of_actor: dict[tuple[Actor, str], list[int]] = {}
    several = len({entry.actor for entry in entries}) > 1
    for place, entry in enumerate(entries):
        # Raw digests and keys share one table: domain separation prevents collisions.
        for name in _lookup_names(entry):
            groups.setdefault(name, []).append(place)
            if several:
                of_actor.setdefault((entry.actor, name), []).append(place)

    keys = dict.fromkeys(entry.key for entry in entries if entry.secrets and not entry.is_telemetry)
    of_secrets = [(key, secret, group) for key in keys for secret, group in _places_by_secret(entries, groups[key])]
    groups |= {_key_with(key, secret): group for key, secret, group in of_secrets}
    for (actor, key), places in list(of_actor.items()) if of_secrets else ():
        if key in keys:
            of_actor |= {(actor, _key_with(key, secret)): group for secret, group in _places_by_secret(entries, places)}
    rivals = [
        of_actor[name] if several else groups[name[1]]
        for name in dict.fromkeys((entry.actor, entry.key) for entry in entries if not entry.is_telemetry)
    ]
    return ScriptIndex(
        tuple(entries),
        groups,
        of_actor,
        frozenset(entry.actor for entry in entries if entry.actor is not None),
        frozenset(place for group in rivals for place in _overlapping_places(entries, group)),
        any(entry.session for entry in entries),
        bool(of_secrets),
    )


def _places_by_secret(entries: Sequence[RecordedExchange], places: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """The places of each secret that not all of these places have."""
    by_secret: dict[str, list[int]] = {}
    for place in places if len(places) > 1 else ():
        for secret in entries[place].secrets:
            by_secret.setdefault(secret, []).append(place)
    return ((secret, found) for secret, found in by_secret.items() if len(found) < len(places))


def _lookup_names(entry: RecordedExchange) -> tuple[str, ...]:
    names = entry.raw, entry.key
    return (*names, _key_with(entry.key, entry.session)) if entry.session else names


def _key_with(key: str, name: str) -> str:
    return f"{key}\0{name}"


type Position = tuple[bytes, bytes, dict[str, Actor]]
"""The flags `_taken_flags` and `_played_flags` of all places, and the paired actors."""


@dataclass(slots=True)
class Script:
    """The position of one replay in a recording."""

    index: ScriptIndex
    policy: Policy = "miss"
    _taken_flags: bytearray = field(init=False)
    """One flag per place: the exchange may not answer again."""

    _played_flags: bytearray = field(init=False)
    """One flag per place: the exchange has answered."""

    _next_free: dict[str | tuple[Actor, str], int] = field(init=False, default_factory=dict)
    _paired_actors: dict[str, Actor] = field(init=False, default_factory=dict)
    _unplayed_count: int = field(init=False)

    def __post_init__(self) -> None:
        self._taken_flags = bytearray(len(self.index.entries))
        self._played_flags = bytearray(entry.is_telemetry for entry in self.index.entries)
        self._unplayed_count = self._played_flags.count(0)

    def key_of(self, raw: str) -> str | None:
        """The key of a request with this raw digest, if one was recorded."""
        places = self.index.groups.get(raw)
        return self.index.entries[places[0]].key if places else None

    def take_next(self, key: str, raw: str, actor: Actor = None, names: Sequence[str] = ()) -> ScriptMatch | None:
        """Take the next exchange for a request with these names (`ScriptIndex.request_names`).

        None if there is none, or none is left.
        """
        for scope in self._actor_scopes(actor):
            if names and (found := self._place_by_name(scope, key, names)) is not None:
                place, name = found
                match = self._play(place, raw, actor)
                match.is_ambiguous = self._has_rival(place, self._places(scope, _key_with(key, name)))
                match.name = name
                return match
            if (place_of_key := self._next_place(scope, key, raw)) is not None:
                match = self._play(place_of_key, raw, actor)
                # A session that was recorded, but asked this less often, gets the answer of another one.
                match.is_ambiguous |= any(self._places(scope, _key_with(key, name)) for name in names)
                return match
        repeats = (self._repeated_place(whose, key, raw) for whose in self._actor_scopes(actor))
        place_of_repeat = next((place for place in repeats if place is not None), None)
        return None if place_of_repeat is None else self._play(place_of_repeat, raw, actor, is_repeat=True)

    def recorded_exchanges(self, key: str, actor: Actor = None) -> list[RecordedExchange]:
        """All exchanges of a key that may answer this actor, in the order of their steps."""
        places = {place for scope in self._actor_scopes(actor) for place in self._places(scope, key)}
        return [self.index.entries[place] for place in sorted(places)]

    @property
    def position(self) -> Position:
        """The state of the script, to be restored later."""
        return bytes(self._taken_flags), bytes(self._played_flags), self._paired_actors

    @position.setter
    def position(self, position: Position) -> None:
        taken_flags, played_flags, self._paired_actors = position
        # Exchanges that were added to the run since then have not been taken.
        size = len(self.index.entries)
        self._taken_flags, self._played_flags = (
            bytearray(place[:size].ljust(size, b"\0")) for place in (taken_flags, played_flags)
        )
        self._unplayed_count = self._played_flags.count(0)
        self._next_free.clear()

    def rivals(self, recorded: RecordedExchange, most: int) -> list[RecordedExchange]:
        """The exchanges of the same key that overlapped this one in time, at most so many before and after it."""
        group = self.index.groups[recorded.key]
        position = bisect_left(group, recorded.step - self.index.entries[0].step)
        near = (self.index.entries[place] for place in group[max(position - most, 0) : position + most + 1])
        return [one for one in near if one is not recorded and _overlap(one, recorded)]

    def use_index(self, index: ScriptIndex) -> None:
        """Continue with other lookup keys of the same exchanges."""
        self.index = index
        self._next_free.clear()

    def put_back(self, recorded: RecordedExchange) -> None:
        """Let an exchange answer once more. It still counts as played."""
        place = recorded.step - self.index.entries[0].step if self.index.entries else -1
        if 0 <= place < len(self.index.entries):
            self._release(place)

    def free_exchanges(self, key: str, actor: Actor = None) -> Iterator[RecordedExchange]:
        """The exchanges of a key that may answer this actor and are not taken, in the order of their steps."""
        return (one for one in self.recorded_exchanges(key, actor) if self.is_free(one))

    def is_free(self, recorded: RecordedExchange) -> bool:
        """Whether an exchange may still answer."""
        return not self._taken_flags[recorded.step - self.index.entries[0].step]

    def swap(self, recorded: RecordedExchange, fits: Callable[[RecordedExchange], bool]) -> RecordedExchange | None:
        """Give an exchange back and take another one of the same key that fits. None if no free one fits.

        Used when only later data (the messages of a WebSocket) shows which exchange the client means.
        """
        places = self.index.groups.get(recorded.key, ())
        fitting = (place for place in places if not self._taken_flags[place] and fits(self.index.entries[place]))
        if (place := next(fitting, None)) is None:
            return None
        self.put_back(recorded)
        back = recorded.step - self.index.entries[0].step
        self._taken_flags[place] = self._played_flags[place] = 1
        self._played_flags[back] = 0
        return self.index.entries[place]

    @property
    def unplayed_count(self) -> int:
        """The number of exchanges that have not answered yet."""
        return self._unplayed_count

    def has_played(self, step: int) -> bool:
        """Whether the exchange of this step has answered."""
        return bool(self._played_flags[step - self.index.entries[0].step])

    def unplayed_places(self) -> Iterator[int]:
        """The places of exchanges that have not answered yet, in the order of their steps."""
        place = self._played_flags.find(0)
        while place >= 0:
            yield place
            place = self._played_flags.find(0, place + 1)

    def _actor_scopes(self, actor: Actor) -> tuple[ActorScope, ...]:
        """The actors whose exchanges may answer, best first."""
        if not self.index.actor_groups:
            return ANY_ACTOR
        if actor in self.index.actors:
            return ((actor,),)
        if actor is not None and actor not in self._paired_actors:
            return ANY_ACTOR
        return (self._paired_actors[actor] if actor is not None else None,), None

    def _places(self, scope: ActorScope, name: str) -> Sequence[int]:
        return self.index.groups.get(name, ()) if scope is None else self.index.actor_groups.get((scope[0], name), ())

    def _next_place(self, scope: ActorScope, key: str, raw: str) -> int | None:
        """The first free place, with the same raw digest if possible."""
        place = self._first_free_place(scope, raw)
        return self._first_free_place(scope, key) if place is None else place

    def _place_by_name(self, scope: ActorScope, key: str, names: Sequence[str]) -> tuple[int, str] | None:
        """The first free place with one of the names, and that name: the one that the fewest exchanges have says most."""
        groups = {name: len(self._places(scope, _key_with(key, name))) for name in names}
        for name in sorted(filter(groups.__getitem__, groups), key=groups.__getitem__):
            if (place := self._first_free_place(scope, _key_with(key, name))) is not None:
                return place, name
        return None

    def _has_rival(self, place: int, group: Sequence[int]) -> bool:
        """Whether an exchange of the group near this one overlapped it."""
        at = bisect_left(group, place)
        near = group[max(at - _RIVALS_CONSIDERED, 0) : at + _RIVALS_CONSIDERED + 1]
        return any(one != place and _overlap(self.index.entries[one], self.index.entries[place]) for one in near)

    def _first_free_place(self, scope: ActorScope, name: str) -> int | None:
        """The first free place of a group. `_next_free` saves looking at taken places again."""
        group = self._places(scope, name)
        if not group:
            return None
        label = name if scope is None else (scope[0], name)
        front = self._next_free.get(label, 0)
        while front < len(group) and self._taken_flags[group[front]]:
            front += 1
        self._next_free[label] = front
        return group[front] if front < len(group) else None

    def _play(self, place: int, raw: str, actor: Actor, *, is_repeat: bool = False) -> ScriptMatch:
        self._taken_flags[place] = 1
        self._unplayed_count -= not self._played_flags[place]
        self._played_flags[place] = 1
        recorded = self.index.entries[place]
        if actor is not None and self.index.actor_groups and actor not in self.index.actors:
            self._paired_actors.setdefault(actor, recorded.actor)
        return ScriptMatch(recorded, recorded.raw == raw, is_repeat, place in self.index.overlapping)

    def _repeated_place(self, scope: ActorScope, key: str, raw: str) -> int | None:
        """The place that the policy repeats when no free one is left."""
        if not (group := self._places(scope, key)):
            return None
        same = self._places(scope, raw) or group
        policy = "repeat-last" if self.index.entries[group[0]].is_telemetry else self.policy
        if policy == "miss":
            return None
        if policy == "repeat-last":
            return same[-1]
        for place in group:
            self._release(place)
        return same[0]

    def _release(self, place: int) -> None:
        self._taken_flags[place] = 0
        entry = self.index.entries[place]
        for name in (*_lookup_names(entry), *(_key_with(entry.key, name) for name in entry.names)):
            self._next_free.pop(name, None)
            self._next_free.pop((entry.actor, name), None)


def _overlap(one: RecordedExchange, other: RecordedExchange) -> bool:
    return one.summary.started_at < other.end_time and other.summary.started_at < one.end_time


def _overlapping_places(entries: Sequence[RecordedExchange], group: Sequence[int]) -> Iterator[int]:
    """The places of a group, in order of their start times, that overlap an earlier one."""
    latest = -1
    for earlier, later in pairwise(group):
        latest = max(latest, entries[earlier].end_time)
        if entries[later].summary.started_at < latest:
            yield earlier
            yield later
