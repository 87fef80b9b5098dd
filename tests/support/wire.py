"""A worker under test, a recorder and an answerer in memory, and scripted upstreams on real sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import trustme

from calls.model import ChunkKind, Headers, Outcome, Request
from proxy import lane, mitm
from proxy.capture.owner import Owners
from proxy.trust.ca import ensure_ca
from proxy.wire.config import EngineConfig, Limits
from proxy.wire.engine import Answerer, Engine
from replay.answer import Answer, Duplex, Piece
from tests.support.roots import one_root

type Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
type Side = Literal["request", "response"]

ENGINES: dict[str, Engine] = {"mitmproxy": mitm.run, "lane": lane.run}

engine = "mitmproxy"
"""The engine under test. `tests/proxy/engines/conftest.py` runs every test with each."""


@cache
def upstream_ca() -> trustme.CA:
    """Return the private CA of all upstreams of this process: creating one is slow."""
    return trustme.CA()


# Upstreams


@dataclass
class Upstream:
    """The upstream's port, and what connected to it."""

    port: int = 0
    connections: int = 0
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    heads: list[bytes] = field(default_factory=list)
    """Every request head that `answering` has read."""

    bodies: list[bytes] = field(default_factory=list)


@asynccontextmanager
async def serving(
    handler: Handler, *, tls: ssl.SSLContext | None = None, upstream: Upstream | None = None
) -> AsyncIterator[Upstream]:
    """Serve on a socket. Errors of the handler after the peer has closed are ignored."""
    upstream = upstream or Upstream()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.connections += 1
        upstream.connected.set()
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()


@asynccontextmanager
async def answering(
    *responses: bytes, tls: ssl.SSLContext | None = None, hold: asyncio.Event | None = None
) -> AsyncIterator[Upstream]:
    """Answer each HTTP/1 request with the same raw bytes, piece by piece, and keep the connection open."""
    upstream = Upstream()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            upstream.heads.append(head)
            upstream.bodies.append(body)
            for piece in responses:
                writer.write(piece)
                await writer.drain()
            if hold is not None:
                await hold.wait()

    async with serving(handler, tls=tls, upstream=upstream):
        yield upstream


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one HTTP/1 request: its head and its undecoded body (chunked framing is kept)."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = head.lower()
    if b"transfer-encoding: chunked" in fields:
        body = b""
        while True:
            line = await reader.readline()
            body += line
            if line in (b"0\r\n",):
                while (trailer := await reader.readline()) != b"\r\n":
                    body += trailer
                return head, body + b"\r\n"
            body += await reader.readexactly(int(line, 16) + 2)
    length = fields.partition(b"content-length:")[2].partition(b"\r\n")[0].strip()
    return head, await reader.readexactly(int(length)) if length else b""


