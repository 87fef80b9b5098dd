"""Count distinct answers to the same request, and draw the verdict that the counts allow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

type Word = Literal["invariant", "varies", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """The answer to one request."""

    subject: str
    load: int
    text: str
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    """The logprobs of the answer's tokens. Parsing the printed numbers keeps their bits."""
    claim: str | None = None
    """The value of the header `x-batch-invariant`."""

    @property
    def bits(self) -> tuple[object, ...]:
        """Everything of the answer that is compared."""
        return self.text, self.tokens, tuple(value.hex() for value in self.logprobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The counts of the answers to the same request."""

    name: str
    answers: int
    distinct: int
    texts: int
    bitwise: bool
    """Whether logprobs were compared; False: only texts."""
    diverges_at: int | None
    """The first token, or without logprobs the first character, at which two answers differ."""
    logprob_delta: float
    """The largest difference between logprobs at the same position, up to where the tokens differ."""
    by_load: Mapping[int, int]
    """The number of distinct answers up to each load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The result of probing one server."""

    url: str
    subjects: tuple[Subject, ...]
    failed: tuple[str, ...]
    seconds: float
    claim: str | None

    @property
    def has_varied(self) -> bool:
        """Whether any request got more than one answer."""
        return any(subject.distinct > 1 for subject in self.subjects)


def count_answers(url: str, answers: Sequence[ProbeAnswer], failed: Sequence[str], seconds: float) -> Tally:
    """Count the distinct answers of each subject."""
    names = dict.fromkeys(answer.subject for answer in answers)
    claims = {answer.claim for answer in answers}
    return Tally(
        url=url,
        subjects=tuple(
            _count_subject(name, [answer for answer in answers if answer.subject == name]) for name in names
        ),
        failed=tuple(failed),
        seconds=seconds,
        claim=claims.pop() if len(claims) == 1 else None,
    )


def _count_subject(name: str, answers: Sequence[ProbeAnswer]) -> Subject:
    bitwise = all(answer.logprobs for answer in answers)
    sequences = {answer.tokens if bitwise else tuple(answer.text) for answer in answers}
    return Subject(
        name=name,
        answers=len(answers),
        distinct=len({answer.bits for answer in answers}),
        texts=len({answer.text for answer in answers}),
        bitwise=bitwise,
        diverges_at=first_divergence(sequences),
        logprob_delta=max((_logprob_delta(answers[0], other) for other in answers), default=0.0),
        by_load={
            load: len({answer.bits for answer in answers if answer.load <= load})
            for load in sorted({answer.load for answer in answers})
        },
    )


def first_divergence(sequences: Iterable[Sequence[str]]) -> int | None:
    """Return the first index at which the sequences differ; None if they do not."""
    places = zip_longest(*sequences)
    return next((at for at, place in enumerate(places) if len(set(place)) > 1), None)


def _logprob_delta(one: ProbeAnswer, other: ProbeAnswer) -> float:
    until = first_divergence((one.tokens, other.tokens))
    pairs = list(zip(one.logprobs, other.logprobs, strict=False))[:until]
    return max((abs(a - b) for a, b in pairs), default=0.0)


def probe_verdict(tally: Tally, control: Tally | None) -> tuple[Word, str]:
    """Return the verdict and its reason. "invariant" needs a control server that varied under the same requests."""
    if tally.has_varied:
        return "varies", "the same request was answered in more than one way"
    if tally.failed:
        return "inconclusive", f"{len(tally.failed)} requests failed, the first with: {tally.failed[0]}"
    if not tally.subjects or any(subject.answers < 2 for subject in tally.subjects):
        return "inconclusive", "too few requests were sent to find a difference"
    if control is None:
        return "inconclusive", "nothing varied: name a server of the same model that does vary with --control URL"
    if not control.has_varied:
        return "inconclusive", "nothing varied at the control either, so these requests cannot show a difference"
    if not all(subject.bitwise for subject in tally.subjects):
        return "inconclusive", "the server returned no logprobs, and different numbers may give the same text"
    return "invariant", "each request got one answer, the same to the last bit, where the control gave more"
