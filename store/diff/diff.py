"""Compare two runs: where they differ, why, and what follows from it (`GET /v1/runs/{a}/diff/{b}`).

Every exchange of both runs is read once and kept as a gist, and the gists are aligned. Only the pairs that differ are then
examined closely, for which their exchanges are loaded again. So runs of any length fit into memory, and equal calls cost
little.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from calls.comparison.alignment import AlignedPair, align
from calls.keys.divergence import Difference
from calls.model import Exchange
from store.diff.cause import ROOTS, Cause, ComparedCall, PairFindings, examine_call, gist_cause
from store.diff.inquiry import Inquiry
from store.diff.steps import (
    Gist,
    Step,
    StepReader,
    build_steps,
    make_gist,
    side_shape,
    step_shape,
    step_totals_delta,
    totals_delta,
)
from store.diff.word_diff import diff_words
from store.query.rest_shapes import Shape

MOST_EXAMINED: Final = 500
"""The number of pairs that are examined closely. If two runs have nothing in common, more pairs would show nothing new."""

_BATCH: Final = 32
"""Pairs whose exchanges are loaded together."""

_EQUAL: Final = ("same", "volatile")

type Evidence = Mapping[str, Exchange]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    run: str
    """The id of the run, or the name of its file."""

    steps: Sequence[Step]


def make_side(run: str, gists: Iterable[Gist]) -> Side:
    """Make a side from the gists of a run's exchanges, given in step order."""
    return Side(run=run, steps=build_steps(gists))


@dataclass(slots=True)
class Diff:
    """The comparison of two runs. Examine the pairs in `batches_to_examine`, then call `shape`."""

    one: Side
    other: Side
    most_examined: int = MOST_EXAMINED
    _pairs: list[AlignedPair] = field(init=False)
    _found: dict[int, PairFindings] = field(init=False, default_factory=dict)
    _inquiry: Inquiry = field(init=False, default_factory=Inquiry)
    _end_of_one_run: int = field(init=False)
    """The place from which on only the longer run has calls. If both have calls of their own there, none ended early."""

    def __post_init__(self) -> None:
        self._pairs = align([step.item for step in self.one.steps], [step.item for step in self.other.steps])
        both = (place for place, pair in enumerate(self._pairs) if pair.one is not None and pair.other is not None)
        end = max(both, default=-1) + 1
        is_one_run = len({pair.one is None for pair in self._pairs[end:]}) == 1
        self._end_of_one_run = end if is_one_run else len(self._pairs)

    def pairs(self) -> Iterator[tuple[int, Step | None, Step | None, Cause | None]]:
        """Yield the place of each pair, both calls, and the cause as far as it is known."""
        for place in range(len(self._pairs)):
            yield place, *self._steps(place), self._cause(place)

    def batches_to_examine(self) -> Iterator[list[int]]:
        """Yield the places of the pairs to examine, in order, some at a time."""
        differing = [place for place in range(len(self._pairs)) if self._gist_cause(place) != "same"][
            : self.most_examined
        ]
        for start in range(0, len(differing), _BATCH):
            yield differing[start : start + _BATCH]

    def exchange_ids(self, places: Iterable[int]) -> tuple[list[str], list[str]]:
        """Return the ids of the exchanges to load of each run, to examine these pairs."""
        pairs = [self._steps(place) for place in places]
        return [name for one, _ in pairs for name in _end_exchanges(one)], [
            name for _, other in pairs for name in _end_exchanges(other)
        ]

    def examine(self, places: Iterable[int], evidence: tuple[Evidence, Evidence], reader: StepReader) -> None:
        """Examine these pairs. Those whose exchanges were deleted meanwhile are skipped."""
        for place in places:
            sides = list(zip(self._steps(place), evidence, strict=True))
            if all(name in exchanges for step, exchanges in sides for name in _end_exchanges(step)):
                one, other = (_examine_step(step, exchanges, reader) for step, exchanges in sides)
                self._found[place] = self._inquiry.explain_pair(place, self._gist_cause(place), one, other)

    def shape(self) -> Shape:
        """Return the comparison as the API shows it (docs/compare.md)."""
        causes = [self._cause(place) for place in range(len(self._pairs))]
        first = next((place for place, cause in enumerate(causes) if cause != "same"), len(causes))
        sums = side_shape(self.one.run, self.one.steps), side_shape(self.other.run, self.other.steps)
        return {
            "a": sums[0],
            "b": sums[1],
            "delta": totals_delta(*sums),
            "same": all(cause in _EQUAL for cause in causes),
            **self._verdicts(causes),
            "counts": dict(Counter(cause or "unexamined" for cause in causes)),
            "equal_prefix": first,
            "effect": None,
            "pairs": [self._pair_shape(place, causes[place]) for place in range(first, len(causes))],
        }

    def _steps(self, place: int) -> tuple[Step | None, Step | None]:
        pair = self._pairs[place]
        one = None if pair.one is None else self.one.steps[pair.one]
        return one, None if pair.other is None else self.other.steps[pair.other]

    def _gist_cause(self, place: int) -> Cause | None:
        return gist_cause(*self._steps(place), moved=self._pairs[place].is_moved)

    def _cause(self, place: int) -> Cause | None:
        found = self._found.get(place)
        return found.cause if found else self._gist_cause(place)

    def _verdicts(self, causes: Sequence[Cause | None]) -> Shape:
        """Return the first difference that follows from no other (`first`), and the first from which others follow (`cause`).

        Without any that others follow from, both are the same.
        """
        leads = Counter(found.follows for found in self._found.values() if found.follows is not None)
        roots = [place for place, cause in enumerate(causes) if cause in ROOTS and self._follows(place) is None]
        first = next(iter(roots), None)
        leading = next((root for root in roots if leads[root]), first)
        verdicts = {name: self._verdict(at, causes, leads) for name, at in (("first", first), ("cause", leading))}
        return {**verdicts, "roots": len(roots)}

    def _verdict(self, place: int | None, causes: Sequence[Cause | None], leads: Mapping[int, int]) -> Shape | None:
        if place is None:
            return None
        words = f"{self.where(place)}: {self._why(place, causes[place])}"
        return {"cause": causes[place], **self._numbers(place), "leads_to": leads[place], "words": words}

    def _follows(self, place: int) -> int | None:
        found = self._found.get(place)
        return found.follows if found else None

    def _numbers(self, place: int) -> Shape:
        one, other = self._steps(place)
        return {"a_step": one.number if one else None, "b_step": other.number if other else None}

    def where(self, place: int) -> str:
        """Describe the place of a pair by its step and address."""
        numbers = [number for number in self._numbers(place).values() if number is not None]
        step = next(step for step in self._steps(place) if step)
        step_text = str(numbers[0]) if len(set(numbers)) == 1 else f"{numbers[0]} (of B: {numbers[1]})"
        return f"step {step_text} ({step.request.method} {step.request.host}{step.request.path or ''})"

    def _why(self, place: int, cause: Cause | None) -> str:
        one, other = self._steps(place)
        edited = [side for side, step in (("A", one), ("B", other)) if step and step.answer.is_edited]
        match cause:
            case "model" | "failure" | "answer" | "tool_answer" if edited:
                return f"the request is the same, and an override edited its answer in {' and '.join(edited)}"
            case "model" if one and other:
                return f"a different model answered the same request: {_model(one)} in A, {_model(other)} in B"
            case "failure" if one and other:
                return f"the same request ended differently: {_ending(one)} in A, {_ending(other)} in B"
            case "missing" | "extra" if place >= self._end_of_one_run:
                return f"{WORDS[cause]}, {'B' if cause == 'missing' else 'A'} ends before it"
            case None:
                return "the calls differ, and were not examined"
            case _:
                return WORDS[cause]

    def _pair_shape(self, place: int, cause: Cause | None) -> Shape:
        one, other = self._steps(place)
        found = self._found.get(place, PairFindings(cause=cause))
        return {
            "cause": cause,
            "words": self._why(place, cause),
            "follows": None if found.follows is None else self._numbers(found.follows),
            "moved": self._pairs[place].is_moved,
            "a": step_shape(one) if one else None,
            "b": step_shape(other) if other else None,
            "delta": step_totals_delta(one, other) if one and other else None,
            "request": [_difference(each) for each in found.requests],
            "volatile": [_difference(each) for each in found.volatile],
            "answer": [_difference(each) for each in found.answers],
            "more": found.more,
        }


