"""Filters and cursors of lists, as SQL conditions."""

import base64
import binascii
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from sqlalchemy import ColumnElement, Select, Table, Text, Uuid, and_, any_, exists, literal, or_, tuple_
from sqlalchemy.dialects.postgresql import ARRAY, array

from store.database.tables import calls, exchanges, gaps, runs


class BadCursor(ValueError):
    """The cursor does not come from this list."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last item of a page: the next one begins after it."""

    started_at: int
    id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that `str` returned. Raises `BadCursor`."""
        try:
            return msgspec.json.decode(base64.b64decode(text, altchars=b"-_", validate=True), type=cls)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise BadCursor(f"invalid cursor {text[:80]!r}: request the first page, without a cursor") from error

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters of calls; and of runs, which must have at least one such call."""

    since: int | None = None
    """Nanoseconds since the Unix epoch, inclusive; `until` is exclusive."""

    until: int | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """By name; None for any value."""

    model: str | None = None
    provider: str | None = None
    tool: str | None = None
    host: str | None = None
    status: range | None = None
    """`range(429, 430)`, or `range(400, 500)` for 4xx."""

    incomplete: bool | None = None
    q: str | None = None
    """Part of a run's id, name or labels, or of a call's model, host, operation, answer or tool arguments."""

    matching_calls: tuple[uuid.UUID, ...] = ()
    """The calls whose answers contain `q` (`ExchangeQueries.resolve_search`)."""


def run_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on `runs`."""
    yield from _time_conditions(filters, runs)
    yield from _label_conditions(filters)
    if traits := list(_trait_conditions(filters)):
        yield exists().where(*_same_run(calls), *traits)
    if filters.incomplete is not None:
        yield is_incomplete_run() if filters.incomplete else ~is_incomplete_run()
    if filters.q:
        yield or_(
            *_run_text_conditions(filters.q), exists().where(*_same_run(calls), or_(*_call_text_conditions(filters)))
        )


def call_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions on `calls`."""
    yield from _time_conditions(filters, calls)
    yield from _trait_conditions(filters)
    if labels := list(_label_conditions(filters)):
        yield exists().where(*_same_run(calls), *labels)
    if filters.incomplete is not None:
        yield calls.c.complete != filters.incomplete
    if filters.q:
        yield or_(
            *_call_text_conditions(filters), exists().where(*_same_run(calls), or_(*_run_text_conditions(filters.q)))
        )


def is_incomplete_run() -> ColumnElement[bool]:
    """Condition: the run has a gap, an exchange that is not recorded completely, or an answer that was cut off."""
    return or_(
        exists().where(*_same_run(gaps)),
        exists().where(*_same_run(exchanges), is_unkept_exchange()),
        exists().where(*_same_run(calls), is_cut_answer()),
    )


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
    begun = and_(calls.c.outcome.in_(("server_closed", "timed_out")), calls.c.status.is_not(None), ~calls.c.complete)
    return and_(begun, or_(calls.c.kind == "model", ~calls.c.streamed), ~exists().where(later).correlate(calls))


def page_query[T: tuple[Any, ...]](
    query: Select[T], table: Table, cursor: Cursor | None, limit: int, *, newest_first: bool
) -> Select[T]:
    """Return the query of a page in the order (started_at, id), plus one row, which shows whether another page follows."""
    place = tuple_(table.c.started_at, table.c.id)
    if cursor:
        here = tuple_(cursor.started_at, _id(table, cursor))
        query = query.where(place < here if newest_first else place > here)
    order = (table.c.started_at.desc(), table.c.id.desc()) if newest_first else (table.c.started_at, table.c.id)
    return query.order_by(*order).limit(limit + 1)


def _id(table: Table, cursor: Cursor) -> Any:
    try:
        return table.c.id.type.python_type(cursor.id)
    except ValueError as error:
        raise BadCursor(f"invalid cursor for {cursor.id[:80]!r}: request the first page, without a cursor") from error


def _same_run(table: Table) -> tuple[ColumnElement[bool], ...]:
    return (table.c.project == runs.c.project, table.c.run == runs.c.id)


def _time_conditions(filters: Filters, table: Table) -> Iterator[ColumnElement[bool]]:
    if filters.since is not None:
        yield table.c.started_at >= filters.since
    if filters.until is not None:
        yield table.c.started_at < filters.until


def _label_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    settled = {name: value for name, value in filters.labels.items() if value is not None}
    if settled:
        yield runs.c.labels.contains(settled)
    if named := [name for name, value in filters.labels.items() if value is None]:
        yield runs.c.labels.has_all(array(named))


def _trait_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    if filters.model is not None:
        yield or_(calls.c.model_requested == filters.model, calls.c.model_returned == filters.model)
    if filters.provider is not None:
        yield calls.c.provider == filters.provider
    if filters.tool is not None:
        # A model requested the tool, or the call is to the tool itself.
        itself = and_(calls.c.kind == "tool", or_(calls.c.operation == filters.tool, calls.c.host == filters.tool))
        yield or_(calls.c.tools.contains([filters.tool]), itself)
    if filters.host is not None:
        yield calls.c.host == filters.host
    if filters.status is not None:
        yield calls.c.status.between(filters.status.start, filters.status.stop - 1)


def _run_text_conditions(text: str) -> tuple[ColumnElement[bool], ...]:
    return tuple(
        column.icontains(text, autoescape=True) for column in (runs.c.id, runs.c.name, runs.c.labels.cast(Text))
    )


def _call_text_conditions(filters: Filters) -> Iterator[ColumnElement[bool]]:
    columns = (calls.c.model_requested, calls.c.model_returned, calls.c.host, calls.c.operation)
    yield from (column.icontains(filters.q or "", autoescape=True) for column in columns)
    if filters.matching_calls:
        # One array: there may be more of them than a statement has parameters.
        yield calls.c.id == any_(literal(list(filters.matching_calls), ARRAY(Uuid)))
