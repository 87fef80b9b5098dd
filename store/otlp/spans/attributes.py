"""Collect the attributes of a span. Values that are unknown are left out."""

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

type Value = str | bool | int | float | Decimal | Sequence[str] | None

_LARGEST: Final = 1 << 63


class Attributes(dict[str, str | bool | int | float | list[str]]):
    """The attributes of a span, by name."""

    def put(self, name: str | None, value: Value) -> None:
        """Add an attribute; without a name or a value that OTLP can represent, nothing is added."""
        if name and (clean := _clean_value(value)) is not None:
            self[name] = clean


def _clean_value(value: Value) -> str | bool | int | float | list[str] | None:
    match value:
        case None | bool():
            return value
        case str():
            return clean_text(value)
        case int():
            return value if -_LARGEST <= value < _LARGEST else None
        case float() | Decimal():
            return float(value) if math.isfinite(value) else None
        case _:
            return [clean_text(one) for one in value] or None


def clean_text(text: str) -> str:
    """Replace what protobuf cannot hold (lone surrogates), and NUL, which databases behind a collector refuse."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
