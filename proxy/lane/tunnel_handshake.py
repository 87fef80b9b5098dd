"""Detect the protocol in a tunnel (TLS, plain HTTP or another), and terminate TLS.

The version of HTTP is chosen in the client's handshake. If it depends on the upstream, connect to the upstream first.
"""

import asyncio
import time
from typing import Final

from calls.model import Outcome
from proxy.lane.admission import TunnelTarget, origin_in_tunnel, upstream_address
from proxy.lane.client import Http1Connection
from proxy.lane.connection_base import ClientConnection, LaneContext
from proxy.lane.tls import Tls
from proxy.lane.upstream_http1 import ClientPool
from proxy.wire.alpn import choose_protocol, has_common_protocol, must_ask_upstream_first
from proxy.wire.client_hello import Hello, NotTls, parse_client_hello
from proxy.wire.config import Origin
from proxy.wire.problem import Problem

HTTPS_PORTS: Final = (443, 8443)
"""Ports on which a client without ALPN is assumed to use HTTP."""


class TunnelHandshake(ClientConnection, asyncio.Protocol):
    """A client whose tunnel is open, until the protocol in it is known."""

    def __init__(self, lane: LaneContext, owner: str, tunnel: TunnelTarget) -> None:
        super().__init__(lane, owner)
        self._tunnel = tunnel
        self._pool = ClientPool(lane.upstreams, lane.engine.destinations)
        self._transport: asyncio.Transport | Tls
        self._hello: Hello | None = None
        self._buffer = b""
        self._is_gone = False

    def begin(self, transport: asyncio.Transport, data: bytes) -> None:
        """Take over a transport, from which `data` was already read."""
        self._transport = transport
        transport.set_protocol(self)
        self.lane.add_client(self)
        if data:
            self.data_received(data)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self._is_gone:
            return
        self._buffer += data
        try:
            self._inspect(self._buffer)
        except Exception as fault:  # noqa: BLE001 - asyncio would only log the error, and leave the client waiting
            self.handle_fault(fault)

    def eof_received(self) -> bool | None:
        self._leave_lane()
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._leave_lane()

    def _leave_lane(self) -> None:
        """End this object's part: the client has left, or another object takes over its connection."""
        if not self._is_gone:
            self._is_gone = True
            self._pool.close()
            self.lane.remove_client(self)

    # Detection

    def _inspect(self, data: bytes) -> None:
        if data.startswith(b"PRI * HTTP/2.0\r\n"):
            self._hand_over(data, "h2_prior_knowledge")
            return
        if data[:1].isalpha():
            self._continue_http1(origin_in_tunnel(self._tunnel, None, is_tls=False), data)
            return
        try:
            hello = parse_client_hello(data)
        except NotTls:
            self._hand_over(data, "not_http")
            return
        if hello is None:
            return
        if not has_common_protocol(hello):
            self._hand_over(data, "alpn")
            return
        if self._tunnel.captured is not None and not hello.protocols and self._tunnel.port not in HTTPS_PORTS:
            # Any protocol may be within TLS, and the mitmproxy engine can forward it.
            self._hand_over(data, "no_alpn")
            return
        self._hello, self._buffer = hello, b""
        if self._tunnel.captured is not None and hello.name:
            self._tunnel = self._tunnel._replace(host=hello.name.lower())
        target = origin_in_tunnel(self._tunnel, hello.name, is_tls=True)
        if must_ask_upstream_first(hello, self.engine, target):
            self._transport.pause_reading()
            self.start_task(self._learn_protocol(data, hello, target))
        else:
            self._start_handshake(data, hello, target)

    async def _learn_protocol(self, data: bytes, hello: Hello, target: Origin) -> None:
        """Connect to the upstream first to learn its protocol."""
        self.since = time.monotonic()
        try:
            await self.lane.routes.learn_protocol(upstream_address(self.engine, target, self._tunnel), self._pool)
        except Problem:
            pass  # the first request reports the error
        if not (self._is_gone or self._transport.is_closing()):
            self._transport.resume_reading()
            self._start_handshake(data, hello, target)

    def _start_handshake(self, data: bytes, hello: Hello, target: Origin) -> None:
        # RFC 7301 3.2: a server's protocols are nothing to a client that names none, so it needs no context of its own.
        alpn = choose_protocol(hello, self.engine, target) if hello.protocols else "http/1.1"
        context = self.lane.leaf_contexts.context((hello.name or target.host).lower(), alpn=alpn)
        below = self._transport
        assert not isinstance(below, Tls)
        self._transport = tls = Tls(context, self, lambda error: self._on_handshake(target, error), server_side=True)
        tls.start(below, data)

    def _on_handshake(self, target: Origin, error: Exception | None) -> None:
        if error is not None:
            self._transport.abort()
            tunnel = self._tunnel
            self.engine.failed_handshakes.report(
                error, tunnel.host, tunnel.credentials, lambda: self.owner, tunnel.captured
            )
        elif self._transport.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            self._continue_http1(target, b"")
        else:
            # Imported by the first connection, as in `h2.routes`.
            from proxy.lane.h2.client import Http2Client

            self.engine.config.counts["connections/lane_http2"] += 1
            Http2Client(self.lane, self.owner, self._tunnel, target).begin(self._transport)
            self._leave_lane()

    def _continue_http1(self, target: Origin, data: bytes) -> None:
        """Continue as an HTTP/1.1 connection."""
        self._is_gone = True
        client = Http1Connection(self.lane, self.owner, self._tunnel, target, self._hello and self._hello.name)
        client.begin(self._transport, data, self._pool)
        self.lane.remove_client(self)

    def _hand_over(self, data: bytes, reason: str) -> None:
        self._leave_lane()
        self.hand_over(self._transport, data, self._tunnel.opened_tunnel(), reason)

    # For the lane

    def check_timeouts(self, now: float) -> None:
        if now - self.since > self.engine.config.limits.head:
            self.close(self._transport)

    def leave(self) -> None:
        self._transport.close()

    def give_up(self, outcome: Outcome, why: str) -> None:  # noqa: ARG002 - there is no exchange yet
        self._transport.abort()
