"""Compute the cost ratio of patched to stock, with its spread, from measured pairs. Pure."""

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

QUIET: Final = 0.2
"""Maximum CPUs used by other processes in a pair whose wall clock counts."""


def summary(rows: Sequence[Mapping[str, Any]], quiet: float = QUIET) -> list[dict[str, Any]]:
    """The ratio of patched to stock for each kind of work and number of threads: the median and its 95 % interval.

    The wall clock counts only for pairs that had the machine to themselves; CPU seconds count for all pairs.
    """
    found = []
    for work, threads in dict.fromkeys((row["work"], row["threads"]) for row in rows):
        mine = [row for row in rows if (row["work"], row["threads"]) == (work, threads)]
        alone = [row for row in mine if row["others"] <= quiet]
        found.append(
            {"work": work, "threads": threads, "pairs": len(mine), "quiet": len(alone)}
            | {"wall": interval(_ratios(alone, "wall")), "cpu": interval(_ratios(mine, "cpu"))}
        )
    return found


def _ratios(rows: Sequence[Mapping[str, Any]], clock: str) -> list[float]:
    return [row["patched"][clock] / row["stock"][clock] for row in rows]


DRAWS: Final = 2000
"""Number of bootstrap samples."""


def interval(ratios: Sequence[float]) -> tuple[float, float, float] | None:
    """The lower end, median and upper end of the 95 % interval, by bootstrap; None if there are too few ratios."""
    if len(ratios) < 6:
        return None
    draw = random.Random(0)  # noqa: S311 # the same interval from the same ratios
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    low, high = medians[DRAWS // 40], medians[-DRAWS // 40 - 1]
    return round(low, 3), round(statistics.median(ratios), 3), round(high, 3)


def is_settled(rows: Sequence[Mapping[str, Any]], width: float = 0.1) -> bool:
    """Whether every wall-clock interval is at most `width` times its median wide."""
    found = [each["wall"] for each in summary(rows)]
    return bool(found) and all(each is not None and each[2] - each[0] <= width * each[1] for each in found)
