"""One captured connection, until its protocol is known.

The first bytes decide: TLS and HTTP go to the wire engine, and other protocols pass undecoded or are refused. If the
client is silent, its server is connected to, and the side that speaks first decides. So a protocol in which the server
speaks first passes after a moment, and an HTTP client that takes its time is still recorded, also if its server is one
of HTTP/2, which does not wait for the client.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from proxy.capture.capture import Capture
from proxy.capture.connections import first_bytes, original_destination, timing
from proxy.capture.connections.original_destination import Address, Source
from proxy.capture.connections.relay import RelayServer
from proxy.capture.connections.reset import reset
from proxy.wire.alpn import has_common_protocol
from proxy.wire.client_hello import NotTls, parse_client_hello
from proxy.wire.problem import Problem

logger = logging.getLogger(__name__)

SILENT: Final = "it says nothing: its server would speak first, and may not be asked"
LOOP: Final = "it is the proxy's own connection, redirected back to it: leave its user out of the rules (playhead rules print does)"
NAMES_PORT: Final = 53
NEITHER: Final = "it speaks neither TLS nor HTTP"
MAX_FIRST_BYTES: Final = 128 << 10
"""Bytes from a client that are buffered until its destination is connected. Then reading pauses."""


class Arrival(asyncio.Protocol):
    """A client that has connected. Only its destination is known."""

    def __init__(self, capture: Capture, source: Source) -> None:
        self._capture = capture
        self._source = source
        self._transport: asyncio.Transport
        self._address: Address
        self._port = 0
        self._data = b""
        self._has_ended = False
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._server: RelayServer | None = None
        self._has_owner = self._is_waiting = False
        """Whether the search for the process behind it is over, and whether it is under way."""

        self._reason: str | None = None
        """Why the connection passes undecoded, once that is decided."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        try:
            connection = transport.get_extra_info("socket")
            self._address, self._port = original_destination.connection_destination(connection, self._source)
        except OSError:
            # It was made to the listener itself, which is not a destination.
            self._is_over = True
            reset(self._transport)
            return
        if (str(self._address), self._port) == transport.get_extra_info("sockname")[
            :2
        ] and self._source == "redirected":
            self._is_over = True
            reset(self._transport)
            return
        self._capture.engine.owners.reset_owner(transport.get_extra_info("peername"))
        if why := self._capture.refusal_reason():
            self.refuse(why)
            return
        self._capture.open.add(self)
        self._begin()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._data += data
        if self._reason is not None or self._is_waiting:
            if len(self._data) > MAX_FIRST_BYTES:
                self._transport.pause_reading()
            return
        try:
            self._decide()
        except Exception as fault:  # a guard: asyncio would log this and leave the client waiting
            logger.error("a captured connection was closed because of an internal error", exc_info=fault)
            self.abort()

    def eof_received(self) -> bool:
        self._has_ended = True
        if not self._is_over and self._reason is None and not self._is_waiting:
            if not (self._data or self._capture.may_pass) and self._capture.is_recorded(self._address, self._port):
                # Happy Eyeballs (RFC 8305): where connecting takes more than 0.25 s, a client opens a second connection to
                # another address of the host, and closes the slower one unused.
                self._leave()
                return False
            self._pass("it ended before it said what it speaks" if self._data else "it said nothing")
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._leave()

    # Finding out the protocol

    def _begin(self) -> None:
        capture, port = self._capture, self._port
        if port == NAMES_PORT and capture.is_local:
            self._answer_names()
        elif capture.is_allowed(self._address, port):
            self._pass("--allow-local lets it pass")
        elif capture.may_pass and not capture.is_overridden(self._address, port):
            # A worker's own connection is recognised only after a moment.
            minimum = 0.0 if capture.is_local else timing.SILENT_FOR
            self._wait(max(minimum, timing.silence_before_connecting(port)), self._ask_server)
        else:
            self._wait(capture.silence_limit(self._address, port), lambda: self.refuse(SILENT))

    def _decide(self) -> None:
        kind = first_bytes.recognize(self._data)
        if kind is None:
            self._wait(timing.UNDECIDED_FOR, lambda: self._pass(NEITHER))
        elif kind == "raw":
            self._pass(NEITHER)
        elif kind == "connect" and not self._capture.is_own(self._address, self._port):
            self._pass("it is for another proxy (CONNECT)")
        elif kind == "tls":
            self._decide_by_client_hello()
        else:
            self._enter()

    def _decide_by_client_hello(self) -> None:
        try:
            hello = parse_client_hello(self._data)
        except NotTls:
            self._pass(NEITHER)
            return
        if hello is None:
            self._wait(timing.UNDECIDED_FOR, lambda: self._pass(NEITHER))
        elif (host := self._capture.tunnel_host(self._address, hello.name)) is not None:
            self._pass(f"{host} is on the tunnel list")
        elif self._port in timing.TLS_WITHOUT_HTTP or not has_common_protocol(hello):
            self._pass("the protocol within TLS is not HTTP")
        else:
            self._enter()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # Handing the connection over

    def _enter(self) -> None:
        self._stop_waiting()
        if self._refuse_if_loop():
            return
        if not self._capture.is_local and not self._has_owner:
            self._has_owner = True
            self._is_waiting = True
            self._transport.pause_reading()
            self._capture.spawn(self._find_owner())
            return
        transport, data = self._transport, self._data
        if self._server is not None:
            self._server.drop()
        self._leave()
        if self._capture.is_own(self._address, self._port):
            self._capture.intake.enter_proxy(transport, data)
        else:
            self._capture.hand_to_engine(transport, self._address, self._port, data)

    async def _find_owner(self) -> None:
        await self._capture.find_owner(self._transport, self._address, self._port)
        self._is_waiting = False
        if not self._is_over:
            self._transport.resume_reading()
            self._enter()

    def _refuse_if_loop(self) -> bool:
        if self._capture.is_loop(self._transport, self._address, self._port):
            self.refuse(LOOP)
            return True
        return False

    def _answer_names(self) -> None:
        transport = self._transport
        self._leave()
        self._capture.answer_names(transport)

    def _pass(self, reason: str) -> None:
        """Let the connection pass undecoded if that is allowed, else refuse it."""
        if not (self._capture.may_pass or self._capture.is_allowed(self._address, self._port)):
            self.refuse(reason)
            return
        self._reason = reason
        # Otherwise a second connection to the destination would be made when the client's silence had lasted long enough.
        self._stop_waiting()
        if self._server is not None and self._server.transport is not None:
            self._relay()
        elif self._server is None:
            self._ask_server()

    def _ask_server(self) -> None:
        if self._refuse_if_loop():
            return
        self._server = server = RelayServer(self._on_server_data)
        self._capture.spawn(self._connect(server))

    async def _connect(self, server: RelayServer) -> None:
        try:
            await self._capture.connect(server, self._address, self._port)
        except Problem as problem:
            self._on_connect_failure(f"it could not be passed on: {problem.detail}")
            return
        if self._is_over:
            # The server may already be in use, because its first bytes arrived before.
            if self._server is server:
                server.drop()
        elif self._reason is not None:
            self._relay()

    def _on_connect_failure(self, why: str) -> None:
        if self._is_over:
            return
        if self._reason is not None or self._port in timing.SERVER_SPEAKS_FIRST:
            self.refuse(why)
        else:
            # An HTTP client may still send a request, whose upstream may be another, or behind an upstream proxy.
            self._server = None
            self._wait(timing.REFUSED_AFTER, lambda: self.refuse(why))

    def _on_server_data(self) -> None:
        if self._is_over or self._reason is not None:
            return
        if self._server is not None and first_bytes.is_http2_server(self._server.first_bytes):
            # Its client is only slow, and what it says will be recorded.
            return
        self._pass("its server speaks first")

    def _relay(self) -> None:
        server, reason = self._server, self._reason
        assert server is not None
        assert server.transport is not None
        assert reason is not None
        client, data = self._transport, self._data
        self._server = None
        self._leave()
        relay = self._capture.relay(client, server.transport, self._address, self._port, reason)
        relay.begin(data, server.first_bytes, client_has_ended=self._has_ended, server_has_ended=server.has_ended)

    def _leave(self) -> None:
        self._is_over = True
        self._data = b""
        self._stop_waiting()
        self._capture.open.discard(self)

    def refuse(self, why: str) -> None:
        """Reset the connection, and report it."""
        self._capture.refuse(self._address, self._port, why)
        self.abort()

    def abort(self) -> None:
        """Reset the connection, so that its client fails at once."""
        if self._server is not None:
            self._server.drop()
        self._leave()
        reset(self._transport)
