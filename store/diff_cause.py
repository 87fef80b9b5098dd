"""Why two calls that stand for each other are not the same, and which earlier difference they follow from.

A request follows from an earlier answer where all the words in which it differs from its counterpart are words in which
the earlier answers differ from theirs. What brings a word of its own was changed by somebody: the prompt, the code, the
world. Nothing is guessed beyond that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from calls.divergence import ABSENT, Absent, Difference, differences
from calls.document import load_bearing, whole
from calls.drift import at, drift
from calls.json import dumps
from calls.key import Keyed
from calls.meaning import meaning, words
from calls.model import Call, Exchange, Headers, Json
from store.diff_steps import Reading, Step

type Cause = Literal[
    "same", "volatile", "order", "model", "tool_answer", "answer", "failure", "prompt", "follows", "missing", "extra"
]

ROOTS: Final = frozenset(("order", "model", "tool_answer", "answer", "failure", "prompt", "missing", "extra"))
"""What makes two runs part. The others are no parting, or follow from one."""

SHOWN: Final = 12
"""Places at which two requests or answers part that are told. Nobody reads a longer list."""

_COUNTED: Final = 500

_HEADERS: Final = "/headers/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One call of a pair, looked at closely."""

    asked: Exchange
    key: Keyed
    call: Call
    """As its last exchange tells it."""


def seen(first: Exchange, last: Exchange, reading: Reading) -> Seen:
    """Look at a call closely: at its first exchange for what was asked, at its last for the answer."""
    key = reading.key(first)
    return Seen(asked=first, key=key, call=reading.call(last, key if last is first else reading.key(last)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found out about a pair."""

    cause: Cause | None
    """None where it was not looked at closely: there are too many."""

    requests: tuple[Difference, ...] = ()
    """Where the load-bearing parts of the requests differ."""

    volatile: tuple[Difference, ...] = ()
    """Where the requests differ outside of their keys."""

    answers: tuple[Difference, ...] = ()
    more: int = 0
    """Places that are not listed."""

    follows: int | None = None
    """The pair that this one follows from, by its place."""


def gist_cause(one: Step | None, other: Step | None, *, moved: bool) -> Cause | None:
    """What can be told without a closer look; None where one is needed."""
    if one is None:
        return "extra"
    if other is None:
        return "missing"
    if one.asked.call.key != other.asked.call.key:
        return None
    if one.told.said != other.told.said:
        return _answered(one, other)
    if _model(one) != _model(other):
        return "model"
    if moved and not (one.alongside or other.alongside):
        return "order"
    return "same" if one.asked.sent == other.asked.sent else None


def _answered(one: Step, other: Step) -> Cause:
    """Why the same request has another answer."""
    if (one.failed or other.failed) and _ending(one) != _ending(other):
        return "failure"
    if _model(one) != _model(other):
        return "model"
    return "answer" if one.asked.call.kind == "model" else "tool_answer"


def _ending(step: Step) -> tuple[object, ...]:
    return step.told.part.status, step.told.part.outcome, step.told.part.complete


def _model(step: Step) -> tuple[str | None, str | None]:
    """Who answered. A failure names nobody, and says nothing about that."""
    call = step.told.call
    return (None, None) if step.failed else (call.model_returned, call.system_fingerprint)


@dataclass(slots=True)
class Inquiry:
    """Goes through the pairs of two runs in their order, and remembers in which words their answers differ."""

    _only: list[tuple[int, frozenset[str], frozenset[str]]] = field(default_factory=list)
    """For each pair its root, and the words that only its one and only its other side has."""

    _all: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    _changes: dict[tuple[bytes, bytes], int] = field(default_factory=dict)

    def look(self, place: int, known: Cause | None, one: Seen | None, other: Seen | None) -> Found:
        """Why this pair differs. `known` is what its gists tell."""
        requests, more = _parted(_asked(one), _asked(other))
        follows = self._source(requests, one, other) if known in (None, "missing", "extra") and requests else None
        volatile = tuple(_volatile(one, other)) if one and other else ()
        answers, unlisted = _parted(_said(one), _said(other))
        cause = known or self._cause(requests, volatile, follows)
        if cause not in ("same", "volatile", "order"):
            self._remember(place if follows is None else follows, requests, (one, other))
        if one is None or other is None:
            return Found(cause=cause, follows=follows)
        return Found(
            cause=cause,
            requests=requests[:SHOWN],
            volatile=volatile[:SHOWN],
            answers=answers[:SHOWN],
            more=more + unlisted + sum(max(0, len(found) - SHOWN) for found in (requests, volatile, answers)),
            follows=follows,
        )

    def _cause(self, requests: Sequence[Difference], volatile: Sequence[Difference], follows: int | None) -> Cause:
        if not requests:
            return "volatile" if volatile else "same"
        return "prompt" if follows is None else "follows"

    def _source(self, requests: Sequence[Difference], one: Seen | None, other: Seen | None) -> int | None:
        """The root of the earliest pair that explains how these requests differ; None where they have news of their own."""
        new = [change for change in requests if _change(change) not in self._changes]
        gone, come = _words(new)
        if one and other and new and not (gone | come and gone <= self._all[0] and come <= self._all[1]):
            return None
        sources = [self._changes[seen] for change in requests if (seen := _change(change)) in self._changes]
        sources += [root for root, only_one, only_other in self._only if gone & only_one or come & only_other]
        return min(sources, default=None)

    def _remember(self, root: int, requests: Sequence[Difference], sides: tuple[Seen | None, Seen | None]) -> None:
        """What differs here may be all by which a later request differs."""
        gone, come = _words(requests) if None not in sides else (set[str](), set[str]())
        here, there = (words(side.call.answer) if side else set[str]() for side in sides)
        self._only.append((root, frozenset(here - there | gone), frozenset(there - here | come)))
        self._all[0].update(here | gone)
        self._all[1].update(there | come)
        for change in requests:
            self._changes.setdefault(_change(change), root)


def _asked(side: Seen | None) -> Json:
    return None if side is None else load_bearing(side.key)


def _said(side: Seen | None) -> Json:
    return None if side is None else meaning(side.call)


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


def _value(side: Json | Absent) -> Json:
    return None if isinstance(side, Absent) else side


def _volatile(one: Seen, other: Seen) -> Iterable[Difference]:
    """Where the requests differ outside of their keys, with what stands there."""
    here, there = whole(one.asked.request, one.key), whole(other.asked.request, other.key)
    for pointer in drift(one.asked.request, one.key, other.asked.request, other.key):
        path = tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])
        if pointer.startswith(_HEADERS):
            sides = (_headers(side.asked.request.headers, path[1]) for side in (one, other))
            yield Difference(path, *sides)
        else:
            yield Difference(path, at(here, pointer), at(there, pointer))


def _headers(headers: Headers, name: str) -> Json | Absent:
    values = [value for key, value in headers if key.lower() == name]
    return ", ".join(values) if values else ABSENT
