"""Make connections to upstreams, lend each to one exchange after another, and close them.

A connection belongs to the client that it was made for. When that client leaves, another client may reuse it for a few
seconds, unless the connection is authenticated (NTLM, Negotiate). A request that must not be sent twice may reuse it only
while no server would be closing it yet. Data without a request ends a connection.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from functools import cached_property
from typing import Final, NamedTuple, Protocol, cast

from proxy.lane.heads import ResponseHeadReader
from proxy.lane.tls import Tls, upstream_context
from proxy.wire.destinations import Destinations
from proxy.wire.problem import Problem

KEEP_SECONDS: Final = 4.0
"""Seconds to keep a connection idle for another client. Node's servers close after five."""

FRESH_SECONDS: Final = 1.5
"""Maximum idle seconds before a request that must not be sent twice. Gunicorn's workers close after two."""

MAX_IDLE: Final = 64
"""Maximum number of idle connections for each upstream."""

WRITE_BUFFER_HIGH: Final = 256 << 10


class UpstreamAddress(NamedTuple):
    """Where and how an upstream is reached."""

    host: str
    port: int
    server_name: str | None
    """The name that its TLS certificate must have; None without TLS."""

    is_local: bool = False
    """Whether private addresses and all ports are allowed, as they are for the user's own captured commands only."""


class ResponseListener(Protocol):
    """Receives the data of an upstream connection while it is lent."""

    def handle_data(self, data: bytes) -> None:
        """Handle received data."""

    def handle_disconnect(self, *, is_truncated: bool, is_reset: bool = False) -> None:
        """Handle the end of the connection. `is_truncated`: without an orderly close. `is_reset`: not even TCP's."""

    def set_upstream_full(self, *, is_full: bool) -> None:
        """Handle that the upstream's send buffer is full, or has room again."""

    def handle_fault(self, fault: BaseException) -> None:
        """Handle an internal error."""


class Upstream(asyncio.Protocol):
    """One connection to an upstream."""

    def __init__(self, address: UpstreamAddress) -> None:
        self.address = address
        self.is_bound = False
        """Whether only its first client may use it, because it is authenticated."""

        self.exchange_count = 0
        """The number of exchanges so far."""

        self.is_gone = False
        self.idle_since = 0.0
        self.head_reader = ResponseHeadReader()
        self._is_reading = True
        self._is_full = False
        self._early_data = b""
        """Data that an HTTP/2 upstream sends right after the handshake."""

        self._transport: asyncio.Transport | Tls | None = None
        self._listener: ResponseListener | None = None

    # Use

    def lend(self, listener: ResponseListener) -> None:
        """Pass received data to this listener from now on."""
        assert not self.is_gone
        assert self._listener is None
        self._listener = listener
        self.exchange_count += 1

    def give_back(self) -> bool:
        """End the exchange but keep the connection. Return False if it cannot be reused, and was closed."""
        if self.is_gone or self._is_full:
            # The upstream has responded without reading the whole request: the rest would delay the next one.
            self.drop()
            return False
        self._listener = None
        self.idle_since = time.monotonic()
        if not self._is_reading:
            self.set_reading(on=True)
        return True

    def drop(self) -> None:
        """End the exchange and close the connection."""
        self._listener = None
        self.is_gone = True
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        """Send data."""
        if self._transport is not None and not self.is_gone:
            self._transport.write(data)

    def set_reading(self, *, on: bool) -> None:
        """Pause or resume reading."""
        if on is self._is_reading or self._transport is None or self.is_gone:
            return
        self._is_reading = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(WRITE_BUFFER_HIGH)
        connection = transport.get_extra_info("socket")
        if connection is not None and not isinstance(transport, Tls):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        listener = self._listener
        if listener is not None:
            try:
                listener.handle_data(data)
            except Exception as fault:  # noqa: BLE001 - asyncio would only log the error, and leave the client waiting
                listener.handle_fault(fault)
        elif self.alpn == "h2":
            self._early_data += data
        else:
            self.drop()

    def eof_received(self) -> bool | None:
        self._handle_end()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._handle_end(is_lost=exc is not None)

    def _handle_end(self, *, is_lost: bool = False) -> None:
        self.is_gone = True
        listener, self._listener = self._listener, None
        if listener is not None:
            try:
                is_truncated = is_lost or getattr(self._transport, "is_truncated", False)
                listener.handle_disconnect(is_truncated=is_truncated, is_reset=is_lost)
            except Exception as fault:  # noqa: BLE001 - as above
                listener.handle_fault(fault)

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Start TLS, with verification that the certificate is for `name`. Raises Problem."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_handshake(error: Exception | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(_tls_problem(error, name))

        below = self._transport
        assert below is not None
        self._transport = tls = Tls(context, self, on_handshake, server_side=False, name=name)
        tls.start(below)
        try:
            await done
        except BaseException:
            self.drop()
            raise

    @property
    def alpn(self) -> str:
        """The ALPN protocol that TLS negotiated, or ""."""
        tls = self._transport
        return (tls.get_extra_info("ssl_object").selected_alpn_protocol() or "") if isinstance(tls, Tls) else ""

    def detach_tls(self) -> tuple[Tls, bytes]:
        """Return the TLS transport and the data received so far, for an HTTP/2 connection."""
        assert isinstance(self._transport, Tls)
        return self._transport, self._early_data

    def pause_writing(self) -> None:
        self._is_full = True
        if self._listener is not None:
            self._listener.set_upstream_full(is_full=True)

    def resume_writing(self) -> None:
        self._is_full = False
        if self._listener is not None:
            self._listener.set_upstream_full(is_full=False)


