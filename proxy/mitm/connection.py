"""One client's connection: mitmproxy's connection handler, with its defects mended.

mitmproxy runs hooks as tasks whose errors nobody sees, logs a crash of its layers and goes on, allows five upstream
connections per address, closes what is silent for ten minutes, and connects wherever it is asked to. Here a hook that
fails or a layer that crashes ends the connection and whatever was being recorded on it.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

from mitmproxy.connection import Connection, ConnectionState
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server import ConnectionIO, LiveConnectionHandler, TimeoutWatchdog

from calls.model import Outcome
from proxy.capture.connections.destination import CapturedDestination
from proxy.mitm.admission import Credentials
from proxy.mitm.layer_events import Await, SetHeading, SetReading
from proxy.wire.config import acknowledge
from proxy.wire.engine_state import EngineState
from proxy.wire.problem import Fault, Problem

logger = logging.getLogger(__name__)


class UnderWay(Protocol):
    """Something that a connection is kept for: a request in flight, a tunnel."""

    def abandon(self, outcome: Outcome, why: str) -> None:
        """The connection is gone; close what is open."""


class Guard:
    """Stands above the layers: takes out what is for us, and ends the connection when a layer crashes.

    What one event makes the layers send goes out in one piece for each connection: a head and its body are two writes
    of mitmproxy's, and a write costs as much as all that leads to it.
    """

    def __init__(self, inner: Layer, visit: "MitmConnection") -> None:
        self._inner = inner
        self._visit = visit
        self._crashed = False
        self._unsent: dict[Connection, list[bytes]] = {}

    def handle_event(self, event: events.Event) -> Iterator[commands.Command]:
        """What mitmproxy's server asks of the outermost layer."""
        if self._crashed:
            return
        try:
            for command in self._inner.handle_event(event):
                if isinstance(command, commands.SendData):
                    self._unsent.setdefault(command.connection, []).append(command.data)
                elif isinstance(command, SetReading):
                    self._visit.reading(command)
                elif isinstance(command, SetHeading):
                    self._visit.heading(on=command.on)
                else:
                    yield from self._written()
                    yield command
            yield from self._written()
        except Exception as fault:  # noqa: BLE001 - the guard: mitmproxy would log this and let the client wait
            self._crashed = True
            self._visit.broken(fault)

    def _written(self) -> Iterator[commands.SendData]:
        unsent, self._unsent = self._unsent, {}
        for connection, pieces in unsent.items():
            yield commands.SendData(connection, pieces[0] if len(pieces) == 1 else b"".join(pieces))


class Watchdog(TimeoutWatchdog):
    """Closes what is silent, and only while it may: mitmproxy's does not look again whether it was disarmed as it slept."""

    async def watch(self) -> None:
        """Wait for silence; cancelled when the connection is over."""
        while True:
            await self.can_timeout.wait()
            silent = time.time() - self.last_activity
            if silent >= self.timeout:
                await self.callback()
                return
            await asyncio.sleep(self.timeout - silent)


