"""Sum up calls by run, model, tool, day and so on: counts, errors, tokens, cost and latency (`store.sums.call_rows`)."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, repeat
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    CompoundSelect,
    FromClause,
    Integer,
    Select,
    Subquery,
    Text,
    any_,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
    text,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY

from calls.model import Usage
from store.database.asyncio_engine import AsyncConnection
from store.database.connection import Database
from store.query.filters import Filters
from store.query.rest_shapes import Shape, dollars, milliseconds
from store.query.stats.groupings import BY_TIME, Grouping
from store.query.stats.source import SourceRows, load_source
from store.sums.call_rows import COUNTS, LATENCIES
from store.sums.day_sums import COUNTED
from store.sums.latency_classes import class_latency

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

MOST_GROUPS: Final = 1000

type GroupSort = Literal["cost", "calls", "errors", "tokens", "name"]
"""What groups are sorted by: the largest first; names ascending."""


class DayLatencies(NamedTuple):
    """How long the calls of one model took on one day."""

    day: int
    provider: str
    model: str | None
    calls: int
    input_tokens: int | None
    output_tokens: int | None
    """Of all calls together, as far as they are known."""

    first_bytes: Mapping[int, int]
    durations: Mapping[int, int]
    """How many exchanges are in each class of latency (`store.sums.latency_classes`)."""


class Stats:
    """The sums over the calls of a project. Without `uses_sums`, from the calls alone, which has the same result."""

    def __init__(self, database: Database, project: str = "default", *, uses_sums: bool = True) -> None:
        self._database = database
        self._project = project
        self._uses_sums = uses_sums

    async def load_stats(
        self,
        filters: Filters,
        groupings: Sequence[Grouping],
        sort: GroupSort | None = None,
        limit: int = MOST_GROUPS,
    ) -> tuple[list[Shape], Shape]:
        """The first groups, and the sum of all. Without `sort`, the most expensive come first, or by time the newest.

        Groups of attempts of calls that ended elsewhere are left out, except by status: a call that was tried again has several.
        """
        async with self._database.transaction() as connection:
            # One snapshot: what is read as stored sums and what is read as calls belong together.
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            await connection.execute(text("SET LOCAL parallel_tuple_cost = 0"))  # it overestimates the number of groups
            source = await load_source(connection, self._project, filters, uses_sums=self._uses_sums)
            load = partial(_load_groups, connection)
            groups = await load(source.rows(groupings), groupings, sort, limit)
            is_divided = len(groups) < limit and all(grouping.name != "tool" for grouping in groupings)
            total = _sum_groups(groups) if is_divided else (await load(source.rows([]), []))[0]
        counts_tries = bool(filters.statuses) or any(grouping.name == "status" for grouping in groupings)
        visible = [group for group in groups if group.has_calls or (counts_tries and not filters.error)]
        return [{"group": group.named_values(groupings)} | group.shape() for group in visible], total.shape()

    async def load_day_latencies(self, filters: Filters) -> list[DayLatencies]:
        """The latencies of each model that was asked for on each day, of the newest days if there are very many."""
        groupings = [Grouping(name) for name in ("day", "provider", "model")]
        async with self._database.transaction() as connection:
            await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            source = await load_source(connection, self._project, filters, uses_sums=self._uses_sums)
            groups = await _load_groups(connection, source.rows(groupings), groupings, limit=MOST_GROUPS)
        return list(map(_day_latencies, groups))


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

    @property
    def has_calls(self) -> bool:
        """Whether calls of it ended in it, or tokens were paid for."""
        return any(self.counts[name] for name in ("calls", "cost_usd", "input_tokens", "output_tokens"))

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
    found_rows: SourceRows,
    groupings: Sequence[Grouping],
    sort: GroupSort | None = None,
    limit: int = MOST_GROUPS,
) -> list[_Group]:
    rows, stores_counts = found_rows
    if any(grouping.name == "tool" for grouping in groupings):
        rows = select(*rows.c, func.unnest(rows.c.tools).label("tool")).subquery("rows_by_tool")
    source: FromClause = rows
    names = [grouping.column(rows) for grouping in groupings]
    # Postgres adds up bigints as a numeric, which is written as a number with a fraction: 60000.0 tokens.
    sums = [
        (total if name == "cost_usd" else cast(total, BigInteger)).label(name)
        for name in COUNTS
        for total in (func.sum(rows.c[name]),)
    ]
    query = select(*names, *sums).select_from(source).group_by(*names)
    are_without_calls = cast(func.sum(rows.c.calls) == literal_column("0"), Integer)
    query = query.order_by(are_without_calls, *_group_order(rows, names, groupings, sort), *names).limit(limit)
    found = (await connection.execute(query)).all()
    of_runs = [place for place, grouping in enumerate(groupings) if grouping.name == "run"]
    # There may be many more runs than are shown.
    is_shown = [rows.c.run == any_(literal([row[place] for row in found], ARRAY(Text))) for place in of_runs]
    if is_shown and stores_counts:
        # Few rows for each group: one pass over them all is cheaper than two that count in Postgres.
        columns = [rows.c[name] for pair in COUNTED.items() for name in pair]
        classes = await _count_classes(connection, select(*names, *columns).select_from(source).where(*is_shown))
    else:
        classes = await _load_classes(
            connection,
            _class_query(rows, source, names) if stores_counts else _lone_class_query(rows, source, names, is_shown),
        )
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


def _class_query(rows: Subquery, source: FromClause, names: Sequence[ColumnElement[Any]]) -> CompoundSelect[Any]:
    """Count the exchanges of each group in each class of latency, of rows that say how many are in each."""
    counts = []
    for name in LATENCIES:
        arrays = func.unnest(rows.c[name], rows.c[COUNTED[name]])
        classes = arrays.table_valued("number", "count", name=f"{name}_classes").render_derived()
        is_duration = literal_column("true" if name == "durations" else "false", Boolean).label("is_duration")
        number = classes.c.number
        count = func.sum(func.coalesce(classes.c.count, literal_column("1")))
        query = select(*names, is_duration, number, count).select_from(source.join(classes, true()))
        counts.append(query.group_by(*names, number))
    return union_all(*counts)


def _lone_class_query(
    rows: Subquery,
    source: FromClause,
    names: Sequence[ColumnElement[Any]],
    is_shown: Sequence[ColumnElement[bool]],
) -> Select[Any]:
    """The same of rows of one exchange each, with one class of each latency at most, which are read once for both."""
    classes = [rows.c[name][literal_column("1")].label(name) for name in LATENCIES]
    # In two steps, because Postgres has no parallel workers for the second.
    both = select(*names, *classes, func.count().label("count")).select_from(source).where(*is_shown)
    counted = both.group_by(*names, *classes).subquery("counted")
    columns = [counted.c[name.name] for name in names]
    first_byte, duration = (counted.c[name] for name in LATENCIES)
    is_duration = func.grouping(first_byte) == literal_column("1")
    number = case((is_duration, duration), else_=first_byte).label("number")
    sets = func.grouping_sets(tuple_(*columns, first_byte), tuple_(*columns, duration))
    query = select(*columns, is_duration.label("is_duration"), number, cast(func.sum(counted.c["count"]), BigInteger))
    return query.group_by(sets)


type _Classes = Mapping[tuple[bool, tuple[Any, ...]], Counter[int]]
"""How many exchanges are in each class of latency: of the duration or of the first byte, and by the values of a group."""


async def _load_classes(connection: AsyncConnection, query: CompoundSelect[Any] | Select[Any]) -> _Classes:
    """Load the classes that a query counts: its columns are the values, whether it is the duration, the number and the count."""
    counted = query.subquery("by_class")
    *names, number, count = counted.c
    # One row for each group rather than for each of its classes, of which there are hundreds.
    arrays = select(*names, func.array_agg(number), func.array_agg(count)).where(number.is_not(None)).group_by(*names)
    classes: defaultdict[tuple[bool, tuple[Any, ...]], Counter[int]] = defaultdict(Counter)
    for *values, is_duration, numbers, counts in await connection.execute(arrays):
        classes[is_duration, tuple(values)] = Counter(dict(zip(numbers, counts, strict=True)))
    return classes


async def _count_classes(connection: AsyncConnection, query: Select[Any]) -> _Classes:
    """Count the classes of rows that have them as arrays. Without counts, each class is there once."""
    classes: defaultdict[tuple[bool, tuple[Any, ...]], Counter[int]] = defaultdict(Counter)
    for *values, first_bytes, first_byte_counts, durations, duration_counts in await connection.execute(query):
        for is_duration, numbers, counts in (
            (False, first_bytes, first_byte_counts),
            (True, durations, duration_counts),
        ):
            counter = classes[is_duration, tuple(values)]
            for number, count in zip(numbers or (), counts or repeat(1)):  # noqa: B905 - as many as there are numbers
                counter[number] += count
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


def _day_latencies(group: _Group) -> DayLatencies:
    day, provider, model = group.values
    return DayLatencies(
        day=day,
        provider=provider,
        model=model,
        calls=group.counts["calls"] or 0,
        input_tokens=group.counts["input_tokens"],
        output_tokens=group.counts["output_tokens"],
        first_bytes=group.first_bytes,
        durations=group.durations,
    )


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
