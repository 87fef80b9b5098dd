"""Pass the bytes of a captured connection to its real destination, and back, as they are."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from proxy.capture.connections.reset import reset
from proxy.capture.report import Entry

HIGH: Final = 256 << 10
"""Bytes that wait for one side before the other is no longer read."""


class RelayServer(asyncio.Protocol):
    """The connection to the destination. It waits with its first bytes until it is known what becomes of the client."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.first = b""
        self.has_ended = False
        self._on_first: Callable[[], None] | None = on_first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no asyncio.Transport by inheritance.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH)

    def data_received(self, data: bytes) -> None:
        self.first += data
        if self.transport is not None:
            self.transport.pause_reading()
        self._tell()

    def eof_received(self) -> bool:
        self.has_ended = True
        self._tell()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.has_ended = True
        self._tell()

    def drop(self) -> None:
        """It is not needed: the client speaks first, and for the wire engine."""
        self._on_first = None
        if self.transport is not None:
            self.transport.close()

    def _tell(self) -> None:
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()


class _Side(asyncio.Protocol):
    """What one side sends goes to the other."""

    def __init__(self, relay: "PassedConnection", transport: asyncio.Transport, *, is_client: bool) -> None:
        self.relay = relay
        self.transport = transport
        self.is_client = is_client
        self.other: _Side
        self.has_ended = False

    def begin(self) -> None:
        """Take over the connection."""
        self.transport.set_write_buffer_limits(HIGH)
        self.transport.set_protocol(self)
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self.relay.count(len(data), from_client=self.is_client)
        self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        if self.other.has_ended:
            self.relay.close()
        elif not self.other.transport.is_closing():
            self.other.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and not self.relay.is_over:
            reset(self.other.transport)
        self.relay.close()

    def pause_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()


class PassedConnection:
    """One connection that passes as it is."""

    def __init__(
        self,
        client: asyncio.Transport,
        server: asyncio.Transport,
        entry: Entry,
        on_end: Callable[["PassedConnection"], None],
    ) -> None:
        self.is_over = False
        self._entry = entry
        self._on_end = on_end
        self._client = _Side(self, client, is_client=True)
        self._server = _Side(self, server, is_client=False)
        self._client.other, self._server.other = self._server, self._client

    def begin(self, from_client: bytes, from_server: bytes, *, client_has_ended: bool, server_has_ended: bool) -> None:
        """Pass on what both have sent so far, and all that follows."""
        for side, data, has_ended in (
            (self._client, from_client, client_has_ended),
            (self._server, from_server, server_has_ended),
        ):
            if data:
                side.data_received(data)
            if has_ended:
                side.eof_received()
        if server_has_ended and self._server.transport.is_closing():
            # Nobody will tell of its end any more.
            self.close()
        if not self.is_over:
            self._client.begin()
            self._server.begin()

    def count(self, size: int, *, from_client: bool) -> None:
        """Count what passes."""
        if from_client:
            self._entry.sent += size
        else:
            self._entry.received += size

    def close(self) -> None:
        """End both sides, once what was written has gone."""
        if not self.is_over:
            self.is_over = True
            self._client.transport.close()
            self._server.transport.close()
            self._on_end(self)

    def abort(self) -> None:
        """End both at once."""
        reset(self._client.transport)
        reset(self._server.transport)
        self.close()
