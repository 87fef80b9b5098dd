"""Read members of JSON whose shape is not trusted: a value of another type counts as empty."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from calls.model import Json

_LARGE: Final = 10**15
_NOTHING: Final[Mapping[str, Json]] = {}


def members(value: Json) -> Mapping[str, Json]:
    """The object that the value should be."""
    return value if isinstance(value, Mapping) else _NOTHING


def elements(value: Json) -> Sequence[Json]:
    """The array that the value should be."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def text(value: Json) -> str:
    """The text that the value should be."""
    return value if isinstance(value, str) else ""


def some(value: Json) -> str | None:
    """The text that the value should be; None for an empty one."""
    return value if isinstance(value, str) and value else None


def count(value: Json) -> int | None:
    """The whole number that the value should be, also one that was written 28.0."""
    if isinstance(value, Decimal) and abs(value) < _LARGE and value == value.to_integral_value():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
