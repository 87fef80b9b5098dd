"""A small HTTP/1.1 client and origin on h11, which check the transferred bytes independently of Playhead and decode
nothing.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

type Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A request (`method`, `target`) or a response (`status`), with lower-case header names and the undecoded body."""

    headers: Pairs
    body: bytes
    status: int = 0
    method: str = ""
    target: str = ""

    def header(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)


class Line:
    """A connection through a proxy to one origin, kept alive between requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, origin: str, basic: str) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.CLIENT)
        self._origin = urlsplit(origin)
        self._basic = basic

    @classmethod
    async def open(cls, proxy_port: int, origin: str, *, run: str, trust: ssl.SSLContext) -> "Line":
        """Connect through the worker on this machine, in a run."""
        basic = base64.b64encode(f"{run}:x".encode()).decode()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy_port)
        line = cls(reader, writer, origin, basic)
        if line._origin.scheme == "https":
            await line._connect(trust)
        return line

    async def _connect(self, trust: ssl.SSLContext) -> None:
        authority = f"{self._origin.hostname}:{self._origin.port or 443}"
        head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: Basic {self._basic}\r\n\r\n"
        self._writer.write(head.encode())
        status = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in status.splitlines()[0], status
        await self._writer.start_tls(trust, server_hostname=self._origin.hostname)

    async def ask(self, method: str, target: str, headers: Pairs, body: bytes) -> Message:
        """Send one request and read its whole response."""
        extra = [("Host", self._origin.netloc)]
        if self._origin.scheme == "http":
            target = f"{self._origin.scheme}://{self._origin.netloc}{target}"
            extra.append(("Proxy-Authorization", f"Basic {self._basic}"))
        if body or method in ("POST", "PUT", "PATCH"):
            extra.append(("Content-Length", str(len(body))))
        asked = h11.Request(method=method, target=target, headers=[*extra, *headers])
        for event in (asked, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()):
            self._writer.write(self._h11.send(event) or b"")
        await self._writer.drain()
        answer = await read_message(self._h11, self._reader)
        self._h11.start_next_cycle()
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def read_message(connection: h11.Connection, reader: asyncio.StreamReader) -> Message:
    """Read the next whole message. Raises ConnectionError if the peer closes first."""
    head: h11.Request | h11.Response | None = None
    pieces: list[bytes] = []
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request | h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            pieces.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            return _message(head, b"".join(pieces))
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionError("closed")


def _message(head: h11.Request | h11.Response, body: bytes) -> Message:
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
    if isinstance(head, h11.Request):
        return Message(headers=headers, body=body, method=head.method.decode(), target=head.target.decode("latin-1"))
    return Message(headers=headers, body=body, status=head.status_code)


@asynccontextmanager
async def origin(answer: Callable[[Message], Message | Awaitable[Message]]) -> AsyncIterator[str]:
    """Serve on localhost, where `answer` makes the response of each request; yield the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            while True:
                asked = await read_message(connection, reader)
                given = answer(asked)
                _send(connection, writer, given if isinstance(given, Message) else await given)
                await writer.drain()
                if connection.our_state is h11.MUST_CLOSE:
                    return
                connection.start_next_cycle()
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _send(connection: h11.Connection, writer: asyncio.StreamWriter, given: Message) -> None:
    bodiless = given.status in (204, 304) or given.status < 200
    length = [] if bodiless else [("Content-Length", str(len(given.body)))]
    head = h11.Response(status_code=given.status, reason=b"Recorded", headers=[*given.headers, *length])
    writer.write(connection.send(head) or b"")
    if given.body and not bodiless and given.method != "HEAD":
        writer.write(connection.send(h11.Data(data=given.body)) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
