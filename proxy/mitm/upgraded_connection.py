"""Pass what follows a response of status 101, and read the messages of WebSockets beside it.

Bytes go on at once, but for those that complete a message: they wait until all that was said is kept. mitmproxy would take
WebSockets apart, hold each message until it is whole, and keep all of them for ever.
"""

from typing import Protocol

from mitmproxy import http
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import tcp
from wsproto.frame_protocol import ParseFailed

from calls.model import Outcome
from proxy.mitm.connection import MitmConnection
from proxy.mitm.layer_events import Await
from proxy.mitm.protocol.websocket import accepted
from proxy.mitm.protocol.websocket_frames import FrameReader, NoRoom, OpensTooFar
from proxy.wire.memory_budget import MemoryBudget
from proxy.wire.recording_guard import RecordingGuard, Side


class UpgradedExchange(Protocol):
    """The stream that the 101 came on."""

    visit: MitmConnection
    flow: http.HTTPFlow
    tape: RecordingGuard

    def ended(self) -> None:
        """The connection is over."""


class UpgradedConnection(tcp.TCPLayer):
    """A relay that reads along."""

    def __init__(self, context: Context, exchange: UpgradedExchange) -> None:
        super().__init__(context, ignore=True)
        self._exchange = exchange
        self._reader = Reader.of(exchange)
        if self._reader is None:
            exchange.tape.gap("after a 101 that is no WebSocket's that can be read, bytes passed that are not recorded")

    def relay_messages(self, event: events.Event) -> CommandGenerator[None]:
        """Tell, and pass on."""
        match event:
            case events.DataReceived(connection=connection, data=data) if self._reader is not None:
                side: Side = "request" if connection is self.context.client else "response"
                if (fault := self._reader.feed(side, data)) is not None:
                    self._exchange.tape.truncated(side)
                    self._exchange.tape.gap(f"{fault}; what follows is not recorded")
                    self._reader = None
                elif self._reader.said and not (yield from self._kept()):
                    yield from self._give_up()
                    return
            case events.ConnectionClosed(connection=connection):
                clean = self._reader is not None and self._reader.closed
                by_client: Outcome = "client_closed" if connection is self.context.client else "server_closed"
                if self._exchange.tape.open:
                    self._exchange.tape.ended("response")
                    self._exchange.tape.closed("completed" if clean else by_client)
                self._exchange.ended()
        yield from super().relay_messages(event)

    def _kept(self) -> CommandGenerator[bool]:
        tape = self._exchange.tape
        if not tape.guarded or tape.kept_now():
            return True
        waiting = Await(tape.kept)
        yield waiting
        return bool(waiting.result)

    def _give_up(self) -> CommandGenerator[None]:
        """By policy nothing passes that cannot be recorded."""
        self._exchange.tape.closed("refused", "a WebSocket's message could not be recorded")
        self._exchange.ended()
        self._handle_event = self.done
        for connection in (self.context.server, self.context.client):
            yield commands.CloseConnection(connection)


class Reader:
    """Reads the messages of both directions."""

    def __init__(self, tape: RecordingGuard, extensions: str, budget: MemoryBudget) -> None:
        self._tape = tape
        self._listeners = {
            "request": FrameReader(to_server=True, extensions=accepted(extensions), budget=budget),
            "response": FrameReader(to_server=False, extensions=accepted(extensions), budget=budget),
        }
        self.closed = False
        """Whether one side said goodbye."""

        self.said = False
        """Whether the bytes that came last completed a message."""

    @classmethod
    def of(cls, exchange: UpgradedExchange) -> "Reader | None":
        """A reader for the WebSocket that this exchange has become; None where it is none, or none that can be read."""
        response = exchange.flow.response
        assert response
        if response.headers.get("upgrade", "").lower() != "websocket":
            return None
        try:
            budget = exchange.visit.engine.message_memory
            return cls(exchange.tape, response.headers.get("sec-websocket-extensions", ""), budget)
        except ValueError:
            return None

    def feed(self, side: Side, data: bytes) -> str | None:
        """Tell the messages that these bytes complete. Why they cannot be read, where they cannot."""
        self.said = False
        try:
            for kind, message in self._listeners[side].feed(data):
                if kind != "ping":
                    self.said = True
                    self.closed |= kind == "close"
                    self._tape.data(side, message, kind)
        except NoRoom:
            return "the WebSocket messages that are coming take too much memory together, and this one is not recorded"
        except OpensTooFar:
            return "a compressed WebSocket message opens to more than is allowed and is not recorded"
        except ParseFailed:
            return "a WebSocket broke its protocol"
        return None
