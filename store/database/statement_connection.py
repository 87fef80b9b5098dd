"""Execute a few statements on a connection of their own, for who waits for each of them.

They wait for nothing else that the store server does in the database. asyncpg opens the connection and prepares the statements. Then its
transport is used without it: in a process that did something else meanwhile, its coroutines take longer than Postgres. With
`PreparedStatement.fetchval` on a connection of its own, the first request of a replay took 0.08 to 0.17 ms longer (in turns, 27 November 2026).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import asyncpg

from store.database.connection import Database, DatabaseError, translate_errors

MOST_WAITING: Final = 1000
"""Questions without an answer. A further one is not asked."""

# PostgreSQL, "Message Formats": every message is its type, its length with these four bytes, and what it says.
HEAD_BYTES: Final = 5
DATA_ROW, COMMAND_COMPLETE, READY_FOR_QUERY, ERROR_RESPONSE = b"DCZE"
EXECUTE: Final = b"E\0\0\0\x09\0\0\0\0\0"
"""Execute the unnamed portal, whatever the number of rows."""

SYNC: Final = b"S\0\0\0\x04"

type Answers = list[str | None]
"""The first column of the last row of each execution; None without a row."""


class _Question:
    """Executions of one statement that are answered together."""

    def __init__(
        self, statement: int, arguments: Sequence[Sequence[str]], done: Callable[[Answers | None], None]
    ) -> None:
        self.statement = statement
        self.arguments = arguments
        self.done = done
        self.answers: Answers = []
        self.deadline: asyncio.TimerHandle | None = None


class StatementConnection(asyncio.Protocol):
    """Has a connection while `keep_open` runs, from the first question on, and a new one after it is lost."""

    def __init__(self, database: Database, statements: Sequence[str], timeout: float) -> None:
        """`statements` return text and take nothing else. `timeout`: seconds that one may take, with connecting."""
        self._database = database
        self._statements = statements
        self._timeout = timeout
        self._connection: asyncpg.Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._prepared: Sequence[Any] = ()
        self._names: Sequence[bytes] = ()
        self._generation = 0
        self._waiting: deque[_Question] = deque()
        """Questions without an answer. With a transport, they are sent."""

        self._received = b""
        self._value: str | None = None
        self._is_needed = asyncio.Event()

    async def keep_open(self) -> None:
        """Open the connection when there is a question and no connection, until cancelled."""
        try:
            while True:
                await self._is_needed.wait()
                self._is_needed.clear()
                try:
                    with translate_errors():
                        async with asyncio.timeout(self._timeout):
                            await self._open()
                except DatabaseError:
                    self._close()
        finally:
            self._close()

    def ask(self, statement: int, arguments: Sequence[Sequence[str]], done: Callable[[Answers | None], None]) -> None:
        """Execute a statement, by its number, with each of these arguments. `done` gets the answers; None if there are none."""
        if not self._database.is_prepared or len(self._waiting) >= MOST_WAITING:
            done(None)
            return
        if self._transport is not None and self._generation != self._database.generation:
            self._close()
        question = _Question(statement, arguments, done)
        question.deadline = asyncio.get_running_loop().call_later(self._timeout, self._close)
        self._waiting.append(question)
        if self._transport is None:
            self._is_needed.set()
        else:
            self._transport.write(self._encode(question))

    async def _open(self) -> None:
        if self._transport is not None:
            return
        self._generation = self._database.generation
        self._connection = connection = await self._database.connect_alone()
        # They read by keys. To plan them for their very values would take longer than to execute them.
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        self._prepared = [await connection.prepare(one) for one in self._statements]
        self._names = [one.get_name().encode() for one in self._prepared]
        self._received, self._value = b"", None
        self._transport = cast(asyncio.Transport, connection._transport)
        self._transport.set_protocol(self)
        self._transport.write(b"".join(map(self._encode, self._waiting)))

    def _close(self) -> None:
        """Close the connection, and leave what waits without an answer."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = self._transport = None
        unanswered, self._waiting = self._waiting, deque()
        for question in unanswered:
            _end(question, None)

    def _encode(self, question: _Question) -> bytes:
        name = self._names[question.statement]
        return b"".join([_bind(name, one) + EXECUTE for one in question.arguments]) + SYNC

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        data = self._received + data
        at = 0
        while (begin := at + HEAD_BYTES) <= len(data):
            end = at + 1 + int.from_bytes(data[at + 1 : begin])
            if end > len(data):
                break
            kind, content = data[at], data[begin:end]
            at = end
            if kind == ERROR_RESPONSE:
                self._close()
                return
            self._take_message(kind, content)
        self._received = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._transport is not None:
            self._close()

    def _take_message(self, kind: int, content: bytes) -> None:
        if kind == DATA_ROW:
            # The number of columns, then each after its length.
            self._value = content[6:].decode()
        elif kind == COMMAND_COMPLETE:
            self._waiting[0].answers.append(self._value)
            self._value = None
        elif kind == READY_FOR_QUERY:
            question = self._waiting.popleft()
            _end(question, question.answers)


def _bind(name: bytes, arguments: Sequence[str]) -> bytes:
    """Return the message that binds a statement and its arguments, as text, to the unnamed portal, whose rows are text."""
    values = [one.encode() for one in arguments]
    content = b"".join(
        [
            *(b"\0", name, b"\0", b"\0\0", len(values).to_bytes(2)),
            *[len(one).to_bytes(4) + one for one in values],
            b"\0\0",
        ]
    )
    return b"B" + (len(content) + 4).to_bytes(4) + content


def _end(question: _Question, answers: Answers | None) -> None:
    if question.deadline is not None:
        question.deadline.cancel()
    question.done(answers)
