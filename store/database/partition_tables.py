"""Create the table of a partition, which is attached once it is filled."""

import asyncpg

from store.database.tables import UNCOUNTED


async def create_partition_table(connection: asyncpg.Connection, name: str, parent: str) -> None:
    """Create a table like the partitioned one, with all of its settings."""
    await connection.execute(f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL)")
    if column := UNCOUNTED.get(parent):
        await connection.execute(f"ALTER TABLE {name} ALTER COLUMN {column} SET STATISTICS 0")
