"""Run the mitmproxy engine: listen, serve connections, and stop in order."""

import asyncio
import socket
from collections.abc import Callable

from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.utils.asyncio_utils import set_eager_task_factory

from proxy.capture.connections.connection import CapturedConnection
from proxy.capture.intake import Intake
from proxy.mitm import tls
from proxy.mitm.connection import Guard, MitmConnection
from proxy.mitm.layers import LayerChooser, install
from proxy.wire.config import EngineConfig
from proxy.wire.engine import Answerer
from proxy.wire.engine_state import EngineState, OpenedTunnel, write_trusted_roots
from proxy.wire.listener import Listener
from proxy.wire.recording_guard import RecorderInterface


class Service:
    """The mitmproxy engine of one worker."""

    def __init__(self, config: EngineConfig, recorder: RecorderInterface | None, answerer: Answerer | None) -> None:
        if config.mode == "record" and recorder is None:
            raise ValueError("recording needs a recorder")
        if config.mode in ("replay", "auto") and answerer is None:
            raise ValueError(f"mode {config.mode} needs an answerer")
        self.config = config
        self._recorder = recorder
        self._answerer = answerer

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until the configuration's `stop` is set."""
        engine = EngineState(
            config=self.config, recorder=self._recorder, answerer=self._answerer, trust=write_trusted_roots(self.config)
        )
        connections, config = MitmConnections(engine), self.config
        with set_eager_task_factory():
            listener = Listener(lambda: connections.open_connections, connections.new_protocol)
            host, port = await listener.listen(config.host, config.port, reuse_port=config.reuse_port)
            try:
                engine.set_listening_address(host, port)
                async with Intake(
                    engine, connections.enter_captured, connections.enter_proxy, lambda: connections.open_connections
                ).serve_captures():
                    ready(port)
                    await self.config.stop.wait()
            finally:
                listener.close()
                await connections.drain(self.config.limits.grace)


class MitmConnections:
    """The connections that this engine serves, its own or handed over by the other engine."""

    def __init__(self, engine: EngineState) -> None:
        install()
        # Load the CA certificates now (they are cached): later there may be no free file to read them.
        tls.upstream_side_tls("localhost", (), engine.trust)
        self._engine = engine
        self._stack, self._mode = LayerChooser(engine), _proxy_mode(engine)
        self._connections: set[MitmConnection] = set()
        self._resume_tasks: set[asyncio.Task[None]] = set()
        self._has_no_connections = asyncio.Event()
        self._has_no_connections.set()

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def new_protocol(self) -> asyncio.Protocol:
        """Create the protocol for a new connection."""
        reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(reader, self.serve)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection until it ends."""
        _enable_keepalive(writer)
        self._engine.owners.reset_owner(writer.get_extra_info("peername"))
        await self._find_owner(writer)
        await self._serve_connection(MitmConnection(self._engine, self._stack, self._mode, reader, writer))

    async def resume(self, transport: asyncio.Transport, data: bytes, tunnel: OpenedTunnel | None) -> None:
        """Serve a connection from which `data` was already read. If it uses TLS, the transport handles that."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        connection = MitmConnection(self._engine, self._stack, self._mode, reader, writer)
        if tunnel is not None:
            connection.credentials, connection.tunnel_host, connection.captured = (
                tunnel.credentials,
                tunnel.host,
                tunnel.captured,
            )
            connection.layer = Guard(self._stack.resumed_layer(connection, tunnel), connection)  # type: ignore[assignment]

        def begin() -> None:
            reader.feed_data(data)
            transport.resume_reading()

        if tunnel is None or (tunnel.captured is None and not (tunnel.credentials and tunnel.credentials[0])):
            await self._find_owner(writer)

        # Only after `handle_client` has started: tasks are eager, and it would read before its reader is set.
        loop.call_soon(begin)
        await self._serve_connection(connection)

    def enter_captured(self, connection: CapturedConnection) -> None:
        """Serve a captured connection."""
        captured = connection.captured
        tunnel = OpenedTunnel(
            host=captured.host, port=captured.port, credentials=connection.credentials, is_http=False, captured=captured
        )
        self._resume_soon(connection.transport, connection.data, tunnel)

    def enter_proxy(self, transport: asyncio.Transport, data: bytes) -> None:
        """Serve a captured connection to our own port."""
        self._resume_soon(transport, data, None)

    def _resume_soon(self, transport: asyncio.Transport, data: bytes, tunnel: OpenedTunnel | None) -> None:
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self.resume(transport, data, tunnel))
        self._resume_tasks.add(task)
        task.add_done_callback(self._resume_tasks.discard)

    async def _find_owner(self, writer: asyncio.StreamWriter) -> None:
        peer, here = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        owners = self._engine.owners
        if owners.can_find(peer, here) and owners.find_at_once(peer, here) is None:
            await owners.find(peer, here)

    async def _serve_connection(self, connection: MitmConnection) -> None:
        self._engine.config.counts["connections/mitmproxy"] += 1
        self._connections.add(connection)
        self._has_no_connections.clear()
        try:
            await connection.handle_client()
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._has_no_connections.set()

    async def drain(self, grace: float) -> None:
        """Wait for requests in flight, up to the grace time, then close all connections."""
        for connection in list(self._connections):
            connection.leave()
        try:
            async with asyncio.timeout(grace):
                await self._has_no_connections.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.stop()
            await self._has_no_connections.wait()


def _proxy_mode(engine: EngineState) -> ProxyMode:
    """Return mitmproxy's mode for this kind of proxy."""
    if engine.reverse is not None:
        return ProxyMode.parse(f"reverse:{engine.reverse}")
    if engine.proxy is not None:
        return ProxyMode.parse(f"upstream:{engine.proxy}")
    return ProxyMode.parse("regular")


def _enable_keepalive(writer: asyncio.StreamWriter) -> None:
    """Enable TCP keepalive, to notice a peer that vanished."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
