"""Compare two recordings of the same work: which fields of their requests differ, and which class each may have.

Calls are aligned by where they go and what they say, not by their keys, because it is the keys that are in question. Only
what would change a key is looked at. What is proposed is tried: the calls are keyed again under it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Final, Literal, NamedTuple

from calls.codec.json import dumps
from calls.comparison.answer_fingerprint import meaning
from calls.comparison.field_heuristics import Guess, guess, guess_of_answer, looks
from calls.derive import derived
from calls.keys.divergence import AbsentValue, Difference, Path, differences, distance
from calls.keys.key import KeyResult, keyed
from calls.keys.profile import Profiles
from calls.keys.request_document import load_bearing
from calls.model import Call, Exchange, Json

type Part = Literal["body", "query", "headers", "path", "other", "answer"]
type Pair = tuple["Side", "Side"]
type _Seen = tuple[Pair, Difference, Guess]

_CANDIDATES: Final = 6
"""With how many of the other recording's next calls to the same place a call is compared."""

_SHOWN: Final = 200
"""Places at which two requests are compared. Beyond it they are not two of the same."""

_SHORTEST_ECHO: Final = 4


@dataclass(slots=False, kw_only=True)  # it caches
class Side:
    """One recorded call, with what it is compared by."""

    step: int
    exchange: Exchange
    key: KeyResult

    @cached_property
    def document(self) -> Json:
        """What is in its key."""
        return load_bearing(self.key)

    @cached_property
    def call(self) -> Call:
        """What it means."""
        return derived(self.exchange, self.key)

    @cached_property
    def sent(self) -> str:
        """All that its request holds."""
        request = self.exchange.request
        headers = " ".join(value for _, value in request.headers)
        return "\n".join(
            (request.url, headers, request.body.data.decode("utf-8", "replace"), dumps(self.document).decode())
        )

    @property
    def answered_at(self) -> int:
        """When its answer began to arrive."""
        times = (self.exchange.first_byte_at, self.exchange.ended_at)
        return self.exchange.started_at + next((at for at in times if at is not None), 0)

    @cached_property
    def told(self) -> str:
        """All that its answer gave to the program: as it came, as it was assembled, and as text."""
        call = self.call
        response = self.exchange.response
        raw = response.body.data.decode("utf-8", "replace") if response else ""
        headers = " ".join(value for _, value in response.headers) if response else ""
        return "\n".join((raw, dumps(call.answer).decode(), call.text or "", headers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A field of the requests of one API that changes their keys."""

    profile: str
    host: str
    part: Part
    path: str
    """Of the body by RFC 9535, of query and headers the name."""
    guess: Guess
    times: int
    """In how many pairs of calls it differs…"""
    of: int
    """…of all that its profile ruled at this host."""
    one: Json
    other: Json
    """Both values of the first pair, short enough to read."""

    @property
    def rules(self) -> bool:
        """Whether a rule is proposed."""
        return self.guess.field_class != "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAgreement:
    """How many calls of two recordings have the same key."""

    calls: tuple[int, int]
    pairs: int
    agree: int
    echoes: int
    """Pairs that are apart only by what earlier answers gave: in replay those are the recorded ones."""

    @property
    def apart(self) -> int:
        """Pairs that would miss in replay."""
        return self.pairs - self.agree - self.echoes


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found."""

    agreement: KeyAgreement
    findings: tuple[Finding, ...]
    alone: tuple[tuple[int, ...], tuple[int, ...]]
    """Steps of either recording that have no counterpart in the other."""


def calibrate(one: Sequence[Exchange], other: Sequence[Exchange], profiles: Profiles) -> Calibration:
    """Compare two recordings, each in the order of its steps."""
    sides = _sides(one, profiles), _sides(other, profiles)
    pairs = aligned(*sides)
    echoes = _Echoes(sides[0]), _Echoes(sides[1])
    found: defaultdict[_Place, list[_Seen]] = defaultdict(list)
    apart: dict[int, bool] = {}
    for number, (a, b) in enumerate(pairs):
        if a.key.key == b.key.key:
            continue
        for difference in _differences(a, b):
            judged = _judged((a, b), difference, echoes)
            apart[number] = apart.get(number, False) or judged != _ECHO
            place = _Place(a.key.profile, a.key.route.host, *_named(difference.path, a.key), judged.starts)
            found[place].append(((a, b), difference, judged))
    for pair in pairs:
        for place, seen in _in_answers(pair, profiles):
            found[place].append(seen)
    agree = sum(a.key.key == b.key.key for a, b in pairs)
    return Calibration(
        agreement=KeyAgreement(
            calls=(len(one), len(other)), pairs=len(pairs), agree=agree, echoes=sum(not real for real in apart.values())
        ),
        findings=tuple(_finding(place, seen, pairs) for place, seen in found.items()),
        alone=(_alone(sides[0], (a for a, _ in pairs)), _alone(sides[1], (b for _, b in pairs))),
    )


def _sides(exchanges: Sequence[Exchange], profiles: Profiles) -> list[Side]:
    return [Side(step=n, exchange=one, key=keyed(one.request, profiles)) for n, one in enumerate(exchanges, 1)]


def _alone(sides: Iterable[Side], paired: Iterable[Side]) -> tuple[int, ...]:
    steps = {side.step for side in paired}
    return tuple(side.step for side in sides if side.step not in steps)


def aligned(one: Sequence[Side], other: Sequence[Side]) -> list[Pair]:
    """The calls of two recordings that are the same work, in the order of the first."""
    waiting: defaultdict[tuple[str, ...], list[Side]] = defaultdict(list)
    for side in other:
        waiting[_goes(side)].append(side)
    # What agrees already is paired first, as replay would.
    pairs = {side.step: (side, twin) for side in one if (twin := _twin(side, waiting[_goes(side)]))}
    for side in one:
        if side.step not in pairs and (near := _nearest(side, waiting[_goes(side)])):
            pairs[side.step] = (side, near)
    return [pairs[step] for step in sorted(pairs)]


def _goes(side: Side) -> tuple[str, ...]:
    """Where a call goes, without the ids in its path."""
    route = side.key.route
    path = "/".join("*" if looks(part) or part.isdecimal() else part for part in route.place.split("/"))
    return route.dialect, route.operation, route.upstream, route.method, path


def _twin(side: Side, waiting: list[Side]) -> Side | None:
    for place, other in enumerate(waiting):
        if other.key.key == side.key.key:
            return waiting.pop(place)
    return None


def _nearest(side: Side, waiting: list[Side]) -> Side | None:
    best, least = -1, float("inf")
    for place, other in enumerate(waiting[:_CANDIDATES]):
        apart = distance(side.document, other.document, least)
        if apart < least:
            best, least = place, apart
    return waiting.pop(best) if best >= 0 else None


def _differences(one: Side, other: Side) -> Iterator[Difference]:
    for number, difference in enumerate(differences(one.document, other.document)):
        if number == _SHOWN:
            return
        yield difference


_ECHO: Final = Guess("key", "an earlier answer of the run gave it: in replay it is the recorded one")


_WORD: Final = re.compile(r"[\w.:-]+")
_LOOKED_AT: Final = 200
"""Answers before a request in which more than a word is looked for."""


@dataclass(slots=True)
class _Echoes:
    """What the answers of a run gave to the requests after them. What a request sent before any answer had it, the client made."""

    sides: Sequence[Side]
    _given: dict[str, Side] = field(default_factory=dict)
    """The call whose answer gave a word first."""
    _sent: dict[str, Side] = field(default_factory=dict)
    """The call whose request sent a word first."""
    _read: int = 0

    def given(self, value: Json | AbsentValue, step: int) -> bool:
        """Whether an answer before this step gave the value."""
        text = str(value) if isinstance(value, str) or type(value) is int else ""
        if len(text) < _SHORTEST_ECHO:
            return False
        if _WORD.fullmatch(text):
            self._read_until(step)
            return _came_first(self._given.get(text), self._sent.get(text))
        written = dumps(text).decode()[1:-1]
        before = self.sides[max(0, step - 1 - _LOOKED_AT) : step]
        gave = next((side for side in before[:-1] if text in side.told or written in side.told), None)
        return _came_first(gave, next((side for side in before if text in side.sent or written in side.sent), None))

    def _read_until(self, step: int) -> None:
        for side in self.sides[self._read : step]:
            for word in _WORD.findall(side.sent):
                self._sent.setdefault(word, side)
            # Only answers before the step count, and the last one read may be its own.
            for word in _WORD.findall(side.told):
                self._given.setdefault(word, side)
        self._read = max(self._read, step)


def _came_first(gave: Side | None, sent: Side | None) -> bool:
    """Whether an answer had a value before a request did."""
    return gave is not None and (
        sent is None or (gave.step < sent.step and gave.answered_at <= sent.exchange.started_at)
    )


def _judged(pair: Pair, difference: Difference, echoes: tuple[_Echoes, _Echoes]) -> Guess:
    """What a place at which two requests differ may count as."""
    one, other = difference.recorded, difference.now
    steps = pair[0].step, pair[1].step
    if all(echoes[0].given(a, steps[0]) and echoes[1].given(b, steps[1]) for a, b in _parted(difference)):
        return _ECHO
    names = [step for step in difference.path if isinstance(step, str)]
    judged = guess(names[-1], one, other)
    if difference.path[0] not in ("body", "query", "headers"):
        return Guess("key", f"{judged.reason}; it is part of the address, which always counts")
    if difference.path == ("body",) or (inner := _inner(pair[0].key, difference.path)) is None:
        return Guess("key", f"{judged.reason}; the body is no JSON in which a rule could name it")
    if inner:
        return Guess("key", f"{judged.reason}; it is within a text that holds JSON, which counts as one value")
    if looks(one if isinstance(one, str) else None) and _ties(pair, one, other):
        return Guess("id", f"{judged.reason}, and ties parts of the request together")
    return judged


def _parted(difference: Difference) -> list[tuple[Json | AbsentValue, Json | AbsentValue]]:
    """What exactly differs: of two paths the segments."""
    match difference:
        case Difference(("path",), str(one), str(other)) if one.count("/") == other.count("/"):
            return [(a, b) for a, b in zip(one.split("/"), other.split("/"), strict=True) if a != b]
        case Difference(_, one, other):
            return [(one, other)]


def _inner(key: KeyResult, path: Path) -> bool | None:
    """Whether a place lies within a text that was read as JSON; None where the body is not made of fields."""
    if path[0] != "body":
        return False
    if key.read.form not in ("json", "lines", "form", "multipart", "messages"):
        return None
    above = {"".join(f"/{_escaped(step)}" for step in path[:end]) for end in range(1, len(path))}
    return any(note.rule == "json" and note.pointer in above for note in key.folded)


def _escaped(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _ties(pair: Pair, one: Json | AbsentValue, other: Json | AbsentValue) -> bool:
    """Whether a value stands in several places of the same request, in both."""
    bodies = (dumps(side.key.request) for side in pair)
    values = (dumps(str(one)), dumps(str(other)))
    return all(body.count(value) > 1 for body, value in zip(bodies, values, strict=True))


class _Place(NamedTuple):
    """Where something differs, as a rule would name it."""

    profile: str
    host: str
    part: Part
    path: str
    starts: str
    """Of the line that is made anew, where it is no more than that."""

    def rules(self, side: Side) -> bool:
        """Whether a rule for this place would hold for a call."""
        return (self.profile, self.host) == (side.key.profile, side.key.route.host)


def _named(path: Path, key: KeyResult) -> tuple[Part, str]:
    """A place as a rule would name it: a name, or a path for all elements alike."""
    match path:
        case ("query" | "headers" as part, str() as name, *_):
            return part, name
        case ("body", *steps):
            if key.read.form in ("form", "multipart") and len(steps) > 1:
                steps = steps[:1]
            return "body", _path(tuple(steps))
        case ("path", *_):
            return "path", key.route.place
        case _:
            return "other", "/".join(map(str, path))


def _member(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return f".{name}"
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped}']"


def _in_answers(pair: Pair, profiles: Profiles) -> Iterator[tuple[_Place, _Seen]]:
    """Where the answers of two calls of no model differ by what looks made anew."""
    a, b = pair
    if "model" in (a.call.kind, b.call.kind) or not (a.call.complete and b.call.complete):
        return
    plan = profiles.ignored(a.key.profile)
    both = islice(differences(meaning(a.call, plan), meaning(b.call, plan)), _SHOWN)
    for difference in both:
        names = [step for step in difference.path if isinstance(step, str)]
        judged = guess_of_answer(names[-1] if names else "", difference.recorded, difference.now)
        if judged is not None and difference.path:
            yield (
                _Place(a.key.profile, a.key.route.host, "answer", _path(difference.path), ""),
                (pair, difference, judged),
            )


def _path(steps: Path) -> str:
    return "$" + "".join("[*]" if isinstance(step, int) else _member(str(step)) for step in steps)


def _finding(place: _Place, seen: Sequence[_Seen], pairs: Sequence[Pair]) -> Finding:
    told = seen[0][1].told()
    ruled = [pair for pair in pairs if place.rules(pair[0])]
    judged = _agreed([found for _, _, found in seen])
    careful = judged.field_class not in ("key", "nonces") and not judged.named and place.part == "body"
    if careful and _elsewhere(place, ruled):
        judged = Guess("key", f"{judged.reason}, but the same place holds other things in other calls")
    return Finding(
        profile=place.profile,
        host=place.host,
        part=place.part,
        path=place.path,
        guess=judged,
        times=len({pair[0].step for pair, _, _ in seen}),
        of=len(ruled),
        one=told["recorded"],
        other=told["now"],
    )


def _agreed(guesses: Sequence[Guess]) -> Guess:
    """The guess that holds for all occurrences: the one that would leave out least."""
    order = ("key", "id", "nonces", "identity", "secret", "transient")
    least = min(guesses, key=lambda found: order.index(found.field_class))
    more = Counter(found.field_class for found in guesses)
    return least if len(more) == 1 or least.field_class == "key" else replace(least, named=False)


def _elsewhere(place: _Place, pairs: Iterable[Pair]) -> bool:
    """Whether a rule for this place would also leave out, in some call, what does not look like it at all."""
    values = (value for pair in pairs for side in pair for value in _values(side.document, place.path, side.key))
    return any(value is not None and looks(value) is None for value in values)


def _values(document: Json, path: str, key: KeyResult) -> Iterator[Json]:
    """All that stands at places which a rule for this path names."""
    stack: list[tuple[Path, Json]] = [(("body",), document["body"] if isinstance(document, dict) else None)]
    while stack:
        at, value = stack.pop()
        named = _named(at, key)[1]
        if named == path:
            yield value
        elif path.startswith(named) and isinstance(value, dict):
            stack += [((*at, name), item) for name, item in value.items()]
        elif path.startswith(named) and isinstance(value, list):
            stack += [((*at, number), item) for number, item in enumerate(value)]
