"""The lane engine: the listener and what its connections share, the hand-over to mitmproxy, and an orderly stop."""

import asyncio
import importlib
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from proxy.capture.connections.connection import CapturedConnection
from proxy.capture.intake import Intake
from proxy.lane.admission import TunnelTarget
from proxy.lane.client import Http1Connection
from proxy.lane.connection_base import ClientConnection
from proxy.lane.h2.routes import RouteTable
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.tls import LeafContexts, rehearse_handshake
from proxy.lane.tunnel_handshake import TunnelHandshake
from proxy.lane.upstream import Upstreams
from proxy.wire.config import EngineConfig
from proxy.wire.engine import Answerer
from proxy.wire.engine_state import EngineState, OpenedTunnel, write_trusted_roots
from proxy.wire.listener import Listener
from proxy.wire.recording_guard import RecorderInterface

if TYPE_CHECKING:
    from proxy.mitm.service import MitmConnections

logger = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 1.0
"""Maximum seconds between two checks of time limits."""

BUSY_SECONDS: Final = 0.0001
"""Seconds after a call within which others are expected to be about to come. One write to the spool then serves several of
them, which is cheaper; a call that is alone would only be delayed."""


PREPARING_AFTER: Final = 0.1
"""Seconds from when the worker is ready until that begins: first the worker answers the command that starts its program."""

MOST_PREPARED: Final = 8
"""Hosts of a recording whose certificates are made before they are asked for; each takes 2 ms."""


