"""How PostgreSQL searches a span of days: by the index of words, or from the newest on until enough fit.

It cannot know how many fit: it has statistics of words, and none of phrases and beginnings of words. What is said changes with time, so
each span has a sample of its own.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Select, Table, Text, bindparam, func
from sqlalchemy import text as sql
from sqlalchemy.dialects.postgresql import TSQUERY

from store.database.asyncio_engine import AsyncConnection

FREQUENT_SHARE: Final = 0.2
"""The part of a sample that fits from which on the newest texts are walked until enough fit."""


class DaySpan(NamedTuple):
    """Days, without the first one."""

    after: dt.date
    last: dt.date

    def conditions(self, table: Table) -> tuple[ColumnElement[bool], ...]:
        """The conditions on the rows of a table."""
        return table.c.day > self.after, table.c.day <= self.last


async def plan_for_values(connection: AsyncConnection) -> None:
    """Have the statements of the transaction planned for their values: a plan for any days and any words would read all texts."""
    await connection.execute(_PLAN_FOR_VALUES)


async def newest_first(
    connection: AsyncConnection, columns: Sequence[ColumnElement[Any]], newest: Select[Any], query: ColumnElement[Any]
) -> Sequence[ColumnElement[Any]]:
    """Return the order of rows, in a form by which PostgreSQL walks the newest if many of them fit, and else looks words up.

    `newest` selects the words of the newest rows of a span; `columns` are those that order the rows, the first two those of an index.
    """
    sample = newest.subquery("sample")
    fitting = func.count().filter(sample.c.words.op("@@")(query))
    counts = sample.select().with_only_columns(fitting, func.count().label("number"))
    fitting_count, sample_size = (await connection.execute(counts)).one()
    if fitting_count < sample_size * FREQUENT_SHARE:
        # No index has these expressions.
        await connection.execute(_USE_WORDS)
        return [(column + 0).desc() for column in columns[:2]] + [column.desc() for column in columns[2:]]
    await connection.execute(_USE_NO_WORDS)
    return [column.desc() for column in columns]


def tsquery(text: str) -> ColumnElement[Any]:
    """A tsquery as a parameter."""
    return bindparam(None, text, type_=Text).cast(TSQUERY)


# Until the end of the transaction.
_PLAN_FOR_VALUES: Final = sql("SET LOCAL plan_cache_mode = force_custom_plan")
_USE_WORDS: Final = sql(
    "SELECT set_config(name, 'on', true) FROM unnest(ARRAY['enable_bitmapscan', 'enable_sort']) AS name"
)
# Without sorts, so that the rows are read in their order even if Postgres believes that few of them fit.
_USE_NO_WORDS: Final = sql(
    "SELECT set_config(name, 'off', true) FROM unnest(ARRAY['enable_bitmapscan', 'enable_sort']) AS name"
)
