"""Find which differences follow from others: a request that differs only by the text of earlier answers follows from them.

All words in which it differs from its counterpart must be words in which earlier answers or requests differ. A request
with a different word of its own was changed by something else: the prompt, the code or the environment.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from calls.codec.json import dumps
from calls.comparison.answer_fingerprint import answer_digest, word_set
from calls.comparison.answer_volatile import ignored_values
from calls.comparison.drift import at, drift_pointers
from calls.keys.divergence import ABSENT, AbsentValue, Difference, differences
from calls.keys.request_document import full_document, readable_document
from calls.model import Headers, Json
from store.diff.cause import MOST_SHOWN, Cause, ComparedCall, Named, PairFindings, is_left_alike, volatile_answers

_MOST_COUNTED: Final = 500

_ANSWER_CAUSES: Final = ("answer", "tool_answer", "failure")

_HEADERS_POINTER: Final = "/headers/"


class _Source(NamedTuple):
    """A pair from which later ones may follow."""

    place: int
    root: int
    """The place of the pair from which it follows itself; its own place where there is none."""

    removed: frozenset[str]
    """Words that only the first side has."""

    added: frozenset[str]
    """Words that only the other side has."""

    is_one_sided: bool
    """Whether only one run has the call."""


@dataclass(slots=True)
class Inquiry:
    """Explains the pairs of two runs in order, and remembers the words in which their answers differ."""

    _sources: list[_Source] = field(default_factory=list)
    _all_words: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    _changes: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    _models: dict[tuple[Named, Named], int] = field(default_factory=dict)
    _volatile_words: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    """Words of volatile values in the answers of each side."""

    def explain_pair(
        self, place: int, gist_cause: Cause | None, one: ComparedCall | None, other: ComparedCall | None
    ) -> PairFindings:
        """Explain why this pair differs. `gist_cause` is the cause that its gists show, if they show one."""
        requests, more = _list_differences(_request_document(one), _request_document(other))
        if one is None or other is None:
            return self._explain_lone_call(place, gist_cause, requests, (one, other))
        is_volatile = self._is_volatile(one, other)
        if gist_cause in _ANSWER_CAUSES and (
            is_left_alike(one, other) or (gist_cause == "tool_answer" and is_volatile)
        ):
            gist_cause = None
        volatile = tuple(_volatile_differences(one, other))
        answers, unlisted = _list_differences(_answer_document(one), _answer_document(other))
        if gist_cause is None and requests and self._repeats_volatile(requests):
            gist_cause = _repeat_cause(one, other)
        follows = (
            self._earlier_model_change(place, one, other) if gist_cause == "model" else self._find_source(requests)
        )
        cause = gist_cause or _cause(requests, volatile or answers, follows)
        if cause not in ("same", "volatile", "order"):
            self._remember(place, follows, requests, (one, other))
        return PairFindings(
            cause=cause,
            requests=requests[:MOST_SHOWN],
            volatile=volatile[:MOST_SHOWN],
            answers=answers[:MOST_SHOWN],
            more=more + unlisted + sum(max(0, len(found) - MOST_SHOWN) for found in (requests, volatile, answers)),
            follows=follows,
        )

    def _explain_lone_call(
        self,
        place: int,
        gist_cause: Cause | None,
        request: Sequence[Difference],
        sides: tuple[ComparedCall | None, ComparedCall | None],
    ) -> PairFindings:
        """Explain a call that only one run has.

        It follows from an answer that differs, or from the one-sided call right before it, if it has one of their words.
        """
        removed_words, added_words = _differing_words(request)
        able = (source for source in self._sources if not source.is_one_sided or source.place == place - 1)
        follows = min(
            (source.root for source in able if removed_words & source.removed or added_words & source.added),
            default=None,
        )
        self._remember(place, follows, (), sides)
        return PairFindings(cause=gist_cause, follows=follows)

    def _earlier_model_change(self, place: int, one: ComparedCall, other: ComparedCall) -> int | None:
        """Return the first pair with the same change of models, if it is not this one."""
        first = self._models.setdefault((_model_identity(one), _model_identity(other)), place)
        return None if first == place else first

    def _is_volatile(self, one: ComparedCall, other: ComparedCall) -> bool:
        """Whether the answers differ only in volatile values. The words of these are remembered either way."""
        found = volatile_answers(one, other)
        for side, place in ((one, 0), (other, 1)):
            values: list[Json] = [twins[place] for twins in found.volatile] if found else []
            values += [value for _, value in ignored_values(side.call.answer, side.ignore_plan)]
            self._volatile_words[place].update(word_set(values))
            self._all_words[place].update(word_set(values))
        return found is not None and bool(found.volatile) and found.is_all

    def _repeats_volatile(self, requests: Sequence[Difference]) -> bool:
        """Whether these requests differ only in volatile values of earlier answers."""
        removed_words, added_words = _differing_words(requests)
        return (
            bool(removed_words | added_words)
            and removed_words <= self._volatile_words[0]
            and added_words <= self._volatile_words[1]
        )

    def _find_source(self, requests: Sequence[Difference]) -> int | None:
        """Return the root of the earliest pair that explains these differences; None if some words are new."""
        new = [change for change in requests if _change_key(change) not in self._changes]
        removed_words, added_words = _differing_words(new)
        if new and not (
            removed_words | added_words and removed_words <= self._all_words[0] and added_words <= self._all_words[1]
        ):
            return None
        sources = [self._changes[key] for change in requests if (key := _change_key(change)) in self._changes]
        sources += [
            source.root for source in self._sources if removed_words & source.removed or added_words & source.added
        ]
        return min(sources, default=None)

    def _remember(
        self,
        place: int,
        follows: int | None,
        requests: Sequence[Difference],
        sides: tuple[ComparedCall | None, ComparedCall | None],
    ) -> None:
        """Remember the words that differ here, from which later differences may follow."""
        root = place if follows is None else follows
        removed_words, added_words = _differing_words(requests)
        here, there = (word_set(side.call.answer) if side else set[str]() for side in sides)
        only = frozenset(here - there | removed_words), frozenset(there - here | added_words)
        self._sources.append(_Source(place, root, *only, is_one_sided=None in sides))
        self._all_words[0].update(here | removed_words)
        self._all_words[1].update(there | added_words)
        for change in requests:
            self._changes.setdefault(_change_key(change), root)


def _repeat_cause(one: ComparedCall, other: ComparedCall) -> Cause:
    """Return why two calls differ whose requests are the same apart from volatile values."""
    here, there = (
        answer_digest(side.answer_exchange, side.call, side.ignore_plan, has_all_thoughts=True) for side in (one, other)
    )
    if here == there:
        return "volatile"
    if one.call.kind == "model":
        return "answer"
    found = volatile_answers(one, other)
    return "volatile" if found is not None and found.is_all else "tool_answer"


def _cause(requests: Sequence[Difference], others: Sequence[Difference], follows: int | None) -> Cause:
    if not requests:
        return "volatile" if others else "same"
    return "prompt" if follows is None else "follows"


def _model_identity(side: ComparedCall) -> Named:
    return side.call.model_returned, side.call.system_fingerprint


def _request_document(side: ComparedCall | None) -> Json:
    return None if side is None else readable_document(side.key)


def _answer_document(side: ComparedCall | None) -> Json:
    return None if side is None else side.answer_meaning


def _change_key(difference: Difference) -> tuple[bytes, bytes]:
    """Identify a change by its values alone: later requests repeat it, each at another place."""
    return dumps(_value(difference.recorded)), dumps(_value(difference.now))


def _list_differences(one: Json, other: Json) -> tuple[tuple[Difference, ...], int]:
    """Return the differences of two values, up to a limit, and 1 if there are more, else 0."""
    found = list(islice(differences(one, other), _MOST_COUNTED + 1))
    return tuple(found[:_MOST_COUNTED]), len(found) // (_MOST_COUNTED + 1)


def _differing_words(request_differences: Iterable[Difference]) -> tuple[set[str], set[str]]:
    """Return the words that only the first side has, and those that only the other has, compared place by place."""
    removed_words: set[str] = set()
    added_words: set[str] = set()
    for difference in request_differences:
        here, there = (word_set(_value(side)) for side in (difference.recorded, difference.now))
        removed_words |= here - there
        added_words |= there - here
    return removed_words, added_words


def _value(side: Json | AbsentValue) -> Json:
    return None if isinstance(side, AbsentValue) else side


def _volatile_differences(one: ComparedCall, other: ComparedCall) -> Iterable[Difference]:
    """Yield the differences of the requests outside of their keys."""
    here, there = (
        full_document(one.request_exchange.request, one.key),
        full_document(other.request_exchange.request, other.key),
    )
    for pointer in drift_pointers(one.request_exchange.request, one.key, other.request_exchange.request, other.key):
        path = tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])
        if pointer.startswith(_HEADERS_POINTER):
            sides = (_header_values(side.request_exchange.request.headers, path[1]) for side in (one, other))
            yield Difference(path, *sides)
        else:
            yield Difference(path, at(here, pointer), at(there, pointer))


def _header_values(headers: Headers, name: str) -> Json | AbsentValue:
    values = [value for key, value in headers if key.lower() == name]
    return ", ".join(values) if values else ABSENT
