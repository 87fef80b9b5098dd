"""One client's connection: CONNECT, TLS, and one request after the other; or it goes to the other engine as it is.

Whether a request is for the lane is decided when its head is there, before anything of it goes on. What is not, takes
the whole connection with it, and the bytes that were read so far.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from calls.model import Outcome
from proxy.door import Origin, acknowledge
from proxy.lane.admission import Asked, Tunnel, asked, connected, in_tunnel, not_ours, way_to
from proxy.lane.answered import Answered
from proxy.lane.exchange import Exchange
from proxy.lane.framing import Malformed
from proxy.lane.h2alpn import asks_first, chosen, spoken
from proxy.lane.h2client import Http2Client
from proxy.lane.heads import END, request_head
from proxy.lane.hello import Hello, NotTls, client_hello
from proxy.lane.relay import Relay
from proxy.lane.repeated import Repeated
from proxy.lane.tls import Tls
from proxy.lane.upstream import HIGH, Lender
from proxy.mitm.engine import Begun
from proxy.mitm.heads import raw_fault
from proxy.mitm.problem import Problem

if TYPE_CHECKING:
    from proxy.lane.lane import Lane

logger = logging.getLogger(__name__)

AHEAD: Final = 64 << 10
"""How much a client may send ahead of its answer before we stop reading."""

SWALLOWED: Final = 1 << 20
"""How much of a refused request we read on before we close."""

LINGER: Final = 2.0
"""Seconds for which we do."""

_TLS: Final = b"\x16"
_AGREED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Client(asyncio.Protocol):
    """One client."""

    def __init__(self, lane: "Lane") -> None:
        self.lane = lane
        self.engine = lane.engine
        self.full = False
        self.leaving = False
        self.owner = ""
        self.since = time.monotonic()
        """When we began to wait for what we wait for."""

        self._lender = Lender(lane.upstreams, lane.engine.destinations)
        self._transport: asyncio.Transport | Tls
        self._tunnel: Tunnel | None = None
        self._within: Origin | None = None
        self._hello: Hello | None = None
        self._exchange: Exchange | None = None
        self._buffer = b""
        self._heading = False
        """Whether a part of a head is there."""

        self._carried = False
        """Whether there was a request for the lane."""

        self._repeated = Repeated()
        self._feeding = False
        self._held = False
        self._ahead = False
        self._swallowed: int | None = None
        self._gone = False

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no asyncio.Transport by inheritance.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(HIGH)
        host = str((transport.get_extra_info("peername") or ("",))[0])
        prefix = self.engine.config.owner
        self.owner = prefix if host in ("127.0.0.1", "::1") else f"{prefix}-{host.replace('%', '-')}"
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.lane.arrived(self)
        if self.engine.proxy is not None:
            self._hand_over(b"", "upstream_proxy")

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        try:
            if self._gone:
                return
            if self._swallowed is not None:
                self._swallow(data)
            elif self._tunnel is not None and self._within is None:
                self._enter(data)
            else:
                self._feed(data)
        except Exception as fault:  # noqa: BLE001 - the guard: asyncio would log this and leave the exchange open
            self.broken(fault)

    def eof_received(self) -> bool | None:
        self._left()
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._left()

    def pause_writing(self) -> None:
        self.full = True
        if self._exchange is not None:
            self._exchange.room(full=True)

    def resume_writing(self) -> None:
        self.full = False
        if self._exchange is not None:
            self._exchange.room(full=False)

    def _left(self) -> None:
        if self._gone:
            return
        self._gone = True
        self._abandon("client_closed", "the client left before the exchange was over")
        self._lender.close()
        self.lane.departed(self)

    # Reading

    def _feed(self, data: bytes) -> None:
        """Requests, as many as there are."""
        self._feeding = True
        try:
            while data and not self._gone and self._swallowed is None:
                exchange = self._exchange
                if exchange is None:
                    rest = self._head(data)
                    if rest is None:
                        self._read_ahead(ahead=False)
                        return
                    data = rest
                elif exchange.accepts:
                    data = exchange.feed(data)
                else:
                    break
        except Malformed:
            self._abandon("client_closed", "the client's request is malformed")
            self._transport.abort()
            return
        finally:
            self._feeding = False
        self._buffer = data
        if data or self._ahead:
            self._read_ahead(len(data) > AHEAD)
        if self._exchange is not None and self._exchange.accepts:
            acknowledge(self._transport)

    def _head(self, data: bytes) -> bytes | None:
        """Begin with a request; return what is behind its head, None where there is nothing more to do with this."""
        if data[0] in b"\r\n":
            # RFC 9112 2.2: empty lines before a request line are to be ignored.
            data = data.lstrip(b"\r\n")
            if not data:
                return b""
        end = data.find(END)
        if end < 0:
            self._buffer = data
            if not self._heading:
                self._heading, self.since = True, time.monotonic()
            if raw_fault(data):
                self._hand_over(data, "malformed")
            return None
        raw = data[: end + 4]
        request = self._repeated.find(raw)
        head = request_head(raw) if request is None else None
        if head is not None and head.method == "CONNECT" and self._tunnel is None and self.engine.reverse is None:
            self._tunnel = connected(head, self.engine)
            if self._tunnel is not None:
                self._transport.write(_AGREED)
                self._buffer = b""
                if rest := data[end + 4 :]:
                    self._enter(rest)
                return None
        if head is not None:
            request = asked(head, self.engine, self.owner, self._tunnel, self._within)
        if request is None:
            self._hand_over(data, not_ours(head, self.engine))
            return None
        if head is not None:
            if not self._carried:
                self._carried = True
                self.engine.config.counts["connections/lane_http1"] += 1
            self._repeated.remember(raw, request)
        self._heading = False
        self._exchange = exchange = self._exchange_for(request)
        exchange.start()
        return data[end + 4 :]

    def _exchange_for(self, request: Asked) -> Exchange:
        answerer = self.engine.answerer
        if answerer is None:
            return Relay(self, request, self._lender)
        if self.engine.config.mode_of(request.target.host, request.named) in ("record", "passthrough"):
            answerer.passed(run=request.named)
            return Relay(self, request, self._lender)
        return Answered(self, request, answerer, self.owner, lambda: self._go_live(request))

    def _go_live(self, request: Asked) -> Relay:
        relay = Relay(self, request, self._lender)
        relay.live = True
        self._exchange = relay
        return relay

    # Tunnels

    def _enter(self, data: bytes) -> None:
        """The first bytes in a tunnel: TLS, HTTP in the clear, or something that is not for us."""
        assert self._tunnel is not None
        self._buffer = data
        if data[:1] != _TLS:
            if data[:1].isalpha():
                self._buffer = b""
                self._within = in_tunnel(self._tunnel, None, secure=False)
                self._feed(data)
            else:
                self._hand_over(data, "not_http")
            return
        try:
            hello = client_hello(data)
        except NotTls:
            self._hand_over(data, "not_http")
            return
        if hello is None:
            return
        target = in_tunnel(self._tunnel, hello.name, secure=True)
        if not spoken(hello):
            self._hand_over(data, "alpn")
            return
        self._buffer = b""
        self._hello = hello
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
        if not self._gone:
            self._transport.resume_reading()
            self._shake(data, hello, target)

    def _shake(self, data: bytes, hello: Hello, target: Origin) -> None:
        context = self.lane.leaves.context((hello.name or target.host).lower(), alpn=chosen(hello, self.engine, target))
        below = self._transport
        assert not isinstance(below, Tls)
        self._transport = tls = Tls(context, self, lambda error: self._secured(target, error), server_side=True)
        tls.start(below, data)

    def _secured(self, target: Origin, error: Exception | None) -> None:
        self.since = time.monotonic()
        if error is not None:
            self._transport.abort()
        elif self._transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            self._go_over(target)
        else:
            self._within = target

    def _go_over(self, target: Origin) -> None:
        """Let the connection be one of HTTP/2."""
        assert self._tunnel is not None
        self.engine.config.counts["connections/lane_http2"] += 1
        self._gone = True
        client = Http2Client(self.lane, self.owner, self._tunnel, target)
        self.lane.arrived(client)
        self._lender.close()
        self.lane.departed(self)
        client.begin(self._transport)

    def _hand_over(self, data: bytes, why: str) -> None:
        """Let the other engine have the connection, from these bytes on."""
        self.engine.config.counts[f"handed_over/{why}"] += 1
        self._gone = True
        self._buffer = b""
        self._lender.close()
        self.lane.departed(self)
        tunnel, within = self._tunnel, self._within
        begun = tunnel and Begun(
            host=tunnel.host,
            port=tunnel.port,
            given=tunnel.given,
            opened=within is not None,
            secure=within is not None and within.scheme == "https",
            name=self._hello.name if self._hello else None,
        )
        self.lane.hand_over(self._transport, data, begun)

    # What its exchange wants

    def write(self, data: bytes) -> None:
        if not self._gone:
            self._transport.write(data)

    def hold(self, *, full: bool) -> None:
        if full != self._held:
            self._held = full
            self._regulate()

    def go_on(self) -> None:
        if self._buffer and not self._feeding:
            self.data_received(b"")

    def over(self, *, closes: bool, lingers: bool) -> None:
        self._exchange = None
        self._heading = False
        self.since = time.monotonic()
        if lingers:
            self._swallowed = 0
            self._read_ahead(ahead=False)
        elif closes or self.leaving:
            self._transport.close()
        elif self._buffer and not self._feeding:
            # Not from here: a client that sends a thousand requests at once would have them nested.
            asyncio.get_running_loop().call_soon(self.go_on)

    def cut(self) -> None:
        self._exchange = None
        if isinstance(self._transport, Tls):
            self._transport.cut()
        else:
            self._transport.close()

    def soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        self.lane.soon(self, work, *what)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        self.lane.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as fault:  # noqa: BLE001 - the guard, as above
            self.broken(fault)

    def _swallow(self, data: bytes) -> None:
        assert self._swallowed is not None
        self._swallowed += len(data)
        if self._swallowed > SWALLOWED:
            self._transport.abort()

    def _read_ahead(self, ahead: bool) -> None:
        if ahead != self._ahead:
            self._ahead = ahead
            self._regulate()

    def _regulate(self) -> None:
        if self._gone or self._transport.is_closing():
            return
        if self._held or self._ahead:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # What the door wants

    def overdue(self, now: float) -> None:
        """Look at the time."""
        limits = self.engine.config.limits
        waited = now - self.since
        if self._exchange is not None:
            self._exchange.overdue(now)
        elif self._swallowed is not None:
            if waited > LINGER:
                self._transport.abort()
        elif self._heading:
            if waited > limits.head:
                detail = f"the head of the request was not whole within {limits.head:g} s; it went nowhere"
                self.engine.config.counts["errors/head_timed_out"] += 1
                self._transport.write(Problem(408, "head_timed_out", detail).http1())
                self._swallowed, self.since = 0, now
        elif waited > (limits.head if self._tunnel is not None and self._within is None else limits.idle):
            # It may be closing already, for a client that does not read what was written last.
            if self._transport.is_closing():
                self._transport.abort()
            else:
                self._transport.close()

    def leave(self) -> None:
        """Take no more requests; close when what is under way has ended."""
        self.leaving = True
        if self._exchange is None:
            self._transport.close()

    def stop(self) -> None:
        """Close at once, whatever is under way."""
        self._abandon("refused", "the door stopped before the exchange was over")
        self._transport.abort()

    def broken(self, fault: BaseException) -> None:
        """Something of ours has failed: end the connection rather than leave the client waiting."""
        logger.error("a connection was given up: %s", type(fault).__name__, exc_info=fault)
        self._abandon("refused", "the proxy failed while it passed this on")
        self._transport.abort()

    def _abandon(self, outcome: Outcome, why: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon(outcome, why)
