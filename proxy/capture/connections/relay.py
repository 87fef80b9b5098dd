"""Pass the bytes of a captured connection to its real destination and back, undecoded."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from proxy.capture.connections.reset import reset
from proxy.capture.report import Entry

HIGH_WATER_MARK: Final = 256 << 10
"""Bytes that are buffered for one side before reading from the other pauses."""


class RelayServer(asyncio.Protocol):
    """The connection to the destination. It keeps its first bytes until the handling of the client is decided."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self.first_bytes = b""
        self.has_ended = False
        self._on_first: Callable[[], None] | None = on_first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no asyncio.Transport by inheritance.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER_MARK)

    def data_received(self, data: bytes) -> None:
        self.first_bytes += data
        if self.transport is not None:
            self.transport.pause_reading()
        self._notify_first()

    def eof_received(self) -> bool:
        self.has_ended = True
        self._notify_first()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.has_ended = True
        self._notify_first()

    def drop(self) -> None:
        """Close a connection that is not needed, because the wire engine gets the client."""
        self._on_first = None
        if self.transport is not None:
            self.transport.close()

    def _notify_first(self) -> None:
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()


class _Side(asyncio.Protocol):
    """One side of a relay, whose bytes go to the other."""

    def __init__(self, relay: "PassedConnection", transport: asyncio.Transport, *, is_client: bool) -> None:
        self.relay = relay
        self.transport = transport
        self.is_client = is_client
        self.other: _Side
        self.has_ended = False

    def begin(self) -> None:
        """Take over the connection."""
        self.transport.set_write_buffer_limits(HIGH_WATER_MARK)
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
    """One connection that passes undecoded."""

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
        """Pass on what both sides have sent so far, and all that follows."""
        for side, data, has_ended in (
            (self._client, from_client, client_has_ended),
            (self._server, from_server, server_has_ended),
        ):
            if data:
                side.data_received(data)
            if has_ended:
                side.eof_received()
        if server_has_ended and self._server.transport.is_closing():
            # No event will report its end.
            self.close()
        if not self.is_over:
            self._client.begin()
            self._server.begin()

    def count(self, size: int, *, from_client: bool) -> None:
        """Count bytes that pass."""
        if from_client:
            self._entry.sent += size
        else:
            self._entry.received += size

    def close(self) -> None:
        """Close both sides after their written bytes are sent."""
        if not self.is_over:
            self.is_over = True
            self._client.transport.close()
            self._server.transport.close()
            self._on_end(self)

    def abort(self) -> None:
        """Reset both sides."""
        reset(self._client.transport)
        reset(self._server.transport)
        self.close()
