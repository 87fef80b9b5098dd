"""One client's connection: mitmproxy's connection handler, with its defects corrected.

mitmproxy loses the errors of hooks, continues after a crash of its layers, allows five upstream connections per address,
closes silent connections after ten minutes, and connects to any address. Here, an error in a hook or a layer ends the
connection and its recordings.
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
from proxy.mitm.layer_events import Await, SetHeadTimer, SetReading
from proxy.wire.access import Credentials
from proxy.wire.config import acknowledge_now
from proxy.wire.engine_state import EngineState
from proxy.wire.problem import Problem, UpstreamFault

logger = logging.getLogger(__name__)


class Activity(Protocol):
    """Something that keeps a connection open: a request in flight or a tunnel."""

    def abandon(self, outcome: Outcome, why: str) -> None:
        """End it, because the connection is gone."""


class Guard:
    """The outermost layer: handles Playhead's own commands, and ends the connection when a layer crashes.

    It joins the data that one event causes to be sent on a connection into one write. mitmproxy writes a head and its body
    separately, and a write costs as much as everything that leads to it.
    """

    def __init__(self, inner: Layer, connection: "MitmConnection") -> None:
        self._inner = inner
        self._connection = connection
        self._has_crashed = False
        self._unsent: dict[Connection, list[bytes]] = {}

    def handle_event(self, event: events.Event) -> Iterator[commands.Command]:
        """Handle an event for mitmproxy's server."""
        if self._has_crashed:
            return
        try:
            for command in self._inner.handle_event(event):
                if isinstance(command, commands.SendData):
                    self._unsent.setdefault(command.connection, []).append(command.data)
                elif isinstance(command, SetReading):
                    self._connection.set_reading(command)
                elif isinstance(command, SetHeadTimer):
                    self._connection.set_head_timer(is_running=command.on)
                else:
                    yield from self._joined_data()
                    yield command
            yield from self._joined_data()
        except Exception as fault:  # noqa: BLE001 - mitmproxy would only log the error, and leave the client waiting
            self._has_crashed = True
            self._connection.handle_fault(fault)

    def _joined_data(self) -> Iterator[commands.SendData]:
        unsent, self._unsent = self._unsent, {}
        for connection, pieces in unsent.items():
            yield commands.SendData(connection, pieces[0] if len(pieces) == 1 else b"".join(pieces))


