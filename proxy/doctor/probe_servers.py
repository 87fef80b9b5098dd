"""The servers that see what a client did: one before the proxy worker, and a host behind it that nothing else can reach.

A client that shows at neither end went past the worker; one that shows at the tap alone did not trust us. So nothing has to
be read from any client's words.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

type Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HOST = "doctor.playhead.example"
"""Resolves nowhere (RFC 6761 keeps `.example` out of the DNS): only a worker with the override in `[upstreams]` answers."""


@dataclass(slots=True)
class Echo:
    """The server behind the worker; it knows every path that was asked."""

    origin: str
    paths: list[str] = field(default_factory=list)

    def saw(self, token: str) -> bool:
        return any(token in path for path in self.paths)


@asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    """Answer, on a free port of this machine, whatever is asked of HOST."""
    echo = Echo("")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for path in _paths(reader):
            echo.paths.append(path)
            writer.write(_answer(path))
            await writer.drain()

    async with _serving(answer) as port:
        echo.origin = f"http://127.0.0.1:{port}"
        yield echo


async def _paths(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The paths of the requests on a connection; requests with a body are none that a probe sends."""
    while head := await _head(reader):
        yield head.split(b" ", 2)[1].decode("latin-1")


def _answer(path: str) -> bytes:
    """What each probe takes for a good answer: an empty list of models, or for git one of references."""
    git = "/info/refs" in path
    body = b"" if git else json.dumps({"object": "list", "data": [], "has_more": False}).encode()
    content_type = "text/plain" if git else "application/json"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass(slots=True)
class Tap:
    """Passes every connection on to the worker, and knows with which credentials each one began."""

    port: int = 0
    users: list[str | None] = field(default_factory=list)
    refused: str | None = None
    """What the worker said instead of 200."""


@asynccontextmanager
async def tapping(worker: str) -> AsyncIterator[Tap]:
    """Listen before the worker at this URL."""
    tap = Tap()
    parts = urlsplit(worker)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await _head(reader)
        if not head:
            return
        tap.users.append(_user(head))
        worker_reader, worker_writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            worker_writer.write(head)
            said = await _head(worker_reader)
            if b" 200 " not in said.partition(b"\r\n")[0]:
                tap.refused = said.partition(b"\r\n")[0].decode("latin-1") or "nothing"
            writer.write(said)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pipe(reader, worker_writer))
                both.create_task(_pipe(worker_reader, writer))
        finally:
            worker_writer.close()

    async with _serving(forward) as port:
        tap.port = port
        yield tap


@asynccontextmanager
async def _serving(talk: Talk) -> AsyncIterator[int]:
    """Serve on a free port of this machine; whatever still talks at the end is cut off."""
    open_connections: set[asyncio.Task[None]] = set()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        try:
            await talk(reader, writer)
        except* OSError:
            pass  # a client that leaves as it likes is what we are here to see
        finally:
            open_connections.discard(task)
            writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in open_connections:
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """A request's head; empty where the client leaves before its end."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _user(head: bytes) -> str | None:
    """The user of a head's proxy credentials (RFC 7617), which is a run."""
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        scheme, _, text = value.strip().partition(" ")
        if name.lower() == "proxy-authorization" and scheme.lower() == "basic":
            return _decoded(text).rpartition(":")[0]
    return None


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text).decode("utf-8", "replace")
    except binascii.Error:
        return ""
