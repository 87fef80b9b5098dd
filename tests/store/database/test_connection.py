"""What a connection knows of types without asking the server, how it writes arrays of bytes, and when connections are replaced."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from sqlalchemy import text

from store.database import connection as connection_module
from store.database.connection import (
    ARRAYS,
    Database,
    DatabaseUnavailable,
    DatabaseUnusable,
    _type_row,
    read_bytes_array,
    translate_errors,
)


async def test_types_of_arrays_are_what_the_catalogues_say(database: Database) -> None:
    async with database.connection() as connection:
        found, _ = await asyncpg.Connection._introspect_types(connection, list(ARRAYS), None)
    rows = {row["oid"]: row for row in found}
    for oid in ARRAYS:
        row = _type_row(oid)
        assert {name: rows[oid][name] for name in row} == row


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.InterfaceError("cannot call Transaction.__aexit__(): the underlying connection is closed"),
    ],
)
def test_what_broke_is_said_without_words_of_the_driver(error: Exception) -> None:
    with (
        pytest.raises(DatabaseUnavailable, match=r"^Postgres is not available: the connection was closed\.$"),
        translate_errors(),
    ):
        raise error


async def test_a_session_that_a_pooler_has_changed_is_named(database: Database) -> None:
    statement = "SELECT $1::integer"
    async with database.connection() as connection:
        await connection.fetch(statement, 1)
        await connection.execute("DEALLOCATE ALL")
        with pytest.raises(DatabaseUnusable, match="pool_mode=session"), translate_errors():
            await connection.fetch(statement, 1)
    with pytest.raises(DatabaseUnusable, match="pool_mode=session"), translate_errors():
        raise asyncpg.DuplicatePreparedStatementError('prepared statement "__asyncpg_stmt_1__" already exists')


@pytest.mark.parametrize(
    ("setting", "statement"),
    [
        ("default_transaction_read_only = on", "DELETE FROM runs"),
        ("statement_timeout = '20ms'", "SELECT pg_sleep(0.1)"),
    ],
)
async def test_what_only_held_for_a_session_does_not_outlive_it(
    database_url: str, setting: str, statement: str
) -> None:
    """A server that was full, or not the primary, tells its sessions that they only read; those that begin later may write."""
    owner = await asyncpg.connect(database_url)
    name = await owner.fetchval("SELECT current_database()")
    await owner.execute(f'ALTER DATABASE "{name}" SET {setting}')
    database = Database(database_url)
    try:
        await database.connect()
        for attempt in (_execute_directly, _execute_by_sqlalchemy):
            # Both pools have a connection of then.
            with pytest.raises(DatabaseUnavailable):
                await attempt(database, statement)
        await owner.execute(f'ALTER DATABASE "{name}" RESET ALL')
        for attempt in (_execute_directly, _execute_by_sqlalchemy):
            await attempt(database, statement)
    finally:
        await database.close()
        await owner.close()


async def _time_out_directly(database: Database) -> None:
    async with database.connection() as connection, connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = '20ms'")
        await connection.execute("SELECT pg_sleep(9)")


async def _time_out_by_sqlalchemy(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute(text("SET LOCAL statement_timeout = '20ms'"))
        await connection.execute(text("SELECT pg_sleep(9)"))


@pytest.mark.parametrize("time_out", [_time_out_directly, _time_out_by_sqlalchemy])
async def test_a_statement_that_takes_too_long_costs_one_connection(
    database: Database, time_out: Callable[[Database], Awaitable[None]]
) -> None:
    """A search over everything may do so again and again: the other connections keep what they have planned."""
    before = await _backends(database)
    with pytest.raises(DatabaseUnavailable, match="statement timeout"):
        await time_out(database)
    after = await _backends(database)
    assert (len(before), len(after), len(before & after)) == (4, 4, 3)


async def _backends(database: Database) -> set[int]:
    """The server processes of two connections of each pool."""
    pid = "SELECT pg_backend_pid()"
    async with database.connection() as one, database.connection() as other:
        found = {await connection.fetchval(pid) for connection in (one, other)}
    async with database.transaction() as first, database.transaction() as last:
        return found | {await connection.scalar(text(pid)) for connection in (first, last)}


async def _execute_directly(database: Database, statement: str) -> None:
    async with database.connection() as connection:
        await connection.execute(statement)


async def _execute_by_sqlalchemy(database: Database, statement: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(text(statement))


ARRAYS_OF_BYTES: list[list[bytes | None]] = [
    [],
    [None],
    [b""],
    [b"one", None, b"", b"\0\\\xff{},\"'", None],
    [bytes(range(256)) * 300] * 40,
]


@pytest.mark.parametrize("values", ARRAYS_OF_BYTES)
async def test_an_array_of_bytes_is_written_and_read(database: Database, values: list[bytes | None]) -> None:
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT one FROM unnest($1::bytea[]) AS one", values)
        assert [row["one"] for row in rows] == values
        assert await connection.fetchval("SELECT $1::bytea[]", values) == values
        assert await connection.fetchval("SELECT array_length($1::bytea[], 1)", values) == (len(values) or None)
        assert await connection.fetchval("SELECT $1::bytea[] IS NOT DISTINCT FROM $2::bytea[]", values, values)


@pytest.mark.parametrize("values", ARRAYS_OF_BYTES)
async def test_the_driver_reads_arrays_of_bytes_where_runs_are_loaded(
    database: Database, monkeypatch: pytest.MonkeyPatch, values: list[bytes | None]
) -> None:
    def refuse(_: bytes) -> list[bytes | None]:
        raise AssertionError("Python reads an array of 10,000 bodies in 8 ms, the driver in 2")

    monkeypatch.setattr(connection_module, "read_bytes_array", refuse)
    async with database.connection_by_keys() as connection:
        assert await connection.fetchval("SELECT $1::bytea[]", values) == values


async def test_any_collection_and_any_bytes_are_taken(database: Database) -> None:
    async with database.connection() as connection:
        fits = "SELECT 'ab'::bytea = ANY ($1::bytea[])"
        for some in ((b"ab", b"c"), {b"ab"}, {b"ab": 1}.keys(), [memoryview(b"xab")[1:]]):
            assert await connection.fetchval(fits, some), some
        assert not await connection.fetchval(fits, (b"a", b"b"))
        assert await connection.fetchval("SELECT $1::bytea[]", None) is None


async def test_what_is_no_array_of_bytes_is_refused_as_the_driver_does(database: Database) -> None:
    async with database.connection() as connection:
        with pytest.raises(asyncpg.DataError):
            await connection.fetchval("SELECT $1::bytea[]", [b"a", 3])
        with pytest.raises(asyncpg.DataError):
            await connection.fetchval("SELECT $1::bytea[]", ["text"])
        assert read_bytes_array(bytes(12)) == []


async def test_a_cancelled_task_ends_although_its_rollback_fails(database: Database) -> None:
    began = asyncio.Event()

    async def try_again_and_again() -> None:
        while True:
            try:
                async with database.connection() as connection, connection.transaction():
                    await connection.execute("SELECT 1")
                    is_first = not began.is_set()
                    began.set()
                    try:
                        await asyncio.Event().wait()
                    finally:
                        if is_first:
                            connection.terminate()
            except DatabaseUnavailable:
                continue

    async with asyncio.TaskGroup() as group:
        running = group.create_task(try_again_and_again())
        async with asyncio.timeout(20):
            await began.wait()
        running.cancel()
        await asyncio.wait([running], timeout=10)
        has_ended = running.done()
        running.cancel()
    assert has_ended
