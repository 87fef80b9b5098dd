"""Write and read HTTP/2 frames by hand, for peers that break rules which every library keeps."""

import asyncio
from collections.abc import Iterable
from typing import Final

from hpack import Decoder, Encoder

from tests.support.h2quick import frame

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

type Fields = Iterable[tuple[bytes, bytes]]


def head_frame(fields: Fields, *, stream: int = 1, end: bool = False) -> bytes:
    """Return a HEADERS frame that adds nothing to the peer's dynamic table."""
    encoder = Encoder()
    encoder.header_table_size = 0
    block = encoder.encode(list(fields), huffman=False)
    return frame(HEADERS, block, flags=END_HEADERS | (END_STREAM if end else 0), stream=stream)


def data_frame(payload: bytes, *, stream: int = 1, end: bool = True) -> bytes:
    """Return a DATA frame."""
    return frame(DATA, payload, flags=END_STREAM if end else 0, stream=stream)


class FrameReader:
    """Reads the peer's frames."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._decoder = Decoder()
        self._decoder.max_header_list_size = 1 << 20
        self.over = False
        """Whether the other side ends the connection."""

    async def next(self) -> tuple[int, int, int, bytes]:
        """Return kind, flags, stream and payload of the next frame. Raises IncompleteReadError at the end of the
        connection.
        """
        start = await self._reader.readexactly(9)
        return start[3], start[4], int.from_bytes(start[5:]), await self._reader.readexactly(int.from_bytes(start[:3]))

    async def head_stream(self) -> int:
        """Return the stream of the next HEADERS frame."""
        while True:
            kind, _, stream, payload = await self.next()
            if kind == HEADERS:
                self._decoder.decode(payload, raw=True)
                return stream

    async def answer(self, stream: int = 1) -> tuple[int | None, bytes, bool]:
        """Return status and body of the response on a stream, and whether it is complete."""
        status, body = None, b""
        try:
            while True:
                kind, flags, number, payload = await self.next()
                if kind == GOAWAY or (kind == RST_STREAM and number == stream):
                    self.over = kind == GOAWAY
                    return status, body, False
                if number != stream:
                    continue
                if kind == HEADERS:
                    fields = dict(self._decoder.decode(payload, raw=True))
                    status = int(fields.get(b":status", status or 0))
                elif kind == DATA:
                    body += payload
                if kind in (HEADERS, DATA) and flags & END_STREAM:
                    return status, body, True
        except (asyncio.IncompleteReadError, ConnectionError):
            self.over = True
            return status, body, False
