"""Serve a recorded request in memory before the first real one, so that nothing of its way runs for the first time then.

The first request of a process takes three times as long as a later one: the expressions that search it for secrets build their
automata, regular expressions are compiled, OpenSSL looks up what a session needs. What is served here is answered by a replay of its
own, reaches no socket and is counted nowhere.
"""

import asyncio
import base64
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlsplit

from calls.model import Request
from proxy.lane.admission import TunnelTarget
from proxy.lane.client import Http1Connection
from proxy.lane.connection_base import ClientConnection, LaneContext
from proxy.lane.tunnel_handshake import TunnelHandshake
from proxy.wire.access import OPEN_ACCESS
from proxy.wire.engine import Answerer
from proxy.wire.engine_state import OpenedTunnel

LARGEST_BODY: Final = 64 << 10
"""Bytes of a request's body from which it is not served: the event loop would stand still."""

MOST_TURNS: Final = 8
"""Turns of the event loop that the answer may take. It waits for nothing."""

_FRAMING: Final = frozenset(
    {"connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade"}
)


async def rehearse(lane: LaneContext, request: Request, answerer: Answerer) -> bytes:
    """Serve the request over TLS; return what a client would have received. It is empty if the request is not like most."""
    parts = urlsplit(request.url)
    if parts.scheme != "https" or parts.hostname is None or len(request.body.data) > LARGEST_BODY:
        return b""
    transport = _MemoryTransport()
    connection = Http1Connection(_RehearsalLane(lane, answerer))
    connection.connection_made(transport)
    transport.deliver(_tunnel_head(parts.hostname, parts.port or 443))
    if not transport.take_written().startswith(b"HTTP/1.1 200 "):
        return b""
    client = _TlsClient(transport, parts.hostname)
    try:
        # Other clients are served between two steps.
        await client.shake_hands()
        client.send(_request_bytes(request))
        for _ in range(MOST_TURNS):
            await asyncio.sleep(0)
            client.receive()
    except ssl.SSLError:
        return b""  # a real client is told why
    finally:
        transport.connection_lost()
    return bytes(client.received)


def _tunnel_head(host: str, port: int) -> bytes:
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # With a run, nobody looks for the process that owns the connection.
    credentials = base64.b64encode(b"rehearsal:").decode()
    return f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nProxy-Authorization: Basic {credentials}\r\n\r\n".encode()


def _request_bytes(request: Request) -> bytes:
    parts, body = urlsplit(request.url), request.body.data
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    fields = [(name, value) for name, value in request.headers if name.lower() not in _FRAMING and name[:1] != ":"]
    lines = [f"{request.method} {path} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in fields]
    lines += [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


class _RehearsalLane:
    """The lane of a connection that does not exist: it counts nothing, and contacts and hands over to nobody."""

    def __init__(self, lane: LaneContext, answerer: Answerer) -> None:
        config = replace(
            lane.engine.config,
            mode="replay",
            modes={},
            run_mode=lambda _run: None,
            is_only_run=lambda _run: False,
            reverse=None,
            tunnel=(),
            upstream_proxy=None,
            host="127.0.0.1",
            access=OPEN_ACCESS,
            counts=Counter(),
        )
        self.engine = replace(lane.engine, config=config, recorder=None, answerer=answerer)
        self.upstreams = lane.upstreams
        self.routes = lane.routes
        self.leaf_contexts = lane.leaf_contexts
        self.receive_queue = lane.receive_queue
        self.spawn: Callable[[Coroutine[Any, Any, None]], None] = lane.spawn

    def add_client(self, client: ClientConnection) -> None:
        pass

    def remove_client(self, client: ClientConnection) -> None:
        pass

    def call_shared[*T](self, client: ClientConnection, work: Callable[[*T], None], *what: *T) -> None:  # noqa: ARG002
        work(*what)

    def call_soon[*T](self, client: ClientConnection, work: Callable[[*T], None], *what: *T) -> None:  # noqa: ARG002
        asyncio.get_running_loop().call_soon(work, *what)

    def call_last(self, work: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(work)

    def enter_tunnel(self, transport: asyncio.Transport, owner: str, tunnel: TunnelTarget, data: bytes) -> None:
        TunnelHandshake(self, owner, tunnel).begin(transport, data)

    def hand_over(self, transport: asyncio.Transport, data: bytes, tunnel: OpenedTunnel | None) -> None:  # noqa: ARG002
        transport.abort()


class _MemoryTransport(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self._protocol: asyncio.Protocol | None = None
        self._written = bytearray()
        self._is_closing = False

    def deliver(self, data: bytes) -> None:
        """Let the protocol read this."""
        if self._protocol is not None and data and not self._is_closing:
            self._protocol.data_received(data)

    def take_written(self) -> bytes:
        """Return what was written since the last call."""
        written, self._written = bytes(self._written), bytearray()
        return written

    def connection_lost(self) -> None:
        """Tell the protocol that its client has left."""
        if self._protocol is not None:
            self._protocol.connection_lost(None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class _TlsClient:
    """The client's side of TLS over such a transport. It trusts every certificate."""

    def __init__(self, transport: _MemoryTransport, host: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.received = bytearray()
        self._transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    async def shake_hands(self) -> None:
        """Make the handshake. Raises SSLError if it does not succeed."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._exchange()
        await asyncio.sleep(0)
        self._tls.do_handshake()
        self._exchange()
        await asyncio.sleep(0)

    def send(self, data: bytes) -> None:
        """Send this in one piece."""
        self._tls.write(data)
        self._exchange()

    def receive(self) -> None:
        """Read what was sent."""
        self._exchange()
        with suppress(ssl.SSLWantReadError):
            while piece := self._tls.read(16 << 10):
                self.received += piece

    def _exchange(self) -> None:
        self._transport.deliver(self._outgoing.read())
        self._incoming.write(self._transport.take_written())