class MitmConnection(LiveConnectionHandler):
    """One client's connection."""

    def __init__(
        self,
        engine: EngineState,
        hooks: "Hooks",
        mode: ProxyMode,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        super().__init__(reader, writer, engine.options, mode)  # type: ignore[arg-type]  # theirs, cheaper
        self.timeout_watchdog = Watchdog(engine.options.tcp_timeout, self.on_timeout)
        self.engine = engine
        self.given: Credentials | None = None
        """What the client told us at CONNECT."""

        self.tunnel: str | None = None
        """The host of a CONNECT, or the one that a captured connection names."""

        self.captured: CapturedDestination | None = None
        """Where a captured connection went."""

        self.leaving = False
        self.expecting = False
        """Whether the client is in the middle of a request."""

        self._hooks = hooks
        self._writer = writer
        self._live: set[UnderWay] = set()
        self._awake = ExitStack()
        self._late: asyncio.TimerHandle | None = None
        """When the head that has begun has to be whole."""

        self._gates: dict[Connection, asyncio.Event] = {}
        self.layer = Guard(hooks.outermost(Context(self.client, engine.options)), self)  # type: ignore[assignment, arg-type]

    @property
    def owner(self) -> str:
        """Whose requests these are, where nothing else tells."""
        return self.engine.owners.known(self.client.peername)

    # What is under way

    def begin(self, what: UnderWay) -> None:
        """Keep the connection for this, however silent it is."""
        if not self._live:
            self._awake.enter_context(self.timeout_watchdog.disarm())
        self._live.add(what)

    def end(self, what: UnderWay) -> None:
        """This is over. A worker that is stopping lets the connection go with the last one."""
        self._live.discard(what)
        if not self._live:
            self._awake.close()
            if self.leaving:
                # What was written last is still to be sent: `close` flushes.
                asyncio.get_running_loop().call_soon(self._writer.close)

    def leave(self) -> None:
        """Take no more requests; close when what is under way has ended."""
        self.leaving = True
        if not self._live:
            self._writer.close()

    def stop(self) -> None:
        """Close at once, whatever is under way."""
        self._abandon("refused", "the worker stopped before the exchange was over")
        self._writer.transport.abort()

    def broken(self, fault: BaseException) -> None:
        """Something of ours or mitmproxy's has failed: end the connection rather than leave the client waiting."""
        logger.error("a connection was given up: %s", type(fault).__name__, exc_info=fault)
        self._abandon("refused", "the proxy failed while it passed this on")
        self._writer.transport.abort()

    def _abandon(self, outcome: Outcome, why: str) -> None:
        for what in list(self._live):
            what.abandon(outcome, why)
            self.end(what)

    async def handle_client(self) -> None:
        """Serve this client until it is gone."""
        try:
            await super().handle_client()
        finally:
            self.heading(on=False)
            self._abandon("client_closed", "the client's connection ended")
            self._writer.close()

    # Reading and writing

    def heading(self, *, on: bool) -> None:
        """The client is in the middle of a request's head, for which it has so long and no longer; or is not any more."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if on:
            self._late = asyncio.get_running_loop().call_later(self.engine.config.limits.head, self._head_timed_out)

    def _head_timed_out(self) -> None:
        self.engine.config.counts["errors/head_timed_out"] += 1
        self._writer.close()

    def reading(self, command: SetReading) -> None:
        """Stop or go on reading from a connection."""
        gate = self._gates.setdefault(command.connection, asyncio.Event())
        if command.on:
            gate.set()
            del self._gates[command.connection]

    async def drain_writers(self) -> None:
        """Called after each read: wait until what was read has gone on, and until reading is wanted again."""
        if self.expecting:
            acknowledge(self._writer)
        await super().drain_writers()  # type: ignore[no-untyped-call]
        if self._gates:
            here = asyncio.current_task()
            found = next((c for c, io in self.transports.items() if io.handler is here), None)
            if found is not None and (gate := self._gates.get(found)) is not None:
                await gate.wait()

    async def drained(self) -> None:
        """Wait until the client has taken what was written."""
        if (io := self.transports.get(self.client)) is None or io.writer is None:
            return
        try:
            await io.writer.drain()
        except OSError:
            return

    # Connecting

    async def open_connection(self, command: commands.OpenConnection) -> None:
        """Connect as `destinations` allows, without a limit on their number; then read until it ends."""
        try:
            await self._open_connection(command)
        except Exception as fault:  # noqa: BLE001 - the guard: an error of this task would be lost
            self.broken(fault)

    async def _open_connection(self, command: commands.OpenConnection) -> None:
        server = command.connection
        assert server.address is not None
        host, port = server.address[:2]
        above = self.engine.proxy
        checked = above is None or (host, port) != (above.host, above.port)
        server.timestamp_start = time.time()
        try:
            reader, writer = await self.engine.destinations.connect(
                host, port, checked=checked, local=self._is_local(host, port)
            )
        except Problem as problem:
            server.error = Fault(problem)
            await self.server_event(events.OpenConnectionCompleted(command, server.error))
            return
        except asyncio.CancelledError:
            await self.server_event(events.OpenConnectionCompleted(command, "cancelled"))
            raise
        server.timestamp_tcp_setup = time.time()
        server.state = ConnectionState.OPEN
        server.peername = writer.get_extra_info("peername")
        server.sockname = writer.get_extra_info("sockname")
        self.transports[server] = ConnectionIO(handler=asyncio.current_task(), reader=reader, writer=writer)
        await self.server_event(events.OpenConnectionCompleted(command, None))
        try:
            await self.handle_connection(server)
        finally:
            server.timestamp_end = time.time()
            # Told to close while it waits for its turn to tell what it has read, mitmproxy leaves it open for ever.
            if self.transports.pop(server, None) is not None:
                writer.close()

    def _is_local(self, host: str, port: int) -> bool:
        """Whether the user's own command goes there itself."""
        captured = self.captured
        return captured is not None and captured.is_local and (host, port) == (captured.host, captured.port)

    # Hooks

    async def handle_hook(self, hook: commands.StartHook) -> None:
        """Run one of ours; mitmproxy's own that nobody needs pass by."""
        try:
            if isinstance(hook, Await):
                hook.result = await hook.work()
            else:
                self._hooks.run(self, hook)
        except Exception as fault:  # noqa: BLE001 - the guard: mitmproxy would lose this and let the client wait
            self.broken(fault)

    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        """Only what is wrong: the rest tells of requests, and logs are no place for them."""
        if level >= logging.ERROR:
            super().log(message, level, exc_info)


class Hooks(Protocol):
    """What decides which layers a connection gets (`layers.Stack`)."""

    def outermost(self, context: Context) -> Layer:
        """The first layer of a new connection."""

    def run(self, visit: MitmConnection, hook: commands.StartHook) -> None:
        """Answer one of mitmproxy's hooks."""
