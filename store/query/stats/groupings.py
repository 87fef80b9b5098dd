"""What calls can be grouped by."""

from dataclasses import dataclass
from typing import Any, Final, Self

from sqlalchemy import (
    ColumnElement,
    Subquery,
    literal_column,
)

from store.query.rest_shapes import rfc3339
from store.sums.summed_days import DAY

GROUPINGS: Final = (
    *("run", "model", "provider", "host", "kind", "dialect", "operation", "actor", "status", "day", "hour", "tool"),
)
"""What calls can be grouped by, beside `label:NAME`."""

BY_TIME: Final = ("day", "hour")


class UnknownGrouping(ValueError):
    """A `group_by` that does not exist."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """One thing that calls are grouped by."""

    name: str
    label: str | None = None
    """The label whose values are the groups."""

    @classmethod
    def parse(cls, words: str) -> Self:
        """Parse one value of `group_by`. Raises `UnknownGrouping`."""
        name, _, label = words.partition(":")
        if name == "label" and label:
            return cls(words, label)
        if words in GROUPINGS:
            return cls(words)
        known = ", ".join((*GROUPINGS, "label:NAME"))
        raise UnknownGrouping(f"unknown group_by={words[:80]}: use one of {known}")

    def column(self, rows: Subquery) -> ColumnElement[Any]:
        """The group's value, under the grouping's name."""
        return self._value(rows).label(f"group_{self.name}")

    def _value(self, rows: Subquery) -> ColumnElement[Any]:
        if self.label is not None:
            label: ColumnElement[Any] = rows.c.labels[self.label].astext
            return label
        match self.name:
            case "day":
                return rows.c.hour - rows.c.hour % literal_column(str(DAY))
            case _:
                return rows.c[self.name]

    @property
    def traits(self) -> tuple[str, ...]:
        """The columns of stored sums that it needs."""
        if self.label is not None:
            return ("labels",)
        return () if self.name == "day" else ("tools",) if self.name == "tool" else (self.name,)

    def shape(self, value: Any) -> Any:
        """The group's value in JSON."""
        return rfc3339(value) if self.name in BY_TIME else value
