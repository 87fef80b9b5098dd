"""What all connections of a lane share: the listener, upstreams, the hand-over to mitmproxy, the orderly stop."""

import asyncio
import importlib
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from proxy.capture.connections.connection import CapturedConnection
from proxy.capture.intake import Intake
from proxy.lane.admission import TunnelTarget
from proxy.lane.client import Http1Connection
from proxy.lane.connection_base import ClientConnection
from proxy.lane.h2.routes import RouteTable
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.tls import Leaves
from proxy.lane.tunnel_handshake import TunnelHandshake
from proxy.lane.upstream import Upstreams
from proxy.wire.config import EngineConfig
from proxy.wire.engine import Answerer
from proxy.wire.engine_state import BegunTunnel, EngineState, write_trusted_roots
from proxy.wire.listener import Listener
from proxy.wire.recording_guard import RecorderInterface

if TYPE_CHECKING:
    from proxy.mitm.service import Visits

logger = logging.getLogger(__name__)

LOOK: Final = 1.0
"""Seconds between two looks at what is overdue."""


class Lane:
    """One listening worker."""

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
        self.ways = RouteTable(self.upstreams, self.engine, self.at_last, self.receive_queue)
        self.leaves = Leaves(config.authority)
        self._clients: set[ClientConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._others: Visits | None = None
        self._loading = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._soon: list[tuple[ClientConnection, Callable[..., None], tuple[Any, ...]]] = []
        self._last: list[Callable[[], None]] = []
        self._due = False

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until the configuration's `stop` is set."""
        config = self.config
        listener = Listener(self._open_connections, lambda: Http1Connection(self))
        host, port = await listener.listen(config.host, config.port, reuse_port=config.reuse_port)
        try:
            self.engine.set_listening_address(host, port)
            self.spawn(self._look())
            async with Intake(self.engine, self._enter_captured, self._enter_proxy, self._open_connections).listening():
                ready(port)
                await self.config.stop.wait()
        finally:
            listener.close()
            await self._let_go()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _open_connections(self) -> int:
        return len(self._clients) + (self._others.open_connections if self._others else 0)

    async def _look(self) -> None:
        limits = self.config.limits
        shortest = min(limits.idle, limits.head, limits.silence or LOOK)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(LOOK, shortest / 4))
            self._look_once(loop.time())

    def _look_once(self, now: float) -> None:
        # By itself: a coroutine that sleeps would hold on to the last client that it has looked at.
        for client in list(self._clients):
            try:
                client.overdue(now)
            except Exception as fault:  # noqa: BLE001 - the guard: nobody would look at the others any more
                client.failed(fault)
        self.upstreams.sweep()
        self.ways.sweep()

    async def _let_go(self) -> None:
        """Requests in flight may end, for a while."""
        grace = self.config.limits.grace
        for client in list(self._clients):
            client.leave()
        try:
            async with asyncio.timeout(grace):
                if self._others is not None:
                    await self._others.let_go(grace)
                await self._empty.wait()
        except TimeoutError:
            for client in list(self._clients):
                client.stop()
            if self._others is not None:
                await self._others.let_go(0)
            await self._empty.wait()
        self.upstreams.drop_idle()
        self.ways.close()

    # For connections

    def arrived(self, client: ClientConnection) -> None:
        """One more."""
        self._clients.add(client)
        self._empty.clear()

    def departed(self, client: ClientConnection) -> None:
        """One less."""
        self._clients.discard(client)
        if not self._clients:
            self._empty.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have this done, while the worker is open. What need not wait for anything is done at once."""
        task = asyncio.Task(work, loop=self._loop, eager_start=True)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def soon[*T](self, client: ClientConnection, work: Callable[[*T], None], *what: *T) -> None:
        """Have this done when all that has arrived by now was looked at."""
        self._soon.append((client, work, what))
        if not self._due:
            self._plan()

    def at_last(self, work: Callable[[], None]) -> None:
        """Have this done behind all that."""
        self._last.append(work)
        self._plan()

    def _plan(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._do)

    def _do(self) -> None:
        todo, self._soon = self._soon, []
        for client, work, what in todo:
            try:
                work(*what)
            except Exception as fault:  # noqa: BLE001 - the guard, as in `Client.data_received`
                client.failed(fault)
        last, self._last = self._last, []
        for look in last:
            look()
        self._due = False
        if self._soon or self._last:
            self._plan()

    def enter(self, transport: asyncio.Transport, owner: str, tunnel: TunnelTarget, data: bytes) -> None:
        """Find out what goes through a tunnel, of which this was read already."""
        TunnelHandshake(self, owner, tunnel).begin(transport, data)

    def _enter_captured(self, connection: CapturedConnection) -> None:
        tunnel = TunnelTarget(connection.captured.host, connection.captured.port, connection.given, connection.captured)
        transport, data = connection.transport, connection.data
        if self.engine.proxy is not None:
            self.config.counts["handed_over/upstream_proxy"] += 1
            self.hand_over(transport, data, tunnel.begun())
        else:
            self.enter(transport, connection.owner, tunnel, data)

    def _enter_proxy(self, transport: asyncio.Transport, data: bytes) -> None:
        client = Http1Connection(self)
        client.connection_made(transport)
        client.data_received(data)

    def hand_over(self, transport: asyncio.Transport, data: bytes, begun: BegunTunnel | None) -> None:
        """Let mitmproxy go on with a connection, from these bytes on."""
        transport.pause_reading()
        self.spawn(self._handed_over(transport, data, begun))

    async def _handed_over(self, transport: asyncio.Transport, data: bytes, begun: BegunTunnel | None) -> None:
        try:
            others = await self._mitmproxy()
            if not transport.is_closing():
                await others.resume(transport, data, begun)
        except Exception as fault:
            logger.error("a connection was given up: %s", type(fault).__name__, exc_info=fault)
            transport.abort()

    async def _mitmproxy(self) -> "Visits":
        """The other engine. It takes a second to load, which is spent only where it is needed."""
        async with self._loading:
            if self._others is None:
                service = await asyncio.to_thread(importlib.import_module, "proxy.mitm.service")
                self._others = service.Visits(self.engine)
        return self._others
