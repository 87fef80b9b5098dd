"""From pairs of stock and ours to a ratio with its spread. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

QUIET: Final = 0.2
"""CPUs that others may use in a pair that counts."""


def summary(rows: Sequence[Mapping[str, Any]], quiet: float = QUIET) -> list[dict[str, Any]]:
    """For each kind of work and number of threads: ours over stock, the median with quartiles, over the quiet pairs."""
    kinds = dict.fromkeys((row["work"], row["threads"]) for row in rows)
    found = []
    for work, threads in kinds:
        mine = [row for row in rows if (row["work"], row["threads"]) == (work, threads)]
        counted = [row for row in mine if row["others"] <= quiet]
        clocks = {
            clock: _spread([row["patched"][clock] / row["stock"][clock] for row in counted])
            for clock in ("wall", "cpu")
        }
        found.append({"work": work, "threads": threads, "pairs": len(mine), "quiet": len(counted)} | clocks)
    return found


def _spread(ratios: Sequence[float]) -> tuple[float, float, float] | None:
    """First quartile, median, third; None where there are too few for quartiles."""
    if len(ratios) < 4:
        return None
    low, middle, high = statistics.quantiles(ratios, n=4)
    return round(low, 3), round(middle, 3), round(high, 3)
