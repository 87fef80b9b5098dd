"""Sum up calls by run, model, tool, day and so on: counts, errors, tokens, cost and latency (`store.sums.call_rows`).

What is stored of each run and hour serves most questions. The runs in which something was stored since are summed from their
calls, so the answer is exact. Questions that the stored sums do not answer, such as a search, are answered from the calls alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Final, Literal, Self

from sqlalchemy import (
    Boolean,
    ColumnElement,
    CompoundSelect,
    FromClause,
    Subquery,
    Text,
    and_,
    any_,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY

from calls.model import Usage
from store.call_graph.retry_query import load_retry_groups
from store.database.asyncio_engine import AsyncConnection
from store.database.connection import Database
from store.database.tables import call_sums, calls, feed, feed_positions, runs
from store.feed.entries import ReplayStored, decode_entries
from store.query.filters import Filters, call_conditions, run_conditions_of_calls
from store.query.rest_shapes import Shape, dollars, milliseconds, rfc3339
from store.sums.call_rows import COUNTS, HOUR, LATENCIES, exchange_rows, stored_rows
from store.sums.latency_classes import class_latency
from store.sums.run_sums import NAME as SUMS

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
DAY: Final = 24 * HOUR

GROUPINGS: Final = (
    *("run", "model", "provider", "host", "kind", "dialect", "operation", "actor", "status", "day", "hour", "tool"),
)
"""What calls can be grouped by, beside `label:NAME`."""

BY_TIME: Final = ("day", "hour")
MOST_GROUPS: Final = 1000

type GroupSort = Literal["cost", "calls", "errors", "tokens", "name"]
"""What groups are sorted by: the largest first; names ascending."""

MOST_CHANGES: Final = 1000
"""Rows of the feed since the stored sums were made, beyond which the calls alone are read."""

SERVED: Final = frozenset(
    (
        *("since", "until", "labels", "models", "providers", "tools", "hosts", "statuses", "kinds", "dialects"),
        *("operations", "actors", "parent"),
    )
)
"""The filters that the stored sums serve: those of whole hours, and of the columns in which their calls are equal."""


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
            label: ColumnElement[Any] = runs.c.labels[self.label].astext
            return label
        match self.name:
            case "day":
                return rows.c.hour - rows.c.hour % literal_column(str(DAY))
            case _:
                return rows.c[self.name]

    def shape(self, value: Any) -> Any:
        """The group's value in JSON."""
        return rfc3339(value) if self.name in BY_TIME else value


class Stats:
    """The sums over the calls of a project."""

    def __init__(self, database: Database, project: str = "default") -> None:
        self._database = database
        self._project = project

    async def load_stats(
        self,
        filters: Filters,
        groupings: Sequence[Grouping],
        sort: GroupSort | None = None,
        limit: int = MOST_GROUPS,
    ) -> tuple[list[Shape], Shape]:
        """The first groups, and the sum of all. Without `sort`, the most expensive come first, or by time the newest."""
        async with self._database.transaction() as connection:
            # One snapshot: what is read as stored sums and what is read as calls belong together.
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            rows = await self._source(connection, filters)
            groups = await _load_groups(connection, rows, groupings, sort, limit)
            is_divided = len(groups) < limit and all(grouping.name != "tool" for grouping in groupings)
            total = _sum_groups(groups) if is_divided else (await _load_groups(connection, rows, []))[0]
        return [{"group": group.named_values(groupings)} | group.shape() for group in groups], total.shape()

    async def _source(self, connection: AsyncConnection, filters: Filters) -> Subquery:
        """The rows to sum: from the stored sums where these serve, and from calls."""
        is_call = [calls.c.project == self._project, *call_conditions(filters)]
        changed = await self._changed_runs(connection) if _is_served(filters) else None
        if changed is None:
            retried = select(calls.c.run).where(*is_call).distinct()
            groups = await load_retry_groups(connection, self._project, (await connection.execute(retried)).scalars())
            return exchange_rows(is_call, groups).subquery("rows")
        groups = await load_retry_groups(connection, self._project, changed)
        is_changed = any_(literal(changed, ARRAY(Text)))
        stored = [call_sums.c.project == self._project, call_sums.c.run != func.all(literal(changed, ARRAY(Text)))]
        stored += _sum_conditions(filters)
        fresh = exchange_rows([*is_call, calls.c.run == is_changed], groups)
        return union_all(stored_rows(stored), fresh).subquery("rows")

    async def _changed_runs(self, connection: AsyncConnection) -> list[str] | None:
        """The runs in which something was stored since the stored sums were made; None where these cannot be used."""
        is_mine = (feed_positions.c.project == self._project, feed_positions.c.consumer == SUMS)
        position = (
            await connection.execute(select(feed_positions.c.transaction, feed_positions.c.feed_row).where(*is_mine))
        ).first()
        if position is None:
            return None
        is_newer = or_(
            feed.c.transaction > position[0], and_(feed.c.transaction == position[0], feed.c.id > position[1])
        )
        query = select(feed.c.entries).where(feed.c.project == self._project, is_newer).limit(MOST_CHANGES + 1)
        rows = (await connection.execute(query)).scalars().all()
        if len(rows) > MOST_CHANGES:
            return None
        entries = (entry for row in rows for entry in decode_entries(row) if not isinstance(entry, ReplayStored))
        return sorted({name for entry in entries for name in (entry.run, getattr(entry, "previous_run", None)) if name})


