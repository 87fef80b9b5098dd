"""Compare two recordings of the same work: find the fields of requests that differ, and the likely class of each.

Calls are aligned by destination and content, not only by their keys, since the keys are what is examined. Only differences
that change a key are reported. The proposed rules are tested by making the keys of the calls again with them.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Final, Literal, NamedTuple

from calls.codec.json import dumps
from calls.comparison.answer_fingerprint import answer_meaning
from calls.comparison.field_heuristics import Guess, guess_answer_class, guess_class, value_shape
from calls.derive import derive_keyed_call
from calls.keys.divergence import AbsentValue, Difference, Path, differences, distance
from calls.keys.key import KeyResult, make_key
from calls.keys.profile import Profiles
from calls.keys.request_document import key_document
from calls.model import Call, Exchange, Json

type FindingPart = Literal["body", "query", "headers", "path", "other", "answer"]
type SidePair = tuple["Side", "Side"]
type _Occurrence = tuple[SidePair, Difference, Guess]

_CANDIDATES: Final = 6
"""The number of following calls to the same destination in the other recording with which a call is compared."""

_MAX_DIFFERENCES: Final = 200
"""The number of differences of two requests that are examined."""

_MIN_ECHO_LENGTH: Final = 4


@dataclass(slots=False, kw_only=True)  # it caches
class Side:
    """A recorded call of one of the two recordings."""

    step: int
    exchange: Exchange
    key: KeyResult

    @cached_property
    def document(self) -> Json:
        """The fields in its key."""
        return key_document(self.key)

    @cached_property
    def call(self) -> Call:
        """The derived call."""
        return derive_keyed_call(self.exchange, self.key)

    @cached_property
    def request_text(self) -> str:
        """Everything in its request, as one text."""
        request = self.exchange.request
        headers = " ".join(value for _, value in request.headers)
        return "\n".join(
            (request.url, headers, request.body.data.decode("utf-8", "replace"), dumps(self.document).decode())
        )

    @property
    def answered_at(self) -> int:
        """The time at which its answer began to arrive."""
        times = (self.exchange.first_byte_at, self.exchange.ended_at)
        return self.exchange.started_at + next((at for at in times if at is not None), 0)

    @cached_property
    def answer_text(self) -> str:
        """Everything in its answer, as one text: the raw body, the assembled answer, its text, and the headers."""
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
    part: FindingPart
    path: str
    """An RFC 9535 path in the body, or the name of a query parameter or header."""
    guess: Guess
    times: int
    """The number of pairs of calls in which the field differs."""
    of: int
    """The number of pairs of calls to this host with this profile."""
    one: Json
    other: Json
    """The second value of the first pair; like `one`, shortened for display."""

    @property
    def has_rule(self) -> bool:
        """Whether a rule is proposed for the field."""
        return self.guess.field_class != "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAgreement:
    """The number of calls of two recordings with the same key."""

    calls: tuple[int, int]
    pairs: int
    agree: int
    echoes: int
    """Pairs that differ only in values from earlier answers: in replay those are the recorded ones."""

    @property
    def misses(self) -> int:
        """Pairs that would miss in replay."""
        return self.pairs - self.agree - self.echoes


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The result of a comparison."""

    agreement: KeyAgreement
    findings: tuple[Finding, ...]
    unpaired_steps: tuple[tuple[int, ...], tuple[int, ...]]
    """The steps of either recording without a counterpart in the other."""


