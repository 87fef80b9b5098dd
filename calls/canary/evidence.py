"""Measure how much a series of answers says for a change of the rate at which they differ, or against one.

An answer either differs from the reference answers or does not. The answers before, the baseline, have an unknown rate; the
answers since then have the same one unless something changed. Both measures are e-processes: if what they speak against is true, the
probability that one ever reaches 1/a, however often one looks, is at most a (Ville's inequality). They are universal (Wasserman,
Ramdas, Balakrishnan 2020; Ramdas, Ruf, Larsson, Koolen 2022): the likelihood of the answers under a mixture of alternatives, over the
largest likelihood that the hypothesis can give to them. Nothing is estimated beforehand, so a short baseline makes them weak, and
never wrong. All values are natural logarithms.

An answer may also differ by a distance from 0 to 1, whose mean is then what changes or does not: the same formulas, with sums of distances
for counts. They stay e-processes. For a distance x with the mean m, q^x (1-q)^(1-x) / (m^x (1-m)^(1-x)) is convex in x, so its expectation
is at most that of a distance which is 0 or 1 with the same mean, which is 1. Products and mixtures of such ratios are therefore nonnegative
supermartingales, and the largest likelihood of the hypothesis is at least that of m. Distances that vary less than coins only make the
evidence weaker than it could be.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, lgamma, log
from typing import Final

_PRIORS: Final = ((0.5, 0.5), (0.1, 1.0), (1.0, 0.1))
"""What a rate may be: anything, near 0, near 1."""

_STEPS: Final = 60
"""Halvings of an interval in which an extreme value is sought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many answers differed, before and since; of distances, their sums."""

    differing_before: float = 0
    before: int = 0
    differing_since: float = 0
    since: int = 0

    @property
    def rate_before(self) -> float:
        """The rate of the baseline."""
        return self.differing_before / self.before if self.before else 0.0

    @property
    def rate_since(self) -> float:
        """The rate since."""
        return self.differing_since / self.since if self.since else 0.0


type Split = tuple[float, Counts]
"""The logarithm of a weight, and the counts before and since a moment at which something may have changed."""


def evidence_of_change(counts: Counts) -> float:
    """The evidence that the rate is not the same since the baseline, in either direction."""
    return evidence_of_any_change([(0.0, counts)])


def evidence_of_any_change(splits: Sequence[Split]) -> float:
    """The evidence that the rate changed at one of these moments of one series. The weights add up to 1 at most."""
    likelihoods = [
        weight + _any_rate_likelihood(counts.differing_before, counts.before) + _new_rate_likelihood(counts)
        for weight, counts in splits
        if counts.before and counts.since
    ]
    return log_sum(likelihoods) - _same_rate_likelihood(splits[0][1]) if likelihoods else 0.0


def evidence_of_no_change(counts: Counts, effect: float) -> float:
    """The evidence that the rate has not risen by the effect or more."""
    if not counts.before or not counts.since:
        return 0.0
    differing, count = counts.differing_before + counts.differing_since, counts.before + counts.since
    return _any_rate_likelihood(differing, count) - _risen_likelihood(counts, effect)


def calls_to_find(baseline: Counts, rate: float, bar: float, *, most: int = 100_000) -> int | None:
    """The number of calls since the baseline after which a new rate is expected to reach the bar; None if it takes too many."""
    return _first_number(lambda since: evidence_of_change(_expected_counts(baseline, rate, since)) >= bar, most)


def calls_to_clear(baseline: Counts, effect: float, bar: float, *, most: int = 100_000) -> int | None:
    """The number of calls after which no change is expected to reach the bar, if there is none; None if it takes too many."""
    rate = baseline.rate_before
    return _first_number(
        lambda since: evidence_of_no_change(_expected_counts(baseline, rate, since), effect) >= bar, most
    )


def log_sum(values: Sequence[float]) -> float:
    """The logarithm of the sum of what these are logarithms of."""
    largest = max(values)
    return largest if largest == -inf else largest + log(sum(exp(one - largest) for one in values))


def log_mean(values: Sequence[float]) -> float:
    """The logarithm of the mean of what these are logarithms of."""
    return log_sum(values) - log(len(values))


def _any_rate_likelihood(differing: float, count: int) -> float:
    return log_mean([_mixture(differing, count, *prior) for prior in _PRIORS])


def _new_rate_likelihood(counts: Counts) -> float:
    return _mixture(counts.differing_since, counts.since, 0.5, 0.5)


def _expected_counts(baseline: Counts, rate: float, since: int) -> Counts:
    return Counts(
        differing_before=baseline.differing_before,
        before=baseline.before,
        differing_since=round(rate * since),
        since=since,
    )


def _first_number(is_enough: Callable[[int], bool], most: int) -> int | None:
    """The first number that is enough, where every larger one is, nearly."""
    high = 1
    while not is_enough(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _mixture(differing: float, count: int, a: float, b: float) -> float:
    """The likelihood of a series under a rate from Beta(a, b)."""
    return (
        lgamma(differing + a)
        + lgamma(max(0.0, count - differing) + b)
        - lgamma(count + a + b)
        - lgamma(a)
        - lgamma(b)
        + lgamma(a + b)
    )


def _likelihood(differing: float, count: int, rate: float) -> float:
    """The likelihood of a series under a rate."""
    same = max(0.0, count - differing)  # a sum of distances may be rounded up
    if (differing and rate <= 0.0) or (same and rate >= 1.0):
        return -inf
    return (differing * log(rate) if differing else 0.0) + (same * log(1.0 - rate) if same else 0.0)


def _same_rate_likelihood(counts: Counts) -> float:
    differing, count = counts.differing_before + counts.differing_since, counts.before + counts.since
    return _likelihood(differing, count, min(1.0, differing / count))


def _risen_likelihood(counts: Counts, effect: float) -> float:
    """The largest likelihood of rates that have risen by the effect or more."""
    if counts.rate_since - counts.rate_before >= effect:
        return _likelihood(counts.differing_before, counts.before, counts.rate_before) + _likelihood(
            counts.differing_since, counts.since, counts.rate_since
        )
    # The likelihood is concave, so its largest value is at the edge.
    return _shifted_likelihood(counts, effect)


def _shifted_likelihood(counts: Counts, rise: float) -> float:
    """The largest likelihood of rates with this difference. It is concave in the rate: search by thirds."""
    low, high = max(0.0, -rise), min(1.0, 1.0 - rise)
    if low > high:
        return -inf

    def at(rate: float) -> float:
        return _likelihood(counts.differing_before, counts.before, rate) + _likelihood(
            counts.differing_since, counts.since, min(1.0, max(0.0, rate + rise))
        )

    for _ in range(_STEPS):
        third = (high - low) / 3
        if at(low + third) < at(high - third):
            low += third
        else:
            high -= third
    return max(at(low), at((low + high) / 2), at(high))
