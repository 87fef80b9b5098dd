"""Statements on a connection of their own are answered in order, and again after it is lost; without it nobody waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest

from store.database import statement_connection
from store.database.connection import Database
from store.database.statement_connection import Answers, StatementConnection

ECHO, PID, FAIL, WAIT = range(4)
STATEMENTS = (
    "SELECT $1::text || '!' WHERE $1 <> ''",
    "SELECT pg_backend_pid()::text WHERE $1 = ''",
    "SELECT (1 / length($1))::text",
    "SELECT pg_sleep(length($1))::text",
)


@asynccontextmanager
async def statements_of(database: Database, seconds: float = 40) -> AsyncIterator[StatementConnection]:
    statements = StatementConnection(database, STATEMENTS, seconds)
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(statements.keep_open())
        yield statements
        opening.cancel()


async def answers_of(statements: StatementConnection, number: int, *arguments: str) -> Answers | None:
    answered: asyncio.Future[Answers | None] = asyncio.get_running_loop().create_future()
    statements.ask(number, [(one,) for one in arguments], answered.set_result)
    return await answered


async def test_each_question_gets_its_own_answers_in_order(database: Database) -> None:
    async with statements_of(database) as statements:
        many = [f"ö{number}" * 50 for number in range(200)]
        first, second, third = await asyncio.gather(
            answers_of(statements, ECHO, "a", "", "b"),
            answers_of(statements, ECHO, *many),
            answers_of(statements, ECHO, "c"),
        )
        assert first == ["a!", None, "b!"]
        assert second == [f"{one}!" for one in many]
        assert third == ["c!"]


async def test_answers_do_not_depend_on_how_the_network_divides_them(database: Database) -> None:
    async with statements_of(database) as statements:
        assert await answers_of(statements, ECHO, "a") == ["a!"]
        receive: Callable[[bytes], None] = statements.data_received

        def receive_bytes(data: bytes) -> None:
            for place in range(len(data)):
                receive(data[place : place + 1])

        statements.data_received = receive_bytes  # type: ignore[method-assign]
        assert await answers_of(statements, ECHO, "b", "", "c") == ["b!", None, "c!"]


async def test_after_the_connection_is_lost_the_next_question_opens_another(database: Database) -> None:
    async with statements_of(database) as statements:
        first = await answers_of(statements, PID, "")
        assert first is not None
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(answers_of(statements, WAIT, "x" * 60))
            await asyncio.sleep(0)
            async with database.connection() as connection:
                await connection.execute("SELECT pg_terminate_backend($1)", int(str(first[0])))
        assert waiting.result() is None
        second = await answers_of(statements, PID, "")
        assert second is not None
        assert second != first


async def test_a_connection_that_breaks_without_a_word_leaves_nobody_waiting(database: Database) -> None:
    async with statements_of(database) as statements, asyncio.TaskGroup() as group:
        assert await answers_of(statements, ECHO, "a") == ["a!"]
        waiting = group.create_task(answers_of(statements, WAIT, "x" * 60))
        await asyncio.sleep(0)
        assert statements._transport is not None
        statements._transport.abort()
        assert await waiting is None
        assert await answers_of(statements, ECHO, "a") == ["a!"]


async def test_a_statement_that_fails_or_takes_too_long_has_no_answer(database: Database) -> None:
    async with statements_of(database, seconds=1) as statements:
        assert await answers_of(statements, FAIL, "") is None
        assert await answers_of(statements, FAIL, "a") == ["1"]
        assert await answers_of(statements, WAIT, "x" * 60) is None
        assert await answers_of(statements, ECHO, "a") == ["a!"]


async def test_a_connection_from_before_a_change_of_the_server_is_not_used(database: Database) -> None:
    async with statements_of(database) as statements:
        first = await answers_of(statements, PID, "")
        await database._replace_connections()
        assert await answers_of(statements, PID, "") != first


async def test_nobody_waits_for_a_database_that_cannot_be_used(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(database_url)
    async with statements_of(database) as statements:
        assert await answers_of(statements, ECHO, "a") is None, "its tables may have another version"
        await database.connect()
        monkeypatch.setattr(database, "connect_alone", _refuse)
        assert await answers_of(statements, ECHO, "a") is None
        monkeypatch.undo()
        monkeypatch.setattr(statement_connection, "MOST_WAITING", 1)
        found = await asyncio.gather(*(answers_of(statements, ECHO, one) for one in "ab"))
        assert found == [["a!"], None]
    await database.close()


async def _refuse() -> Sequence[object]:
    raise asyncpg.CannotConnectNowError("it is starting")
