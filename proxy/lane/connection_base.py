"""The base of client connections of any protocol, and the interface of the lane that they use."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from calls.model import Outcome
from proxy.lane.admission import TunnelTarget
from proxy.lane.h2.routes import RouteTable
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.tls import LeafContexts
from proxy.lane.upstream import Upstreams
from proxy.wire.engine_state import EngineState, OpenedTunnel

logger = logging.getLogger(__name__)

DISCARD_BYTES: Final = 1 << 20
"""Bytes to keep reading of a refused request. If the connection were closed at once, the client might miss the response."""

LINGER_SECONDS: Final = 2.0
"""Seconds to keep reading the body of a refused request."""


class LaneContext(Protocol):
    """The part of `Lane` that client connections use."""

    engine: EngineState
    upstreams: Upstreams
    routes: RouteTable
    leaf_contexts: LeafContexts
    receive_queue: ReceiveQueue

    def add_client(self, client: "ClientConnection") -> None:
        """Add an open connection."""

    def remove_client(self, client: "ClientConnection") -> None:
        """Remove a connection that has ended or was handed over."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this as a task that is cancelled when the lane stops."""

    def call_shared[*T](self, client: "ClientConnection", work: Callable[[*T], None], *what: *T) -> None:
        """Call work whose cost the calls of one turn share: now if little is happening, else as `call_soon`."""

    def call_soon[*T](self, client: "ClientConnection", work: Callable[[*T], None], *what: *T) -> None:
        """Call this after all bytes that have arrived by now were read."""

    def call_last(self, work: Callable[[], None]) -> None:
        """Call this after all calls scheduled with `call_soon`."""

    def enter_tunnel(self, transport: asyncio.Transport, owner: str, tunnel: TunnelTarget, data: bytes) -> None:
        """Detect the protocol of a tunnel, from which `data` was already read."""

    def hand_over(self, transport: asyncio.Transport, data: bytes, tunnel: OpenedTunnel | None) -> None:
        """Hand a connection to the mitmproxy engine, starting with this data."""


class ClientConnection:
    """One client's connection."""

    def __init__(self, lane: LaneContext, owner: str) -> None:
        self.lane = lane
        self.engine = lane.engine
        self.owner = owner
        self.since = time.monotonic()
        """The start of the current wait, for the timeouts."""

    def check_timeouts(self, now: float) -> None:
        """Close the connection or end its exchange if a time limit is exceeded."""
        raise NotImplementedError

    def leave(self) -> None:
        """Take no more requests, and close once the requests in flight have ended."""
        raise NotImplementedError

    def give_up(self, outcome: Outcome, why: str) -> None:
        """Close at once, and end the exchanges in flight with this outcome."""
        raise NotImplementedError

    def stop(self) -> None:
        """Close at once because the worker stops."""
        self.give_up("refused", "the worker stopped before the exchange was over")

    def handle_fault(self, fault: BaseException) -> None:
        """End the connection after an internal error, so that the client does not wait forever."""
        logger.error("a connection was closed after an internal error: %s", type(fault).__name__, exc_info=fault)
        self.give_up("refused", "the proxy failed while it forwarded this exchange")

    def close(self, transport: asyncio.Transport) -> None:
        """Close after a timeout."""
        # It may be closing already, with data left that the client does not read.
        if transport.is_closing():
            transport.abort()
        else:
            transport.close()

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this as a task. An error in it ends the connection."""
        self.lane.spawn(self._run_guarded(work))

    async def _run_guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as fault:  # noqa: BLE001 - nobody awaits this task, so the client would wait forever
            self.handle_fault(fault)

    def hand_over(self, transport: asyncio.Transport, data: bytes, tunnel: OpenedTunnel | None, reason: str) -> None:
        """Hand the connection to the mitmproxy engine, starting with this data."""
        self.engine.config.counts[f"handed_over/{reason}"] += 1
        self.lane.hand_over(transport, data, tunnel)
