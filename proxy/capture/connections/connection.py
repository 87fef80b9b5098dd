"""What the wire engine gets of a captured connection."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from proxy.capture.connections.destination import CapturedDestination


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedConnection:
    """A connection that speaks HTTP or TLS, for the wire engine."""

    transport: asyncio.Transport
    captured: CapturedDestination
    owner: str
    given: tuple[str, str] | None
    """Run and token, as if they were the client's proxy credentials."""

    data: bytes
    """What was read already."""


type Enter = Callable[[CapturedConnection], None]

type EnterProxy = Callable[[asyncio.Transport, bytes], None]
"""Hand over a connection that was made to the proxy worker's own address."""