def calibrate(one: Sequence[Exchange], other: Sequence[Exchange], profiles: Profiles) -> Calibration:
    """Compare two recordings, each in step order."""
    sides = _sides(one, profiles), _sides(other, profiles)
    pairs = align_sides(*sides)
    echoes = _Echoes(sides[0]), _Echoes(sides[1])
    by_place: defaultdict[_Place, list[_Occurrence]] = defaultdict(list)
    is_miss_by_pair: dict[int, bool] = {}
    for number, (a, b) in enumerate(pairs):
        if a.key.key == b.key.key:
            continue
        for difference in _first_differences(a, b):
            verdict = _judge((a, b), difference, echoes)
            is_miss_by_pair[number] = is_miss_by_pair.get(number, False) or verdict != _ECHO
            place = _Place(a.key.profile, a.key.route.host, *rule_place(difference.path, a.key), verdict.nonce_start)
            by_place[place].append(((a, b), difference, verdict))
    for pair in pairs:
        for place, occurrence in _answer_occurrences(pair, profiles):
            by_place[place].append(occurrence)
    agree = sum(a.key.key == b.key.key for a, b in pairs)
    return Calibration(
        agreement=KeyAgreement(
            calls=(len(one), len(other)),
            pairs=len(pairs),
            agree=agree,
            echoes=sum(not real for real in is_miss_by_pair.values()),
        ),
        findings=tuple(_build_finding(place, occurrences, pairs) for place, occurrences in by_place.items()),
        unpaired_steps=(
            _unpaired_steps(sides[0], (a for a, _ in pairs)),
            _unpaired_steps(sides[1], (b for _, b in pairs)),
        ),
    )


def _sides(exchanges: Sequence[Exchange], profiles: Profiles) -> list[Side]:
    return [Side(step=n, exchange=one, key=make_key(one.request, profiles)) for n, one in enumerate(exchanges, 1)]


def _unpaired_steps(sides: Iterable[Side], paired: Iterable[Side]) -> tuple[int, ...]:
    steps = {side.step for side in paired}
    return tuple(side.step for side in sides if side.step not in steps)


def align_sides(one: Sequence[Side], other: Sequence[Side]) -> list[SidePair]:
    """Pair the corresponding calls of two recordings, in the order of the first."""
    waiting: defaultdict[tuple[str, ...], list[Side]] = defaultdict(list)
    for side in other:
        waiting[_destination(side)].append(side)
    # Calls with the same key are paired first, as in replay.
    pairs = {side.step: (side, same) for side in one if (same := _take_same_key(side, waiting[_destination(side)]))}
    for side in one:
        if side.step not in pairs and (near := _take_nearest(side, waiting[_destination(side)])):
            pairs[side.step] = (side, near)
    return [pairs[step] for step in sorted(pairs)]


def _destination(side: Side) -> tuple[str, ...]:
    """Return the destination of a call without the ids in its path."""
    route = side.key.route
    path = "/".join("*" if value_shape(part) or part.isdecimal() else part for part in route.key_path.split("/"))
    return route.dialect, route.operation, route.upstream, route.method, path


def _take_same_key(side: Side, waiting: list[Side]) -> Side | None:
    for place, other in enumerate(waiting):
        if other.key.key == side.key.key:
            return waiting.pop(place)
    return None


def _take_nearest(side: Side, waiting: list[Side]) -> Side | None:
    best, least = -1, float("inf")
    for place, other in enumerate(waiting[:_CANDIDATES]):
        gap = distance(side.document, other.document, least)
        if gap < least:
            best, least = place, gap
    return waiting.pop(best) if best >= 0 else None


def _first_differences(one: Side, other: Side) -> Iterator[Difference]:
    for number, difference in enumerate(differences(one.document, other.document)):
        if number == _MAX_DIFFERENCES:
            return
        yield difference


_ECHO: Final = Guess("key", "it comes from an earlier answer of the run: in replay that is the recorded one")


_WORD: Final = re.compile(r"[\w.:-]+")
_MAX_SEARCHED_ANSWERS: Final = 200
"""The number of answers before a request in which a value of several words is searched."""


