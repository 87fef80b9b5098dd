"""The captures of one proxy worker: begun over its control socket, ended with the launcher's connection or with the worker."""

import contextlib
from collections.abc import AsyncIterator, Callable

from calls.request_identifiers import RUN
from proxy.capture.capture import Capture
from proxy.capture.connections.arrival import Arrival
from proxy.capture.connections.connection import Enter, EnterProxy
from proxy.capture.connections.original_destination import Source
from proxy.capture.connections.relay import PassedConnection
from proxy.capture.control import CaptureRefused, CaptureRequest, ControlSocket, RunningCapture
from proxy.capture.transparent import transparent_capture
from proxy.wire.access import Access
from proxy.wire.engine import Engine


class Intake:
    """Accepts captured connections, and hands what speaks HTTP or TLS to the wire engine."""

    def __init__(
        self, engine: Engine, enter: Enter, enter_proxy: EnterProxy, engine_connections: Callable[[], int]
    ) -> None:
        self.engine = engine
        self.enter = enter
        self.enter_proxy = enter_proxy
        self._engine_connections = engine_connections
        self._captures: set[Capture] = set()
        self.relays: set[PassedConnection] = set()
        """Of all captures: a connection may outlive the command that made it."""

    def open_connections(self) -> int:
        """Connections of the engine, of which it is not known yet what they speak, and that pass as they are."""
        undecided = sum(len(capture.open) for capture in self._captures)
        return self._engine_connections() + undecided + len(self.relays)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve the control socket, where the configuration names one."""
        config = self.engine.config
        control = ControlSocket(config.control, self.begin) if config.control else None
        transparent: Capture | None = None
        try:
            if config.transparent is not None:
                request = transparent_capture(config.host, config.transparent, reuse_port=config.reuse_port)
                transparent = await self._start(Capture(self, request, is_local=False))
            yield
        finally:
            if transparent is not None:
                await transparent.end()
            if control is not None:
                await control.close()
            for relay in list(self.relays):
                relay.abort()

    async def begin(self, request: CaptureRequest) -> RunningCapture:
        """Serve what a launcher has sent. Raises Refused."""
        try:
            _authorize(request, self.engine.config.access)
            return await self._start(Capture(self, request))
        except CaptureRefused:
            for one in request.sockets:
                one.endpoint.close()
            raise

    def undecided(self, capture: Capture, source: Source) -> Arrival:
        """Make what takes the next connection of this capture, from such a socket."""
        return Arrival(capture, source)

    def ended(self, capture: Capture) -> None:
        """A capture is over."""
        self._captures.discard(capture)

    async def _start(self, capture: Capture) -> Capture:
        self._captures.add(capture)
        try:
            await capture.start()
        except (OSError, ValueError) as error:
            await capture.end()
            raise CaptureRefused(
                f"a socket cannot be served: {error}; send listening TCP sockets and bound UDP ones"
            ) from error
        return capture


def _authorize(request: CaptureRequest, access: Access) -> None:
    if not RUN.fullmatch(request.run):
        raise CaptureRefused(f"{request.run[:80]!r} cannot name a run; use 1 to 128 of A-Z a-z 0-9 . _ : -")
    given = request.run, request.token
    if not access.admits(given):
        raise CaptureRefused(
            "this proxy worker asks for a token, and the one of the message is another; see playhead token --recording"
        )
    if not access.may_write(request.run, given):
        raise CaptureRefused(
            f"run {request.run} belongs to the command that was started for it, and the message has not its token; see"
            f" playhead token --run {request.run}"
        )