def _is_served(filters: Filters) -> bool:
    empty = Filters()
    given = {field.name for field in fields(Filters) if getattr(filters, field.name) != getattr(empty, field.name)}
    whole = all(bound is None or bound % HOUR == 0 for bound in (filters.since, filters.until))
    return whole and given <= SERVED


def _sum_conditions(filters: Filters) -> Iterable[ColumnElement[bool]]:
    """Yield the conditions of `call_conditions` on `call_sums`."""
    sums = call_sums.c
    if filters.since is not None:
        yield sums.hour >= filters.since
    if filters.until is not None:
        yield sums.hour < filters.until
    if filters.models:
        yield or_(sums.model.in_(filters.models), sums.model_returned.in_(filters.models))
    if filters.tools:
        itself = and_(
            sums.kind == "tool", or_(sums.operation.in_(filters.tool_names), sums.host.in_(filters.tool_names))
        )
        yield or_(and_(sums.kind != "tool", sums.tools.overlap(list(filters.tool_names))), itself)
    if filters.statuses:
        yield or_(*(sums.status.between(one.start, one.stop - 1) for one in filters.statuses))
    for values, one in (
        (filters.providers, sums.provider),
        (filters.hosts, sums.host),
        (filters.kinds, sums.kind),
        (filters.dialects, sums.dialect),
        (filters.operations, sums.operation),
        (filters.actors, sums.actor),
    ):
        if values:
            yield one.in_(values)
    if of_run := list(run_conditions_of_calls(filters)):
        yield sums.run.in_(select(runs.c.id).where(runs.c.project == sums.project, *of_run))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One group: its values, its counts by name, and how many exchanges are in each class of latency."""

    values: tuple[Any, ...]
    counts: Mapping[str, Any]
    first_bytes: Mapping[int, int]
    durations: Mapping[int, int]

    def named_values(self, groupings: Sequence[Grouping]) -> Shape:
        """The values in JSON, by the names of the groupings."""
        return {one.name: one.shape(value) for one, value in zip(groupings, self.values, strict=True)}

    def shape(self) -> Shape:
        """The sums in JSON."""
        counts = self.counts
        return {
            **{name: counts[name] or 0 for name in ("calls", "exchanges", "errors")},
            "usage": {name: counts[name] for name in Usage.__slots__},
            "cost_usd": dollars(counts["cost_usd"]) if not counts["unpriced"] else None,
            "known_cost_usd": dollars(counts["cost_usd"]),
            "calls_without_price": counts["unpriced"] or 0,
            "first_byte_ms": _percentiles(self.first_bytes),
            "duration_ms": _percentiles(self.durations),
        }


async def _load_groups(
    connection: AsyncConnection,
    rows: Subquery,
    groupings: Sequence[Grouping],
    sort: GroupSort | None = None,
    limit: int = MOST_GROUPS,
) -> list[_Group]:
    if any(grouping.name == "tool" for grouping in groupings):
        rows = select(*rows.c, func.unnest(rows.c.tools).label("tool")).subquery("rows_by_tool")
    source: FromClause = rows
    if any(grouping.label for grouping in groupings):
        source = source.join(runs, and_(runs.c.project == rows.c.project, runs.c.id == rows.c.run))
    names = [grouping.column(rows) for grouping in groupings]
    sums = [func.sum(rows.c[name]).label(name) for name in COUNTS]
    query = select(*names, *sums).select_from(source).group_by(*names)
    query = query.order_by(*_group_order(rows, names, groupings, sort), *names).limit(limit)
    found = (await connection.execute(query)).all()
    shown = {tuple(row[: len(names)]) for row in found}
    classes = await _load_classes(connection, _class_query(rows, source, groupings, names, shown))
    return [
        _Group(
            values=(values := tuple(row[: len(names)])),
            counts=dict(zip(COUNTS, row[len(names) :], strict=True)),
            first_bytes=classes[False, values],
            durations=classes[True, values],
        )
        for row in found
    ]


def _group_order(
    rows: Subquery, names: Sequence[ColumnElement[Any]], groupings: Sequence[Grouping], sort: GroupSort | None
) -> list[ColumnElement[Any]]:
    """The order of groups, before their names: by default the newest first, then the most expensive."""
    tokens = [func.coalesce(func.sum(rows.c[name]), 0) for name in ("input_tokens", "output_tokens")]
    costliest: list[ColumnElement[Any]] = [func.sum(rows.c.cost_usd).desc().nulls_last(), func.sum(rows.c.calls).desc()]
    match sort:
        case None:
            newest = [name.desc() for name, one in zip(names, groupings, strict=True) if one.name in BY_TIME]
            return [*newest, *costliest]
        case "name":
            return []
        case "cost":
            return costliest
        case "tokens":
            return [(tokens[0] + tokens[1]).desc(), *costliest]
        case _:
            return [func.sum(rows.c[sort]).desc(), *costliest]


def _class_query(
    rows: Subquery,
    source: FromClause,
    groupings: Sequence[Grouping],
    names: Sequence[ColumnElement[Any]],
    shown: Iterable[tuple[Any, ...]],
) -> CompoundSelect[Any]:
    """Count the exchanges of each group in each class of latency."""
    # There may be many more runs than are shown.
    is_shown = [
        rows.c.run == any_(literal([values[place] for values in shown], ARRAY(Text)))
        for place, grouping in enumerate(groupings)
        if grouping.name == "run"
    ]
    counts = []
    for name in LATENCIES:
        classes = func.unnest(rows.c[name]).table_valued("number", name=f"{name}_classes").render_derived()
        is_duration = literal_column("true" if name == "durations" else "false", Boolean).label("is_duration")
        number = classes.c.number
        query = select(*names, is_duration, number, func.count()).select_from(source.join(classes, true()))
        counts.append(query.where(*is_shown).group_by(*names, number))
    return union_all(*counts)


async def _load_classes(
    connection: AsyncConnection, query: CompoundSelect[Any]
) -> Mapping[tuple[bool, tuple[Any, ...]], Counter[int]]:
    classes: defaultdict[tuple[bool, tuple[Any, ...]], Counter[int]] = defaultdict(Counter)
    for *values, is_duration, number, count in await connection.execute(query):
        classes[is_duration, tuple(values)][number] += count
    return classes


def _sum_groups(groups: Sequence[_Group]) -> _Group:
    """The sum of groups of which no two have a call in common."""
    counts = {
        name: sum(found) if (found := [one.counts[name] for one in groups if one.counts[name] is not None]) else None
        for name in COUNTS
    }
    first_bytes, durations = Counter[int](), Counter[int]()
    for one in groups:
        first_bytes.update(one.first_bytes)
        durations.update(one.durations)
    return _Group(values=(), counts=counts, first_bytes=first_bytes, durations=durations)


def _percentiles(classes: Mapping[int, int]) -> Shape:
    """The latencies in milliseconds below which so many of the exchanges are."""
    numbers = sorted(classes)
    counted = list(accumulate(classes[number] for number in numbers))

    def latency(fraction: float) -> float | None:
        if not counted:
            return None
        number = next(
            number for number, so_far in zip(numbers, counted, strict=True) if so_far >= fraction * counted[-1]
        )
        return milliseconds(round(class_latency(number)))

    return {name: latency(fraction) for name, fraction in PERCENTILES.items()}
