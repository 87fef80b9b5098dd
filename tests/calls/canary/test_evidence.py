"""The evidence of a canary never promises more than it keeps, and grows where something changed."""

from math import comb, exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calls.canary.evidence import (
    Counts,
    calls_to_clear,
    calls_to_find,
    evidence_of_any_change,
    evidence_of_change,
    evidence_of_no_change,
    log_mean,
    log_sum,
)

rates = st.floats(0.0, 1.0)


def probability(differing: float, count: int, rate: float) -> float:
    ways: float = comb(count, int(differing))
    return ways * rate ** int(differing) * (1 - rate) ** (count - int(differing))


def all_counts(before: int, since: int) -> list[Counts]:
    return [
        Counts(differing_before=one, before=before, differing_since=other, since=since)
        for one in range(before + 1)
        for other in range(since + 1)
    ]


def weighted_evidence(counts: Counts, rate_before: float, rate_since: float, evidence: float) -> float:
    happens = probability(counts.differing_before, counts.before, rate_before)
    happens *= probability(counts.differing_since, counts.since, rate_since)
    return happens * exp(evidence) if happens else 0.0


@given(before=st.integers(1, 12), since=st.integers(1, 12), rate=rates)
def test_evidence_of_a_change_is_at_most_1_on_average_where_nothing_changed(
    before: int, since: int, rate: float
) -> None:
    total = sum(weighted_evidence(one, rate, rate, evidence_of_change(one)) for one in all_counts(before, since))
    assert total <= 1 + 1e-9


@given(before=st.integers(1, 10), since=st.integers(1, 10), rate=rates, near=rates, far=rates)
def test_evidence_of_a_change_of_distances_is_at_most_1_on_average_too(
    before: int, since: int, rate: float, near: float, far: float
) -> None:
    """Each answer has one of two distances, drawn as one of two values was."""
    total = 0.0
    for one in all_counts(before, since):
        distances = Counts(
            differing_before=one.differing_before * far + (before - one.differing_before) * near,
            before=before,
            differing_since=one.differing_since * far + (since - one.differing_since) * near,
            since=since,
        )
        total += weighted_evidence(one, rate, rate, evidence_of_change(distances))
    assert total <= 1 + 1e-9


@given(before=st.integers(1, 10), since=st.integers(1, 10), rate=rates, rise=rates, effect=st.floats(0.01, 0.9))
def test_evidence_of_no_change_is_at_most_1_on_average_where_the_rate_rose(
    before: int, since: int, rate: float, rise: float, effect: float
) -> None:
    low = rate * (1 - effect)
    high = min(1.0, low + effect + rise * (1 - low - effect))
    total = sum(
        weighted_evidence(one, low, high, evidence_of_no_change(one, effect)) for one in all_counts(before, since)
    )
    assert total <= 1 + 1e-9


@given(rate=rates, first=st.integers(1, 5), shot=st.integers(1, 5))
@settings(max_examples=30)
def test_evidence_over_several_moments_is_at_most_1_on_average(rate: float, first: int, shot: int) -> None:
    total = 0.0
    for a in range(first + 1):
        for b in range(shot + 1):
            for c in range(shot + 1):
                splits = [
                    (-log(2), Counts(differing_before=a, before=first, differing_since=b + c, since=2 * shot)),
                    (-log(6), Counts(differing_before=a + b, before=first + shot, differing_since=c, since=shot)),
                ]
                happens = probability(a, first, rate) * probability(b, shot, rate) * probability(c, shot, rate)
                total += happens * exp(evidence_of_any_change(splits)) if happens else 0.0
    assert total <= 1 + 1e-9


def test_evidence_grows_with_a_change_and_not_without() -> None:
    steady = [Counts(differing_before=4, before=200, differing_since=n // 50, since=n) for n in (100, 200, 400)]
    changed = [Counts(differing_before=4, before=200, differing_since=n // 5, since=n) for n in (20, 40, 80)]
    assert all(evidence_of_change(one) < 0 for one in steady)
    found = [evidence_of_change(one) for one in changed]
    assert found == sorted(found)
    assert found[-1] > log(20)
    cleared = [evidence_of_no_change(one, 0.1) for one in steady]
    assert cleared == sorted(cleared)
    assert cleared[-1] > log(20)
    assert evidence_of_no_change(changed[-1], 0.1) < 0


@pytest.mark.parametrize("empty", [Counts(), Counts(before=5), Counts(since=5)])
def test_nothing_is_known_without_answers(empty: Counts) -> None:
    assert evidence_of_change(empty) == evidence_of_no_change(empty, 0.1) == 0.0


def test_plans_say_how_many_calls_are_needed() -> None:
    baseline = Counts(before=200)
    needed = calls_to_find(baseline, 0.2, log(20))
    assert needed is not None
    assert needed < 20
    assert calls_to_find(baseline, 0.0, log(20)) is None
    assert calls_to_clear(baseline, 0.1, log(20)) == 44
    assert calls_to_clear(Counts(before=20, differing_before=10), 0.01, log(20), most=1000) is None


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=5))
def test_sums_and_means_of_logarithms(values: list[float]) -> None:
    assert log_sum(values) == pytest.approx(log(sum(map(exp, values))))
    assert log_mean(values) == pytest.approx(log(sum(map(exp, values)) / len(values)))
