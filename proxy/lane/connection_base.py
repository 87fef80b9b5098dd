"""What all connections of clients have in common, whatever protocol they speak."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from calls.model import Outcome
from proxy.lane.admission import TunnelTarget
from proxy.lane.h2.routes import RouteTable
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.tls import Leaves
from proxy.lane.upstream import Upstreams
from proxy.wire.engine_state import BegunTunnel, EngineState

logger = logging.getLogger(__name__)

SWALLOWED: Final = 1 << 20
"""How much of a refused request we read on: breaking off at once could cost the client our answer."""

LINGER: Final = 2.0
"""Seconds for which we do."""


class LaneContext(Protocol):
    """What a client's connection needs of the lane that accepted it."""

    engine: EngineState
    upstreams: Upstreams
    ways: RouteTable
    leaves: Leaves
    receive_queue: ReceiveQueue

    def arrived(self, client: "ClientConnection") -> None:
        """Count a connection as open."""

    def departed(self, client: "ClientConnection") -> None:
        """Count it no longer."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this as a task that ends with the lane."""

    def soon[*T](self, client: "ClientConnection", work: Callable[[*T], None], *what: *T) -> None:
        """Call this once all bytes that have arrived by now were read."""

    def at_last(self, work: Callable[[], None]) -> None:
        """Call this after everything that `soon` was given."""

    def enter(self, transport: asyncio.Transport, owner: str, tunnel: TunnelTarget, data: bytes) -> None:
        """Find out which protocol a tunnel carries, from the bytes that were read of it already."""

    def hand_over(self, transport: asyncio.Transport, data: bytes, begun: BegunTunnel | None) -> None:
        """Let mitmproxy go on with a connection, from these bytes on."""


class ClientConnection:
    """One client."""

    def __init__(self, lane: LaneContext, owner: str) -> None:
        self.lane = lane
        self.engine = lane.engine
        self.owner = owner
        self.since = time.monotonic()
        """When we began to wait for what we wait for."""

    def overdue(self, now: float) -> None:
        """Look at the time."""
        raise NotImplementedError

    def leave(self) -> None:
        """Take no more requests; close when what is under way has ended."""
        raise NotImplementedError

    def give_up(self, outcome: Outcome, why: str) -> None:
        """Close at once, and end with this what is under way."""
        raise NotImplementedError

    def stop(self) -> None:
        """Close at once: the worker does."""
        self.give_up("refused", "the worker stopped before the exchange was over")

    def failed(self, fault: BaseException) -> None:
        """Something of ours has failed: end the connection rather than leave the client waiting."""
        logger.error("a connection was given up: %s", type(fault).__name__, exc_info=fault)
        self.give_up("refused", "the proxy failed while it passed this on")

    def close(self, transport: asyncio.Transport) -> None:
        """Close, for it has waited for too long."""
        # It may be closing already, for a client that does not read what was written last.
        if transport.is_closing():
            transport.abort()
        else:
            transport.close()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done; a fault in it ends the connection."""
        self.lane.spawn(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as fault:  # noqa: BLE001 - the guard: nobody waits for this task, and the client would for ever
            self.failed(fault)

    def hand_over(self, transport: asyncio.Transport, data: bytes, begun: BegunTunnel | None, why: str) -> None:
        """Let the other engine have the connection, from these bytes on."""
        self.engine.config.counts[f"handed_over/{why}"] += 1
        self.lane.hand_over(transport, data, begun)
