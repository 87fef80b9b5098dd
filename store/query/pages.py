"""Sort lists, and cut them into pages that stay stable while rows are written.

A cursor has the place of the last item of a page: its value, time and id. Items without a value come last, newest first.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, Literal, Self

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    RowMapping,
    Select,
    Table,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    or_,
    tuple_,
)

from store.database.asyncio_engine import AsyncConnection
from store.database.tables import calls, run_totals, runs
from store.query.filters import Filters

LAST_TIME: Final = (1 << 63) - 1
"""The largest time that a bigint holds, in the year 2262."""

_COST: Final = re.compile(r"\d{1,30}(\.\d{1,60})?", re.ASCII)


class BadCursor(ValueError):
    """The cursor does not come from this list."""


type SortName = Literal["time", "cost", "duration", "tokens"]


@dataclass(frozen=True, slots=True)
class Sort:
    """What a list is sorted by."""

    by: SortName = "time"
    is_descending: bool = True


NEWEST_FIRST: Final = Sort()
STEP_ORDER: Final = Sort(is_descending=False)


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """The last item of a page: the next one begins after it."""

    list: str
    """The digest of the list that it belongs to (`list_digest`)."""

    value: int | str | None
    """What the list is sorted by: a cost as decimal digits. None if it is sorted by time, or the item has no such value."""

    started_at: int
    id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text that `str` returned. Raises `BadCursor`."""
        try:
            cursor = msgspec.json.decode(base64.b64decode(text, altchars=b"-_", validate=True), type=cls)
        except (msgspec.DecodeError, binascii.Error, ValueError) as error:
            raise BadCursor(f"invalid cursor {text[:80]!r}: request the first page, without a cursor") from error
        if not cursor._is_storable:
            raise BadCursor(f"invalid cursor {text[:80]!r}: request the first page, without a cursor")
        return cursor

    @property
    def _is_storable(self) -> bool:
        """Whether Postgres can store its time, text and value."""
        is_value = _COST.fullmatch(self.value) if isinstance(self.value, str) else abs(self.value or 0) <= LAST_TIME
        return "\0" not in self.id and 0 <= self.started_at <= LAST_TIME and bool(is_value)

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()


def list_digest(name: str, project: str, sort: Sort, filters: Filters | None = None) -> str:
    """Return the digest of everything that decides which items a list has and in which order."""
    ordered_filters = filters and replace(
        filters, labels=dict(sorted(filters.labels.items())), matching_tools=(), matching_calls=(), matching_runs=()
    )
    return hashlib.sha256(repr((name, project, sort, ordered_filters)).encode("utf-8", "replace")).hexdigest()[:12]


def parse_cursor(text: str | None, digest: str) -> Cursor | None:
    """Parse the cursor of the list with this digest. Raises `BadCursor`, also for a cursor of another list."""
    cursor = None if text is None else Cursor.parse(text)
    if cursor is not None and cursor.list != digest:
        raise BadCursor(
            "the cursor belongs to another list, or to the same one with other filters or another sort: give the filters and the"
            " sort of the first page with every page, or request the first page, without a cursor"
        )
    return cursor


def next_cursor(found: Sequence[RowMapping], limit: int, digest: str) -> Cursor | None:
    """Return the cursor after a page, for which one row more than `limit` was requested; None for the last page."""
    if len(found) <= limit:
        return None
    last = found[limit - 1]
    value = last.get(_VALUE)
    return Cursor(digest, f"{value:f}" if isinstance(value, Decimal) else value, last["started_at"], str(last["id"]))


async def load_sorted_page(
    connection: AsyncConnection,
    query: Select[Any],
    table: Table,
    sort: Sort,
    cursor: Cursor | None,
    limit: int,
    *,
    has_totals: bool = False,
) -> Sequence[RowMapping]:
    """Load a page of calls or runs, plus one row, which shows whether another page follows. `query` selects from `table`.

    `has_totals`: it joins runs with their sums.
    """
    if sort.by == "time":
        return await _rows(connection, page_query(query, table, cursor, limit, newest_first=sort.is_descending))
    column = _SORT_COLUMNS[table.name][sort.by]
    found: Sequence[RowMapping] = ()
    if cursor is None or cursor.value is not None:
        valued = query if has_totals or table is not runs else query.join(run_totals, _HAS_TOTALS)
        found = await _rows(connection, _valued_query(valued, column, sort, cursor).limit(limit + 1))
        cursor = None
    if len(found) <= limit:
        is_unknown = column.value.is_(None) if has_totals else column.is_unknown
        unvalued = page_query(query.where(is_unknown), table, cursor, limit - len(found), newest_first=True)
        found = (*found, *await _rows(connection, unvalued))
    return found


