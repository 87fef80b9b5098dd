"""The filters of lists, and where their next page begins."""

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
    """A cursor that no list of ours gave."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last item of a page: the next one begins after it."""

    started_at: int
    id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cursor that `str` made. Raises `BadCursor`."""
        try:
            return msgspec.json.decode(base64.b64decode(text, altchars=b"-_", validate=True), type=cls)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise BadCursor(f"{text[:80]!r} is not a cursor of this list; begin again without one") from error

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What runs or calls are wanted. For runs, those with at least one such call."""

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
    """Part of a run's id, name or labels, or of a call's model, host, operation, answer or arguments of tools."""

    heard: tuple[uuid.UUID, ...] = ()
    """The calls whose answers hold `q` (`Recorded.heard`)."""


def of_runs(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """The conditions on `runs`."""
    yield from _times(filters, runs)
    yield from _labels(filters)
    if wanted := list(_traits(filters)):
        yield exists().where(*_same_run(calls), *wanted)
    if filters.incomplete is not None:
        yield lacking() if filters.incomplete else ~lacking()
    if filters.q:
        yield or_(*_in_run(filters.q), exists().where(*_same_run(calls), or_(*_in_call(filters))))


def of_calls(filters: Filters) -> Iterator[ColumnElement[bool]]:
    """The conditions on `calls`."""
    yield from _times(filters, calls)
    yield from _traits(filters)
    if labels := list(_labels(filters)):
        yield exists().where(*_same_run(calls), *labels)
    if filters.incomplete is not None:
        yield calls.c.complete != filters.incomplete
    if filters.q:
        yield or_(*_in_call(filters), exists().where(*_same_run(calls), or_(*_in_run(filters.q))))


def lacking() -> ColumnElement[bool]:
    """Whether a run is not complete: it has a gap, bytes that passed and were not kept, an end not seen, a cut answer."""
    return or_(
        exists().where(*_same_run(gaps)),
        exists().where(*_same_run(exchanges), unkept()),
        exists().where(*_same_run(calls), cut()),
    )


def unkept() -> ColumnElement[bool]:
    """Whether an exchange is not all in its record."""
    return or_(exchanges.c.truncated, exchanges.c.ended_at.is_(None))


def cut() -> ColumnElement[bool]:
    """Whether an answer broke off that had begun, and none to the same request came whole after it. That its client left it
    is no such cut, nor is the end of a stream that a tool's server keeps open to be listened to: it has no end of its own."""
    again = calls.alias("again")
    same = (again.c.project == calls.c.project, again.c.run == calls.c.run, again.c.key == calls.c.key)
    later = and_(*same, again.c.complete, again.c.started_at > calls.c.started_at)
    begun = and_(calls.c.outcome.in_(("server_closed", "timed_out")), calls.c.status.is_not(None), ~calls.c.complete)
    return and_(begun, or_(calls.c.kind == "model", ~calls.c.streamed), ~exists().where(later).correlate(calls))


def page[T: tuple[Any, ...]](
    query: Select[T], table: Table, cursor: Cursor | None, limit: int, *, newest_first: bool
) -> Select[T]:
    """One page of a list in the order (started_at, id), and one row more: it tells whether there is another page."""
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
        raise BadCursor(f"{cursor.id[:80]!r} is no place in this list; begin again without a cursor") from error


def _same_run(table: Table) -> tuple[ColumnElement[bool], ...]:
    return (table.c.project == runs.c.project, table.c.run == runs.c.id)


def _times(filters: Filters, table: Table) -> Iterator[ColumnElement[bool]]:
    if filters.since is not None:
        yield table.c.started_at >= filters.since
    if filters.until is not None:
        yield table.c.started_at < filters.until


def _labels(filters: Filters) -> Iterator[ColumnElement[bool]]:
    settled = {name: value for name, value in filters.labels.items() if value is not None}
    if settled:
        yield runs.c.labels.contains(settled)
    if named := [name for name, value in filters.labels.items() if value is None]:
        yield runs.c.labels.has_all(array(named))


def _traits(filters: Filters) -> Iterator[ColumnElement[bool]]:
    if filters.model is not None:
        yield or_(calls.c.model_requested == filters.model, calls.c.model_returned == filters.model)
    if filters.provider is not None:
        yield calls.c.provider == filters.provider
    if filters.tool is not None:
        # A model asked for it, or the call is the tool itself.
        itself = and_(calls.c.kind == "tool", or_(calls.c.operation == filters.tool, calls.c.host == filters.tool))
        yield or_(calls.c.tools.contains([filters.tool]), itself)
    if filters.host is not None:
        yield calls.c.host == filters.host
    if filters.status is not None:
        yield calls.c.status.between(filters.status.start, filters.status.stop - 1)


def _in_run(wanted: str) -> tuple[ColumnElement[bool], ...]:
    return tuple(
        column.icontains(wanted, autoescape=True) for column in (runs.c.id, runs.c.name, runs.c.labels.cast(Text))
    )


def _in_call(filters: Filters) -> Iterator[ColumnElement[bool]]:
    columns = (calls.c.model_requested, calls.c.model_returned, calls.c.host, calls.c.operation)
    yield from (column.icontains(filters.q or "", autoescape=True) for column in columns)
    if filters.heard:
        # One array: there may be more of them than a statement has parameters.
        yield calls.c.id == any_(literal(list(filters.heard), ARRAY(Uuid)))
