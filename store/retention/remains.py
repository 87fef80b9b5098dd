"""Remove what is left of an expired run before a new run gets its name."""

from collections.abc import Sequence

import asyncpg

from store.database.tables import PARTITIONED


async def remove_remains(connection: asyncpg.Connection, project: str, began: Sequence[str]) -> None:
    """Remove what is left of expired runs whose names new runs have just got, in the transaction that begins them."""
    if not began:
        return
    rows = await connection.fetch(REMAINS, project, list(began))
    if not (names := [row["run"] for row in rows]):
        return
    for table in PARTITIONED:
        await connection.execute(
            f"DELETE FROM {table.name} WHERE project = $1 AND run = ANY ($2::text[])",  # noqa: S608 - tables of ours
            project,
            names,
        )
    await connection.execute("DELETE FROM expirations WHERE project = $1 AND run = ANY ($2::text[])", project, names)


REMAINS = "SELECT DISTINCT run FROM expirations WHERE project = $1 AND run = ANY ($2::text[]) AND part = 'run'"
