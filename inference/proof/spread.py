"""From pairs of stock and ours to a ratio with its spread. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

QUIET: Final = 0.2
"""CPUs that others may use in a pair whose wall clock counts."""


def summary(rows: Sequence[Mapping[str, Any]], quiet: float = QUIET) -> list[dict[str, Any]]:
    """For each kind of work and number of threads: ours over stock, as quartiles.

    The wall clock of pairs that had the machine to themselves; CPU seconds of all, since others cannot spend those for us.
    """
    found = []
    for work, threads in dict.fromkeys((row["work"], row["threads"]) for row in rows):
        mine = [row for row in rows if (row["work"], row["threads"]) == (work, threads)]
        alone = [row for row in mine if row["others"] <= quiet]
        found.append(
            {"work": work, "threads": threads, "pairs": len(mine), "quiet": len(alone)}
            | {"wall": _spread(_ratios(alone, "wall")), "cpu": _spread(_ratios(mine, "cpu"))}
        )
    return found


def _ratios(rows: Sequence[Mapping[str, Any]], clock: str) -> list[float]:
    return [row["patched"][clock] / row["stock"][clock] for row in rows]


def _spread(ratios: Sequence[float]) -> tuple[float, float, float] | None:
    """First quartile, median, third; None where there are too few for quartiles."""
    if len(ratios) < 4:
        return None
    low, middle, high = statistics.quantiles(ratios, n=4)
    return round(low, 3), round(middle, 3), round(high, 3)
