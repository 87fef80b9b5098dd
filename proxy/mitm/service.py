"""Listening, serving, and stopping in order."""

import asyncio
import socket
from collections.abc import Callable

from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.utils.asyncio_utils import set_eager_task_factory

from proxy.door import Answerer, DoorConfig
from proxy.errors import Failure
from proxy.mitm.engine import Begun, Engine, trusted
from proxy.mitm.layers import Stack, install
from proxy.mitm.tape import Recorder
from proxy.mitm.visit import Guard, Visit

BACKLOG = 1024


class Service:
    """One listening door."""

    def __init__(self, config: DoorConfig, recorder: Recorder | None, answerer: Answerer | None) -> None:
        if config.mode == "record" and recorder is None:
            raise ValueError("recording needs a recorder")
        if config.mode in ("replay", "auto") and answerer is None:
            raise ValueError(f"mode {config.mode} needs an answerer")
        self.config = config
        self._recorder = recorder
        self._answerer = answerer

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until the configuration's `stop` is set."""
        engine = Engine(
            config=self.config, recorder=self._recorder, answerer=self._answerer, trust=trusted(self.config)
        )
        visits = Visits(engine)
        with set_eager_task_factory():
            server = await self._listen(visits)
            try:
                host, port = server.sockets[0].getsockname()[:2]
                engine.listening(host, port)
                ready(port)
                await self.config.stop.wait()
            finally:
                server.close()
                await visits.let_go(self.config.limits.grace)

    async def _listen(self, visits: "Visits") -> asyncio.Server:
        host, port = self.config.host, self.config.port
        try:
            return await asyncio.start_server(
                visits.serve, host, port, reuse_port=self.config.reuse_port or None, backlog=BACKLOG
            )
        except OSError as error:
            raise Failure(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port (0 takes a free one) or address"
            ) from error


class Visits:
    """The connections of one engine, which come from its own door or from another engine."""

    def __init__(self, engine: Engine) -> None:
        install()
        self._engine = engine
        self._stack, self._mode = Stack(engine), _mode(engine)
        self._visits: set[Visit] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection until its client is gone."""
        _keepalive(writer)
        await self._served(Visit(self._engine, self._stack, self._mode, reader, writer))

    async def resume(self, transport: asyncio.Transport, data: bytes, begun: Begun | None) -> None:
        """Serve a connection from which `data` was read already. Its TLS, if any, is the transport's."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        visit = Visit(
            self._engine, self._stack, self._mode, reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        )
        if begun is not None:
            visit.given, visit.tunnel = begun.given, begun.host
            visit.layer = Guard(self._stack.resumed(visit, begun), visit)  # type: ignore[assignment]

        def begin() -> None:
            reader.feed_data(data)
            transport.resume_reading()

        # Not before `handle_client` stands: tasks are eager, and it would read on before it knows its own reader.
        loop.call_soon(begin)
        await self._served(visit)

    async def _served(self, visit: Visit) -> None:
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


def _mode(engine: Engine) -> ProxyMode:
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
