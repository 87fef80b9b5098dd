"""The filters of lists, as SQL conditions."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    ColumnElement,
    CompoundSelect,
    Select,
    Table,
    Text,
    Uuid,
    and_,
    any_,
    case,
    exists,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY, array

from store.database.tables import calls, exchanges, gaps, run_totals, runs
from store.database.traits import HAS_BROKEN_ANSWER, Trait, trait_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters of calls; and of runs, which must have at least one such call.

    All given filters must fit. Of the filters with several values, one of the values must fit.
    """

    since: int | None = None
    """Nanoseconds since the Unix epoch, inclusive; `until` is exclusive."""

    until: int | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """By name; None for any value. All must fit."""

    other_labels: Sequence[tuple[str, str | None]] = ()
    """The labels that a run must not have: a name with one value, or with any."""

    models: Sequence[str] = ()
    providers: Sequence[str] = ()
    tools: Sequence[str] = ()
    """`delete_order`, or `delete_*` for all whose names begin so."""

    hosts: Sequence[str] = ()
    statuses: Sequence[range] = ()
    """`range(429, 430)`, or `range(400, 500)` for 4xx."""

    kinds: Sequence[str] = ()
    dialects: Sequence[str] = ()
    operations: Sequence[str] = ()
    actors: Sequence[str] = ()
    keys: Sequence[bytes] = ()
    min_cost: Decimal | None = None
    """US dollars of a call; of a run, the sum of what is known."""

    min_duration: int | None = None
    """Nanoseconds of a call; of a run, from its start to the end of its last exchange."""

    error: bool | None = None
    """Whether the call failed; whether the run has an exchange that failed, even if it was tried again."""

    parent: str | None = None
    """The run of which the run is a fork."""

    incomplete: bool | None = None
    q: str | None = None
    """Words of prompts, answers, tool arguments and results (`store.search`); or part of a run's id, name or labels."""

    matching_tools: tuple[str, ...] = ()
    """The tools that the prefixes among `tools` find (`store.sums.tool_names`)."""

    matching_calls: tuple[uuid.UUID, ...] = ()
    """The calls that `q` finds (`store.search.lookup.TextLookup.resolve`)."""

    matching_runs: tuple[str, ...] = ()
    """The runs whose id, name or labels contain `q`."""

    @property
    def tool_prefixes(self) -> tuple[str, ...]:
        """The beginnings of names among `tools`."""
        return tuple(tool[:-1] for tool in self.tools if tool.endswith("*"))

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of tools, one of which must fit; with prefixes those that were found, beside the prefixes themselves."""
        return (*self.tools, *self.matching_tools)


def run_conditions(filters: Filters, project: str) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on `runs`."""
    yield from _time_conditions(filters, runs)
    yield from label_conditions(filters, runs.c.labels)
    if traits := list(_trait_conditions(filters)):
        yield exists().where(*_same_run(calls), *traits)
    if filters.error is not None:
        failed = exists().where(
            *_same_run(calls), _has_number(calls.c.traits, [("error", "true")]), _check(is_failed_exchange())
        )
        yield failed if filters.error else ~failed
    if filters.parent is not None:
        yield runs.c.parent == filters.parent
    if totals := list(_total_conditions(filters)):
        yield exists().where(*_same_run(run_totals), *totals)
    if filters.incomplete is not None:
        yield is_incomplete_run(project) if filters.incomplete else ~is_incomplete_run(project)
    if filters.q:
        yield _is_matching_run(filters, project)


def summed_run_conditions(filters: Filters, project: str) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of `run_conditions` on `runs` joined with `run_totals`, of runs whose stored sums are up to date.

    They do not know the keys of calls. Where `needs_one_call`, a run may have several calls which only together fit.
    """
    yield from _time_conditions(filters, runs)
    yield from label_conditions(filters, runs.c.labels)
    for equality in _equalities(filters):
        yield from _has_facet(equality.facets)
    if filters.error:
        yield from _has_facet([("error", "true")])
    elif filters.error is not None:
        yield ~_check(run_totals.c.facets.overlap(["error=true"]))
    if filters.parent is not None:
        yield runs.c.parent == filters.parent
    yield from _total_conditions(filters)
    if filters.incomplete is not None:
        yield is_incomplete_run(project) if filters.incomplete else ~is_incomplete_run(project)
    if filters.q:
        yield _is_matching_run(filters, project)


def has_equalities(filters: Filters) -> bool:
    """Whether a run must have a call with certain traits."""
    return filters.error is not None or next(_equalities(filters), None) is not None


def needs_one_call(filters: Filters) -> bool:
    """Whether one call of a run must have several traits."""
    return len(list(_equalities(filters))) > 1


def select_runs_with_call(filters: Filters, project: str, names: Sequence[str]) -> Select[tuple[str]]:
    """Select those of these runs that have a call with all traits."""
    of_runs = (calls.c.project == project, calls.c.run == any_(literal(list(names), ARRAY(Text))))
    return select(calls.c.run).where(*of_runs, *_trait_conditions(filters)).distinct()


def call_conditions(
    filters: Filters, project: str, *, has_marks: bool = False, run_ids: Sequence[str] | None = None
) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on `calls`. With `has_marks`, a failure that a later attempt made good is none (`sums.attempt_marks`).

    `run_ids` are all runs that fit, where these are few: Postgres estimates labels, and may look at the runs of all calls instead.
    """
    yield from _time_conditions(filters, calls)
    yield from _trait_conditions(filters)
    if filters.error and has_marks:
        yield calls.c.failed
    elif filters.error is not None:
        if filters.error:
            yield _has_number(calls.c.traits, [("error", "true")])
        yield _check(is_failed_exchange()) if filters.error else ~is_failed_exchange()
    if filters.min_cost is not None:
        yield calls.c.cost_usd >= filters.min_cost
    if filters.min_duration is not None:
        yield calls.c.duration >= filters.min_duration
    if run_ids is not None:
        yield calls.c.run == any_(literal(list(run_ids), ARRAY(Text)))
    elif of_run := list(run_conditions_of_calls(filters)):
        yield exists().where(*_same_run(calls), *of_run)
    if filters.incomplete is not None:
        if filters.incomplete:
            yield _has_number(calls.c.traits, [("incomplete", "true")])
        yield _check(~calls.c.complete) if filters.incomplete else calls.c.complete
    if filters.q:
        matching: Select[Any] | CompoundSelect[Any] = _matching_calls(filters)
        if filters.matching_runs:
            among = calls.alias("among")
            of_runs = select(among.c.id).where(among.c.project == project, among.c.run.in_(_matching_runs(filters)))
            matching = union_all(matching, of_runs)
        yield calls.c.id.in_(matching)


