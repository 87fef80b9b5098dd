"""An upstream that answers, streams, waits and breaks off as its target says; its bodies follow from the request's name.

/whole?size=N      a body of known length
/stream?pieces=N   server-sent events
/hold?pieces=N     half of the events; the rest when `go_on` is set
/reset?pieces=N    half of the events, then RST        /unended?pieces=N  half of them, then FIN without a last chunk
/short?size=N      half of a body of known length      /silent            closes without a word
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tests.drills.ledger import NAME
from tests.support import wire
from tests.support.wire import read_request, serving

HOST = "api.drill.example"


def expected_body(target: str, name: str) -> bytes:
    """Return the whole body for a target and the name of a request."""
    return b"".join(pieces(target, name))


def pieces(target: str, name: str) -> list[bytes]:
    """Return the pieces in which a body is sent."""
    wish = parse_qs(urlsplit(target).query)
    if "size" in wish:
        size = int(wish["size"][0])
        return [(f"{name} says: ".encode() + b"so it was, and so it is. " * (size // 25 + 1))[:size]]
    count = int(wish.get("pieces", ["0"])[0])
    # The semicolon ends what could be a secret's beginning: else the record of a piece waits for the next one.
    return [f'data: {{"of":"{name};","n":{n}}}\n\n'.encode() for n in range(count)]


@dataclass
class Upstream(wire.Upstream):
    """The upstream's port, and the requests that it received."""

    asked: list[str] = field(default_factory=list)
    """The names of the received requests."""

    left: list[str] = field(default_factory=list)
    """The names of those whose client closed the connection while they were held."""

    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    holding: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    pause: float = 0
    """Seconds between two events of a stream."""

    @property
    def config(self) -> str:
        """Return a playhead.toml that sends the drills' host here."""
        return f'[upstreams]\n"{HOST}" = "http://127.0.0.1:{self.port}"\n'

    async def wait_until_holding(self, count: int) -> None:
        """Wait until this number of requests is held."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.holding >= count)

    async def wait_for_requests(self, count: int) -> None:
        """Wait until this number of further requests has arrived."""
        wanted = len(self.asked) + count
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.asked) >= wanted)

    async def wait_until_left(self, count: int) -> None:
        """Wait until this number of clients has closed the connection while their requests were held."""
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.left) >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while True:
            head, _ = await read_request(reader)
            target = head.split(b" ", 2)[1].decode()
            name = _name(head)
            self.asked.append(name)
            await self._note()
            if not await self._answer(reader, writer, target, name):
                return

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, name: str) -> bool:
        """Answer a request; whether the connection stays open."""
        sent = pieces(target, name)
        kind = urlsplit(target).path
        if kind == "/silent":
            return False
        writer.write(_head(sent, sized="size=" in target))
        if kind == "/short":
            writer.write(sent[0][: len(sent[0]) // 2])
            await writer.drain()
            return False
        if kind == "/whole":
            writer.write(sent[0])
            await writer.drain()
            return True
        half = len(sent) if kind == "/stream" else len(sent) // 2
        await self._send(writer, sent[:half])
        if kind == "/hold" and not await self._hold(reader, name):
            return False
        if kind == "/reset":
            await _wait_until_taken(writer)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if kind in ("/reset", "/unended"):
            return False
        await self._send(writer, sent[half:])
        writer.write(b"0\r\n\r\n")
        return True

    async def _send(self, writer: asyncio.StreamWriter, events: list[bytes]) -> None:
        for event in events:
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
            await writer.drain()
            await asyncio.sleep(self.pause)

    async def _hold(self, reader: asyncio.StreamReader, name: str) -> bool:
        """Wait for `go_on`; False if the client closes the connection first."""
        either = asyncio.Event()
        await self._note(holding=1)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_set_when_closed(reader, either))
            waiting = group.create_task(_after(self.go_on, either))
            await either.wait()
            stayed = self.go_on.is_set()
            watching.cancel()
            waiting.cancel()
        if not stayed:
            self.left.append(name)
        await self._note(holding=-1)
        return stayed

    async def _note(self, *, holding: int = 0) -> None:
        async with self.changed:
            self.holding += holding
            self.changed.notify_all()


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    """Run an upstream on a free local port."""
    up = Upstream()
    async with serving(up.serve, upstream=up):
        yield up


def _name(head: bytes) -> str:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == NAME.encode():
            return value.strip().decode()
    return ""


def _head(sent: list[bytes], *, sized: bool) -> bytes:
    if sized:
        framing = f"Content-Type: text/plain\r\nContent-Length: {len(sent[0])}"
    else:
        framing = "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    return f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode()


async def _set_when_closed(reader: asyncio.StreamReader, either: asyncio.Event) -> None:
    try:
        await reader.read(1)
    except OSError:
        pass  # left with a reset, which is leaving too
    either.set()


async def _after(go_on: asyncio.Event, either: asyncio.Event) -> None:
    await go_on.wait()
    either.set()


async def _wait_until_taken(writer: asyncio.StreamWriter) -> None:
    """Wait until the peer's kernel has received what was written: a reset discards the rest."""
    await writer.drain()
    await asyncio.sleep(0.2)