def upstream_tls(*names: str, alpn: tuple[str, ...] = ("http/1.1",)) -> ssl.SSLContext:
    """Return a server context for these names, signed by `upstream_ca`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    upstream_ca().issue_cert(*names).configure_cert(context)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


# A recorder that remembers


@dataclass
class MemoryExchange:
    """One exchange as the recorder received it."""

    id: str
    begun: Mapping[str, Any]
    recorder: "MemoryRecorder"
    words: list[tuple[Any, ...]] = field(default_factory=list)
    """Every call of the recorder for it, in order."""

    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_behind(self) -> bool:
        return self.recorder.is_behind

    def record_data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None:
        self._hear("data", side, data, kind)

    def record_response_pieces(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        for at, data in pieces:
            self.record_data("response", data, at, "data")

    def record_response_head(self, at: int, status: int, reason: str, http_version: str, headers: Headers) -> None:
        self._hear("response", status, reason, http_version, headers)

    def record_end(self, side: Side, at: int, trailers: Headers = ()) -> None:
        self._hear("ended", side, trailers)

    def record_request(self, body: bytes, at: int) -> None:
        if body:
            self.record_data("request", body, at)
        self.record_end("request", at)

    def record_response(
        self,
        at: int,
        status: int,
        reason: str,
        http_version: str,
        headers: Headers,
        body: bytes,
        *,
        completes_exchange: bool,
    ) -> None:
        self.record_response_head(at, status, reason, http_version, headers)
        if body:
            self.record_data("response", body, at)
        self.record_end("response", at)
        if completes_exchange:
            self.record_close(at, "completed")

    def record_truncation(self, side: Side) -> None:
        self._hear("truncate", side)

    def record_close(self, at: int, outcome: Outcome, error: str | None = None) -> None:
        self._hear("closed", outcome, error)
        self.over.set()

    @property
    def loss_reason(self) -> str:
        return "" if self.recorder.keeps else "the disk is full"

    def is_recorded_now(self) -> bool:
        return False

    async def wait_until_recorded(self) -> bool:
        await self.recorder.gate.wait()
        return self.recorder.keeps

    def _hear(self, *word: Any) -> None:
        self.words.append(word)
        self.recorder.changed.set()

    def body(self, side: Side) -> bytes:
        return b"".join(self.pieces(side))

    def pieces(self, side: Side) -> list[bytes]:
        return [word[2] for word in self.words if word[:2] == ("data", side)]

    def messages(self) -> list[tuple[Any, ...]]:
        return [word[1:] for word in self.words if word[0] == "data"]

    @property
    def head(self) -> tuple[Any, ...] | None:
        """Return status, reason, version and headers."""
        return next((word[1:] for word in self.words if word[0] == "response"), None)

    @property
    def outcome(self) -> str | None:
        return next((word[1] for word in self.words if word[0] == "closed"), None)

    @property
    def error(self) -> str | None:
        return next((word[2] for word in self.words if word[0] == "closed"), None)

    def trailers(self, side: Side) -> Headers:
        return next((word[2] for word in self.words if word[:2] == ("ended", side)), ())


class MemoryRecorder:
    """A recorder in memory. While `gate` is cleared it confirms nothing as recorded."""

    def __init__(self, on_failure: Literal["gap", "refuse"] = "gap") -> None:
        self.on_failure = on_failure
        self.gate = asyncio.Event()
        self.gate.set()
        self.keeps = True
        self.is_behind = False
        self.exchanges: list[MemoryExchange] = []
        self.gaps: list[tuple[str, str, str | None]] = []
        self.begun = asyncio.Event()
        self.changed = asyncio.Event()

    def begin(self, *, buffers_request: bool = False, memo: object = None, **head: Any) -> MemoryExchange:
        exchange = MemoryExchange(str(len(self.exchanges)), head, self)
        self.exchanges.append(exchange)
        self.begun.set()
        self.changed.set()
        return exchange

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the recorded exchanges make the condition true."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    def record_gap(self, run: str, reason: str, exchange: str | None = None) -> None:
        self.gaps.append((run, reason, exchange))
        self.changed.set()

    def call_soon(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    @property
    def only(self) -> MemoryExchange:
        assert len(self.exchanges) == 1
        return self.exchanges[0]


# An answerer that follows a script


class ScriptedAnswerer:
    """Returns the given answers in order, and stores each request."""

    def __init__(
        self, *answers: Answer | None, alpn: tuple[str, ...] | None = None, recorded: str | None = None
    ) -> None:
        self._answers = list(answers)
        self._alpn = alpn
        self.recorded = recorded
        """The only authority that the recording has requests to, with `alpn`; None: any."""

        self.duplex: Duplex | None = None
        self.authorities: tuple[str, ...] = ()
        self.asked: list[tuple[Request, str | None, str]] = []
        self.passing: list[str | None] = []
        self.lost: list[tuple[str | None, bool]] = []
        self.refused: list[str] = []
        self.expected_runs: list[str] = []
        self.heard = asyncio.Event()
        self.actors: list[str | None] = []

    async def answer(self, request: Request, *, run: str | None, owner: str, actor: str | None = None) -> Answer | None:
        self.asked.append((request, run, owner))
        self.actors.append(actor)
        return self._answers.pop(0)

    async def open_duplex(
        self, request: Request, *, run: str | None, owner: str, actor: str | None = None
    ) -> Duplex | None:
        return self.duplex

    def expect_run(self, run: str) -> None:
        self.expected_runs.append(run)

    def note_passed_request(self, *, run: str | None) -> None:
        self.passing.append(run)

    def note_unseen_request(self, *, run: str | None, large: bool = False) -> None:
        self.lost.append((run, large))
        self.heard.set()

    def note_refused_connection(self, destination: str, reason: str, *, run: str | None) -> None:
        self.refused.append(f"{destination} ({reason})")

    def recorded_protocols(self, authority: str) -> tuple[str, ...] | None:
        return self._alpn if self.recorded in (None, authority) else None

    def loaded_authorities(self) -> Iterable[str]:
        return self.authorities

    async def recorded_authorities(self, run: str) -> Iterable[str]:
        return ()

    def rehearsal(self) -> tuple[Request, Answerer] | None:
        return None


def whole(body: bytes, *headers: tuple[str, str], status: int = 200) -> Answer:
    """Return an answer in one piece."""
    return Answer(
        status=status, reason="OK", headers=(*headers, ("Content-Length", str(len(body)))), pieces=(Piece(0, body),)
    )


# The worker


@dataclass(frozen=True)
class Worker:
    """A running worker."""

    port: int
    config: EngineConfig

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def proxy(self, run: str = "run-1", token: str = "x") -> str:
        return f"http://{run}:{token}@127.0.0.1:{self.port}"

    @property
    def tls(self) -> ssl.SSLContext:
        """Return a client context that trusts the worker's CA."""
        return ssl.create_default_context(cafile=str(self.config.authority.certificate))