class Watchdog(TimeoutWatchdog):
    """Closes a silent connection unless disarmed. mitmproxy's own does not check whether it was disarmed while it slept."""

    async def watch(self) -> None:
        """Wait for silence, until cancelled at the end of the connection."""
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
        super().__init__(reader, writer, engine.options, mode)  # type: ignore[arg-type]  # a cheaper class than mitmproxy's
        self.timeout_watchdog = Watchdog(engine.options.tcp_timeout, self.on_timeout)
        self.engine = engine
        self.credentials: Credentials = None
        """The credentials from the CONNECT."""

        self.tunnel_host: str | None = None
        """The host of a CONNECT, or the host that a captured connection names."""

        self.captured: CapturedDestination | None = None
        """The original destination of a captured connection."""

        self.is_leaving = False
        self.is_receiving_request = False
        """Whether the request of the client is still incomplete."""

        self._hooks = hooks
        self._writer = writer
        self._activities: set[Activity] = set()
        self._timeout_disarmed = ExitStack()
        self._head_timer: asyncio.TimerHandle | None = None
        """Closes the connection if the head is not complete in time."""

        self._reading_gates: dict[Connection, asyncio.Event] = {}
        self.layer = Guard(hooks.outermost_layer(Context(self.client, engine.options)), self)  # type: ignore[assignment, arg-type]

    @property
    def owner(self) -> str:
        """The owner of the connection, which names the run of requests that do not name it."""
        return self.engine.owners.known_owner(self.client.peername)

    # Activities

    def begin_activity(self, activity: Activity) -> None:
        """Keep the connection open for an activity, even while it is silent."""
        if not self._activities:
            self._timeout_disarmed.enter_context(self.timeout_watchdog.disarm())
        self._activities.add(activity)

    def end_activity(self, activity: Activity) -> None:
        """End an activity. If the worker is stopping, close the connection after the last one."""
        self._activities.discard(activity)
        if not self._activities:
            self._timeout_disarmed.close()
            if self.is_leaving:
                # Not at once: the last data is still to be written.
                asyncio.get_running_loop().call_soon(self._writer.close)

    def leave(self) -> None:
        """Take no more requests, and close once the activities have ended."""
        self.is_leaving = True
        if not self._activities:
            self._writer.close()

    def stop(self) -> None:
        """Close at once because the worker stops."""
        self._abandon("refused", "the worker stopped before the exchange was over")
        self._writer.transport.abort()

    def handle_fault(self, fault: BaseException) -> None:
        """End the connection after an internal error, so that the client does not wait forever."""
        logger.error("a connection was closed after an internal error: %s", type(fault).__name__, exc_info=fault)
        self._abandon("refused", "the proxy failed while it forwarded this exchange")
        self._writer.transport.abort()

    def _abandon(self, outcome: Outcome, why: str) -> None:
        for what in list(self._activities):
            what.abandon(outcome, why)
            self.end_activity(what)

    async def handle_client(self) -> None:
        """Serve the client until the connection ends."""
        try:
            await super().handle_client()
        finally:
            self.set_head_timer(is_running=False)
            self._abandon("client_closed", "the client's connection ended")
            self._writer.close()

    # Reading and writing

    def set_head_timer(self, *, is_running: bool) -> None:
        """Start or stop the time limit for the head of a request."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if is_running:
            self._head_timer = asyncio.get_running_loop().call_later(
                self.engine.config.limits.head, self._close_after_head_timeout
            )

    def _close_after_head_timeout(self) -> None:
        self.engine.config.counts["errors/head_timed_out"] += 1
        self._writer.close()

    def set_reading(self, command: SetReading) -> None:
        """Pause or resume reading from a connection."""
        gate = self._reading_gates.setdefault(command.connection, asyncio.Event())
        if command.on:
            gate.set()
            del self._reading_gates[command.connection]

    async def drain_writers(self) -> None:
        """Wait after each read until the data was forwarded, and until reading is resumed."""
        if self.is_receiving_request:
            acknowledge_now(self._writer)
        await super().drain_writers()  # type: ignore[no-untyped-call]
        if self._reading_gates:
            here = asyncio.current_task()
            found = next((c for c, io in self.transports.items() if io.handler is here), None)
            if found is not None and (gate := self._reading_gates.get(found)) is not None:
                await gate.wait()

    async def drain_client(self) -> None:
        """Wait until the client's send buffer has room."""
        if (io := self.transports.get(self.client)) is None or io.writer is None:
            return
        try:
            await io.writer.drain()
        except OSError:
            return

    # Connecting

    async def open_connection(self, command: commands.OpenConnection) -> None:
        """Connect to an upstream if the destination rules allow it, then read until the connection ends."""
        try:
            await self._open_connection(command)
        except Exception as fault:  # noqa: BLE001 - the error of this task would be lost
            self.handle_fault(fault)

    async def _open_connection(self, command: commands.OpenConnection) -> None:
        server = command.connection
        assert server.address is not None
        host, port = server.address[:2]
        above = self.engine.proxy
        checked = above is None or (host, port) != (above.host, above.port)
        server.timestamp_start = time.time()
        try:
            reader, writer = await self.engine.destinations.connect(
                host, port, check_addresses=checked, is_local=self._is_local(host, port)
            )
        except Problem as problem:
            server.error = UpstreamFault(problem)
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
            # If it is to be closed while it waits to report data, mitmproxy leaves the connection open forever.
            if self.transports.pop(server, None) is not None:
                writer.close()

    def _is_local(self, host: str, port: int) -> bool:
        """Return whether this is the original destination of the user's own captured command."""
        captured = self.captured
        return captured is not None and captured.is_local and (host, port) == (captured.host, captured.port)

    # Hooks

    async def handle_hook(self, hook: commands.StartHook) -> None:
        """Answer a hook."""
        try:
            if isinstance(hook, Await):
                hook.result = await hook.work()
            else:
                self._hooks.answer_hook(self, hook)
        except Exception as fault:  # noqa: BLE001 - mitmproxy would lose the error, and leave the client waiting
            self.handle_fault(fault)

    def log(self, message: str, level: int = logging.INFO, exc_info: Any = None) -> None:
        """Log errors only. mitmproxy's other messages contain parts of requests."""
        if level >= logging.ERROR:
            super().log(message, level, exc_info)


class Hooks(Protocol):
    """Chooses the layers of a connection (`layers.LayerChooser`)."""

    def outermost_layer(self, context: Context) -> Layer:
        """Return the first layer of a new connection."""

    def answer_hook(self, connection: MitmConnection, hook: commands.StartHook) -> None:
        """Answer one of mitmproxy's hooks."""
