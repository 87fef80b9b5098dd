"""Read JSON of unknown shape: a value of an unexpected type counts as empty."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from calls.model import Json

_LARGE: Final = 10**15
_NOTHING: Final[Mapping[str, Json]] = {}


def as_object(value: Json) -> Mapping[str, Json]:
    """Return the value if it is an object, else an empty one."""
    # To ask whether a value is a mapping takes ten times as long as to compare its type.
    return value if type(value) is dict or isinstance(value, Mapping) else _NOTHING


def as_array(value: Json) -> Sequence[Json]:
    """Return the value if it is an array, else an empty one."""
    if type(value) is list:
        return value
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def as_text(value: Json) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_text_or_none(value: Json) -> str | None:
    """Return the value if it is a non-empty string, else None."""
    return value if isinstance(value, str) and value else None


def as_count(value: Json) -> int | None:
    """Return the value as an integer if it is a whole number, also one written as 28.0, else None."""
    if isinstance(value, Decimal) and abs(value) < _LARGE and value == value.to_integral_value():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