class Lane:
    """The lane engine of one worker."""

    def __init__(self, config: EngineConfig, recorder: RecorderInterface | None, answerer: Answerer | None) -> None:
        if config.mode == "record" and recorder is None:
            raise ValueError("recording needs a recorder")
        if config.mode in ("replay", "auto") and answerer is None:
            raise ValueError(f"mode {config.mode} needs an answerer")
        self.config = config
        self.engine = EngineState(
            config=config, recorder=recorder, answerer=answerer, trust=write_trusted_roots(config)
        )
        self.upstreams = Upstreams(str(self.engine.trust))
        self.engine.make_room = self.upstreams.drop_idle
        self.receive_queue = ReceiveQueue()
        self.routes = RouteTable(self.upstreams, self.engine, self.call_last, self.receive_queue)
        self.leaf_contexts = LeafContexts(config.authority)
        self._clients: set[ClientConnection] = set()
        self._has_no_clients = asyncio.Event()
        self._has_no_clients.set()
        self._mitm_connections: MitmConnections | None = None
        self._loading = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._soon: list[tuple[ClientConnection, Callable[..., None], tuple[Any, ...]]] = []
        self._last: list[Callable[[], None]] = []
        self._is_planned = False
        self._busy_until = 0.0
        """Until when `call_shared` waits for other calls."""

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until the configuration's `stop` is set."""
        config = self.config
        listener = Listener(self._open_connections, lambda: Http1Connection(self))
        host, port = await listener.listen(config.host, config.port, reuse_port=config.reuse_port)
        try:
            self.engine.set_listening_address(host, port)
            self.spawn(self._watch_timeouts())
            async with Intake(
                self.engine, self._enter_captured, self._enter_proxy, self._open_connections
            ).serve_captures():
                ready(port)
                self.spawn(self._prepare())
                await self.config.stop.wait()
        finally:
            listener.close()
            await self._drain()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _open_connections(self) -> int:
        return len(self._clients) + (self._mitm_connections.open_connections if self._mitm_connections else 0)

    async def _prepare(self) -> None:
        """Make the certificates of recorded hosts, and serve a request in memory, while the program starts that will ask."""
        await asyncio.sleep(PREPARING_AFTER)
        answerer = self.engine.answerer
        for number, authority in enumerate(islice(answerer.loaded_authorities() if answerer else (), MOST_PREPARED)):
            protocols = answerer.recorded_protocols(authority) if answerer else None
            with suppress(ValueError):  # a name that cannot be in a certificate
                host = urlsplit(f"//{authority}").hostname
                if host and protocols:
                    context = await asyncio.to_thread(self.leaf_contexts.context, host, alpn=protocols[0])
                    if number == 0:
                        await asyncio.to_thread(rehearse_handshake, context)
        await self.config.prepared.wait()
        if answerer is not None and not self._clients and (rehearsal := answerer.rehearsal()) is not None:
            # Imported when it is needed, as `h2`.
            from proxy.lane.rehearsal import rehearse

            await rehearse(self, *rehearsal)

    async def _watch_timeouts(self) -> None:
        limits = self.config.limits
        shortest = min(limits.idle, limits.head, limits.silence or CHECK_INTERVAL)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(CHECK_INTERVAL, shortest / 4))
            self._check_timeouts(loop.time())

    def _check_timeouts(self, now: float) -> None:
        # A method of its own: the sleeping coroutine would keep a reference to the last client.
        for client in list(self._clients):
            try:
                client.check_timeouts(now)
            except Exception as fault:  # noqa: BLE001 - one client's error must not end the checks of all others
                client.handle_fault(fault)
        self.upstreams.sweep()
        self.routes.sweep()

    async def _drain(self) -> None:
        """Wait for requests in flight, up to the grace time, then close all connections."""
        grace = self.config.limits.grace
        for client in list(self._clients):
            client.leave()
        try:
            async with asyncio.timeout(grace):
                if self._mitm_connections is not None:
                    await self._mitm_connections.drain(grace)
                await self._has_no_clients.wait()
        except TimeoutError:
            for client in list(self._clients):
                client.stop()
            if self._mitm_connections is not None:
                await self._mitm_connections.drain(0)
            await self._has_no_clients.wait()
        self.upstreams.drop_idle()
        self.routes.close()

    # LaneContext, for connections

    def add_client(self, client: ClientConnection) -> None:
        """Add an open connection."""
        self._clients.add(client)
        self._has_no_clients.clear()

    def remove_client(self, client: ClientConnection) -> None:
        """Remove a connection that has ended or was handed over."""
        self._clients.discard(client)
        if not self._clients:
            self._has_no_clients.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this as a task that is cancelled when the lane stops. It starts at once."""
        task = asyncio.Task(work, loop=self._loop, eager_start=True)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def call_shared[*T](self, client: ClientConnection, work: Callable[[*T], None], *what: *T) -> None:
        """Call work whose cost the calls of one turn share: now if little is happening, else as `call_soon`."""
        if self._is_planned or time.monotonic() < self._busy_until:
            self.call_soon(client, work, *what)
            return
        work(*what)
        self._busy_until = time.monotonic() + BUSY_SECONDS

    def call_soon[*T](self, client: ClientConnection, work: Callable[[*T], None], *what: *T) -> None:
        """Call this after all bytes that have arrived by now were read."""
        self._soon.append((client, work, what))
        if not self._is_planned:
            self._plan()

    def call_last(self, work: Callable[[], None]) -> None:
        """Call this after all calls scheduled with `call_soon`."""
        self._last.append(work)
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._run_planned)

    def _run_planned(self) -> None:
        todo, self._soon = self._soon, []
        for client, work, what in todo:
            try:
                work(*what)
            except Exception as fault:  # noqa: BLE001 - as in `Http1Connection.data_received`
                client.handle_fault(fault)
        last, self._last = self._last, []
        for look in last:
            look()
        self._is_planned = False
        self._busy_until = time.monotonic() + BUSY_SECONDS
        if self._soon or self._last:
            self._plan()

    def enter_tunnel(self, transport: asyncio.Transport, owner: str, tunnel: TunnelTarget, data: bytes) -> None:
        """Detect the protocol of a tunnel, from which `data` was already read."""
        TunnelHandshake(self, owner, tunnel).begin(transport, data)

    def _enter_captured(self, connection: CapturedConnection) -> None:
        tunnel = TunnelTarget(
            connection.captured.host, connection.captured.port, connection.credentials, connection.captured
        )
        transport, data = connection.transport, connection.data
        if self.engine.proxy is not None:
            self.config.counts["handed_over/upstream_proxy"] += 1
            self.hand_over(transport, data, tunnel.opened_tunnel())
        else:
            self.enter_tunnel(transport, connection.owner, tunnel, data)

    def _enter_proxy(self, transport: asyncio.Transport, data: bytes) -> None:
        client = Http1Connection(self)
        client.connection_made(transport)
        client.data_received(data)

    def hand_over(self, transport: asyncio.Transport, data: bytes, tunnel: OpenedTunnel | None) -> None:
        """Hand a connection to the mitmproxy engine, starting with this data."""
        transport.pause_reading()
        self.spawn(self._hand_over_now(transport, data, tunnel))

    async def _hand_over_now(self, transport: asyncio.Transport, data: bytes, tunnel: OpenedTunnel | None) -> None:
        try:
            connections = await self._mitmproxy()
            if not transport.is_closing():
                await connections.resume(transport, data, tunnel)
        except ModuleNotFoundError as missing:
            logger.error(
                "a connection was closed: its protocol needs the second wire engine, and %s is not installed; install playhead[proxy]",
                missing.name,
            )
            transport.abort()
        except Exception as fault:
            logger.error("a connection was closed after an internal error: %s", type(fault).__name__, exc_info=fault)
            transport.abort()

    async def _mitmproxy(self) -> "MitmConnections":
        """Return the connections of the mitmproxy engine, which takes a second to load and is loaded only when needed."""
        async with self._loading:
            if self._mitm_connections is None:
                service = await asyncio.to_thread(importlib.import_module, "proxy.mitm.service")
                self._mitm_connections = service.MitmConnections(self.engine)
        return self._mitm_connections
