"""Sum up calls by run, model, tool, day and so on: counts, errors, tokens, cost and latency.

A call of several exchanges (retries, polls) counts once; its tokens and costs are those of all its exchanges, as in the totals of a
run. Latencies are those of exchanges, since each was waited for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    case,
    column,
    func,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import array

from calls.dialects.generic import DIALECT as GENERIC
from calls.model import Usage
from store.call_graph.retry_query import RetryGroups, is_among, load_retry_groups
from store.database.connection import Database
from store.database.tables import calls, exchanges, runs
from store.query.filters import Filters, call_conditions, is_failed_exchange
from store.query.rest_shapes import Shape, dollars, milliseconds, rfc3339
from store.query.runs import can_have_cost

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
HOUR: Final = 3600 * 1_000_000_000
DAY: Final = 24 * HOUR

_model = func.coalesce(calls.c.model_requested, calls.c.model_returned)
# A model's call counts for the tools that it requests; a tool's own call for that tool, or its host where it has no name.
_tool_name = case((calls.c.dialect == GENERIC.name, calls.c.host), else_=calls.c.operation)
_tools = case((calls.c.kind == "tool", array([_tool_name])), else_=calls.c.tools)

GROUPINGS: Final[Mapping[str, ColumnElement[Any]]] = {
    "run": calls.c.run,
    "model": _model,
    "provider": calls.c.provider,
    "host": calls.c.host,
    "kind": calls.c.kind,
    "dialect": calls.c.dialect,
    "operation": calls.c.operation,
    "status": calls.c.status,
    "day": calls.c.started_at - calls.c.started_at % DAY,
    "hour": calls.c.started_at - calls.c.started_at % HOUR,
}
"""What calls can be grouped by, beside `tool` and `label:NAME`."""

BY_TIME: Final = ("day", "hour")
MOST_GROUPS: Final = 1000


class UnknownGrouping(ValueError):
    """A `group_by` that does not exist."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """One thing that calls are grouped by."""

    name: str
    label: str | None = None
    """The label whose values are the groups."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse one value of `group_by`. Raises `UnknownGrouping`."""
        name, _, label = text.partition(":")
        if name == "label" and label:
            return cls(text, label)
        if text in GROUPINGS or text == "tool":
            return cls(text)
        known = ", ".join((*GROUPINGS, "tool", "label:NAME"))
        raise UnknownGrouping(f"unknown group_by={text[:80]}: use one of {known}")

    @property
    def _value(self) -> ColumnElement[Any]:
        if self.label is not None:
            label: ColumnElement[Any] = runs.c.labels[self.label].astext
            return label
        return GROUPINGS[self.name] if self.name != "tool" else _unnested.c.tool

    @property
    def column(self) -> ColumnElement[Any]:
        """The group's value, under the grouping's name."""
        return self._value.label(f"group_{self.name}")

    def shape(self, value: Any) -> Any:
        """The group's value in JSON."""
        return _time(value) if self.name in BY_TIME else value


_unnested = func.unnest(_tools).table_valued(column("tool", Text), name="unnested").render_derived()


def _time(ns: int) -> str:
    return rfc3339(ns)


class Stats:
    """The sums over the calls of a project."""

    def __init__(self, database: Database, project: str = "default") -> None:
        self._database = database
        self._project = project

    async def load_groups(self, filters: Filters, groupings: Sequence[Grouping]) -> list[Shape]:
        """The groups, the most expensive first; by time, the newest first. At most `MOST_GROUPS`."""
        conditions = [calls.c.project == self._project, *call_conditions(filters)]
        async with self._database.transaction() as connection:
            retried = await connection.execute(select(calls.c.run).where(*conditions).distinct())
            groups = await load_retry_groups(connection, self._project, retried.scalars())
            query = _query(conditions, groupings, groups)
            rows = (await connection.execute(query)).mappings().all()
        return [_shape(row, groupings) for row in rows]


def _query(
    conditions: Iterable[ColumnElement[bool]], groupings: Sequence[Grouping], groups: RetryGroups
) -> Select[Any]:
    source: FromClause = calls.join(
        exchanges, and_(exchanges.c.project == calls.c.project, exchanges.c.id == calls.c.id)
    )
    if any(grouping.label for grouping in groupings):
        source = source.join(runs, and_(runs.c.project == calls.c.project, runs.c.id == calls.c.run))
    if any(grouping.name == "tool" for grouping in groupings):
        source = source.join(_unnested, true())
    names = [grouping.column for grouping in groupings]
    query = select(*names, *_sums(groups)).select_from(source).where(*conditions).group_by(*names)
    newest_first = [name.desc() for name, grouping in zip(names, groupings, strict=True) if grouping.name in BY_TIME]
    known_cost: ColumnElement[Any] = column("known_cost_usd")
    count: ColumnElement[Any] = column("calls")
    costliest_first = (known_cost.desc().nulls_last(), count.desc())
    return query.order_by(*newest_first, *costliest_first, *names).limit(MOST_GROUPS)


def _sums(groups: RetryGroups) -> Iterable[ColumnElement[Any]]:
    once = ~is_among(groups.repeated_polls)
    is_last = ~is_among(groups.superseded_exchanges)
    yield func.count().filter(is_last).label("calls")
    yield func.count().label("exchanges")
    yield func.count().filter(is_last, is_failed_exchange()).label("errors")
    for name in Usage.__slots__:
        yield func.sum(calls.c[name]).filter(once).cast(calls.c[name].type).label(name)
    yield func.sum(calls.c.cost_usd).filter(once).label("known_cost_usd")
    yield func.count().filter(can_have_cost(), once, calls.c.cost_usd.is_(None)).label("unpriced")
    for name, measured in (("first_byte", exchanges.c.first_byte_at), ("duration", exchanges.c.ended_at)):
        for percentile, fraction in PERCENTILES.items():
            yield func.percentile_disc(fraction).within_group(measured).label(f"{name}_{percentile}")


def _shape(row: Mapping[Any, Any], groupings: Sequence[Grouping]) -> Shape:
    return {
        "group": {grouping.name: grouping.shape(row[f"group_{grouping.name}"]) for grouping in groupings},
        **{name: row[name] for name in ("calls", "exchanges", "errors")},
        "usage": {name: row[name] for name in Usage.__slots__},
        "cost_usd": dollars(row["known_cost_usd"]) if not row["unpriced"] else None,
        "known_cost_usd": dollars(row["known_cost_usd"]),
        "calls_without_price": row["unpriced"],
        **{
            f"{name}_ms": {each: milliseconds(row[f"{name}_{each}"]) for each in PERCENTILES}
            for name in ("first_byte", "duration")
        },
    }