class Upstreams:
    """Makes connections to upstreams, and keeps idle ones for other clients."""

    def __init__(self, trust: str) -> None:
        self._trust = trust
        self._idle: dict[UpstreamAddress, deque[Upstream]] = {}

    # Made when they are first needed: to read all roots takes 40 ms for each, and many workers only replay.
    @cached_property
    def _http1_context(self) -> ssl.SSLContext:
        return upstream_context(self._trust, "http/1.1")

    @cached_property
    def _h2_context(self) -> ssl.SSLContext:
        return upstream_context(self._trust, "h2", "http/1.1")

    def take_idle(self, address: UpstreamAddress, *, is_repeatable: bool) -> Upstream | None:
        """Remove and return an idle connection that may carry this request, if there is one."""
        idle = self._idle.get(address)
        while idle:
            upstream = idle.pop()
            age = time.monotonic() - upstream.idle_since
            if not upstream.is_gone and age < (KEEP_SECONDS if is_repeatable else FRESH_SECONDS):
                return upstream
            if not upstream.is_gone and age < KEEP_SECONDS:
                idle.append(upstream)
                return None
            upstream.drop()
        return None

    def keep_idle(self, upstream: Upstream) -> None:
        """Keep the connection of a client that has left, for another client."""
        waiting = self._idle.setdefault(upstream.address, deque())
        if upstream.is_gone or upstream.is_bound or len(waiting) >= MAX_IDLE:
            upstream.drop()
        else:
            waiting.append(upstream)

    def sweep(self) -> None:
        """Close connections that were idle for too long."""
        oldest = time.monotonic() - KEEP_SECONDS
        for address in list(self._idle):
            waiting = self._idle[address]
            while waiting and (waiting[0].is_gone or waiting[0].idle_since < oldest):
                waiting.popleft().drop()
            if not waiting:
                del self._idle[address]

    def drop_idle(self) -> None:
        """Close all idle connections."""
        for waiting in self._idle.values():
            for upstream in waiting:
                upstream.drop()
        self._idle.clear()

    async def connect(
        self, address: UpstreamAddress, destinations: Destinations, *, offers_http2: bool = False
    ) -> Upstream:
        """Connect to an upstream. With `offers_http2`, the upstream may choose HTTP/2. Raises Problem."""
        loop = asyncio.get_running_loop()

        async def open_address(host: str) -> Upstream:
            transport, upstream = await loop.create_connection(lambda: Upstream(address), host, address.port)
            destinations.recent_connections.remember(transport)
            return upstream

        upstream = await destinations.connect_with(address.host, address.port, open_address, is_local=address.is_local)
        if address.server_name is not None:
            try:
                async with asyncio.timeout(destinations.timeout):
                    await upstream.start_tls(
                        self._h2_context if offers_http2 else self._http1_context, address.server_name
                    )
            except TimeoutError as error:
                detail = f"{address.server_name} did not finish its TLS handshake within {destinations.timeout:g} s"
                raise Problem(504, "connect_timed_out", detail) from error
        return upstream


def _tls_problem(error: Exception, name: str) -> Problem:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        detail = f"the certificate of {name} is not valid: {why}; set upstream_ca to trust a private CA"
        return Problem(502, "tls_certificate_error", detail)
    why = getattr(error, "reason", None) or str(error)
    return Problem(502, "tls_failed", f"the TLS handshake with {name} failed: {why}")