def run_conditions_of_calls(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on the run of a call."""
    yield from label_conditions(filters, runs.c.labels)
    if filters.parent is not None:
        yield runs.c.parent == filters.parent


def is_failed_exchange() -> ColumnElement[bool]:
    """Condition: the exchange has an error status, no response, or an answer that did not end."""
    return or_(calls.c.status.is_(None), calls.c.status >= 400, literal_column(HAS_BROKEN_ANSWER, Boolean))


def is_incomplete_run(project: str) -> ColumnElement[bool]:
    """Condition: the run has a gap, an exchange that is not recorded completely, or an answer that was cut off.

    Partial indexes list the runs that may be incomplete, which are few. Only these are looked at, and only while a page needs more.
    """
    suspects = union_all(
        select(gaps.c.run).where(gaps.c.project == project),
        select(exchanges.c.run).where(exchanges.c.project == project, is_unkept_exchange()),
        select(calls.c.run).where(calls.c.project == project, is_broken_off()),
    )
    faults = (
        _is_found(select(gaps.c.run).where(*_same_run(gaps))),
        _is_found(select(exchanges.c.run).where(*_same_run(exchanges), is_unkept_exchange())),
        _is_found(select(calls.c.run).where(*_same_run(calls), is_cut_answer())),
    )
    return case((runs.c.id.in_(suspects), or_(*faults)), else_=false())


def _is_found(query: Select[tuple[str]]) -> ColumnElement[bool]:
    """Condition: the query has a row. For EXISTS, Postgres would look at all runs at once, which takes longer than a page of them."""
    return query.limit(1).correlate(runs).scalar_subquery().is_not(None)


def is_unkept_exchange() -> ColumnElement[bool]:
    """Condition: bytes or the end of the exchange were not recorded."""
    return or_(exchanges.c.truncated, exchanges.c.ended_at.is_(None))


def is_cut_answer() -> ColumnElement[bool]:
    """Condition: the server ended an answer early, and no complete answer to the same request followed.

    An answer that the client left does not count, nor does a tool server's stream of events, which has no end of its own.
    """
    again = calls.alias("again")
    same = (again.c.project == calls.c.project, again.c.run == calls.c.run, again.c.key == calls.c.key)
    later = and_(*same, again.c.complete, again.c.started_at > calls.c.started_at)
    # Not NOT EXISTS, which Postgres would answer for all calls at once.
    retry = select(again.c.id).where(later).limit(1).correlate(calls).scalar_subquery()
    return and_(is_broken_off(), or_(calls.c.kind == "model", ~calls.c.streamed), retry.is_(None))


def is_broken_off() -> ColumnElement[bool]:
    """Condition: the server began an answer and did not end it. Without parameters, as the partial index `calls_cut_idx` has it."""
    outcomes: list[ColumnElement[str]] = [literal_column("'server_closed'"), literal_column("'timed_out'")]
    return and_(calls.c.outcome.in_(outcomes), calls.c.status.is_not(None), ~calls.c.complete)


def _same_run(table: Table) -> tuple[ColumnElement[bool], ...]:
    return (table.c.project == runs.c.project, table.c.run == runs.c.id)


def _time_conditions(filters: Filters, table: Table) -> Iterator[ColumnElement[bool]]:
    if filters.since is not None:
        yield table.c.started_at >= filters.since
    if filters.until is not None:
        yield table.c.started_at < filters.until


def label_conditions(filters: Filters, labels: ColumnElement[Any]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on the labels of a run."""
    settled = {name: value for name, value in filters.labels.items() if value is not None}
    if settled:
        yield labels.contains(settled)
    if names := [name for name, value in filters.labels.items() if value is None]:
        yield labels.has_all(array(names))
    for name, value in filters.other_labels:
        yield ~(labels.has_key(name) if value is None else labels.contains({name: value}))


class _Equality(NamedTuple):
    """A filter for equality: one of its values must fit."""

    traits: Sequence[Trait]
    """The traits of calls that fit (`store.ingest.insert_rows.call_trait_numbers`)."""

    facets: Sequence[Trait]
    """The facets of runs with such a call (`store.sums.run_facets`)."""

    is_equal: ColumnElement[bool]
    """The condition on the columns of a call."""


def _equalities(filters: Filters) -> Iterator[_Equality]:
    columns: Mapping[str, tuple[Sequence[str], ColumnElement[str]]] = {
        "kind": (filters.kinds, calls.c.kind),
        "provider": (filters.providers, calls.c.provider),
        "dialect": (filters.dialects, calls.c.dialect),
        "operation": (filters.operations, calls.c.operation),
        "host": (filters.hosts, calls.c.host),
        "actor": (filters.actors, calls.c.actor),
    }
    for name, (values, column) in columns.items():
        if values:
            yield _Equality(traits := _traits_of((name,), values), traits, column.in_(values))
    if filters.models:
        is_model = or_(calls.c.model_requested.in_(filters.models), calls.c.model_returned.in_(filters.models))
        yield _Equality(
            _traits_of(("model",), filters.models), _traits_of(("model", "returned"), filters.models), is_model
        )
    if tools := filters.tool_names:
        # A model requested the tool, or the call is to the tool itself.
        itself = and_(calls.c.kind == "tool", or_(calls.c.operation.in_(tools), calls.c.host.in_(tools)))
        is_tool = or_(calls.c.tools.overlap(list(tools)), itself)
        yield _Equality(_traits_of(("tool",), tools), _traits_of(("tool", "own"), tools), is_tool)
    if filters.statuses:
        traits = [("status", _status_trait(one)) for one in filters.statuses]
        has_status = or_(*(calls.c.status.between(one.start, one.stop - 1) for one in filters.statuses))
        yield _Equality(traits, traits, has_status)


def _traits_of(names: Sequence[str], values: Iterable[str]) -> list[Trait]:
    return [(name, value) for value in values for name in names]


def _trait_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions for equality, each by the index of traits and by the columns themselves (`store.database.traits`)."""
    for equality in _equalities(filters):
        yield _has_number(calls.c.traits, equality.traits)
        yield _check(equality.is_equal)
    if filters.keys:
        yield _has_number(calls.c.traits, [("key", key.hex()) for key in filters.keys])
        yield _check(calls.c.key.in_(filters.keys))


def _status_trait(status: range) -> str:
    return str(status.start) if len(status) == 1 else f"{status.start // 100}xx"


def _has_facet(facets: Sequence[Trait]) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions that the run has one of these facets, by the index of their numbers and by the facets themselves."""
    yield _has_number(run_totals.c.traits, facets)
    yield _check(run_totals.c.facets.overlap([f"{name}={value}" for name, value in facets]))


def _is_matching_run(filters: Filters, project: str) -> ColumnElement[bool]:
    of_calls = select(calls.c.run).where(calls.c.project == project, calls.c.id.in_(_matching_calls(filters)))
    # An array is made once. Joined, Postgres would walk the newest runs and compare each with all of them.
    return runs.c.id == any_(func.array(union_all(of_calls, _matching_runs(filters)).scalar_subquery()))


def _has_number(column: ColumnElement[Any], traits: Iterable[Trait]) -> ColumnElement[bool]:
    """Return the condition that the index of traits serves: the column has the number of one of these.

    The numbers are written into the statement, so that Postgres always plans for these very values: it may walk the newest
    rows for a common value, and must not for a rare one.
    """
    numbers = trait_numbers(traits)
    operator = "@>" if len(numbers) == 1 else "&&"
    return column.bool_op(operator)(literal_column(f"'{{{','.join(map(str, numbers))}}}'::integer[]"))


def _check(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition in a form that Postgres does not estimate: the index of traits has told it how many rows there are."""
    return case((condition, true()), else_=false())


def _total_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    if filters.min_cost is not None:
        yield run_totals.c.cost_usd >= filters.min_cost
    if filters.min_duration is not None:
        yield run_totals.c.duration >= filters.min_duration


def contains_run_text(text: str) -> ColumnElement[bool]:
    """Condition: the id, name or labels of a run contain the text."""
    columns = (runs.c.id, runs.c.name, runs.c.labels.cast(Text))
    return or_(*(column.icontains(text, autoescape=True) for column in columns))


# Each one array, since there may be more of them than a statement has parameters; and read as a table, because Postgres would walk
# the newest calls to compare each with all of them.
def _matching_calls(filters: Filters) -> Select[Any]:
    return select(func.unnest(literal(list(filters.matching_calls), ARRAY(Uuid))))


def _matching_runs(filters: Filters) -> Select[Any]:
    return select(func.unnest(literal(list(filters.matching_runs), ARRAY(Text))))
