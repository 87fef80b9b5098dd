"""What a connection knows of types without asking the server."""

import asyncpg

from store.database.connection import ARRAYS, Database, _type_row


async def test_types_of_arrays_are_what_the_catalogues_say(database: Database) -> None:
    async with database.connection() as connection:
        found, _ = await asyncpg.Connection._introspect_types(connection, list(ARRAYS), None)
    rows = {row["oid"]: row for row in found}
    for oid in ARRAYS:
        row = _type_row(oid)
        assert {name: rows[oid][name] for name in row} == row
