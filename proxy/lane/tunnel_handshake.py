"""Read the first bytes in a tunnel: TLS, plain HTTP, or another protocol.

What a client is to speak is settled in its TLS handshake; where that depends on its upstream, the upstream is asked first.
"""

import asyncio
import time
from typing import Final

from calls.model import Outcome
from proxy.capture.connections.destination import rejection
from proxy.lane.admission import TunnelTarget, in_tunnel, way_to
from proxy.lane.client import Http1Connection
from proxy.lane.connection_base import ClientConnection, LaneContext
from proxy.lane.h2.client import Http2Client
from proxy.lane.tls import Tls
from proxy.lane.upstream_http1 import ClientPool
from proxy.wire.alpn import asks_first, chosen, spoken
from proxy.wire.client_hello import Hello, NotTls, client_hello
from proxy.wire.config import Origin
from proxy.wire.problem import Problem

HTTPS_PORTS: Final = (443, 8443)
"""Ports at which a client that names no protocol in its handshake speaks HTTP."""


class TunnelHandshake(ClientConnection, asyncio.Protocol):
    """A client that has its tunnel, and has not said yet what goes through it."""

    def __init__(self, lane: LaneContext, owner: str, tunnel: TunnelTarget) -> None:
        super().__init__(lane, owner)
        self._tunnel = tunnel
        self._lender = ClientPool(lane.upstreams, lane.engine.destinations)
        self._transport: asyncio.Transport | Tls
        self._hello: Hello | None = None
        self._buffer = b""
        self._gone = False

    def begin(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take over a connection, from which this was read already."""
        self._transport = transport
        transport.set_protocol(self)
        self.lane.arrived(self)
        if data:
            self.data_received(data)

    # What asyncio tells

    def data_received(self, data: bytes) -> None:
        if self._gone:
            return
        self._buffer += data
        try:
            self._look(self._buffer)
        except Exception as fault:  # noqa: BLE001 - the guard: asyncio would log this and leave the client waiting
            self.failed(fault)

    def eof_received(self) -> bool | None:
        self._depart()
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._depart()

    def _depart(self) -> None:
        if not self._gone:
            self._gone = True
            self._lender.close()
            self.lane.departed(self)

    # What it is

    def _look(self, data: bytes) -> None:
        if data.startswith(b"PRI * HTTP/2.0\r\n"):
            self._hand_over(data, "h2_prior_knowledge")
            return
        if data[:1].isalpha():
            self._go_on(in_tunnel(self._tunnel, None, secure=False), data)
            return
        try:
            hello = client_hello(data)
        except NotTls:
            self._hand_over(data, "not_http")
            return
        if hello is None:
            return
        if not spoken(hello):
            self._hand_over(data, "alpn")
            return
        if self._tunnel.captured is not None and not hello.protocols and self._tunnel.port not in HTTPS_PORTS:
            # It may speak anything within TLS, and the other engine can pass that on.
            self._hand_over(data, "no_alpn")
            return
        self._hello, self._buffer = hello, b""
        if self._tunnel.captured is not None and hello.name:
            self._tunnel = self._tunnel._replace(host=hello.name.lower())
        target = in_tunnel(self._tunnel, hello.name, secure=True)
        if asks_first(hello, self.engine, target):
            self._transport.pause_reading()
            self.later(self._learn(data, hello, target))
        else:
            self._shake(data, hello, target)

    async def _learn(self, data: bytes, hello: Hello, target: Origin) -> None:
        """Ask the upstream first what it speaks."""
        self.since = time.monotonic()
        try:
            await self.lane.ways.speaks(way_to(self.engine, target, self._tunnel), self._lender)
        except Problem:
            pass  # whoever asks for something will hear of it
        if not (self._gone or self._transport.is_closing()):
            self._transport.resume_reading()
            self._shake(data, hello, target)

    def _shake(self, data: bytes, hello: Hello, target: Origin) -> None:
        context = self.lane.leaves.context((hello.name or target.host).lower(), alpn=chosen(hello, self.engine, target))
        below = self._transport
        assert not isinstance(below, Tls)
        self._transport = tls = Tls(context, self, lambda error: self._secured(target, error), server_side=True)
        tls.start(below, data)

    def _secured(self, target: Origin, error: Exception | None) -> None:
        if error is not None:
            self._transport.abort()
            if self._tunnel.captured is not None and (why := rejection(error)):
                self._tunnel.captured.report_failure(why)
        elif self._transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self._go_on(target, b"")
        else:
            self.engine.config.counts["connections/lane_http2"] += 1
            Http2Client(self.lane, self.owner, self._tunnel, target).begin(self._transport)
            self._depart()

    def _go_on(self, target: Origin, data: bytes) -> None:
        """Let it be a connection of HTTP/1.1, for the next one who carries on with it."""
        self._gone = True
        client = Http1Connection(self.lane, self.owner, self._tunnel, target, self._hello and self._hello.name)
        client.begin(self._transport, data, self._lender)
        self.lane.departed(self)

    def _hand_over(self, data: bytes, why: str) -> None:
        self._depart()
        self.hand_over(self._transport, data, self._tunnel.begun(), why)

    # What the worker wants

    def overdue(self, now: float) -> None:
        if now - self.since > self.engine.config.limits.head:
            self.close(self._transport)

    def leave(self) -> None:
        self._transport.close()

    def give_up(self, outcome: Outcome, why: str) -> None:  # noqa: ARG002 - nothing is under way
        self._transport.abort()
