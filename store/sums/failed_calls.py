"""Note which calls failed in the end: `calls.failed`, which a partial index lists.

Ingest notes every exchange that failed. A later attempt may have made it good, or may be gone: when the sums of its run are made again,
the marks of the run are set by its retry groups. A list of failed calls checks them, so a mark that is set too late hides nothing
but what has become a failure again a moment ago.
"""

import uuid
from collections.abc import Sequence

from sqlalchemy import ARRAY, Text, any_, literal, or_, select, update

from store.call_graph.retry_query import RetryGroups, is_among
from store.database.asyncio_engine import AsyncConnection
from store.database.tables import calls
from store.query.filters import is_failed_exchange


async def mark_failed_calls(
    connection: AsyncConnection, project: str, runs: Sequence[str], groups: RetryGroups
) -> None:
    """Set the marks of these runs, whose retry groups are given."""
    columns = (calls.c.id, calls.c.status, calls.c.outcome, calls.c.complete, calls.c.failed)
    suspect = or_(is_failed_exchange(), calls.c.failed)
    of_runs = (calls.c.project == project, calls.c.run == any_(literal(list(runs), ARRAY(Text))))
    rows = (await connection.execute(select(*columns).where(*of_runs, suspect))).mappings().all()
    changed: dict[bool, list[uuid.UUID]] = {True: [], False: []}
    for row in rows:
        has_failed = groups.has_failed(row)
        if has_failed != bool(row["failed"]):
            changed[has_failed].append(row["id"])
    for has_failed, ids in changed.items():
        if ids:
            marked = update(calls).where(calls.c.project == project, is_among(ids))
            await connection.execute(marked.values(failed=has_failed or None))
