"""Make connections to upstreams, lend each to one exchange after another, and close them.

A connection belongs to the client that it was made for. When that client leaves, another may have it for a moment: not
where somebody authenticates by connection (NTLM, Negotiate), and for a request that must not be sent twice only while it
is so fresh that no server will be closing it. Bytes that nobody asked for end a connection.
"""

import asyncio
import socket
import ssl
import time
from collections import deque
from typing import Final, NamedTuple, Protocol, cast

from proxy.lane.tls import Tls, upstream_context
from proxy.wire.destinations import Destinations
from proxy.wire.problem import Problem

KEPT: Final = 4.0
"""Seconds for which a connection waits for another client. Node's servers close after five."""

FRESH: Final = 1.5
"""Seconds for which it may carry what must not be sent twice. Gunicorn's workers close after two."""

MOST: Final = 64
"""Connections that wait, for each upstream."""

HIGH: Final = 256 << 10


class Way(NamedTuple):
    """How an upstream is reached."""

    host: str
    port: int
    name: str | None
    """Who it has to be, by TLS; None where that is not spoken."""

    is_local: bool = False
    """Whether private addresses and all ports are allowed: only the user's own captured commands reach it so."""


class ResponseListener(Protocol):
    """What an upstream's answer is for."""

    def answer(self, data: bytes) -> None:
        """It says something."""

    def broken(self, *, ragged: bool) -> None:
        """It is gone; `ragged` if without a goodbye."""

    def full(self, *, full: bool) -> None:
        """It takes no more for now, or more again."""

    def failed(self, fault: BaseException) -> None:
        """Something of ours has failed."""


class Upstream(asyncio.Protocol):
    """One connection to an upstream."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.bound = False
        """Whether nobody but its first client may use it."""

        self.used = 0
        """How many exchanges it has carried."""

        self.gone = False
        self.since = 0.0
        self._reads = True
        self._full = False
        self._early = b""
        """What an upstream of HTTP/2 says at once."""

        self._transport: asyncio.Transport | Tls | None = None
        self._listener: ResponseListener | None = None

    # What it is lent for

    def lend(self, listener: ResponseListener) -> None:
        """From now on what comes is for this one."""
        assert not self.gone
        assert self._listener is None
        self._listener = listener
        self.used += 1

    def give_back(self) -> bool:
        """The exchange is over, and both sides keep the connection; False where it is of no more use."""
        if self.gone or self._full:
            # A part of a request that nobody has taken by now, although it was answered, would hold up the next one.
            self.drop()
            return False
        self._listener = None
        self.since = time.monotonic()
        if not self._reads:
            self.read(on=True)
        return True

    def drop(self) -> None:
        """The exchange is over, and so is the connection."""
        self._listener = None
        self.gone = True
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None and not self.gone:
            self._transport.write(data)

    def read(self, *, on: bool) -> None:
        """Stop reading, or go on."""
        if on is self._reads or self._transport is None or self.gone:
            return
        self._reads = on
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no asyncio.Transport by inheritance.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(HIGH)
        connection = transport.get_extra_info("socket")
        if connection is not None and not isinstance(transport, Tls):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        listener = self._listener
        if listener is not None:
            try:
                listener.answer(data)
            except Exception as fault:  # noqa: BLE001 - the guard: asyncio would log this and leave the client waiting
                listener.failed(fault)
        elif self.alpn == "h2":
            self._early += data
        else:
            self.drop()

    def eof_received(self) -> bool | None:
        self._ended()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(lost=exc is not None)

    def _ended(self, *, lost: bool = False) -> None:
        self.gone = True
        listener, self._listener = self._listener, None
        if listener is not None:
            try:
                listener.broken(ragged=lost or getattr(self._transport, "ragged", False))
            except Exception as fault:  # noqa: BLE001 - the guard, as above
                listener.failed(fault)

    async def secured(self, context: ssl.SSLContext, name: str) -> None:
        """Go on in TLS; the other side must prove to be `name`. Raises Problem."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def established(error: Exception | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(_problem(error, name))

        below = self._transport
        assert below is not None
        self._transport = tls = Tls(context, self, established, server_side=False, name=name)
        tls.start(below)
        try:
            await done
        except BaseException:
            self.drop()
            raise

    @property
    def alpn(self) -> str:
        """What TLS has agreed on; "" for nothing."""
        tls = self._transport
        return (tls.get_extra_info("ssl_object").selected_alpn_protocol() or "") if isinstance(tls, Tls) else ""

    def given_away(self) -> tuple[Tls, bytes]:
        """Its TLS and what came over it, for somebody who speaks HTTP/2."""
        assert isinstance(self._transport, Tls)
        return self._transport, self._early

    def pause_writing(self) -> None:
        self._full = True
        if self._listener is not None:
            self._listener.full(full=True)

    def resume_writing(self) -> None:
        self._full = False
        if self._listener is not None:
            self._listener.full(full=False)