def api_test_at(upstream: Upstream) -> dict[str, str]:
    """Return the setting `upstreams` that maps `api.test` to this upstream."""
    return {"api.test": f"http://127.0.0.1:{upstream.port}"}


@asynccontextmanager
async def open_worker(
    directory: Path,
    recorder: MemoryRecorder | None = None,
    answerer: Answerer | None = None,
    *,
    upstream: AbstractAsyncContextManager[Upstream] | None = None,
    finds_owners: bool = False,
    **settings: Any,
) -> AsyncIterator[Worker]:
    """Run a worker until the end of the block. It uses the recorder, if any, and trusts `upstream_ca`.

    `upstream` serves `api.test` for as long.

    Usually the client is this process, and the owner of its connections is not searched: for each connection the worker
    would read the descriptors of all other processes, which takes half of the CPU of such a test.
    """
    ca = directory / "upstream-ca.pem"
    upstream_ca().cert_pem.write_to_path(str(ca))
    mode = "replay" if answerer else "record" if recorder else "passthrough"
    defaults: dict[str, Any] = {"mode": mode, "upstream_ca": str(ca), "limits": Limits(grace=0.5)}
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with AsyncExitStack() as opened:
        if upstream is not None:
            defaults["upstreams"] = api_test_at(await opened.enter_async_context(upstream))
        with one_root():
            config = EngineConfig(authority=ensure_ca(directory / "keys"), **(defaults | settings))
        if not finds_owners:
            opened.enter_context(patch.object(Owners, "can_find", lambda *_: False))
        group = await opened.enter_async_context(asyncio.TaskGroup())
        group.create_task(ENGINES[engine](config, recorder, answerer, ready.set_result))
        opened.callback(config.stop.set)
        with one_root():
            port = await ready
        yield Worker(port, config)


async def connect_through(
    worker: Worker, authority: str, *, alpn: tuple[str, ...] = ()
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a raw connection through the worker by CONNECT, then TLS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, EOFError):
        writer.close()
        raise
    if not head.startswith(b"HTTP/1.1 200"):
        writer.close()
        raise ConnectionRefusedError(head + await reader.read())
    context = worker.tls
    if alpn:
        context.set_alpn_protocols(list(alpn))
    await writer.start_tls(context, server_hostname=authority.rpartition(":")[0])
    return reader, writer
