"""From pairs of stock and ours to a ratio with its spread. Pure."""

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

QUIET: Final = 0.2
"""CPUs that others may use in a pair whose wall clock counts."""


def summary(rows: Sequence[Mapping[str, Any]], quiet: float = QUIET) -> list[dict[str, Any]]:
    """For each kind of work and number of threads: ours over stock, the median with its 95 % interval.

    The wall clock of pairs that had the machine to themselves; CPU seconds of all, since others cannot spend those for us.
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
"""Samples of the bootstrap."""


def interval(ratios: Sequence[float]) -> tuple[float, float, float] | None:
    """The median between the ends of its 95 % interval, by bootstrap; None where there are too few ratios for one."""
    if len(ratios) < 6:
        return None
    draw = random.Random(0)  # noqa: S311 # the same interval from the same ratios
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    low, high = medians[DRAWS // 40], medians[-DRAWS // 40 - 1]
    return round(low, 3), round(statistics.median(ratios), 3), round(high, 3)


def is_settled(rows: Sequence[Mapping[str, Any]], width: float = 0.1) -> bool:
    """Whether every interval of the wall clock is no wider than this part of its median."""
    found = [each["wall"] for each in summary(rows)]
    return bool(found) and all(each is not None and each[2] - each[0] <= width * each[1] for each in found)
