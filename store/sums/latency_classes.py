"""Divide latencies into classes of which each is 2 % longer than the one before, so that counts of them give percentiles.

A percentile that is made from classes differs from the exact one by 1 % at most. Class 0 is everything below 100 µs, the last
class everything from a day on.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, Float, SmallInteger, case, cast, func, literal

SHORTEST: Final = 100_000
"""Nanoseconds at which class 1 begins."""

GROWTH: Final = math.log(1.02)

LAST_CLASS: Final = 1040
"""It begins after about a day."""


def latency_class(nanoseconds: int) -> int:
    """Return the class of a latency."""
    if nanoseconds < SHORTEST:
        return 0
    return min(1 + math.floor(math.log(nanoseconds / SHORTEST) / GROWTH), LAST_CLASS)


def class_latency(number: int) -> float:
    """Return the latency in the middle of a class, in nanoseconds; half of the shortest for class 0."""
    return SHORTEST / 2 if number <= 0 else SHORTEST * math.exp((number - 0.5) * GROWTH)


def middle_latency(classes: Mapping[int, int]) -> float:
    """Return the median of latencies, of which so many are in each class, in nanoseconds; 0 if there are none."""
    half, below = sum(classes.values()) / 2, 0
    for number in sorted(classes):
        below += classes[number]
        if below >= half:
            return class_latency(number)
    return 0.0


def class_column(nanoseconds: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return `latency_class` of a column, in SQL; null for null."""
    ratio = cast(nanoseconds, Float(53)) / float(SHORTEST)
    number = 1 + func.floor(func.ln(func.greatest(ratio, 1.0)) / GROWTH)
    # `greatest` ignores nulls.
    is_known = nanoseconds.is_not(None)
    return cast(case((nanoseconds < SHORTEST, literal(0)), (is_known, func.least(number, LAST_CLASS))), SmallInteger)
