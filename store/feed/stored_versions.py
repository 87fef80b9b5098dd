"""Tell the proxy workers of this machine which versions runs have in a database that other store servers may write to.

A version is read from the database whenever one is asked for, so it is that of what has been committed until then. It differs once
anything was changed that answers the requests of a replay: each transaction that does so writes the row of the run, appends to one of
its chains, or writes the report of a replay of that name.

    question: frame of VersionQuestion       answer: frame of VersionAnswer       a frame is its length in four bytes, then MessagePack
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from store.database.connection import Database, DatabaseError

logger = logging.getLogger(__name__)

LONGEST_QUESTION: Final = 1 << 20
"""Bytes of a question."""

LENGTH_BYTES: Final = 4


class VersionQuestion(msgspec.Struct, frozen=True, array_like=True):
    """Runs of a project; without any, what of it was committed last is asked for."""

    project: str
    runs: list[str]


class VersionAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The versions of the runs; None of one that does not exist, whose bodies expire, or while the database cannot be used."""

    versions: list[str | None]
    newest: int | None
    """The newest transaction of the project's feed, where no runs were asked for."""


@asynccontextmanager
async def serve_versions(database: Database, path: Path) -> AsyncIterator[None]:
    """Answer questions on this socket, which only this user can reach. Where that is not possible, workers load nothing ahead."""

    connections: set[asyncio.StreamWriter] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            await _answer_questions(database, reader, writer)
        except (OSError, EOFError, ValueError) as error:
            logger.debug("a worker's question about versions of runs broke off: %s", error)
        finally:
            connections.discard(writer)
            writer.close()

    try:
        server = await asyncio.start_unix_server(connect, sock=_bind(path))
    except OSError as error:
        logger.warning("no run is loaded ahead: cannot listen on %s: %s", path, error)
        yield
        return
    try:
        yield
    finally:
        server.close()
        for writer in connections:
            writer.close()  # its task reads the end
        await asyncio.to_thread(path.unlink, missing_ok=True)


async def _answer_questions(database: Database, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        try:
            question = _decode_question(await read_frame(reader, LONGEST_QUESTION))
        except asyncio.IncompleteReadError:
            return
        try:
            answer = await _read_versions(database, question)
        except DatabaseError:
            # Whoever asked fetches the run, and is told there what is wrong with the database.
            answer = VersionAnswer([None] * len(question.runs), None)
        writer.write(encode_frame(answer))
        await writer.drain()


async def _read_versions(database: Database, question: VersionQuestion) -> VersionAnswer:
    async with database.connection() as connection:
        if not question.runs:
            return VersionAnswer([], await connection.fetchval(NEWEST, question.project))
        rows = await connection.fetch(VERSIONS, question.project, question.runs)
    versions: dict[str, str] = {row["id"]: row["version"] for row in rows}
    return VersionAnswer([versions.get(run) for run in question.runs], None)


async def read_frame(reader: asyncio.StreamReader, limit: int) -> bytes:
    """Read the content of a frame. Raises asyncio.IncompleteReadError at the end, and ValueError if it is longer than the limit."""
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
    if length > limit:
        raise ValueError(f"a frame of {length} bytes: at most {limit} are read")
    return await reader.readexactly(length)


def encode_frame(frame: VersionQuestion | VersionAnswer) -> bytes:
    """Encode a frame."""
    data = _encode(frame)
    return len(data).to_bytes(LENGTH_BYTES) + data


def _bind(path: Path) -> socket.socket:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Before it listens nobody can connect, so the mode is set in time.
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError:
        listener.close()
        raise
    return listener


_encode = msgspec.msgpack.Encoder().encode
_decode_question = msgspec.msgpack.Decoder(VersionQuestion).decode

NEWEST = "SELECT coalesce(max(transaction), 0) FROM feed WHERE project = $1"

# Ingest writes the row of a run with whatever it stores in it; only what moves an exchange to another run appends to the chain of
# the first one instead. A chain has no fewer records at any time. Bodies that expire go after the row has said so.
VERSIONS = """
SELECT runs.id, concat_ws(
    ' ', runs.incarnation, runs.xmin,
    (SELECT coalesce(sum(size), 0) FROM chains WHERE chains.project = $1 AND chains.incarnation = runs.incarnation),
    coalesce((SELECT xmin::text FROM replays WHERE replays.project = $1 AND replays.id = runs.id), 'none')
) AS version
FROM runs WHERE runs.project = $1 AND runs.id = ANY ($2::text[]) AND runs.bodies_erased_at IS NULL
"""