def merge_pages(
    found: Sequence[RowMapping], more: Sequence[RowMapping], sort: Sort, limit: int
) -> Sequence[RowMapping]:
    """Merge two pages of `load_sorted_page` with different rows, each with its row too many, into one like them."""

    def place(row: RowMapping) -> tuple[Any, str]:
        return (row["started_at"] if (value := row.get(_VALUE)) is None else value), str(row["id"])

    rows = [*found, *more]
    by_time = sort.by == "time"
    valued = [row for row in rows if by_time or row.get(_VALUE) is not None]
    unvalued = [] if by_time else [row for row in rows if row.get(_VALUE) is None]
    valued.sort(key=place, reverse=sort.is_descending)
    unvalued.sort(key=place, reverse=True)
    return [*valued, *unvalued][: limit + 1]


async def _rows(connection: AsyncConnection, query: Select[Any]) -> Sequence[RowMapping]:
    rows: Sequence[RowMapping] = (await connection.execute(query)).mappings().all()
    return rows


def page_query[T: tuple[Any, ...]](
    query: Select[T], table: Table, cursor: Cursor | None, limit: int, *, newest_first: bool
) -> Select[T]:
    """Return the query of a page in the order (started_at, id), plus one row, which shows whether another page follows."""
    place = tuple_(table.c.started_at, table.c.id)
    if cursor:
        here = tuple_(cursor.started_at, _id(table.c.id, cursor))
        query = query.where(place < here if newest_first else place > here)
    order = (table.c.started_at.desc(), table.c.id.desc()) if newest_first else (table.c.started_at, table.c.id)
    return query.order_by(*order).limit(limit + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SortColumn:
    """A value that rows are sorted by, with the conditions of the partial index that has it."""

    value: ColumnElement[Any]
    id: ColumnElement[Any]
    is_known: ColumnElement[bool]
    is_unknown: ColumnElement[bool]


def _valued_query(query: Select[Any], column: _SortColumn, sort: Sort, cursor: Cursor | None) -> Select[Any]:
    """Return the query of the rows that have the value, from the cursor on."""
    query = query.add_columns(column.value.label(_VALUE)).where(column.is_known)
    place = tuple_(column.value, column.id)
    if cursor:
        here = tuple_(_value(column, cursor), bindparam(None, _id(column.id, cursor), type_=column.id.type))
        query = query.where(place < here if sort.is_descending else place > here)
    order = (column.value.desc(), column.id.desc()) if sort.is_descending else (column.value, column.id)
    return query.order_by(*order)


def _value(column: _SortColumn, cursor: Cursor) -> ColumnElement[Any]:
    value = Decimal(cursor.value) if isinstance(cursor.value, str) else cursor.value
    return bindparam(None, value, type_=column.value.type)


def _id(column: ColumnElement[Any], cursor: Cursor) -> Any:
    try:
        return column.type.python_type(cursor.id)
    except ValueError as error:
        raise BadCursor(f"invalid cursor for {cursor.id[:80]!r}: request the first page, without a cursor") from error


_VALUE: Final = "sort_value"
_HAS_TOTALS: Final = and_(run_totals.c.project == runs.c.project, run_totals.c.run == runs.c.id)

_ZERO: ColumnElement[int] = literal_column("0")
_call_tokens = func.coalesce(calls.c.input_tokens, _ZERO) + func.coalesce(calls.c.output_tokens, _ZERO)


def _of_call(value: ColumnElement[Any], *sources: ColumnElement[Any]) -> _SortColumn:
    return _SortColumn(
        value=value,
        id=calls.c.id,
        is_known=or_(*(source.is_not(None) for source in sources)),
        is_unknown=and_(*(source.is_(None) for source in sources)),
    )


_known = run_totals.alias("known")


def _of_run(value: Column[Any]) -> _SortColumn:
    return _SortColumn(
        value=value,
        id=run_totals.c.run,
        is_known=value.is_not(None),
        is_unknown=~exists().where(
            _known.c.project == runs.c.project, _known.c.run == runs.c.id, _known.c[value.name].is_not(None)
        ),
    )


_SORT_COLUMNS: Final[Mapping[str, Mapping[str, _SortColumn]]] = {
    "calls": {
        "cost": _of_call(calls.c.cost_usd, calls.c.cost_usd),
        "duration": _of_call(calls.c.duration, calls.c.duration),
        "tokens": _of_call(_call_tokens, calls.c.input_tokens, calls.c.output_tokens),
    },
    "runs": {
        "cost": _of_run(run_totals.c.cost_usd),
        "duration": _of_run(run_totals.c.duration),
        "tokens": _of_run(run_totals.c.tokens),
    },
}
