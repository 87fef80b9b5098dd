"""How far a judge agrees with human labels: Cohen's kappa, and its interval.

Cohen, "A coefficient of agreement for nominal scales" (1960). The interval is the usual large-sample one, from the standard error of
that paper; with few labels it is wide, and says so.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from calls.judgement.verdict import JudgeVerdict

_NINETY_FIVE_PERCENT: Final = 1.959964
_VERDICTS: Final = ("pass", "fail", "cannot tell")


class BadLabels(ValueError):
    """A file of labels cannot be read; the message has the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The agreement of judge and labels."""

    count: int
    agreeing: int
    kappa: float | None
    """None if both always say the same single thing, or nothing was labelled: then chance explains all."""

    low: float | None
    high: float | None


def parse_labels_file(text: str) -> dict[tuple[str, str], JudgeVerdict]:
    """Parse CSV with the columns run, criterion and verdict. Raises BadLabels."""
    reader = csv.DictReader(text.splitlines(keepends=True))
    if missing := {"run", "criterion", "verdict"} - set(reader.fieldnames or ()):
        raise BadLabels(f"line 1: the columns {', '.join(sorted(missing))} are missing; write run,criterion,verdict")
    found: dict[tuple[str, str], JudgeVerdict] = {}
    for row in reader:
        verdict = next((one for one in _VERDICTS if one == (row["verdict"] or "").strip()), None)
        if verdict is None:
            raise BadLabels(
                f"line {reader.line_num}: {row['verdict']!r} is not a verdict: write pass, fail or cannot tell"
            )
        found[row["run"].strip(), row["criterion"].strip()] = verdict  # type: ignore[assignment] # one of the three
    return found


def measure_agreement(pairs: Sequence[tuple[JudgeVerdict, JudgeVerdict]]) -> Agreement:
    """Compute the agreement of pairs of a judge's verdict and a label."""
    count = len(pairs)
    agreeing = sum(one == other for one, other in pairs)
    if not count:
        return Agreement(count=0, agreeing=0, kappa=None, low=None, high=None)
    observed = agreeing / count
    expected = sum(_share(pairs, 0, verdict) * _share(pairs, 1, verdict) for verdict in _VERDICTS)
    if expected == 1:
        return Agreement(count=count, agreeing=agreeing, kappa=None, low=None, high=None)
    kappa = (observed - expected) / (1 - expected)
    margin = _NINETY_FIVE_PERCENT * math.sqrt(observed * (1 - observed) / (count * (1 - expected) ** 2))
    return Agreement(
        count=count, agreeing=agreeing, kappa=kappa, low=max(-1.0, kappa - margin), high=min(1.0, kappa + margin)
    )


def _share(pairs: Sequence[tuple[JudgeVerdict, JudgeVerdict]], side: int, verdict: str) -> float:
    return sum(pair[side] == verdict for pair in pairs) / len(pairs)


def labelled_pairs(
    verdicts: Mapping[tuple[str, str], JudgeVerdict], labels: Mapping[tuple[str, str], JudgeVerdict]
) -> list[tuple[JudgeVerdict, JudgeVerdict]]:
    """Return the pairs of what was both judged and labelled."""
    return [(verdict, labels[what]) for what, verdict in verdicts.items() if what in labels]
