"""List the filters of the REST API as keyword arguments, and write them as a query."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Kind = Literal["model", "tool", "retrieval", "other"]
SortName = Literal["time", "cost", "duration", "tokens"]
Order = Literal["asc", "desc"]
Texts = Union[str, "Sequence[str]"]
"""One value, or several, of which one fits."""


class Filters(TypedDict, total=False):
    """What to look for. All filters that are given must fit."""

    since: datetime | str
    until: datetime | str
    label: Mapping[str, str | None] | Texts
    """`{"branch": "main", "nightly": None}`: None is for any value."""

    model: Texts
    provider: Texts
    tool: Texts
    host: Texts
    status: int | str | Sequence[int | str]
    """429, or "4xx"."""

    kind: Kind | Sequence[Kind]
    dialect: Texts
    operation: Texts
    actor: Texts
    key: Texts
    min_cost: float
    """US dollars."""

    min_duration: float
    """Milliseconds."""

    error: bool
    parent: str
    incomplete: bool
    q: str
    """Words to search for."""

    settled: bool
    """Wait until everything that was acknowledged before the request is stored and, for words and sums, indexed and summed up.

    Raises TimeoutError after ten seconds.
    """


class ListFilters(Filters, total=False):
    """What to look for, and the order of the result."""

    sort: SortName
    order: Order
    fields: Texts
    """The members to fetch; `*` for all."""


def encode_query(parameters: Mapping[str, Any]) -> str:
    """Write parameters as a query. Raises ValueError for a time without an offset."""
    pairs = [(name, text) for name, value in parameters.items() for text in _texts(name, value)]
    return urlencode(pairs)


def _texts(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if name == "fields" and not isinstance(value, str):
        return [",".join(value)]
    if isinstance(value, dict):
        return [label if text is None else f"{label}={text}" for label, text in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_text(name, each) for each in value]
    return [_text(name, value)]


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name}={value} has no time zone: use datetime.now(timezone.utc), for example")
        return value.isoformat()
    if isinstance(value, float):
        return f"{value:.12f}".rstrip("0").rstrip(".")
    return str(value)