@dataclass(slots=True)
class _Echoes:
    """Finds values in requests that come from earlier answers. A value that a request had first was made by the client."""

    sides: Sequence[Side]
    _answered_first: dict[str, Side] = field(default_factory=dict)
    """The call whose answer had a word first."""
    _sent_first: dict[str, Side] = field(default_factory=dict)
    """The call whose request had a word first."""
    _indexed_steps: int = 0

    def is_echo(self, value: Json | AbsentValue, step: int) -> bool:
        """Whether the value comes from an answer before this step."""
        text = str(value) if isinstance(value, str) or type(value) is int else ""
        if len(text) < _MIN_ECHO_LENGTH:
            return False
        if _WORD.fullmatch(text):
            self._index_until(step)
            return _is_answered_first(self._answered_first.get(text), self._sent_first.get(text))
        written = dumps(text).decode()[1:-1]
        before = self.sides[max(0, step - 1 - _MAX_SEARCHED_ANSWERS) : step]
        answer = next((side for side in before[:-1] if text in side.answer_text or written in side.answer_text), None)
        return _is_answered_first(
            answer, next((side for side in before if text in side.request_text or written in side.request_text), None)
        )

    def _index_until(self, step: int) -> None:
        for side in self.sides[self._indexed_steps : step]:
            for word in _WORD.findall(side.request_text):
                self._sent_first.setdefault(word, side)
            # Only answers before the step count, and the last one indexed may be its own.
            for word in _WORD.findall(side.answer_text):
                self._answered_first.setdefault(word, side)
        self._indexed_steps = max(self._indexed_steps, step)


def _is_answered_first(answer: Side | None, request: Side | None) -> bool:
    """Return whether an answer had a value before a request did."""
    return answer is not None and (
        request is None or (answer.step < request.step and answer.answered_at <= request.exchange.started_at)
    )


def _judge(pair: SidePair, difference: Difference, echoes: tuple[_Echoes, _Echoes]) -> Guess:
    """Guess the class of a place at which two requests differ."""
    one, other = difference.recorded, difference.now
    steps = pair[0].step, pair[1].step
    if all(echoes[0].is_echo(a, steps[0]) and echoes[1].is_echo(b, steps[1]) for a, b in _differing_parts(difference)):
        return _ECHO
    names = [step for step in difference.path if isinstance(step, str)]
    verdict = guess_class(names[-1], one, other)
    if difference.path[0] not in ("body", "query", "headers"):
        return Guess("key", f"{verdict.reason}; it is part of the URL or method, which always count")
    if difference.path == ("body",) or (is_inside := is_inside_json_text(pair[0].key, difference.path)) is None:
        return Guess("key", f"{verdict.reason}; the body has no fields that a rule could name")
    if is_inside:
        return Guess("key", f"{verdict.reason}; it is inside a string of JSON, which counts as one value")
    if value_shape(one if isinstance(one, str) else None) and _is_repeated(pair, one, other):
        return Guess("id", f"{verdict.reason}, and links parts of the request")
    return verdict


def _differing_parts(difference: Difference) -> list[tuple[Json | AbsentValue, Json | AbsentValue]]:
    """Return the differing values; for two paths of equal length, their differing segments."""
    match difference:
        case Difference(("path",), str(one), str(other)) if one.count("/") == other.count("/"):
            return [(a, b) for a, b in zip(one.split("/"), other.split("/"), strict=True) if a != b]
        case Difference(_, one, other):
            return [(one, other)]


def is_inside_json_text(key: KeyResult, path: Path) -> bool | None:
    """Return whether a place is inside a string that was parsed as JSON; None if the body has no fields."""
    if path[0] != "body":
        return False
    if key.parsed_body.form not in ("json", "lines", "form", "multipart", "messages"):
        return None
    above = {"".join(f"/{_escape_step(step)}" for step in path[:end]) for end in range(1, len(path))}
    return any(note.rule == "json" and note.pointer in above for note in key.normalized_fields)


