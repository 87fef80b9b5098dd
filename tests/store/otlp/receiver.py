"""A receiver of OTLP on loopback that answers as it is told, and keeps what it was sent."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.store.otlp.recorded import decode_spans


@dataclass
class Receiver:
    """What it was sent, and the answers that it still gives; after them, 200."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    """Those that were answered with 200."""

    tries: int = 0
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spans(self) -> list[Span]:
        """The spans that it took."""
        return decode_spans(self.requests)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                text = head.decode("latin-1")
                length = next(
                    int(line[15:]) for line in text.lower().splitlines() if line.startswith("content-length:")
                )
                body = await reader.readexactly(length)
                self.heads.append(text)
                self.tries += 1
                status, headers, content = self.answers.pop(0) if self.answers else (200, {}, b"")
                if status == 200:
                    self.requests.append(gzip.decompress(body))
                lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                writer.write(f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
                self.came.set()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving(*answers: tuple[int, dict[str, str], bytes]) -> AsyncIterator[Receiver]:
    """A receiver on a free port."""
    receiver = Receiver(answers=list(answers))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, limit=1 << 20)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
