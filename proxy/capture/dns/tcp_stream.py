"""DNS over TCP (RFC 7766): each message is preceded by its length."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from proxy.capture.dns.resolver import Resolver

MAX_PENDING: Final = 32
"""Queries of one connection that may be pending at once."""

IDLE_TIMEOUT: Final = 30.0
"""Seconds for which a client may keep a connection without a query."""


class NameStream(asyncio.Protocol):
    """The connection of one DNS client."""

    def __init__(self, resolver: Resolver, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._resolver = resolver
        self._spawn = spawn
        self._transport: asyncio.Transport
        self._data = b""
        self._pending = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """Take over a connection from which nothing was read."""
        self._transport = transport
        transport.set_protocol(self)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._wait()
        while len(self._data) >= 2 and len(self._data) >= 2 + (size := int.from_bytes(self._data[:2])):
            message, self._data = self._data[2 : 2 + size], self._data[2 + size :]
            if self._pending >= MAX_PENDING:
                self._transport.abort()
                return
            self._pending += 1
            self._spawn(self._answer(message))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        if self._timer is not None:
            self._timer.cancel()

    async def _answer(self, message: bytes) -> None:
        reply = await self._resolver.answer(message, stream=True)
        self._pending -= 1
        if reply is None:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._transport.write(len(reply).to_bytes(2) + reply)

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_TIMEOUT, self._transport.abort)
