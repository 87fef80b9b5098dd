"""A captured connection that is handed to a wire engine."""

import asyncio
from collections.abc import Callable

import msgspec

from proxy.capture.connections.destination import CapturedDestination


class CapturedConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that is HTTP or TLS, for the wire engine."""

    transport: asyncio.Transport
    captured: CapturedDestination
    owner: str
    credentials: tuple[str, str] | None
    """The run and the token, like a client's proxy credentials."""

    data: bytes
    """The bytes that were already read."""


type Enter = Callable[[CapturedConnection], None]

type EnterProxy = Callable[[asyncio.Transport, bytes], None]
"""Hands over a connection that was made to the proxy worker's own address, with the bytes that were already read."""
