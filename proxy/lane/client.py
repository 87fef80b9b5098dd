"""One client's HTTP/1.1 connection, direct or in a tunnel: one request after the other.

When the head of a request is complete, before any of it is forwarded, the connection decides whether the lane can serve
it. If not, it hands itself to the mitmproxy engine, with the bytes read so far.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

from calls.model import Headers, Outcome
from proxy.capture.connections.reset import reset_after_data
from proxy.lane.admission import (
    LaneRequest,
    TunnelTarget,
    admitted_request,
    expect_run,
    handover_reason,
    has_named_run,
    tunnel_target,
)
from proxy.lane.connection_base import DISCARD_BYTES, LINGER_SECONDS, ClientConnection, LaneContext
from proxy.lane.exchange import DownstreamHead, LaneExchange
from proxy.lane.framing import Body, ChunkedBody, MalformedBody, SizedBody
from proxy.lane.head_cache import HeadCache
from proxy.lane.heads import RequestHead, http1_response_head, request_head
from proxy.lane.replay_answer import exchange_for
from proxy.lane.tls import Tls
from proxy.lane.upstream import WRITE_BUFFER_HIGH
from proxy.lane.upstream_http1 import ClientPool
from proxy.wire.config import Origin, acknowledge_now
from proxy.wire.heads import HEAD_BYTES, http1_head_fault
from proxy.wire.http1_heads import HEAD_END
from proxy.wire.problem import Problem

AHEAD_BYTES: Final = 64 << 10
"""Maximum bytes that a client may send ahead of its response before reading stops."""

SLOW_FEED: Final = 0.05
"""Seconds. A client whose data took longer is not read for as long, so that others are served: redaction takes 3 µs for each byte of a
body that is nothing but secrets."""

LONGEST_REST: Final = 1.0
"""Seconds."""

_CONNECT_OK: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Http1Connection(ClientConnection, asyncio.Protocol):
    """One client's HTTP/1.1 connection."""

    version = "HTTP/1.1"
    cancel_code = 8
    """The HTTP/2 error code CANCEL, for the upstream stream of a client that leaves."""

    def __init__(
        self,
        lane: LaneContext,
        owner: str = "",
        tunnel: TunnelTarget | None = None,
        origin: Origin | None = None,
        server_name: str | None = None,
    ) -> None:
        super().__init__(lane, owner)
        self.exchange: LaneExchange | None = None
        self.is_full = False
        self._tunnel = tunnel
        self._origin = origin
        self._server_name = server_name
        """The server name in the client's TLS handshake."""

        self._pool: ClientPool
        self._transport: asyncio.Transport | Tls
        self._buffer = b""
        self._body: Body | None = None
        """The body that is being received."""

        self._has_partial_head = False
        """Whether an incomplete head is buffered."""

        self._is_owner_sought = False
        """Whether the process that owns the connection has been looked up."""

        self._is_counted = False
        """Whether the connection has been counted, which happens at its first request."""

        self._head_cache = HeadCache()
        self._is_feeding = False
        self._is_paused = False
        self._is_ahead = False
        self._rest: asyncio.TimerHandle | None = None
        """The end of a rest, in which nothing is read."""

        self._discarded: int | None = None
        self._is_leaving = False
        """Whether the connection takes no further requests."""

        self._is_gone = False
        self._ends_by_close = False
        """Whether an orderly close of the connection completes the current response."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport.
        transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_HIGH)
        self.owner = self.engine.owners.reset_owner(transport.get_extra_info("peername"))
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.begin(transport, b"", ClientPool(self.lane.upstreams, self.engine.destinations))
        if self.engine.proxy is not None:
            self._hand_over(b"", "upstream_proxy")

    def begin(self, transport: asyncio.Transport, data: bytes, pool: ClientPool) -> None:
        """Take over a transport, from which `data` was already read."""
        self._transport = transport
        self._pool = pool
        transport.set_protocol(self)
        self.lane.add_client(self)
        if data:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        began = time.monotonic()
        try:
            if self._is_gone:
                return
            if self._discarded is not None:
                self._discard(data)
            else:
                self._feed(data)
        except Exception as fault:  # noqa: BLE001 - asyncio would only log the error, and leave the exchange open
            self.handle_fault(fault)
        if (took := time.monotonic() - began) > SLOW_FEED:
            self._begin_rest(min(took, LONGEST_REST))

    def eof_received(self) -> bool | None:
        self._handle_departure()
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._handle_departure()

    def pause_writing(self) -> None:
        self.is_full = True
        if self.exchange is not None:
            self.exchange.set_client_full(is_full=True)

    def resume_writing(self) -> None:
        self.is_full = False
        if self.exchange is not None:
            self.exchange.set_client_full(is_full=False)

    def _handle_departure(self) -> None:
        if self._is_gone:
            return
        self._abandon("client_closed", "the client left before the exchange was over")
        self._leave_lane()

    def _leave_lane(self) -> None:
        """End the lane's part: the client has left, or another object takes over its connection."""
        self._is_gone = True
        self._buffer = b""
        self._pool.close()
        self.lane.remove_client(self)

    # Reading

    def _feed(self, data: bytes) -> None:
        """Process the requests in the data."""
        self._is_feeding = True
        try:
            while data and not (self._is_gone or self._discarded is not None):
                exchange = self.exchange
                if exchange is None:
                    if self._is_leaving:
                        return
                    rest = self._feed_head(data)
                    if rest is None:
                        self._read_ahead(ahead=False)
                        return
                    data = rest
                elif exchange.is_receiving and not exchange.is_refused:
                    data = self._feed_body(exchange, data)
                else:
                    break
        except MalformedBody:
            self._abandon("client_closed", "the client's request is malformed")
            self._transport.abort()
            return
        finally:
            self._is_feeding = False
        self._buffer = data
        if data or self._is_ahead:
            self._read_ahead(len(data) > AHEAD_BYTES)
        exchange = self.exchange
        if exchange is not None and exchange.is_receiving and not exchange.is_refused:
            acknowledge_now(self._transport)

    def _feed_head(self, data: bytes) -> bytes | None:
        """Start the next request. Return what follows its head, or None if the data has been taken care of."""
        if data[0] in b"\r\n":
            # RFC 9112 2.2: ignore empty lines before a request line.
            data = data.lstrip(b"\r\n")
            if not data:
                return b""
        end = data.find(HEAD_END)
        if end < 0:
            self._buffer = data
            if not self._has_partial_head:
                self._has_partial_head, self.since = True, time.monotonic()
            if http1_head_fault(data):
                self._hand_over(data, "malformed")
            return None
        if end > HEAD_BYTES:
            # It arrived at once, so it was not checked while it grew.
            self._hand_over(data, "malformed")
            return None
        raw, rest = data[: end + 4], data[end + 4 :]
        request = self._head_cache.find(raw) or self._admit(raw, rest)
        if request is None:
            return None
        if not self.engine.config.access.can_write(request.identity.run, request.credentials):
            # Check cached heads too: the run may have been claimed since.
            self._hand_over(data, "refused")
            return None
        self._has_partial_head = False
        self._body = None
        self.exchange = exchange = exchange_for(self, request, self.owner, self._pool)
        exchange.start()
        return rest

    def _admit(self, raw: bytes, rest: bytes) -> LaneRequest | None:
        """Return the request that a new head begins, or None if it is served otherwise, or begins when its owner is known."""
        head = request_head(raw)
        if head is not None and self._needs_owner(head):
            self._buffer = raw + rest
            self.start_task(self._find_owner())
            return None
        if head is not None and self._enter_tunnel(head, rest):
            return None
        request = head and admitted_request(head, self.engine, self.owner, self._tunnel, self._origin)
        if request is None:
            self._hand_over(raw + rest, handover_reason(head, self.engine))
            return None
        if not self._is_counted:
            self._is_counted = True
            self.engine.config.counts["connections/lane_http1"] += 1
        self._head_cache.remember(raw, request)
        return request

    def _enter_tunnel(self, head: RequestHead, rest: bytes) -> bool:
        """Open the tunnel that a CONNECT asks for. Return whether the lane serves it."""
        if head.method != "CONNECT" or self._tunnel is not None or self.engine.reverse is not None:
            return False
        tunnel = tunnel_target(head, self.engine)
        if tunnel is None:
            return False
        self._transport.write(_CONNECT_OK)
        expect_run(self.engine, tunnel.credentials)
        self._read_ahead(ahead=False)
        self.lane.enter_tunnel(self._transport, self.owner, tunnel, rest)
        self._leave_lane()
        return True

    def _needs_owner(self, head: RequestHead) -> bool:
        """Return whether the process that owns the connection must be looked up before this request starts."""
        if self._tunnel is not None or self._is_owner_sought or has_named_run(head, self.engine):
            return False
        self._is_owner_sought = True
        peer, here = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        if not self.engine.owners.can_find(peer, here):
            return False
        owner = self.engine.owners.find_at_once(peer, here)
        if owner is None:
            return True
        self.owner = owner
        return False

    async def _find_owner(self) -> None:
        self.set_paused(is_paused=True)
        peer, here = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        self.owner = await self.engine.owners.find(peer, here)
        if not (self._is_gone or self._transport.is_closing()):
            self.set_paused(is_paused=False)
            self.data_received(b"")

    def _feed_body(self, exchange: LaneExchange, data: bytes) -> bytes:
        """Feed more of a request body. Return the bytes that follow it. Raises MalformedBody."""
        body = self._body
        if body is None:
            chunked, length = exchange.request.is_chunked, exchange.request.length
            if not chunked and len(data) >= length:
                exchange.take_whole(data[:length])
                return data[length:]
            self._body = body = ChunkedBody() if chunked else SizedBody(length)
        part = body.feed(data)
        exchange.take_data(part.forwardable, part.pieces)
        if part.end is not None and exchange.is_accepting:
            exchange.take_end(part.end, body.trailers)
        return part.rest

    def _hand_over(self, data: bytes, reason: str) -> None:
        """Hand the connection to the mitmproxy engine, starting with this data."""
        tunnel = self._tunnel and self._tunnel.opened_tunnel(self._origin, self._server_name)
        self._leave_lane()
        self.hand_over(self._transport, data, tunnel, reason)

    # Downstream, for the exchange

    def make_head(self, status: int, reason: str, headers: Headers, *, is_http10: bool = False) -> DownstreamHead:
        return DownstreamHead(
            status, reason, self.version, headers, http1_response_head(status, reason, headers, is_http10=is_http10)
        )

    def send_interim(self, head: DownstreamHead) -> None:
        self.send(head, b"")

    def send(self, head: DownstreamHead | None, data: bytes, *, is_last: bool = False, trailers: Headers = ()) -> None:  # noqa: ARG002 - part of the bytes
        if head is not None:
            data = head.raw + data
            self._ends_by_close = head.ends_by_close
        if data and not self._is_gone:
            self._transport.write(data)

    def send_pieces(
        self, head: DownstreamHead | None, pieces: Sequence[bytes], *, is_last: bool = False, trailers: Headers = ()
    ) -> None:
        self.send(head, b"".join(pieces), is_last=is_last, trailers=trailers)

    def set_paused(self, *, is_paused: bool) -> None:
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._regulate()

    def finish_exchange(self, *, closes: bool, lingers: bool) -> None:
        self.exchange = None
        self._has_partial_head = False
        self.since = time.monotonic()
        if lingers:
            self._discarded = 0
            self._read_ahead(ahead=False)
        elif closes or self._is_leaving:
            self._is_leaving = True
            self._transport.close()
        elif self._buffer and not self._is_feeding:
            # Not from here: a thousand pipelined requests would recurse a thousand times.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._buffer and not self._is_feeding:
            self.data_received(b"")

    def cut(self, code: int, *, is_reset: bool) -> None:  # noqa: ARG002 - HTTP/1.1 has no error codes
        self.exchange = None
        self._is_leaving = True
        if self._ends_by_close and (is_reset or not isinstance(self._transport, Tls)):
            self.start_task(reset_after_data(self._transport, within=LINGER_SECONDS))
        elif isinstance(self._transport, Tls):
            self._transport.cut()
        else:
            self._transport.close()

    def call_shared[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        self.lane.call_shared(self, work, *what)

    def call_soon[*T](self, work: Callable[[*T], None], *what: *T) -> None:
        self.lane.call_soon(self, work, *what)

    def _discard(self, data: bytes) -> None:
        assert self._discarded is not None
        self._discarded += len(data)
        if self._discarded > DISCARD_BYTES:
            self._transport.abort()

    def _read_ahead(self, ahead: bool) -> None:
        if ahead != self._is_ahead:
            self._is_ahead = ahead
            self._regulate()

    def _begin_rest(self, seconds: float) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._rest = asyncio.get_running_loop().call_later(seconds, self._end_rest)
        self._regulate()

    def _end_rest(self) -> None:
        self._rest = None
        self._regulate()

    def _regulate(self) -> None:
        if self._is_gone or self._transport.is_closing():
            return
        if self._is_paused or self._is_ahead or self._rest is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # For the lane

    def check_timeouts(self, now: float) -> None:
        limits = self.engine.config.limits
        waited = now - self.since
        if self.exchange is not None:
            self.exchange.check_timeouts(now)
        elif self._discarded is not None:
            if waited > LINGER_SECONDS:
                self._transport.abort()
        elif self._has_partial_head:
            if waited > limits.head:
                detail = f"the request's head was not complete within {limits.head:g} s; the request was not forwarded"
                self.engine.config.counts["errors/head_timed_out"] += 1
                self._transport.write(Problem(408, "head_timed_out", detail).http1_response())
                self._discarded, self.since = 0, now
        elif waited > limits.idle:
            self.close(self._transport)

    def leave(self) -> None:
        self._is_leaving = True
        if self.exchange is None:
            self._transport.close()

    def give_up(self, outcome: Outcome, why: str) -> None:
        self._abandon(outcome, why)
        self._transport.abort()

    def _abandon(self, outcome: Outcome, why: str) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.abandon(outcome, why)
