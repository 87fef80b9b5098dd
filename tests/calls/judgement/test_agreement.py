"""Cohen's kappa against published examples."""

import pytest

from calls.judgement.agreement import BadLabels, labelled_pairs, measure_agreement, parse_labels_file
from calls.judgement.verdict import JudgeVerdict

YES: JudgeVerdict = "pass"
NO: JudgeVerdict = "fail"


def table(both: int, only_judge: int, only_label: int, neither: int) -> list[tuple[JudgeVerdict, JudgeVerdict]]:
    return [(YES, YES)] * both + [(YES, NO)] * only_judge + [(NO, YES)] * only_label + [(NO, NO)] * neither


@pytest.mark.parametrize(
    ("counts", "kappa"),
    [
        # Wikipedia, "Cohen's kappa": 50 grant proposals, and the two examples with equal agreement and unequal kappa.
        ((20, 5, 10, 15), 0.4),
        ((45, 15, 25, 15), 0.1304),
        ((25, 35, 5, 35), 0.2593),
        ((10, 0, 0, 10), 1.0),
        ((0, 10, 10, 0), -1.0),
    ],
)
def test_kappa_of_published_tables(counts: tuple[int, int, int, int], kappa: float) -> None:
    found = measure_agreement(table(*counts))
    assert found.kappa is not None
    assert found.low is not None
    assert found.high is not None
    assert found.kappa == pytest.approx(kappa, abs=5e-5)
    assert -1 <= found.low <= found.kappa <= found.high <= 1


def test_the_interval_is_narrower_with_more_labels() -> None:
    few, many = measure_agreement(table(20, 5, 10, 15)), measure_agreement(table(200, 50, 100, 150))
    # sqrt(0.7 * 0.3 / (50 * 0.25)) = 0.1296
    assert few.high == pytest.approx(0.4 + 1.96 * 0.1296, abs=1e-3)
    assert many.high is not None
    assert few.high is not None
    assert many.high < few.high


def test_without_variation_kappa_is_not_defined() -> None:
    assert measure_agreement(table(5, 0, 0, 0)).kappa is None
    assert measure_agreement([]).count == 0


def test_labels_are_read_or_refused_with_their_line() -> None:
    labels = parse_labels_file("run,criterion,verdict\nr,c,pass\nr,d,cannot tell\n")
    assert labels == {("r", "c"): "pass", ("r", "d"): "cannot tell"}
    assert labelled_pairs({("r", "c"): NO, ("x", "c"): NO}, labels) == [(NO, YES)]
    with pytest.raises(BadLabels, match="line 3: 'yes' is not a verdict"):
        parse_labels_file("run,criterion,verdict\nr,c,pass\nr,d,yes\n")
    with pytest.raises(BadLabels, match="the columns verdict are missing"):
        parse_labels_file("run,criterion\n")
