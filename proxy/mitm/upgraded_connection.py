"""Forward what follows a 101 response, and record the messages of WebSockets.

Bytes are forwarded at once, except those that complete a message: they wait until all messages are recorded. mitmproxy
itself would hold each WebSocket message until it is complete, and keep all of them forever.
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
from proxy.mitm.protocol.websocket import accepted_extensions
from proxy.mitm.protocol.websocket_frames import DecompressedTooLarge, FrameReader, NoRoom
from proxy.wire.memory_budget import MemoryBudget
from proxy.wire.recording_guard import RecordingGuard, Side


class UpgradedExchange(Protocol):
    """The part of the stream of the 101 response that an upgraded connection uses."""

    connection: MitmConnection
    flow: http.HTTPFlow
    recording: RecordingGuard

    def end_upgrade(self) -> None:
        """End the stream, because the connection has ended."""


class UpgradedConnection(tcp.TCPLayer):
    """A relay that records WebSocket messages."""

    def __init__(self, context: Context, exchange: UpgradedExchange) -> None:
        super().__init__(context, ignore=True)
        self._exchange = exchange
        self._reader = WebsocketReader.for_exchange(exchange)
        if self._reader is None:
            exchange.recording.record_gap(
                "the data after a 101 response is not a supported WebSocket and is not recorded"
            )

    def relay_messages(self, event: events.Event) -> CommandGenerator[None]:
        """Record messages, and forward the data."""
        match event:
            case events.DataReceived(connection=connection, data=data) if self._reader is not None:
                side: Side = "request" if connection is self.context.client else "response"
                if (fault := self._reader.feed(side, data)) is not None:
                    self._exchange.recording.record_truncation(side)
                    self._exchange.recording.record_gap(f"{fault}; what follows is not recorded")
                    self._reader = None
                elif self._reader.has_new_message and not (yield from self._wait_until_recorded()):
                    yield from self._give_up()
                    return
            case events.ConnectionClosed(connection=connection):
                clean = self._reader is not None and self._reader.is_closed
                by_client: Outcome = "client_closed" if connection is self.context.client else "server_closed"
                if self._exchange.recording.is_open:
                    self._exchange.recording.record_end("response")
                    self._exchange.recording.record_close("completed" if clean else by_client)
                self._exchange.end_upgrade()
        yield from super().relay_messages(event)

    def _wait_until_recorded(self) -> CommandGenerator[bool]:
        recording = self._exchange.recording
        if not recording.must_wait or recording.is_recorded_now():
            return True
        waiting = Await(recording.wait_until_recorded)
        yield waiting
        return bool(waiting.result)

    def _give_up(self) -> CommandGenerator[None]:
        """Close the connection, because a message could not be recorded and the policy is to refuse."""
        self._exchange.recording.record_close("refused", "a WebSocket's message could not be recorded")
        self._exchange.end_upgrade()
        self._handle_event = self.done
        for connection in (self.context.server, self.context.client):
            yield commands.CloseConnection(connection)


class WebsocketReader:
    """Reads and records the messages of both sides."""

    def __init__(self, recording: RecordingGuard, extensions: str, budget: MemoryBudget) -> None:
        self._recording = recording
        self._frame_readers = {
            "request": FrameReader(to_server=True, extensions=accepted_extensions(extensions), budget=budget),
            "response": FrameReader(to_server=False, extensions=accepted_extensions(extensions), budget=budget),
        }
        self.is_closed = False
        """Whether one side sent a close frame."""

        self.has_new_message = False
        """Whether the last data completed a message."""

    @classmethod
    def for_exchange(cls, exchange: UpgradedExchange) -> "WebsocketReader | None":
        """Return a reader for an upgraded exchange, or None if it is not a WebSocket or its extensions are invalid."""
        response = exchange.flow.response
        assert response
        if response.headers.get("upgrade", "").lower() != "websocket":
            return None
        try:
            budget = exchange.connection.engine.message_memory
            return cls(exchange.recording, response.headers.get("sec-websocket-extensions", ""), budget)
        except ValueError:
            return None

    def feed(self, side: Side, data: bytes) -> str | None:
        """Record the messages that the data completes. Return an error message if the data cannot be read."""
        self.has_new_message = False
        try:
            for kind, message in self._frame_readers[side].feed(data):
                if kind != "ping":
                    self.has_new_message = True
                    self.is_closed |= kind == "close"
                    self._recording.record_data(side, message, kind)
        except NoRoom:
            return (
                "the incomplete WebSocket messages of this worker exceed the memory limit, so this one is not recorded"
            )
        except DecompressedTooLarge:
            return "a compressed WebSocket message exceeds the limit when decompressed and is not recorded"
        except ParseFailed:
            return "the WebSocket violates its protocol"
        return None