WORDS: Final[Mapping[Cause, str]] = {
    "same": "the request and the answer are the same",
    "volatile": "only volatile values differ, such as times and ids",
    "order": "the call is the same, in a different order",
    "model": "a different model answered the same request",
    "tool_answer": "a tool or service answered the same request differently",
    "answer": "the model answered the same request differently",
    "failure": "the same request ended differently",
    "prompt": "the request differs",
    "follows": "the request differs because of an earlier answer",
    "missing": "only A has this call",
    "extra": "only B has this call",
}


def compare_runs(
    one: tuple[str, Sequence[Exchange]],
    other: tuple[str, Sequence[Exchange]],
    reader: StepReader,
    most_examined: int = MOST_EXAMINED,
) -> Shape:
    """Compare two runs in memory, each with its name, and return the comparison as the API shows it."""
    return build_diff(one, other, reader, most_examined).shape()


def build_diff(
    one: tuple[str, Sequence[Exchange]],
    other: tuple[str, Sequence[Exchange]],
    reader: StepReader,
    most_examined: int = MOST_EXAMINED,
) -> Diff:
    """Compare two runs in memory, each with its name."""
    sides = [make_side(name, (make_gist(each, reader) for each in exchanges)) for name, exchanges in (one, other)]
    diff = Diff(sides[0], sides[1], most_examined)
    here, there = ({each.id: each for each in exchanges} for _, exchanges in (one, other))
    for places in diff.batches_to_examine():
        diff.examine(places, (here, there), reader)
    return diff


def _end_exchanges(step: Step | None) -> list[str]:
    """Return the ids of the exchanges with a call's request and answer."""
    return [] if step is None else list(dict.fromkeys((step.ids[0], step.ids[-1])))


def _examine_step(step: Step | None, evidence: Evidence, reader: StepReader) -> ComparedCall | None:
    return None if step is None else examine_call(evidence[step.ids[0]], evidence[step.ids[-1]], reader)


def _model(step: Step) -> str:
    call = step.answer.call
    name = call.model_returned or call.model_requested or "an unnamed model"
    return f"{name} ({call.system_fingerprint})" if call.system_fingerprint else name


def _ending(step: Step) -> str:
    part = step.answer.attempt
    status = "without a status" if part.status is None else f"with {part.status}"
    return status if part.complete else f"{status}, incomplete ({part.outcome})"


def _difference(difference: Difference) -> Shape:
    """Return the shape of a difference. Texts are also compared word by word."""
    values = difference.as_json()
    shape: Shape = {"pointer": values["pointer"], "a": values["recorded"], "b": values["now"]}
    if difference.only_side:
        shape["only"] = {"recorded": "a", "now": "b"}[difference.only_side]
    if isinstance(difference.recorded, str) and isinstance(difference.now, str):
        shape["words"] = [[piece.fate, piece.text] for piece in diff_words(difference.recorded, difference.now)]
    return shape
