"""An HTTP/2 client on libnghttp2, for what the package h2 refuses or is too slow for, and handmade frames."""

import asyncio
from collections.abc import Callable

import ngh2

type Head = list[tuple[bytes, bytes]]


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return a frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


class QuickClient:
    """One client. It stores all received events in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.events: list[ngh2.Event] = []
        self.conn = ngh2.Connection(ngh2.Role.CLIENT)
        self.conn.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 1 << 20})
        self.flush()

    def flush(self) -> None:
        """Write pending output to the socket."""
        self.writer.write(self.conn.data_to_send())

    def ask(self, authority: str, path: str = "/", *, method: str = "GET", more: Head | None = None) -> int:
        """Send the head of a request without a body; return its stream."""
        head = [(b":method", method.encode()), (b":authority", authority.encode())]
        if method != "CONNECT":
            head[1:1] = [(b":scheme", b"https"), (b":path", path.encode())]
        stream = self.conn.send_request([*head, *(more or [])], end_stream=True)
        self.flush()
        return stream

    async def until[T: ngh2.Event](self, kind: type[T], which: Callable[[T], bool] = lambda _: True) -> T:
        """Read until this event is received."""
        while True:
            for event in self.events:
                if isinstance(event, kind) and which(event):
                    return event
            data = await self.reader.read(65536)
            if not data:
                raise ConnectionError("the connection is closed")
            self.conn.receive_data(data)
            self.events += self.conn.events()
            self.flush()
            self.events += self.conn.events()

    async def body(self, stream: int) -> bytes:
        """Return the body of a complete response."""
        await self.until(ngh2.StreamClosed, lambda event: event.stream_id == stream)
        pieces = [event for event in self.events if isinstance(event, ngh2.DataReceived)]
        return b"".join(event.data for event in pieces if event.stream_id == stream)
