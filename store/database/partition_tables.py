"""Create the table of a partition, which is attached once it is filled."""

import asyncpg

from store.database.tables import UNCOUNTED


async def create_partition_table(
    connection: asyncpg.Connection, name: str, parent: str, *, has_indexes: bool = True
) -> None:
    """Create a table like the partitioned one, with all of its settings; its indexes may be made when it is filled."""
    await connection.execute(
        f"CREATE TABLE {name} (LIKE {parent} INCLUDING ALL {'' if has_indexes else 'EXCLUDING INDEXES'})"
    )
    if column := UNCOUNTED.get(parent):
        await connection.execute(f"ALTER TABLE {name} ALTER COLUMN {column} SET STATISTICS 0")


async def create_partition_indexes(connection: asyncpg.Connection, name: str, parent: str, seconds: float) -> None:
    """Make the indexes of a filled table at once, each in so many seconds: row by row they take twice the time and more space."""
    await connection.execute(USE_MORE_MEMORY)
    for row in await connection.fetch(INDEXES, parent):
        await connection.execute(f"{row['before']} {name} {row['after']}", timeout=seconds)


# Until the end of the transaction, unless the server has been given more.
USE_MORE_MEMORY = """
SELECT set_config('maintenance_work_mem', '128MB', true)
WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < pg_size_bytes('128MB')
"""

# Attaching a partition takes those of its indexes that are defined as the table's.
INDEXES = """
SELECT CASE WHEN contype IS NULL THEN 'CREATE INDEX ON' ELSE 'ALTER TABLE' END AS before,
    CASE WHEN contype IS NULL THEN substring(pg_get_indexdef(indexrelid) FROM ' (USING .*)')
        ELSE 'ADD ' || pg_get_constraintdef(pg_constraint.oid) END AS after
FROM pg_index LEFT JOIN pg_constraint ON conindid = indexrelid AND conrelid = indrelid
WHERE indrelid = to_regclass($1) ORDER BY indexrelid
"""
