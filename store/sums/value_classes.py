"""Divide costs and durations into classes, so that sums of them answer what is asked of all calls above some value.

The classes begin at round numbers, which most questions name. For another number the calls of one class are read.
"""

from bisect import bisect_left
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import ColumnElement, SmallInteger, cast, func, literal_column

_STEPS: Final = ("1", "1.25", "1.5", "2", "2.5", "3", "4", "5", "6", "8")

COSTS: Final = tuple(Decimal(f"{step}e{power}") for power in range(-6, 4) for step in _STEPS)
"""US dollars at which classes begin, after the first one."""

DURATIONS: Final = tuple(int(Decimal(f"{step}e{power}")) for power in range(6, 14) for step in _STEPS)
"""Nanoseconds, from one millisecond to some hours."""


def class_of(value: ColumnElement[Any], begins: Sequence[Decimal | int]) -> ColumnElement[Any]:
    """Return the class of a value, in SQL; null for null."""
    of_type = "numeric" if begins is COSTS else "bigint"
    array: ColumnElement[Any] = literal_column(
        f"'{{{','.join(f'{begin:f}' for begin in map(Decimal, begins))}}}'::{of_type}[]"
    )
    return cast(func.width_bucket(value, array), SmallInteger)


def first_whole_class(least: Decimal | int, begins: Sequence[Decimal | int]) -> int | None:
    """Return the first class that has only values from `least` on; None if none has."""
    place = bisect_left(begins, least)
    return None if place == len(begins) else place + 1
