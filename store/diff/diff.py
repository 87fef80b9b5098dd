"""Compare two runs: where they differ, why, and what follows from it (`GET /v1/runs/{a}/diff/{b}`).

First every exchange of both runs is read once and kept as a gist; the gists are aligned; then only the pairs that differ
are looked at closely, for which their evidence is asked for again. So two runs of any length fit, and what is equal
costs little.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from calls.comparison.alignment import Pair, align
from calls.keys.divergence import Difference
from calls.model import Exchange
from store.diff.cause import ROOTS, Cause, ComparedCall, PairFindings, gist_cause, seen
from store.diff.inquiry import Inquiry
from store.diff.steps import Gist, Step, StepReader, delta, gist, side_shape, step_delta, step_shape, steps
from store.diff.words import pieces
from store.query.rest_shapes import Shape

LOOKED_AT: Final = 500
"""Pairs that are looked at closely. Of two runs that have nothing in common more would tell nothing."""

_TOGETHER: Final = 32
"""Pairs whose evidence is asked for at once."""

_EQUAL: Final = ("same", "volatile")

type Evidence = Mapping[str, Exchange]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    run: str
    """Its id, or how the file is called that it is read from."""

    steps: Sequence[Step]


def side(run: str, gists: Iterable[Gist]) -> Side:
    """A run, of the gists of its exchanges in step order."""
    return Side(run=run, steps=steps(gists))


@dataclass(slots=True)
class Diff:
    """The comparison of two runs, in the making: give it what it `wants`, then ask for its `shape`."""

    one: Side
    other: Side
    looked_at: int = LOOKED_AT
    _pairs: list[Pair] = field(init=False)
    _found: dict[int, PairFindings] = field(init=False, default_factory=dict)
    _inquiry: Inquiry = field(init=False, default_factory=Inquiry)

    def __post_init__(self) -> None:
        self._pairs = align([step.item for step in self.one.steps], [step.item for step in self.other.steps])

    def pairs(self) -> Iterator[tuple[int, Step | None, Step | None, Cause | None]]:
        """Place, both calls, and the cause as far as it is known."""
        for place in range(len(self._pairs)):
            yield place, *self._steps(place), self._cause(place)

    def wants(self) -> Iterator[list[int]]:
        """The places of the pairs to look at closely, in order, some at a time."""
        differing = [place for place in range(len(self._pairs)) if self._known(place) != "same"][: self.looked_at]
        for start in range(0, len(differing), _TOGETHER):
            yield differing[start : start + _TOGETHER]

    def evidence(self, places: Iterable[int]) -> tuple[list[str], list[str]]:
        """The exchanges of either run that are looked at for these pairs."""
        pairs = [self._steps(place) for place in places]
        return [name for one, _ in pairs for name in _ends(one)], [name for _, other in pairs for name in _ends(other)]

    def look(self, places: Iterable[int], evidence: tuple[Evidence, Evidence], reading: StepReader) -> None:
        """Look at these pairs closely. What was deleted meanwhile is left as it is."""
        for place in places:
            sides = list(zip(self._steps(place), evidence, strict=True))
            if all(name in held for step, held in sides for name in _ends(step)):
                one, other = (_seen(step, held, reading) for step, held in sides)
                self._found[place] = self._inquiry.look(place, self._known(place), one, other)

    def shape(self) -> Shape:
        """All of it, for people and programs (docs/compare.md)."""
        causes = [self._cause(place) for place in range(len(self._pairs))]
        first = next((place for place, cause in enumerate(causes) if cause != "same"), len(causes))
        sums = side_shape(self.one.run, self.one.steps), side_shape(self.other.run, self.other.steps)
        return {
            "a": sums[0],
            "b": sums[1],
            "delta": delta(*sums),
            "same": all(cause in _EQUAL for cause in causes),
            **self._verdicts(causes),
            "counts": dict(Counter(cause or "unexamined" for cause in causes)),
            "equal_prefix": first,
            "pairs": [self._pair_shape(place, causes[place]) for place in range(first, len(causes))],
        }

    def _steps(self, place: int) -> tuple[Step | None, Step | None]:
        pair = self._pairs[place]
        one = None if pair.one is None else self.one.steps[pair.one]
        return one, None if pair.other is None else self.other.steps[pair.other]

    def _known(self, place: int) -> Cause | None:
        return gist_cause(*self._steps(place), moved=self._pairs[place].moved)

    def _cause(self, place: int) -> Cause | None:
        found = self._found.get(place)
        return found.cause if found else self._known(place)

    def _verdicts(self, causes: Sequence[Cause | None]) -> Shape:
        """The first difference of its own, and the first from which others follow: where none does, the two are one."""
        leads = Counter(found.follows for found in self._found.values() if found.follows is not None)
        roots = [place for place, cause in enumerate(causes) if cause in ROOTS and self._follows(place) is None]
        first = next(iter(roots), None)
        leading = next((root for root in roots if leads[root]), first)
        told = {name: self._verdict(at, causes, leads) for name, at in (("first", first), ("cause", leading))}
        return {**told, "roots": len(roots)}

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
        """A pair by its step and address, in words."""
        numbers = [number for number in self._numbers(place).values() if number is not None]
        step = next(step for step in self._steps(place) if step)
        named = str(numbers[0]) if len(set(numbers)) == 1 else f"{numbers[0]} (of B: {numbers[1]})"
        return f"step {named} ({step.asked.method} {step.asked.host}{step.asked.path or ''})"

    def _why(self, place: int, cause: Cause | None) -> str:
        one, other = self._steps(place)
        match cause:
            case "model" if one and other:
                return f"the same request was answered by another model, {_model(one)} and then {_model(other)}"
            case "failure" if one and other:
                return f"the same request ended otherwise, {_ending(one)} and then {_ending(other)}"
            case None:
                return "it differs, and was not looked at"
            case _:
                return WORDS[cause]

    def _pair_shape(self, place: int, cause: Cause | None) -> Shape:
        one, other = self._steps(place)
        found = self._found.get(place, PairFindings(cause=cause))
        return {
            "cause": cause,
            "words": self._why(place, cause),
            "follows": None if found.follows is None else self._numbers(found.follows),
            "moved": self._pairs[place].moved,
            "a": step_shape(one) if one else None,
            "b": step_shape(other) if other else None,
            "delta": step_delta(one, other) if one and other else None,
            "request": [_difference(each) for each in found.requests],
            "volatile": [_difference(each) for each in found.volatile],
            "answer": [_difference(each) for each in found.answers],
            "more": found.more,
        }


WORDS: Final[Mapping[Cause, str]] = {
    "same": "the same request and the same answer",
    "volatile": "they differ only in what is made anew each time",
    "order": "the same call, in another order",
    "model": "the same request was answered by another model",
    "tool_answer": "the same request was answered otherwise by what is no model",
    "answer": "the model answered the same request otherwise",
    "failure": "the same request ended otherwise",
    "prompt": "the request is another one",
    "follows": "the request is another one because of what was answered before",
    "missing": "only A has this call",
    "extra": "only B has this call",
}


def compare(
    one: tuple[str, Sequence[Exchange]],
    other: tuple[str, Sequence[Exchange]],
    reading: StepReader,
    looked_at: int = LOOKED_AT,
) -> Shape:
    """Compare two runs that are in memory, each with its name."""
    return compared(one, other, reading, looked_at).shape()


def compared(
    one: tuple[str, Sequence[Exchange]],
    other: tuple[str, Sequence[Exchange]],
    reading: StepReader,
    looked_at: int = LOOKED_AT,
) -> Diff:
    """The comparison of two runs that are in memory."""
    sides = [side(name, (gist(each, reading) for each in exchanges)) for name, exchanges in (one, other)]
    diff = Diff(sides[0], sides[1], looked_at)
    here, there = ({each.id: each for each in exchanges} for _, exchanges in (one, other))
    for places in diff.wants():
        diff.look(places, (here, there), reading)
    return diff


def _ends(step: Step | None) -> list[str]:
    """The exchanges in which a call was asked and answered."""
    return [] if step is None else list(dict.fromkeys((step.ids[0], step.ids[-1])))


def _seen(step: Step | None, evidence: Evidence, reading: StepReader) -> ComparedCall | None:
    return None if step is None else seen(evidence[step.ids[0]], evidence[step.ids[-1]], reading)


def _model(step: Step) -> str:
    call = step.told.call
    named = call.model_returned or call.model_requested or "one without a name"
    return f"{named} ({call.system_fingerprint})" if call.system_fingerprint else named


def _ending(step: Step) -> str:
    part = step.told.part
    status = "without a status" if part.status is None else f"with {part.status}"
    return status if part.complete else f"{status}, not whole ({part.outcome})"


def _difference(found: Difference) -> Shape:
    """A place at which the two sides part. Texts also come word by word."""
    told = found.told()
    shape: Shape = {"pointer": told["pointer"], "a": told["recorded"], "b": told["now"]}
    if found.only:
        shape["only"] = {"recorded": "a", "now": "b"}[found.only]
    if isinstance(found.recorded, str) and isinstance(found.now, str):
        shape["words"] = [[piece.fate, piece.text] for piece in pieces(found.recorded, found.now)]
    return shape