class Upstreams:
    """Makes connections, and keeps those that wait for somebody."""

    def __init__(self, trust: str) -> None:
        self._context = upstream_context(trust, "http/1.1")
        self._either = upstream_context(trust, "h2", "http/1.1")
        self._waiting: dict[Way, deque[Upstream]] = {}

    def waiting(self, way: Way, *, repeatable: bool) -> Upstream | None:
        """One that waits, if there is one that is good enough for this request."""
        waiting = self._waiting.get(way)
        while waiting:
            upstream = waiting.pop()
            age = time.monotonic() - upstream.since
            if not upstream.gone and age < (KEPT if repeatable else FRESH):
                return upstream
            if not upstream.gone and age < KEPT:
                waiting.append(upstream)
                return None
            upstream.drop()
        return None

    def keep(self, upstream: Upstream) -> None:
        """Its client has left; let it wait for another."""
        waiting = self._waiting.setdefault(upstream.way, deque())
        if upstream.gone or upstream.bound or len(waiting) >= MOST:
            upstream.drop()
        else:
            waiting.append(upstream)

    def sweep(self) -> None:
        """Let go of those that have waited too long."""
        oldest = time.monotonic() - KEPT
        for way in list(self._waiting):
            waiting = self._waiting[way]
            while waiting and (waiting[0].gone or waiting[0].since < oldest):
                waiting.popleft().drop()
            if not waiting:
                del self._waiting[way]

    def drop_idle(self) -> None:
        """Close those that nobody uses."""
        for waiting in self._waiting.values():
            for upstream in waiting:
                upstream.drop()
        self._waiting.clear()

    async def connect(self, way: Way, destinations: Destinations, *, either: bool = False) -> Upstream:
        """A new connection; `either` leaves it to the upstream whether that is one of HTTP/2. Raises Problem."""
        loop = asyncio.get_running_loop()

        async def opened(address: str) -> Upstream:
            transport, upstream = await loop.create_connection(lambda: Upstream(way), address, way.port)
            destinations.recent.note(transport)
            return upstream

        upstream = await destinations.reach(way.host, way.port, opened, local=way.is_local)
        if way.name is not None:
            try:
                async with asyncio.timeout(destinations.timeout):
                    await upstream.secured(self._either if either else self._context, way.name)
            except TimeoutError as error:
                detail = f"{way.name} did not finish its TLS handshake within {destinations.timeout:g} s"
                raise Problem(504, "connect_timed_out", detail) from error
        return upstream


def _problem(error: Exception, name: str) -> Problem:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message
        detail = f"the certificate of {name} is not valid: {why}; a private CA can be trusted with upstream_ca"
        return Problem(502, "tls_certificate_error", detail)
    why = getattr(error, "reason", None) or str(error)
    return Problem(502, "tls_failed", f"no TLS connection with {name}: {why}")
