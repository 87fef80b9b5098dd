"""Hand the rows of a batch to Postgres by column, as the texts of arrays.

Of an array, asyncpg asks for each element whether it is an array itself, which takes as long as everything else that it does for a
row. Only long texts take less time as arrays of the driver.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_DRIVER_ARRAYS: Final = {"bytea": "bytea[]", "tsvector": "text[]"}
"""Kinds of columns whose values are given as arrays of the driver, and as which. `store.database.connection` writes those of bytes."""


def parameter_type(kind: str) -> str:
    """Return the type of the parameter that has the values of a column of this kind, from all rows."""
    # `unnest` would flatten arrays in a column, so these are given as their text.
    return _DRIVER_ARRAYS.get(kind) or ("text::text[]" if kind.endswith("[]") else f"text::{kind}[]")


def columns_of(rows: Sequence[tuple[Any, ...]], columns: Mapping[str, str]) -> list[Sequence[Any] | str]:
    """Return the values of rows by column, without the project that they begin with. `columns` has the kinds of the others."""
    _, *found = zip(*rows, strict=True)
    return [_column_value(values, kind) for values, kind in zip(found, columns.values(), strict=True)]


def _column_value(values: Sequence[Any], kind: str) -> Sequence[Any] | str:
    if kind in _DRIVER_ARRAYS:
        return values
    if kind.endswith("[]"):
        values = [None if value is None else array_text(value) for value in values]
    return array_text(values)


def array_text(values: Sequence[Any]) -> str:
    """Return an array of texts, numbers, truth values, ids, dates and nulls as Postgres reads it."""
    if values and values.count(first := values[0]) == len(values):
        # Of a batch, most columns have one value.
        elements = [_element_text(first)] * len(values)
    else:
        elements = [_element_text(value) for value in values]
    return "{" + ",".join(elements) + "}"


def _element_text(value: Any) -> str:
    if value is None:
        return "NULL"
    return _quote(value) if isinstance(value, str) else str(value)


def _quote(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if '"' in text:
        text = text.replace('"', '\\"')
    return f'"{text}"'
