"""The captures of one proxy worker, which begin over its control socket and end with the launcher or with the worker."""

import contextlib
from collections.abc import AsyncIterator, Callable

from calls.project_runs import RUN_ID
from proxy.capture.capture import Capture
from proxy.capture.connections.arrival import Arrival
from proxy.capture.connections.connection import Enter, EnterProxy
from proxy.capture.connections.original_destination import Source
from proxy.capture.connections.relay import PassedConnection
from proxy.capture.control import CaptureRefused, CaptureRequest, ControlSocket, RunningCapture
from proxy.capture.transparent import transparent_capture
from proxy.wire.access import Access
from proxy.wire.engine_state import EngineState


class Intake:
    """Accepts captured connections, and hands HTTP and TLS over to the wire engine."""

    def __init__(
        self, engine: EngineState, enter: Enter, enter_proxy: EnterProxy, engine_connections: Callable[[], int]
    ) -> None:
        self.engine = engine
        self.enter = enter
        self.enter_proxy = enter_proxy
        self._engine_connections = engine_connections
        self._captures: set[Capture] = set()
        self.relays: set[PassedConnection] = set()
        """The relays of all captures. A connection may outlive its command."""

    def open_connections(self) -> int:
        """Count the connections of the engine, those whose protocol is not yet known, and those that pass undecoded."""
        undecided_count = sum(len(capture.open) for capture in self._captures)
        return self._engine_connections() + undecided_count + len(self.relays)

    @contextlib.asynccontextmanager
    async def serve_captures(self) -> AsyncIterator[None]:
        """Serve the control socket and redirected connections, as far as the configuration has them."""
        config = self.engine.config
        control = ControlSocket(config.control, self.begin_capture) if config.control else None
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

    async def begin_capture(self, request: CaptureRequest) -> RunningCapture:
        """Begin a launcher's capture. Raises CaptureRefused."""
        try:
            _authorize(request, self.engine.config.access)
            return await self._start(Capture(self, request))
        except CaptureRefused:
            for one in request.sockets:
                one.endpoint.close()
            raise

    def make_arrival(self, capture: Capture, source: Source) -> Arrival:
        """Create the protocol for the next connection of this capture, from such a socket."""
        return Arrival(capture, source)

    def forget_capture(self, capture: Capture) -> None:
        """Forget a capture that has ended."""
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
    if not RUN_ID.fullmatch(request.run):
        raise CaptureRefused(f"{request.run[:80]!r} cannot name a run; use 1 to 128 of A-Z a-z 0-9 . _ : -")
    credentials = request.run, request.token
    if not access.is_admitted(credentials):
        raise CaptureRefused("the message has an invalid token for this proxy worker: see playhead token --recording")
    if not access.can_write(access.full_run_name(request.run, credentials), credentials):
        raise CaptureRefused(
            f"run {request.run} is claimed by the command that was started for it, and the message does not have its token:"
            f" see playhead token --run {request.run}"
        )
