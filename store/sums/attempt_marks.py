"""Note what retry groups say of a run's exchanges, so that lists and sums over many runs need not load them.

`calls.failed`: the call failed in the end. Ingest notes every exchange that failed. A later attempt may have made it good, or may be gone:
when the sums of its run are made again, the marks of the run are set by its retry groups. A list of failed calls checks them, so a mark
that is set too late hides nothing but what has become a failure again a moment ago. `calls.superseded`: a later exchange is of the same
call. `calls.repeated`: the exchange is a poll that repeats an answer. Sums read these two of runs that have not changed since.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import ARRAY, Select, Text, Uuid, any_, bindparam, or_, select, update

from store.call_graph.retry_query import ANSWER_COLUMNS, RetryGroups, is_among
from store.database.asyncio_engine import AsyncConnection
from store.database.tables import calls
from store.query.filters import is_failed_exchange

type _Marks = tuple[bool | None, bool | None, bool | None]
"""Failed, superseded and repeated; true or null."""


async def mark_attempts(
    connection: AsyncConnection, project: str, runs: Sequence[str], groups: RetryGroups
) -> set[str]:
    """Set the marks of these runs, whose retry groups are given; return those that have an exchange that failed."""
    superseded, repeated = set(groups.superseded_exchanges), set(groups.repeated_polls)
    of_runs = {"project": project, "runs": list(runs), "marked": list(superseded | repeated)}
    rows = (await connection.execute(_suspects(), of_runs)).mappings().all()
    changed: defaultdict[_Marks, list[uuid.UUID]] = defaultdict(list)
    for row in rows:
        marks: _Marks = (
            groups.has_failed(row) or None,
            row["id"] in superseded or None,
            row["id"] in repeated or None,
        )
        if marks != tuple(row[column.name] or None for column in _COLUMNS):
            changed[marks].append(row["id"])
    for marks, ids in changed.items():
        values = {column.name: mark for column, mark in zip(_COLUMNS, marks, strict=True)}
        await connection.execute(update(calls).where(calls.c.project == project, is_among(ids)).values(values))
    return {row["run"] for row in rows if row["is_failed"]}


_COLUMNS: Final = (calls.c.failed, calls.c.superseded, calls.c.repeated)


# Made once, as the statements of `sums.run_sums`.
@cache
def _suspects() -> Select[Any]:
    """Select the exchanges of `runs` that failed, that have a mark, or that are `marked`."""
    columns = (calls.c.id, calls.c.run, *(calls.c[name] for name in ANSWER_COLUMNS), *_COLUMNS)
    is_marked = calls.c.id == any_(bindparam("marked", type_=ARRAY(Uuid)))
    return select(*columns, is_failed_exchange().label("is_failed")).where(
        calls.c.project == bindparam("project"),
        calls.c.run == any_(bindparam("runs", type_=ARRAY(Text))),
        or_(is_failed_exchange(), *_COLUMNS, is_marked),
    )
