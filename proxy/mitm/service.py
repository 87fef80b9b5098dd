"""Listen, serve, and stop in order."""

import asyncio
import socket
from collections.abc import Callable

from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.utils.asyncio_utils import set_eager_task_factory

from proxy.capture.connections.connection import CapturedConnection
from proxy.capture.intake import Intake
from proxy.mitm import tls
from proxy.mitm.connection import Guard, MitmConnection
from proxy.mitm.layers import Stack, install
from proxy.wire.config import EngineConfig
from proxy.wire.engine import Answerer
from proxy.wire.engine_state import BegunTunnel, EngineState, write_trusted_roots
from proxy.wire.listener import Listener
from proxy.wire.recording_guard import RecorderInterface


class Service:
    """One listening worker."""

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
        visits, config = Visits(engine), self.config
        with set_eager_task_factory():
            listener = Listener(lambda: visits.open_connections, visits.protocol)
            host, port = await listener.listen(config.host, config.port, reuse_port=config.reuse_port)
            try:
                engine.set_listening_address(host, port)
                async with Intake(
                    engine, visits.enter_captured, visits.enter_proxy, lambda: visits.open_connections
                ).listening():
                    ready(port)
                    await self.config.stop.wait()
            finally:
                listener.close()
                await visits.let_go(self.config.limits.grace)


class Visits:
    """The connections of one engine, which come from its own worker or from another engine."""

    def __init__(self, engine: EngineState) -> None:
        install()
        # Read the roots now: they are kept, and later there may be no file left to read them with.
        tls.towards_upstream("localhost", (), engine.trust)
        self._engine = engine
        self._stack, self._mode = Stack(engine), _mode(engine)
        self._visits: set[MitmConnection] = set()
        self._resumed: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open_connections(self) -> int:
        """How many there are."""
        return len(self._visits)

    def protocol(self) -> asyncio.Protocol:
        """What serves a new connection."""
        reader = asyncio.StreamReader()
        return asyncio.StreamReaderProtocol(reader, self.serve)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection until its client is gone."""
        _keepalive(writer)
        self._engine.owners.accepted(writer.get_extra_info("peername"))
        await self._find_owner(writer)
        await self._served(MitmConnection(self._engine, self._stack, self._mode, reader, writer))

    async def resume(self, transport: asyncio.Transport, data: bytes, begun: BegunTunnel | None) -> None:
        """Serve a connection from which `data` was read already. Its TLS, if any, is the transport's."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        visit = MitmConnection(self._engine, self._stack, self._mode, reader, writer)
        if begun is not None:
            visit.given, visit.tunnel, visit.captured = begun.given, begun.host, begun.captured
            visit.layer = Guard(self._stack.resumed(visit, begun), visit)  # type: ignore[assignment]

        def begin() -> None:
            reader.feed_data(data)
            transport.resume_reading()

        if begun is None or (begun.captured is None and not (begun.given and begun.given[0])):
            await self._find_owner(writer)

        # Not before `handle_client` stands: tasks are eager, and it would read on before it knows its own reader.
        loop.call_soon(begin)
        await self._served(visit)

    def enter_captured(self, connection: CapturedConnection) -> None:
        """Serve a captured connection."""
        captured = connection.captured
        begun = BegunTunnel(
            host=captured.host, port=captured.port, given=connection.given, opened=False, captured=captured
        )
        self._resume_soon(connection.transport, connection.data, begun)

    def enter_proxy(self, transport: asyncio.Transport, data: bytes) -> None:
        """Serve a captured connection to our own port."""
        self._resume_soon(transport, data, None)

    def _resume_soon(self, transport: asyncio.Transport, data: bytes, begun: BegunTunnel | None) -> None:
        transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self.resume(transport, data, begun))
        self._resumed.add(task)
        task.add_done_callback(self._resumed.discard)

    async def _find_owner(self, writer: asyncio.StreamWriter) -> None:
        peer, here = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        owners = self._engine.owners
        if owners.can_find(peer, here) and owners.find_at_once(peer, here) is None:
            await owners.find(peer, here)

    async def _served(self, visit: MitmConnection) -> None:
        self._engine.config.counts["connections/mitmproxy"] += 1
        self._visits.add(visit)
        self._empty.clear()
        try:
            await visit.handle_client()
        finally:
            self._visits.discard(visit)
            if not self._visits:
                self._empty.set()

    async def let_go(self, grace: float) -> None:
        """Requests in flight may end, for a while."""
        for visit in list(self._visits):
            visit.leave()
        try:
            async with asyncio.timeout(grace):
                await self._empty.wait()
        except TimeoutError:
            for visit in list(self._visits):
                visit.stop()
            await self._empty.wait()


def _mode(engine: EngineState) -> ProxyMode:
    """mitmproxy's name for what we are."""
    if engine.reverse is not None:
        return ProxyMode.parse(f"reverse:{engine.reverse}")
    if engine.proxy is not None:
        return ProxyMode.parse(f"upstream:{engine.proxy}")
    return ProxyMode.parse("regular")


def _keepalive(writer: asyncio.StreamWriter) -> None:
    """A peer that vanished without a word is noticed at some time."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
