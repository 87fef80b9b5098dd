"""A client of HTTP/2 on libnghttp2, for what h2 is too strict or too slow for, and frames made by hand."""

import asyncio
from collections.abc import Callable

import ngh2

type Head = list[tuple[bytes, bytes]]


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """RFC 9113 4.1."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


class Quick:
    """One client. What it hears it keeps, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heard: list[ngh2.Event] = []
        self.conn = ngh2.Connection(ngh2.Role.CLIENT)
        self.conn.initiate_connection({ngh2.Setting.INITIAL_WINDOW_SIZE: 1 << 20})
        self.flush()

    def flush(self) -> None:
        """Hand what is to be sent to the socket."""
        self.writer.write(self.conn.data_to_send())

    def ask(self, authority: str, path: str = "/", *, method: str = "GET", more: Head | None = None) -> int:
        """Send the head of a request without a body; its stream."""
        head = [(b":method", method.encode()), (b":authority", authority.encode())]
        if method != "CONNECT":
            head[1:1] = [(b":scheme", b"https"), (b":path", path.encode())]
        stream = self.conn.send_request([*head, *(more or [])], end_stream=True)
        self.flush()
        return stream

    async def until[T: ngh2.Event](self, kind: type[T], which: Callable[[T], bool] = lambda _: True) -> T:
        """Read on until this is heard."""
        while True:
            for event in self.heard:
                if isinstance(event, kind) and which(event):
                    return event
            data = await self.reader.read(65536)
            if not data:
                raise ConnectionError("the connection is closed")
            self.conn.receive_data(data)
            self.heard += self.conn.events()
            self.flush()
            self.heard += self.conn.events()

    async def body(self, stream: int) -> bytes:
        """The body of a response, once it is whole."""
        await self.until(ngh2.StreamClosed, lambda event: event.stream_id == stream)
        pieces = [event for event in self.heard if isinstance(event, ngh2.DataReceived)]
        return b"".join(event.data for event in pieces if event.stream_id == stream)
