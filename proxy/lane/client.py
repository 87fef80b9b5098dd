"""One client's connection of HTTP/1.1, directly or in a tunnel: one request after the other.

Whether a request is for the lane is decided when its head is there, before anything of it goes on. What is not, takes
the whole connection with it, and the bytes that were read so far.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

from calls.model import Headers, Outcome
from proxy.lane.admission import TunnelTarget, asked, connected, names_to_us, not_ours
from proxy.lane.connection_base import LINGER, SWALLOWED, ClientConnection, LaneContext
from proxy.lane.exchange import DownstreamHead, LaneExchange
from proxy.lane.framing import Body, ChunkedBody, MalformedBody, SizedBody
from proxy.lane.head_cache import HeadCache
from proxy.lane.heads import END, RequestHead, http1_head, request_head
from proxy.lane.replay_answer import exchange_for
from proxy.lane.tls import Tls
from proxy.lane.upstream import HIGH
from proxy.lane.upstream_http1 import ClientPool
from proxy.wire.config import Origin, acknowledge
from proxy.wire.heads import HEAD_BYTES, raw_fault
from proxy.wire.problem import Problem

AHEAD: Final = 64 << 10
"""How much a client may send ahead of its answer before we stop reading."""

_AGREED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Http1Connection(ClientConnection, asyncio.Protocol):
    """One client."""

    version = "HTTP/1.1"
    code = 8
    """CANCEL, which is what its leaving means to an upstream of HTTP/2."""

    def __init__(
        self,
        lane: LaneContext,
        owner: str = "",
        tunnel: TunnelTarget | None = None,
        within: Origin | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(lane, owner)
        self.exchange: LaneExchange | None = None
        self.full = False
        self._tunnel = tunnel
        self._within = within
        self._name = name
        """What the client called the host in its handshake."""

        self._lender: ClientPool
        self._transport: asyncio.Transport | Tls
        self._buffer = b""
        self._body: Body | None = None
        """Of the request that is coming."""

        self._heading = False
        """Whether a part of a head is there."""

        self._owner_found = False
        """Whether the process behind the connection was looked for."""

        self._carried = False
        """Whether there was a request for the lane."""

        self._repeated = HeadCache()
        self._feeding = False
        self._held = False
        self._ahead = False
        self._swallowed: int | None = None
        self._leaving = False
        """Whether it may ask nothing more."""

        self._gone = False

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no asyncio.Transport by inheritance.
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(HIGH)
        self.owner = self.engine.owners.accepted(transport.get_extra_info("peername"))
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.begin(transport, b"", ClientPool(self.lane.upstreams, self.engine.destinations))
        if self.engine.proxy is not None:
            self._hand_over(b"", "upstream_proxy")

    def begin(self, transport: asyncio.Transport, data: bytes, lender: ClientPool) -> None:
        """Take over a connection, from which this was read already."""
        self._transport = transport
        self._lender = lender
        transport.set_protocol(self)
        self.lane.arrived(self)
        if data:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        try:
            if self._gone:
                return
            if self._swallowed is not None:
                self._swallow(data)
            else:
                self._feed(data)
        except Exception as fault:  # noqa: BLE001 - the guard: asyncio would log this and leave the exchange open
            self.failed(fault)

    def eof_received(self) -> bool | None:
        self._left()
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._left()

    def pause_writing(self) -> None:
        self.full = True
        if self.exchange is not None:
            self.exchange.room(full=True)

    def resume_writing(self) -> None:
        self.full = False
        if self.exchange is not None:
            self.exchange.room(full=False)

    def _left(self) -> None:
        if self._gone:
            return
        self._abandon("client_closed", "the client left before the exchange was over")
        self._depart()

    def _depart(self) -> None:
        self._gone = True
        self._buffer = b""
        self._lender.close()
        self.lane.departed(self)

    # Reading

    def _feed(self, data: bytes) -> None:
        """Requests, as many as there are."""
        self._feeding = True
        try:
            while data and not (self._gone or self._swallowed is not None):
                exchange = self.exchange
                if exchange is None:
                    if self._leaving:
                        return
                    rest = self._head(data)
                    if rest is None:
                        self._read_ahead(ahead=False)
                        return
                    data = rest
                elif exchange.accepts:
                    data = self._more(exchange, data)
                else:
                    break
        except MalformedBody:
            self._abandon("client_closed", "the client's request is malformed")
            self._transport.abort()
            return
        finally:
            self._feeding = False
        self._buffer = data
        if data or self._ahead:
            self._read_ahead(len(data) > AHEAD)
        if self.exchange is not None and self.exchange.accepts:
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
        if end > HEAD_BYTES:
            # It has come at once, and so was not looked at while it grew.
            self._hand_over(data, "malformed")
            return None
        raw, rest = data[: end + 4], data[end + 4 :]
        request = self._repeated.find(raw)
        if request is None:
            head = request_head(raw)
            if head is not None and self._needs_owner(head):
                self._buffer = data
                self.later(self._find_owner())
                return None
            if head is not None and head.method == "CONNECT" and self._tunnel is None and self.engine.reverse is None:
                tunnel = connected(head, self.engine)
                if tunnel is not None:
                    self._transport.write(_AGREED)
                    self._read_ahead(ahead=False)
                    self.lane.enter(self._transport, self.owner, tunnel, rest)
                    self._depart()
                    return None
            if head is not None:
                request = asked(head, self.engine, self.owner, self._tunnel, self._within)
            if request is None:
                self._hand_over(data, not_ours(head, self.engine))
                return None
            if not self._carried:
                self._carried = True
                self.engine.config.counts["connections/lane_http1"] += 1
            self._repeated.remember(raw, request)
        if not self.engine.config.access.may_write(request.identity.run, request.given):
            # Also where the same head came before: the run may have been claimed since.
            self._hand_over(data, "refused")
            return None
        self._heading = False
        self._body = None
        self.exchange = exchange = exchange_for(self, request, self.owner, self._lender)
        exchange.start()
        return rest

    def _needs_owner(self, head: RequestHead) -> bool:
        """Whether the process behind the connection has to be searched for before this request begins."""
        if self._tunnel is not None or self._owner_found or names_to_us(head, self.engine):
            return False
        self._owner_found = True
        peer, here = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        if not self.engine.owners.can_find(peer, here):
            return False
        owner = self.engine.owners.find_at_once(peer, here)
        if owner is None:
            return True
        self.owner = owner
        return False

    async def _find_owner(self) -> None:
        self.hold(full=True)
        peer, here = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        self.owner = await self.engine.owners.find(peer, here)
        if not (self._gone or self._transport.is_closing()):
            self.hold(full=False)
            self.data_received(b"")

    def _more(self, exchange: LaneExchange, data: bytes) -> bytes:
        """More of a request; return what does not belong to it. Raises Malformed."""
        body = self._body
        if body is None:
            chunked, length = exchange.asked.chunked, exchange.asked.length
            if not chunked and len(data) >= length:
                exchange.take_whole(data[:length])
                return data[length:]
            self._body = body = ChunkedBody() if chunked else SizedBody(length)
        cut = body.feed(data)
        exchange.take(cut.go, cut.pieces)
        if cut.end is not None and exchange.accepts:
            exchange.take_end(cut.end, body.trailers)
        return cut.rest

    def _hand_over(self, data: bytes, why: str) -> None:
        """Let the other engine have the connection, from these bytes on."""
        begun = self._tunnel and self._tunnel.begun(self._within, self._name)
        self._depart()
        self.hand_over(self._transport, data, begun, why)

    # What its exchange wants

    def head(self, status: int, reason: str, headers: Headers, *, old: bool = False) -> DownstreamHead:
        return DownstreamHead(status, reason, self.version, headers, http1_head(status, reason, headers, old=old))

    def announce(self, told: DownstreamHead) -> None:
        self.send(told, b"")

    def send(self, told: DownstreamHead | None, data: bytes, *, last: bool = False, trailers: Headers = ()) -> None:  # noqa: ARG002 - the bytes say both
        if told is not None:
            data = told.raw + data
        if data and not self._gone:
            self._transport.write(data)

    def send_all(
        self, told: DownstreamHead | None, pieces: Sequence[bytes], *, last: bool = False, trailers: Headers = ()
    ) -> None:
        self.send(told, b"".join(pieces), last=last, trailers=trailers)

    def hold(self, *, full: bool) -> None:
        if full != self._held:
            self._held = full
            self._regulate()

    def over(self, *, closes: bool, lingers: bool) -> None:
        self.exchange = None
        self._heading = False
        self.since = time.monotonic()
        if lingers:
            self._swallowed = 0
            self._read_ahead(ahead=False)
        elif closes or self._leaving:
            self._leaving = True
            self._transport.close()
        elif self._buffer and not self._feeding:
            # Not from here: a client that sends a thousand requests at once would have them nested.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._buffer and not self._feeding:
            self.data_received(b"")

    def cut(self, code: int) -> None:  # noqa: ARG002 - HTTP/1.1 has no words for it
        self.exchange = None
        self._leaving = True
        if isinstance(self._transport, Tls):
            self._transport.cut()
        else:
            self._transport.close()

    def soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        self.lane.soon(self, work, *what)

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

    # What the worker wants

    def overdue(self, now: float) -> None:
        limits = self.engine.config.limits
        waited = now - self.since
        if self.exchange is not None:
            self.exchange.overdue(now)
        elif self._swallowed is not None:
            if waited > LINGER:
                self._transport.abort()
        elif self._heading:
            if waited > limits.head:
                detail = f"the head of the request was not whole within {limits.head:g} s; it went nowhere"
                self.engine.config.counts["errors/head_timed_out"] += 1
                self._transport.write(Problem(408, "head_timed_out", detail).http1())
                self._swallowed, self.since = 0, now
        elif waited > limits.idle:
            self.close(self._transport)

    def leave(self) -> None:
        self._leaving = True
        if self.exchange is None:
            self._transport.close()

    def give_up(self, outcome: Outcome, why: str) -> None:
        self._abandon(outcome, why)
        self._transport.abort()

    def _abandon(self, outcome: Outcome, why: str) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.abandon(outcome, why)