def _escape_step(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _is_repeated(pair: SidePair, one: Json | AbsentValue, other: Json | AbsentValue) -> bool:
    """Return whether both requests contain their value more than once."""
    bodies = (dumps(side.key.request_body) for side in pair)
    values = (dumps(str(one)), dumps(str(other)))
    return all(body.count(value) > 1 for body, value in zip(bodies, values, strict=True))


class _Place(NamedTuple):
    """A place that differs, as a rule would name it."""

    profile: str
    host: str
    part: FindingPart
    path: str
    nonce_start: str
    """The beginning of the nonce, if only a nonce differs."""

    def applies_to(self, side: Side) -> bool:
        """Whether a rule for this place would apply to a call."""
        return (self.profile, self.host) == (side.key.profile, side.key.route.host)


def rule_place(path: Path, key: KeyResult) -> tuple[FindingPart, str]:
    """Return a place as a rule would name it: a name, or a path with wildcards for elements."""
    match path:
        case ("query" | "headers" as part, str() as name, *_):
            return part, name
        case ("body", *steps):
            if key.parsed_body.form in ("form", "multipart") and len(steps) > 1:
                steps = steps[:1]
            return "body", _json_path(tuple(steps))
        case ("path", *_):
            return "path", key.route.key_path
        case _:
            return "other", "/".join(map(str, path))


def _path_member(name: str) -> str:
    if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return f".{name}"
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{escaped}']"


def _answer_occurrences(pair: SidePair, profiles: Profiles) -> Iterator[tuple[_Place, _Occurrence]]:
    """Yield the places at which the answers of two calls, not to models, differ in values that look generated."""
    a, b = pair
    if "model" in (a.call.kind, b.call.kind) or not (a.call.complete and b.call.complete):
        return
    plan = profiles.ignored_answer_fields(a.key.profile)
    both = islice(differences(answer_meaning(a.call, plan), answer_meaning(b.call, plan)), _MAX_DIFFERENCES)
    for difference in both:
        names = [step for step in difference.path if isinstance(step, str)]
        verdict = guess_answer_class(names[-1] if names else "", difference.recorded, difference.now)
        if verdict is not None and difference.path:
            yield (
                _Place(a.key.profile, a.key.route.host, "answer", _json_path(difference.path), ""),
                (pair, difference, verdict),
            )


def _json_path(steps: Path) -> str:
    return "$" + "".join("[*]" if isinstance(step, int) else _path_member(str(step)) for step in steps)


def _build_finding(place: _Place, occurrences: Sequence[_Occurrence], pairs: Sequence[SidePair]) -> Finding:
    example = occurrences[0][1].as_json()
    applicable = [pair for pair in pairs if place.applies_to(pair[0])]
    verdict = _common_guess([found for _, _, found in occurrences])
    is_only_by_value = verdict.field_class not in ("key", "nonces") and not verdict.is_by_name and place.part == "body"
    if is_only_by_value and _has_other_values(place, applicable):
        verdict = Guess("key", f"{verdict.reason}, but other calls have different kinds of values there")
    return Finding(
        profile=place.profile,
        host=place.host,
        part=place.part,
        path=place.path,
        guess=verdict,
        times=len({pair[0].step for pair, _, _ in occurrences}),
        of=len(applicable),
        one=example["recorded"],
        other=example["now"],
    )


def _common_guess(guesses: Sequence[Guess]) -> Guess:
    """Return the guess for all occurrences: the one that leaves out the least."""
    order = ("key", "id", "nonces", "identity", "secret", "transient")
    least = min(guesses, key=lambda guess: order.index(guess.field_class))
    more = Counter(guess.field_class for guess in guesses)
    return least if len(more) == 1 or least.field_class == "key" else replace(least, is_by_name=False)


def _has_other_values(place: _Place, pairs: Iterable[SidePair]) -> bool:
    """Return whether a rule for this place would also leave out values in some call that do not look generated."""
    values = (value for pair in pairs for side in pair for value in _values(side.document, place.path, side.key))
    return any(value is not None and value_shape(value) is None for value in values)


def _values(document: Json, path: str, key: KeyResult) -> Iterator[Json]:
    """Yield the values at the places that a rule for this path names."""
    stack: list[tuple[Path, Json]] = [(("body",), document["body"] if isinstance(document, dict) else None)]
    while stack:
        at, value = stack.pop()
        found = rule_place(at, key)[1]
        if found == path:
            yield value
        elif path.startswith(found) and isinstance(value, dict):
            stack += [((*at, name), item) for name, item in value.items()]
        elif path.startswith(found) and isinstance(value, list):
            stack += [((*at, number), item) for number, item in enumerate(value)]
