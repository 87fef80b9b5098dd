"""Count distinct answers to the same request, and claim no more than the counts allow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

type Word = Literal["invariant", "varies", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What one request was answered with."""

    subject: str
    load: int
    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Of the tokens answered with, as the server printed them: a float that is read and printed again keeps its bits."""
    claim: str | None = None
    """What `x-batch-invariant` said."""

    @property
    def bits(self) -> tuple[object, ...]:
        """All that can be compared."""
        return self.text, self.tokens, tuple(value.hex() for value in self.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The answers to the same question."""

    name: str
    answers: int
    distinct: int
    texts: int
    bitwise: bool
    """Whether logprobs were compared, or only text."""
    diverges_at: int | None
    """The first token, or without logprobs the first character, at which two answers part."""
    logprob_delta: float
    """The largest difference between logprobs of the same token at the same place, up to where the tokens part."""
    by_load: Mapping[int, int]
    """How many distinct answers were seen up to each load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What came of one server."""

    url: str
    subjects: tuple[Subject, ...]
    failed: tuple[str, ...]
    seconds: float
    claim: str | None

    @property
    def varied(self) -> bool:
        """Whether anything that should have been the same was not."""
        return any(subject.distinct > 1 for subject in self.subjects)


def tally(url: str, given: Sequence[ProbeAnswer], failed: Sequence[str], seconds: float) -> Tally:
    """Count."""
    names = dict.fromkeys(answer.subject for answer in given)
    claims = {answer.claim for answer in given}
    return Tally(
        url=url,
        subjects=tuple(_subject(name, [answer for answer in given if answer.subject == name]) for name in names),
        failed=tuple(failed),
        seconds=seconds,
        claim=claims.pop() if len(claims) == 1 else None,
    )


def _subject(name: str, answers: Sequence[ProbeAnswer]) -> Subject:
    bitwise = all(answer.logprobs for answer in answers)
    sequences = {answer.tokens if bitwise else tuple(answer.text) for answer in answers}
    return Subject(
        name=name,
        answers=len(answers),
        distinct=len({answer.bits for answer in answers}),
        texts=len({answer.text for answer in answers}),
        bitwise=bitwise,
        diverges_at=first_divergence(sequences),
        logprob_delta=max((_delta(answers[0], other) for other in answers), default=0.0),
        by_load={
            load: len({answer.bits for answer in answers if answer.load <= load})
            for load in sorted({answer.load for answer in answers})
        },
    )


def first_divergence(sequences: Iterable[Sequence[str]]) -> int | None:
    """The first place at which not all have the same; None where there is none."""
    places = zip_longest(*sequences)
    return next((at for at, place in enumerate(places) if len(set(place)) > 1), None)


def _delta(one: ProbeAnswer, other: ProbeAnswer) -> float:
    until = first_divergence((one.tokens, other.tokens))
    pairs = list(zip(one.logprobs, other.logprobs, strict=False))[:until]
    return max((abs(a - b) for a, b in pairs), default=0.0)


def verdict(found: Tally, control: Tally | None) -> tuple[Word, str]:
    """What may be said, and why. That nothing varied means something only where the same questions made another vary."""
    if found.varied:
        return "varies", "the same request was answered in more than one way"
    if found.failed:
        return "inconclusive", f"{len(found.failed)} requests failed, the first with: {found.failed[0]}"
    if not found.subjects or any(subject.answers < 2 for subject in found.subjects):
        return "inconclusive", "too little was asked to differ"
    if control is None:
        return "inconclusive", "nothing varied; name a server of the same model that does vary with --control URL"
    if not control.varied:
        return "inconclusive", "nothing varied at the control either, so these questions could not have told"
    if not all(subject.bitwise for subject in found.subjects):
        return "inconclusive", "the server gave no logprobs, and the same text may come of different numbers"
    return "invariant", "one answer to each question, to the last bit, where the control gave more"
