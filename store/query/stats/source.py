"""Find the rows that are summed up for a question about calls: stored sums where they serve it, calls otherwise.

What is stored of each run and hour serves most questions, and what is stored of whole days those over long times. The runs in which
something was stored since, and the parts of hours at both ends, are summed from their calls, so the answer is exact. Questions that
the stored sums do not answer, such as a search, are answered from the calls alone, and from what is marked in these of retries.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Select,
    Subquery,
    Table,
    Text,
    and_,
    any_,
    cast,
    false,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY

from store.call_graph.retry_query import RetryGroups, load_retry_groups
from store.database.asyncio_engine import AsyncConnection
from store.database.tables import call_sums, calls, day_sums, runs, summed_days
from store.query.filters import Filters, call_conditions, label_conditions, run_conditions_of_calls
from store.query.stats.groupings import Grouping
from store.sums.call_rows import COUNTS, HOUR, LATENCIES, TRAITS, exchange_rows, stored_rows
from store.sums.day_sums import CALL_CUBES, COUNTED, Cube, smallest_cube
from store.sums.positions import load_changed_runs
from store.sums.summed_days import DAY
from store.sums.value_classes import COSTS, DURATIONS, first_whole_class

MOST_CHANGES: Final = 1000
"""Rows of the feed since the stored sums were made, beyond which the calls alone are read."""

TRAITS_OF_FILTERS: Final[Mapping[str, Collection[str]]] = {
    "since": (),
    "until": (),
    "labels": ("labels",),
    "other_labels": ("labels",),
    "parent": ("run",),
    "models": ("model", "model_returned"),
    "providers": ("provider",),
    "tools": ("kind", "operation", "host", "tools"),
    "hosts": ("host",),
    "statuses": ("status",),
    "kinds": ("kind",),
    "dialects": ("dialect",),
    "operations": ("operation",),
    "actors": ("actor",),
}
"""The filters that the stored sums serve, each with the columns that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSource:
    """Where the rows to sum come from: sums of whole days, sums of runs and hours, and calls."""

    project: str
    filters: Filters
    changed: Sequence[str] | None = None
    """The runs that the stored sums and marks lag behind; None if these are not used at all."""

    days: Sequence[int] = ()
    """The days that are read from `day_sums`, if these have what is asked for."""

    groups: RetryGroups = field(default_factory=RetryGroups)
    """Of the changed runs; of all runs, if stored marks are not used."""

    @property
    def is_served(self) -> bool:
        """Whether the stored sums have the columns that the filters need."""
        return set(_given_filters(self.filters)) <= TRAITS_OF_FILTERS.keys()

    @property
    def uses_sums(self) -> bool:
        """Whether stored sums are read, beside calls."""
        return self.changed is not None and self.is_served

    @property
    def begin(self) -> int | None:
        """When the first whole hour begins."""
        return None if self.filters.since is None else -(-self.filters.since // HOUR) * HOUR

    @property
    def end(self) -> int | None:
        """When the last whole hour ends."""
        return None if self.filters.until is None else self.filters.until // HOUR * HOUR

    def is_call(self) -> list[ColumnElement[bool]]:
        """The conditions on `calls`."""
        return [calls.c.project == self.project, *call_conditions(self.filters, self.project)]

    def unsummed_calls(self) -> ColumnElement[bool] | None:
        """The condition of the calls that stored sums do not have, apart from those of changed runs; None if there are none."""
        outside = []
        if self.begin is not None and self.begin != self.filters.since:
            outside.append(calls.c.started_at < self.begin)
        if self.end is not None and self.end != self.filters.until:
            outside.append(calls.c.started_at >= self.end)
        return or_(*outside) if outside else None

    def rows(self, groupings: Sequence[Grouping]) -> "SourceRows":
        """The rows to sum for a question, each with how often it has each class of latency, unless each is one exchange."""
        add_labels = _add_labels if any(grouping.label for grouping in groupings) else _add_nothing
        if self.changed is None or not self.uses_sums:
            if (call_cube := self._call_cube(groupings)) is not None:
                parts = self._divided_rows(call_cube)
                return SourceRows(union_all(*parts).subquery("rows"), stores_counts=True)
            found = add_labels(exchange_rows(self.is_call(), self.groups, self.changed), calls)
            return SourceRows(found.subquery("rows"), stores_counts=False)
        unsummed = self.unsummed_calls()
        fresh = calls.c.run == any_(literal(list(self.changed), ARRAY(Text)))
        fresh = fresh if unsummed is None else or_(fresh, unsummed)
        cube = self._cube(groupings)
        parts = [add_labels(_counted_once(exchange_rows([*self.is_call(), fresh], self.groups, self.changed)), calls)]
        if hours := _outside(call_sums.c.hour, () if cube is None else self.days, self.begin, self.end):
            unchanged = call_sums.c.run != func.all(literal(list(self.changed), ARRAY(Text)))
            stored = [call_sums.c.project == self.project, unchanged, or_(*hours)]
            stored_sums = _counted_once(stored_rows([*stored, *_sum_conditions(self.filters, call_sums)]))
            parts.append(add_labels(stored_sums, call_sums))
        if cube is not None and self.days:
            has_labels = "labels" in cube.traits
            conditions = _sum_conditions(self.filters, day_sums, day_sums.c.labels if has_labels else None)
            days = self._day_rows(cube, conditions)
            parts.append(add_labels(days, day_sums, has_labels=has_labels))
        return SourceRows(union_all(*parts).subquery("rows"), stores_counts=True)

    def _needed_traits(self, groupings: Sequence[Grouping], filter_names: Iterable[str]) -> set[str]:
        traits = {name for grouping in groupings for name in grouping.traits}
        return traits | {name for filter_name in filter_names for name in TRAITS_OF_FILTERS[filter_name]}

    def _cube(self, groupings: Sequence[Grouping]) -> Cube | None:
        """The cube of `day_sums` that has what is asked for; None if there is none."""
        return smallest_cube(self._needed_traits(groupings, _given_filters(self.filters)))

    def _call_cube(self, groupings: Sequence[Grouping]) -> "_CallCube | None":
        """The cube that has what is asked of calls with a filter that `call_sums` does not know; None if there is none."""
        filter_names = set(_given_filters(self.filters))
        names = filter_names & CALL_CUBES.keys()
        if len(names) != 1 or not filter_names - names <= TRAITS_OF_FILTERS.keys() or not self.days:
            return None
        [name] = names
        cube = CALL_CUBES[name]
        if not self._needed_traits(groupings, filter_names - names) <= set(cube.traits):
            return None
        column = day_sums.c[cube.traits[0]]
        match name:
            case "min_cost" if self.filters.min_cost is not None:
                return _CallCube.of_values(cube, column, calls.c.cost_usd, self.filters.min_cost, COSTS)
            case "min_duration" if self.filters.min_duration is not None:
                return _CallCube.of_values(cube, column, calls.c.duration, self.filters.min_duration, DURATIONS)
            case _:
                return _CallCube(cube, column.is_(self.filters.error))

    def _divided_rows(self, cube: "_CallCube") -> list[Select[Any]]:
        """Select the calls of changed runs, those outside the stored days, those that the cube does not tell apart, and the cube."""
        assert self.changed is not None
        names = literal(list(self.changed), ARRAY(Text))
        in_days = calls.c.started_at - calls.c.started_at % literal_column(str(DAY), BigInteger)
        is_stored = in_days == any_(literal(list(self.days), ARRAY(BigInteger)))
        outside = or_(*_outside(calls.c.started_at, self.days, self.filters.since, self.filters.until), false())
        read = [[calls.c.run == any_(names)], [calls.c.run != func.all(names), outside]]
        if cube.undivided is not None:
            read.append([calls.c.run != func.all(names), is_stored, cube.undivided])
        parts = [
            _counted_once(exchange_rows([*self.is_call(), *conditions], self.groups, self.changed))
            for conditions in read
        ]
        return [*parts, self._day_rows(cube.cube, [cube.is_asked, *_sum_conditions(self.filters, day_sums)])]

    def _day_rows(self, cube: Cube, conditions: Iterable[ColumnElement[bool]]) -> Select[Any]:
        """Select the columns of `exchange_rows` from `day_sums`; the hour is the first of the day where the cube has none."""
        hour = func.coalesce(day_sums.c.hour, day_sums.c.day).label("hour")
        columns = [hour if name == "hour" else day_sums.c[name] for name in TRAITS]
        columns += [day_sums.c[name] for name in (*COUNTS, *LATENCIES, *COUNTED.values())]
        is_asked = day_sums.c.day == any_(literal(list(self.days), ARRAY(BigInteger)))
        of_cube = [day_sums.c.project == self.project, day_sums.c.cube == cube.number, is_asked]
        return select(*columns).where(*of_cube, *conditions)


async def load_source(
    connection: AsyncConnection, project: str, filters: Filters, *, uses_sums: bool = True
) -> StatsSource:
    """Find out what the stored sums serve, and load the retry groups of the calls that they do not."""
    source = StatsSource(project=project, filters=filters)
    retried: Iterable[str]
    if uses_sums and (changed := await load_changed_runs(connection, project, MOST_CHANGES)) is not None:
        retried = changed
        source = replace(source, changed=changed)
        source = replace(source, days=await _load_summed_days(connection, source, changed))
    else:
        retried = (await connection.execute(select(calls.c.run).where(*source.is_call()).distinct())).scalars()
    return replace(source, groups=await load_retry_groups(connection, project, retried))


async def _load_summed_days(
    connection: AsyncConnection, source: StatsSource, changed: Sequence[str]
) -> tuple[int, ...]:
    """The whole days of which the sums over all runs are stored, and do not contain those of changed runs."""
    days = summed_days.c
    conditions = [days.project == source.project, days.is_valid]
    if source.begin is not None:
        conditions.append(days.day >= source.begin)
    if source.end is not None:
        conditions.append(days.day <= source.end - DAY)
    found = set((await connection.execute(select(days.day).where(*conditions))).scalars())
    is_changed = call_sums.c.run == any_(literal(list(changed), ARRAY(Text)))
    hours = select(call_sums.c.hour).where(call_sums.c.project == source.project, is_changed).distinct()
    stale = {hour - hour % DAY for hour in (await connection.execute(hours)).scalars()} if changed else set()
    return tuple(sorted(found - stale))


class SourceRows(NamedTuple):
    """The rows to sum."""

    rows: Subquery
    stores_counts: bool
    """Whether each says how often it has each class of latency; else each is one exchange."""


@dataclass(frozen=True, slots=True)
class _CallCube:
    """How a cube of calls answers a filter."""

    cube: Cube
    is_asked: ColumnElement[bool]
    """The condition on its rows."""

    undivided: ColumnElement[bool] | None = None
    """The condition of the calls that are in one row with others that do not fit."""

    @classmethod
    def of_values(
        cls,
        cube: Cube,
        column: ColumnElement[Any],
        value: ColumnElement[Any],
        least: Decimal | int,
        begins: Sequence[Decimal | int],
    ) -> "_CallCube | None":
        """Answer which calls have at least this value."""
        first = first_whole_class(least, begins)
        if first is None:
            return None
        begin = begins[first - 1]
        return cls(cube, column >= first, None if begin == least else value < begin)


def _outside(
    time: ColumnElement[Any], days: Sequence[int], begin: int | None, end: int | None
) -> list[ColumnElement[bool]]:
    """The conditions, of which one must hold, of the times that are not in these days."""
    found: list[ColumnElement[bool]] = []
    for day in days:
        if begin is None:
            found.append(time < day)
        elif begin < day:
            found.append(and_(time >= begin, time < day))
        begin = day + DAY
    if begin is None or end is None or begin < end:
        bounds = (begin is not None and time >= begin, end is not None and time < end)
        found.append(and_(true(), *(bound for bound in bounds if bound is not False)))
    return found


def _add_labels(query: Select[Any], table: FromClause, *, has_labels: bool = False) -> Select[Any]:
    """Add the labels of the runs of the rows. `has_labels`: the table has them itself."""
    if has_labels:
        return query.add_columns(table.c.labels)
    labelled = runs.alias("labelled")
    is_same = (labelled.c.project == table.c.project, labelled.c.id == table.c.run)
    return query.add_columns(labelled.c.labels).where(*is_same)


def _add_nothing(query: Select[Any], table: FromClause, *, has_labels: bool = False) -> Select[Any]:  # noqa: ARG001
    return query


def _counted_once(query: Select[Any]) -> Select[Any]:
    """Add the columns that say how often a row has each class of latency, where it has each once."""
    return query.add_columns(*(cast(null(), ARRAY(Integer)).label(name) for name in COUNTED.values()))


def _given_filters(filters: Filters) -> Iterator[str]:
    empty = Filters()
    return (one.name for one in fields(Filters) if getattr(filters, one.name) != getattr(empty, one.name))


def _sum_conditions(
    filters: Filters, table: Table, labels: ColumnElement[Any] | None = None
) -> Iterable[ColumnElement[bool]]:
    """Yield the conditions of `call_conditions` on `call_sums` or `day_sums`, except those of time and those of calls.

    `labels`: where the rows have labels of their own.
    """
    sums = table.c
    if filters.models:
        yield or_(sums.model.in_(filters.models), sums.model_returned.in_(filters.models))
    if filters.tools:
        itself = and_(
            sums.kind == "tool", or_(sums.operation.in_(filters.tool_names), sums.host.in_(filters.tool_names))
        )
        yield or_(sums.tools.overlap(list(filters.tool_names)), itself)
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
    if labels is not None:
        yield from label_conditions(filters, labels)
    elif of_run := list(run_conditions_of_calls(filters)):
        yield sums.run.in_(select(runs.c.id).where(runs.c.project == sums.project, *of_run))
