"""Tell the proxy workers of this machine which versions runs have in a database that other store servers may write to.

A version is read from the database whenever one is asked for, so it is that of what has been committed until then. It differs once
anything was changed that answers the requests of a replay: each transaction that does so writes the row of the run, appends to one of
its chains, or writes the report of a replay of that name.

The first request of a replay waits for the answer. So a question is one packet of a socket that keeps packets apart, as is its answer,
and questions have a connection to the database of their own: they wait for nothing else that the store server does there.

    question: VersionQuestion as MessagePack       answer: VersionAnswer; those of a connection come in the order of its questions
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from store.database.connection import Database
from store.database.statement_connection import Answers, StatementConnection
from store.private_file import listen_privately

logger = logging.getLogger(__name__)

MOST_RUNS: Final = 200
"""Runs of one question."""

PACKET_BYTES: Final = 64 << 10
"""Bytes of a question or an answer at most: `MOST_RUNS` names or versions of 128 characters take half of it."""

READ_TIMEOUT: Final = 2.0
"""Seconds that the database may take. Whoever asked has fetched the run then."""


class VersionQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Runs of a project; without any, what of it was committed last is asked for."""

    project: str
    runs: list[str]


class VersionAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The versions of the runs; None of one that is neither a run nor a replay, whose bodies expire, or while the database cannot be used."""

    versions: list[str | None]
    newest: str | None
    """The newest transaction of the project's feed, where no runs were asked for."""


@asynccontextmanager
async def serve_versions(database: Database, path: Path) -> AsyncIterator[None]:
    """Answer questions on this socket, which only this user can reach. Where that is not possible, workers load nothing ahead."""
    try:
        listener = listen_privately(path, socket.SOCK_SEQPACKET)
    except OSError as error:
        logger.warning("no run is loaded ahead: cannot listen on %s: %s", path, error)
        yield
        return
    statements = StatementConnection(database, (NEWEST, VERSION), READ_TIMEOUT)
    async with asyncio.TaskGroup() as group:
        connecting = group.create_task(statements.keep_open())
        server = _VersionServer(statements, listener)
        try:
            yield
        finally:
            server.close()
            connecting.cancel()
            await asyncio.to_thread(path.unlink, missing_ok=True)


class _VersionServer:
    """Takes the questions of all connections, and sends the answers when they come."""

    def __init__(self, statements: StatementConnection, listener: socket.socket) -> None:
        self._statements = statements
        self._listener = listener
        self._connections: set[socket.socket] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Close all sockets."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            self._end(connection, None)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # whoever connected has left
        connection.setblocking(False)
        self._connections.add(connection)
        self._loop.add_reader(connection, self._receive, connection)

    def _receive(self, connection: socket.socket) -> None:
        try:
            packet = connection.recv(PACKET_BYTES)
            question = _decode_question(packet) if packet else None
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError) as error:
            self._end(connection, error)
            return
        if question is None:
            self._end(connection, None)
        elif question.runs:
            arguments = [(question.project, run) for run in question.runs]
            self._statements.ask(1, arguments, partial(self._send_versions, connection, len(arguments)))
        else:
            self._statements.ask(0, [(question.project,)], partial(self._send_newest, connection))

    def _send_versions(self, connection: socket.socket, count: int, versions: Answers | None) -> None:
        # Whoever asked fetches the run, and is told there what is wrong with the database.
        self._send(connection, VersionAnswer(versions or [None] * count, None))

    def _send_newest(self, connection: socket.socket, newest: Answers | None) -> None:
        self._send(connection, VersionAnswer([], newest[0] if newest else None))

    def _send(self, connection: socket.socket, answer: VersionAnswer) -> None:
        if connection in self._connections:
            try:
                connection.send(_encode(answer))
            except OSError as error:
                self._end(connection, error)

    def _end(self, connection: socket.socket, why: Exception | None) -> None:
        """Close a connection. `why`: what was wrong with it."""
        if connection in self._connections:
            if why is not None:
                logger.debug("a worker's question about versions of runs broke off: %r", why)
            self._loop.remove_reader(connection)
            self._connections.remove(connection)
            connection.close()


_encode = msgspec.msgpack.Encoder().encode
_decode_question = msgspec.msgpack.Decoder(VersionQuestion).decode

NEWEST: Final = "SELECT coalesce(max(transaction), 0)::text FROM feed WHERE project = $1"

# A name is that of a run, of a replay, or of both. Ingest writes the row of a run with whatever it stores in it; only what moves an exchange to another run appends to the chain of
# the first one instead. A chain has no fewer records at any time. Bodies that expire go after the row has said so.
VERSION: Final = """
SELECT concat_ws(
    ' ', coalesce(runs.incarnation::text, 'none'), coalesce(runs.xmin::text, 'none'),
    (SELECT coalesce(sum(size), 0) FROM chains WHERE chains.project = $1 AND chains.incarnation = runs.incarnation),
    coalesce(replays.xmin::text, 'none')
)
FROM (SELECT 1) AS name
LEFT JOIN runs ON runs.project = $1 AND runs.id = $2
LEFT JOIN replays ON replays.project = $1 AND replays.id = $2
WHERE runs.bodies_erased_at IS NULL AND (runs.id IS NOT NULL OR replays.id IS NOT NULL)
"""
