"""A worker that only passes on: CONNECT, TLS with a CA of its own, one upstream for every host. For tests that need no engine."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trustme


@dataclass(kw_only=True)
class StandinWorker:
    """Where it listens, what to trust, and the head of every CONNECT or plain request that it saw."""

    upstream: int
    directory: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    port: int = 0
    heads: list[str] = field(default_factory=list)
    refuse: bytes | None = None
    """Answer every CONNECT with this instead."""

    alpn: list[str] = field(default_factory=lambda: ["http/1.1"])

    @property
    def proxy(self) -> str:
        return f"http://run-7:secret@127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        path = self.directory / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return path

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self.client, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        await cancel_rest()

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                await self.talk(reader, writer)
        finally:
            writer.close()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head.decode())
        target = head.split()[1].decode()
        first = head
        if head.startswith(b"CONNECT"):
            writer.write(self.refuse or b"HTTP/1.1 200 Connection established\r\n\r\n")
            if self.refuse:
                return
            host, _, port = target.rpartition(":")
            if port == "443":
                await writer.start_tls(self.identity(host.strip("[]")))
            first = b""
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            upstream_writer.write(first)
            await asyncio.gather(pipe(reader, upstream_writer), pipe(upstream_reader, writer))
        finally:
            upstream_writer.transport.abort()
            writer.transport.abort()

    def identity(self, host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(self.alpn)
        self.authority.issue_cert(host).configure_cert(context)
        return context


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()


@contextmanager
def standing(upstream: int, directory: Path) -> Iterator[StandinWorker]:
    """A running worker, in a thread of its own."""
    worker = StandinWorker(upstream=upstream, directory=directory)
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(worker.serve(ready, stop),))
    thread.start()
    ready.wait()
    try:
        yield worker
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def cancel_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    # An aborted transport lets go of its socket in the loop's next turn.
    await asyncio.sleep(0)
