"""Find which differences follow from others: a request that differs only by what earlier answers said follows from them.

All the words in which it differs from its counterpart must be words in which earlier answers, or requests, differ from
theirs. What brings a word of its own was changed by somebody: the prompt, the code, the world.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from calls.codec.json import dumps
from calls.comparison.answer_fingerprint import meaning_digest, words
from calls.comparison.answer_volatile import ignored
from calls.comparison.drift import at, drift
from calls.keys.divergence import ABSENT, AbsentValue, Difference, differences
from calls.keys.request_document import load_bearing, whole
from calls.model import Headers, Json
from store.diff.cause import SHOWN, Cause, ComparedCall, Named, PairFindings, left_alike, volatile_answers

_COUNTED: Final = 500

_ANSWERED: Final = ("answer", "tool_answer", "failure")

_HEADERS: Final = "/headers/"


class _Source(NamedTuple):
    """A pair from which later ones may follow."""

    place: int
    root: int
    """The pair that it follows from itself; its own place where there is none."""

    gone: frozenset[str]
    """Words that only the one side has, and…"""

    come: frozenset[str]
    """…only the other."""

    alone: bool
    """Only one run has it."""


@dataclass(slots=True)
class Inquiry:
    """Goes through the pairs of two runs in their order, and remembers in which words their answers differ."""

    _sources: list[_Source] = field(default_factory=list)
    _all: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    _changes: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    _models: dict[tuple[Named, Named], int] = field(default_factory=dict)
    _volatile: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    """Words of answers that are made anew for each answer."""

    def look(
        self, place: int, known: Cause | None, one: ComparedCall | None, other: ComparedCall | None
    ) -> PairFindings:
        """Why this pair differs. `known` is what its gists tell."""
        requests, more = _parted(_asked(one), _asked(other))
        if one is None or other is None:
            return self._lone(place, known, requests, (one, other))
        is_volatile = self._is_volatile(one, other)
        if known in _ANSWERED and (left_alike(one, other) or (known == "tool_answer" and is_volatile)):
            known = None
        volatile = tuple(_volatile(one, other))
        answers, unlisted = _parted(_said(one), _said(other))
        if known is None and requests and self._repeats_volatile(requests):
            known = _repeated(one, other)
        follows = self._again(place, one, other) if known == "model" else self._source(requests)
        cause = known or _cause(requests, volatile or answers, follows)
        if cause not in ("same", "volatile", "order"):
            self._remember(place, follows, requests, (one, other))
        return PairFindings(
            cause=cause,
            requests=requests[:SHOWN],
            volatile=volatile[:SHOWN],
            answers=answers[:SHOWN],
            more=more + unlisted + sum(max(0, len(found) - SHOWN) for found in (requests, volatile, answers)),
            follows=follows,
        )

    def _lone(
        self,
        place: int,
        known: Cause | None,
        request: Sequence[Difference],
        sides: tuple[ComparedCall | None, ComparedCall | None],
    ) -> PairFindings:
        """A call that one run has alone follows from an answer that differs, or from the lone call right before it, if it
        has a word of theirs."""
        gone, come = _words(request)
        able = (source for source in self._sources if not source.alone or source.place == place - 1)
        follows = min((source.root for source in able if gone & source.gone or come & source.come), default=None)
        self._remember(place, follows, (), sides)
        return PairFindings(cause=known, follows=follows)

    def _again(self, place: int, one: ComparedCall, other: ComparedCall) -> int | None:
        """The first call at which this model was exchanged for that one: each later one shows the same."""
        first = self._models.setdefault((_named(one), _named(other)), place)
        return None if first == place else first

    def _is_volatile(self, one: ComparedCall, other: ComparedCall) -> bool:
        """Whether the answers differ only in what is made anew; its words are remembered either way."""
        found = volatile_answers(one, other)
        for side, place in ((one, 0), (other, 1)):
            made: list[Json] = [twins[place] for twins in found.volatile] if found else []
            made += [value for _, value in ignored(side.call.answer, side.ignored)]
            self._volatile[place].update(words(made))
            self._all[place].update(words(made))
        return found is not None and bool(found.volatile) and found.is_all

    def _repeats_volatile(self, requests: Sequence[Difference]) -> bool:
        """Whether these requests differ only in what earlier answers made anew."""
        gone, come = _words(requests)
        return bool(gone | come) and gone <= self._volatile[0] and come <= self._volatile[1]

    def _source(self, requests: Sequence[Difference]) -> int | None:
        """The root of the earliest pair that explains how these requests differ; None where they have news of their own."""
        new = [change for change in requests if _change(change) not in self._changes]
        gone, come = _words(new)
        if new and not (gone | come and gone <= self._all[0] and come <= self._all[1]):
            return None
        sources = [self._changes[seen] for change in requests if (seen := _change(change)) in self._changes]
        sources += [source.root for source in self._sources if gone & source.gone or come & source.come]
        return min(sources, default=None)

    def _remember(
        self,
        place: int,
        follows: int | None,
        requests: Sequence[Difference],
        sides: tuple[ComparedCall | None, ComparedCall | None],
    ) -> None:
        """What differs here may be all by which a later request differs."""
        root = place if follows is None else follows
        gone, come = _words(requests)
        here, there = (words(side.call.answer) if side else set[str]() for side in sides)
        only = frozenset(here - there | gone), frozenset(there - here | come)
        self._sources.append(_Source(place, root, *only, alone=None in sides))
        self._all[0].update(here | gone)
        self._all[1].update(there | come)
        for change in requests:
            self._changes.setdefault(_change(change), root)


def _repeated(one: ComparedCall, other: ComparedCall) -> Cause:
    """Why two calls differ whose requests are the same but for what is volatile."""
    if meaning_digest(one.told, one.call, one.ignored) == meaning_digest(other.told, other.call, other.ignored):
        return "volatile"
    if one.call.kind == "model":
        return "answer"
    found = volatile_answers(one, other)
    return "volatile" if found is not None and found.is_all else "tool_answer"


def _cause(requests: Sequence[Difference], others: Sequence[Difference], follows: int | None) -> Cause:
    if not requests:
        return "volatile" if others else "same"
    return "prompt" if follows is None else "follows"


def _named(side: ComparedCall) -> Named:
    return side.call.model_returned, side.call.system_fingerprint


def _asked(side: ComparedCall | None) -> Json:
    return None if side is None else load_bearing(side.key)


def _said(side: ComparedCall | None) -> Json:
    return None if side is None else side.said


def _change(difference: Difference) -> tuple[bytes, bytes]:
    """A change, wherever it stands: what was said once is said again in all later requests, each time at another place."""
    return dumps(_value(difference.recorded)), dumps(_value(difference.now))


def _parted(one: Json, other: Json) -> tuple[tuple[Difference, ...], int]:
    """Where two values part, and whether there is more than was counted."""
    found = list(islice(differences(one, other), _COUNTED + 1))
    return tuple(found[:_COUNTED]), len(found) // (_COUNTED + 1)


def _words(found: Iterable[Difference]) -> tuple[set[str], set[str]]:
    """The words that only one side has, at each place."""
    gone: set[str] = set()
    come: set[str] = set()
    for difference in found:
        here, there = (words(_value(side)) for side in (difference.recorded, difference.now))
        gone |= here - there
        come |= there - here
    return gone, come


def _value(side: Json | AbsentValue) -> Json:
    return None if isinstance(side, AbsentValue) else side


def _volatile(one: ComparedCall, other: ComparedCall) -> Iterable[Difference]:
    """Where the requests differ outside of their keys, with what stands there."""
    here, there = whole(one.asked.request, one.key), whole(other.asked.request, other.key)
    for pointer in drift(one.asked.request, one.key, other.asked.request, other.key):
        path = tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])
        if pointer.startswith(_HEADERS):
            sides = (_headers(side.asked.request.headers, path[1]) for side in (one, other))
            yield Difference(path, *sides)
        else:
            yield Difference(path, at(here, pointer), at(there, pointer))


def _headers(headers: Headers, name: str) -> Json | AbsentValue:
    values = [value for key, value in headers if key.lower() == name]
    return ", ".join(values) if values else ABSENT
