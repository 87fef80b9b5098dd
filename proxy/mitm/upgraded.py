"""What follows a 101: raw bytes both ways, at once and untouched; a WebSocket's messages are read beside it.

mitmproxy would take WebSockets apart, hold each message until it is whole, and keep all of them for ever.
"""

from typing import Protocol

from mitmproxy import http
from mitmproxy.proxy import events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import CommandGenerator
from mitmproxy.proxy.layers import tcp
from wsproto.extensions import Extension, PerMessageDeflate
from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed
from wsproto.utilities import split_comma_header

from calls.model import Outcome
from proxy.mitm.tape import Side, Tape

MESSAGE_KEPT = 32 << 20
"""A longer message is told in parts."""


class Exchange(Protocol):
    """The stream that the 101 came on."""

    flow: http.HTTPFlow
    tape: Tape

    def ended(self) -> None:
        """The connection is over."""


class Upgraded(tcp.TCPLayer):
    """A relay that reads along."""

    def __init__(self, context: Context, exchange: Exchange) -> None:
        super().__init__(context, ignore=True)
        self._exchange = exchange
        self._reader = Reader.of(exchange)
        if self._reader is None:
            exchange.tape.gap("after a 101 that is no WebSocket's, bytes passed that are not recorded")

    def relay_messages(self, event: events.Event) -> CommandGenerator[None]:
        """Tell, and pass on."""
        match event:
            case events.DataReceived(connection=connection, data=data) if self._reader is not None:
                if not self._reader.feed("request" if connection is self.context.client else "response", data):
                    self._exchange.tape.gap("a WebSocket broke its protocol; what follows is not recorded")
                    self._reader = None
            case events.ConnectionClosed(connection=connection):
                clean = self._reader is not None and self._reader.closed
                by_client: Outcome = "client_closed" if connection is self.context.client else "server_closed"
                if self._exchange.tape.open:
                    self._exchange.tape.ended("response")
                    self._exchange.tape.closed("completed" if clean else by_client)
                self._exchange.ended()
        yield from super().relay_messages(event)


class Reader:
    """Reads the messages of both directions."""

    def __init__(self, tape: Tape, extensions: str) -> None:
        self._tape = tape
        self._frames = {
            "request": FrameProtocol(client=False, extensions=_extensions(extensions)),
            "response": FrameProtocol(client=True, extensions=_extensions(extensions)),
        }
        self._parts: dict[Side, bytearray] = {"request": bytearray(), "response": bytearray()}
        self.closed = False
        """Whether one side said goodbye."""

    @classmethod
    def of(cls, exchange: Exchange) -> "Reader | None":
        """A reader for the WebSocket that this exchange has become; None where it is none."""
        response = exchange.flow.response
        assert response
        if response.headers.get("upgrade", "").lower() != "websocket":
            return None
        return cls(exchange.tape, response.headers.get("sec-websocket-extensions", ""))

    def feed(self, side: Side, data: bytes) -> bool:
        """Tell the messages that these bytes complete. False where they cannot be read."""
        frames = self._frames[side]
        frames.receive_bytes(data)
        try:
            for frame in frames.received_frames():
                self._tell(side, frame)
        except ParseFailed:
            return False
        return True

    def _tell(self, side: Side, frame: Frame) -> None:
        match frame:
            case Frame(opcode=Opcode.TEXT | Opcode.BINARY as opcode, payload=payload):
                assert isinstance(payload, str | bytes | bytearray)
                parts = self._parts[side]
                parts += payload.encode() if isinstance(payload, str) else payload
                if frame.message_finished or len(parts) > MESSAGE_KEPT:
                    self._tape.data(side, bytes(parts), "text" if opcode is Opcode.TEXT else "binary")
                    parts.clear()
            case Frame(opcode=Opcode.CLOSE, payload=(int() as code, str() as reason)):
                self.closed = True
                said = code != CloseReason.NO_STATUS_RCVD
                self._tape.data(side, code.to_bytes(2) + reason.encode() if said else b"", "close")


def _extensions(header: str) -> list[Extension]:
    found: list[Extension] = []
    for offer in split_comma_header(header.encode("ascii", "replace")):
        if offer.split(";", 1)[0].strip() == PerMessageDeflate.name:
            extension = PerMessageDeflate()
            extension.finalize(offer)
            found.append(extension)
    return found
