"""Remove what is left of an expired run before a new run gets its name."""

from collections.abc import Sequence

import asyncpg

from store.database.day_locks import try_to_share_any_day
from store.database.tables import PARTITIONED


async def remove_remains(connection: asyncpg.Connection, project: str, began: Sequence[str]) -> None:
    """Remove what is left of expired runs whose names new runs have just got, in the transaction that begins them.

    Raises `asyncpg.SerializationError` while the partitions of a day are replaced.
    """
    if not began:
        return
    rows = await connection.fetch(REMAINS, project, list(began))
    if not (names := [row["run"] for row in rows]):
        return
    if not await try_to_share_any_day(connection):
        raise asyncpg.SerializationError("the partitions of a day are being replaced")
    for table in PARTITIONED:
        await connection.execute(
            f"DELETE FROM {table.name} WHERE project = $1 AND run = ANY ($2::text[])",  # noqa: S608 - tables of ours
            project,
            names,
        )
    await connection.execute(
        "DELETE FROM expirations WHERE project = $1 AND run = ANY ($2::text[]) AND part <> 'erased'", project, names
    )


REMAINS = "SELECT DISTINCT run FROM expirations WHERE project = $1 AND run = ANY ($2::text[]) AND part = 'run'"
