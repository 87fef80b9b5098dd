"""One row for each exchange, or for the equal ones of an hour, with what sums are made of.

A call of several exchanges (retries, polls) counts once, by its last exchange; its tokens and costs are those of all its exchanges,
except that a repeated poll repeats an answer that was counted. Latencies are those of exchanges, since each was waited for.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Select,
    SmallInteger,
    Text,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by, array

from calls.dialects.generic import DIALECT as GENERIC
from calls.model import Usage
from store.call_graph.retry_query import RetryGroups, is_among
from store.database.tables import call_sums, calls
from store.query.filters import is_failed_exchange
from store.query.run_stats import can_have_cost
from store.sums.latency_classes import class_column

HOUR: Final = 3600 * 1_000_000_000

TRAITS: Final = (
    *(
        "project",
        "run",
        "hour",
        "kind",
        "provider",
        "dialect",
        "operation",
        "host",
        "model",
        "model_returned",
        "actor",
        "status",
    ),
    "tools",
)
"""The columns in which the exchanges of one row are equal."""

COUNTS: Final = ("calls", "exchanges", "errors", *Usage.__slots__, "cost_usd", "unpriced")
"""The columns that are summed."""

LATENCIES: Final = ("first_bytes", "durations")
"""The columns with the classes of latencies."""

# A tool's own call counts for the tool: that which an MCP request names, else the operation, else the host.
_own_tool = case((calls.c.dialect == GENERIC.name, calls.c.host), else_=calls.c.operation)
_tools = case(
    (and_(calls.c.kind == "tool", func.coalesce(func.cardinality(calls.c.tools), 0) == 0), array([_own_tool])),
    else_=calls.c.tools,
)


def exchange_rows(
    conditions: Iterable[ColumnElement[bool]], groups: RetryGroups, changed: Collection[str] | None = None
) -> Select[Any]:
    """Select a row for each exchange that fits, from `calls`.

    `groups` are those of their runs; or only those of the `changed` runs, if all others have their marks (`sums.attempt_marks`).
    """
    is_last, once = ~is_among(groups.superseded_exchanges), ~is_among(groups.repeated_polls)
    if changed is not None:
        has_marks = calls.c.run != func.all(literal(list(changed), ARRAY(Text)))
        is_last = and_(is_last, or_(~has_marks, calls.c.superseded.is_not(True)))
        once = and_(once, or_(~has_marks, calls.c.repeated.is_not(True)))
    return _rows(conditions, is_last, once)


def marked_rows(conditions: Iterable[ColumnElement[bool]]) -> Select[Any]:
    """Select the same from calls that all have their marks."""
    return _rows(conditions, calls.c.superseded.is_not(True), calls.c.repeated.is_not(True))


def _rows(
    conditions: Iterable[ColumnElement[bool]], is_last: ColumnElement[bool], once: ColumnElement[bool]
) -> Select[Any]:
    hour = literal_column(str(HOUR), BigInteger)
    return select(
        calls.c.project,
        calls.c.run,
        (calls.c.started_at - calls.c.started_at % hour).label("hour"),
        *(calls.c[name] for name in ("kind", "provider", "dialect", "operation", "host")),
        func.coalesce(calls.c.model_requested, calls.c.model_returned).label("model"),
        calls.c.model_returned,
        calls.c.actor,
        calls.c.status,
        _tools.label("tools"),
        cast(is_last, Integer).label("calls"),
        literal_column("1", Integer).label("exchanges"),
        cast(and_(is_last, is_failed_exchange()), Integer).label("errors"),
        *(case((once, calls.c[name])).label(name) for name in Usage.__slots__),
        case((once, calls.c.cost_usd)).label("cost_usd"),
        cast(and_(can_have_cost(), once, calls.c.cost_usd.is_(None)), Integer).label("unpriced"),
        _latency(calls.c.first_byte).label("first_bytes"),
        _latency(calls.c.duration).label("durations"),
    ).where(*conditions)


def _latency(nanoseconds: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((nanoseconds.is_(None), cast(null(), ARRAY(SmallInteger))), else_=array([class_column(nanoseconds)]))


def hour_rows(
    conditions: Iterable[ColumnElement[bool]], superseded: ColumnElement[Any], repeated: ColumnElement[Any]
) -> Select[Any]:
    """Select a row for the equal exchanges of each run and hour, with all columns of `call_sums`.

    `superseded` and `repeated` are arrays of those exchanges that retry groups say this of.
    """
    rows = _rows(conditions, calls.c.id != func.all(superseded), calls.c.id != func.all(repeated)).subquery("rows")
    traits = [rows.c[name] for name in TRAITS]
    place = func.row_number().over(partition_by=[rows.c.run, rows.c.hour], order_by=traits).label("place")
    sums = [func.sum(rows.c[name]).cast(call_sums.c[name].type).label(name) for name in COUNTS]
    # Each array has one element or is null, so its first element is all of it.
    classes = [
        func.array_agg(aggregate_order_by(rows.c[name][1], rows.c[name][1]))
        .filter(rows.c[name].is_not(None))
        .label(name)
        for name in LATENCIES
    ]
    return select(*traits, place, *sums, *classes).group_by(*traits)


def stored_rows(conditions: Iterable[ColumnElement[bool]]) -> Select[Any]:
    """Select the same columns as `exchange_rows` from `call_sums`."""
    return select(*(call_sums.c[name] for name in (*TRAITS, *COUNTS, *LATENCIES))).where(*conditions)
