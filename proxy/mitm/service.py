"""Listening, serving, and stopping in order."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.utils.asyncio_utils import set_eager_task_factory

from proxy.ca import roots_file
from proxy.door import Answerer, DoorConfig
from proxy.errors import Failure
from proxy.mitm.engine import Engine
from proxy.mitm.layers import Stack, install
from proxy.mitm.tape import Recorder
from proxy.mitm.visit import Visit

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
        self._visits: set[Visit] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def run(self, ready: Callable[[int], None]) -> None:
        """Serve until the configuration's `stop` is set."""
        install()
        trust = _trust(self.config)
        with set_eager_task_factory():
            engine = Engine(config=self.config, recorder=self._recorder, answerer=self._answerer, trust=trust)
            server = await self._listen(engine)
            try:
                host, port = server.sockets[0].getsockname()[:2]
                engine.listening(host, port)
                ready(port)
                await self.config.stop.wait()
            finally:
                server.close()
                await self._let_go()

    async def _listen(self, engine: Engine) -> asyncio.Server:
        stack, mode = Stack(engine), _mode(engine)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            _keepalive(writer)
            visit = Visit(engine, stack, mode, reader, writer)
            self._visits.add(visit)
            self._empty.clear()
            try:
                await visit.handle_client()
            finally:
                self._visits.discard(visit)
                if not self._visits:
                    self._empty.set()

        host, port = self.config.host, self.config.port
        try:
            return await asyncio.start_server(
                serve, host, port, reuse_port=self.config.reuse_port or None, backlog=BACKLOG
            )
        except OSError as error:
            raise Failure(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port (0 takes a free one) or address"
            ) from error

    async def _let_go(self) -> None:
        """Requests in flight may end, for a while."""
        for visit in list(self._visits):
            visit.leave()
        try:
            async with asyncio.timeout(self.config.limits.grace):
                await self._empty.wait()
        except TimeoutError:
            for visit in list(self._visits):
                visit.stop()
            await self._empty.wait()


def _trust(config: DoorConfig) -> Path:
    """A file with all roots that upstreams may use."""
    try:
        return roots_file(config.authority, [Path(config.upstream_ca)] if config.upstream_ca else [])
    except OSError as error:
        if config.upstream_ca is None:
            raise
        raise Failure(
            f"the private CA file {config.upstream_ca} cannot be read ({error.strerror}); correct upstream_ca"
        ) from error


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
