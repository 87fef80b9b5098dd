"""Servers that observe what a client does: a tap before the proxy worker, and a host behind it.

Only the worker can reach that host. A client that arrives at neither bypassed the worker, and one that arrives at the tap
alone did not trust the worker's certificate. So the client's output need not be parsed.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

type ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HOST = "doctor.playhead.example"
"""A host that does not resolve (RFC 6761 keeps `.example` out of the DNS): only a worker with it in `[upstreams]` answers."""


@dataclass(slots=True)
class Echo:
    """The server behind the worker, with every path that was requested."""

    origin: str
    paths: list[str] = field(default_factory=list)

    def has_seen(self, token: str) -> bool:
        return any(token in path for path in self.paths)


@asynccontextmanager
async def run_echo() -> AsyncIterator[Echo]:
    """Serve requests for HOST on a free port of this machine."""
    echo = Echo("")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for path in _request_paths(reader):
            echo.paths.append(path)
            writer.write(_answer_bytes(path))
            await writer.drain()

    async with _run_server(answer) as port:
        echo.origin = f"http://127.0.0.1:{port}"
        yield echo


async def _request_paths(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the paths of the requests on a connection. Probes send no request with a body."""
    while head := await _read_head(reader):
        yield head.split(b" ", 2)[1].decode("latin-1")


def _answer_bytes(path: str) -> bytes:
    """Return an answer that every probe accepts: an empty list of models, or for git of references."""
    git = "/info/refs" in path
    body = b"" if git else json.dumps({"object": "list", "data": [], "has_more": False}).encode()
    content_type = "text/plain" if git else "application/json"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass(slots=True)
class Tap:
    """The tap before the worker, with the credentials that each connection began with."""

    port: int = 0
    users: list[str | None] = field(default_factory=list)
    refusal: str | None = None
    """The worker's status line, if it was not 200."""


@asynccontextmanager
async def run_tap(worker: str) -> AsyncIterator[Tap]:
    """Listen on a free port, and pass every connection on to the worker at this URL."""
    tap = Tap()
    parts = urlsplit(worker)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await _read_head(reader)
        if not head:
            return
        tap.users.append(_proxy_user(head))
        worker_reader, worker_writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            worker_writer.write(head)
            answer_head = await _read_head(worker_reader)
            if b" 200 " not in answer_head.partition(b"\r\n")[0]:
                tap.refusal = answer_head.partition(b"\r\n")[0].decode("latin-1") or "nothing"
            writer.write(answer_head)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pipe(reader, worker_writer))
                both.create_task(_pipe(worker_reader, writer))
        finally:
            worker_writer.close()

    async with _run_server(forward) as port:
        tap.port = port
        yield tap


@asynccontextmanager
async def _run_server(handler: ConnectionHandler) -> AsyncIterator[int]:
    """Serve on a free port of this machine, and close open connections at the end."""
    open_connections: set[asyncio.Task[None]] = set()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        try:
            await handler(reader, writer)
        except* OSError:
            pass  # clients may disconnect at any point
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


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Read a head; empty if the peer disconnects before its end."""
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


def _proxy_user(head: bytes) -> str | None:
    """Return the user of a head's proxy credentials (RFC 7617), which is a run."""
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        scheme, _, text = value.strip().partition(" ")
        if name.lower() == "proxy-authorization" and scheme.lower() == "basic":
            return _decode_credentials(text).rpartition(":")[0]
    return None


def _decode_credentials(text: str) -> str:
    try:
        return base64.b64decode(text).decode("utf-8", "replace")
    except binascii.Error:
        return ""
