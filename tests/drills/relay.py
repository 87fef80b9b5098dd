"""A relay between a store server and its Postgres, which can disconnect them or stop passing data."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

SOCKET = ".s.PGSQL.5432"


@dataclass
class Relay:
    """A relay that looks like a Postgres server to its clients."""

    url: str
    passes_data: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is cleared, no data passes, and connections stay open."""

    away: bool = False
    refused: int = 0
    """The number of connections that were refused."""

    open: set[asyncio.StreamWriter] = field(default_factory=set)

    def disconnect(self) -> None:
        """Reset every connection, and refuse new ones."""
        self.away = True
        for writer in self.open:
            writer.transport.abort()

    def reconnect(self) -> None:
        """Accept connections and pass data again."""
        self.away = False
        self.passes_data.set()


@asynccontextmanager
async def relay(database_url: str) -> AsyncIterator[Relay]:
    """Run a relay in front of a Postgres that listens on a Unix socket."""
    parts = urlsplit(database_url)
    upstream = Path(parse_qs(parts.query)["host"][0], SOCKET)
    with tempfile.TemporaryDirectory(prefix="playhead-test-") as place:
        relayed = Relay(url=f"postgresql://{parts.path}?host={place}&user=playhead")
        relayed.passes_data.set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if relayed.away:
                relayed.refused += 1
                writer.transport.abort()
                return
            theirs_reader, theirs = await asyncio.open_unix_connection(upstream)
            relayed.open |= {writer, theirs}
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pass(relayed, reader, theirs))
                    both.create_task(_pass(relayed, theirs_reader, writer))
            except* OSError:
                pass  # broken off, as relays are here
            finally:
                for end in (writer, theirs):
                    relayed.open.discard(end)
                    end.close()

        server = await asyncio.start_unix_server(serve, Path(place, SOCKET))
        async with server:
            yield relayed
            relayed.disconnect()


async def _pass(relayed: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        await relayed.passes_data.wait()
        writer.write(data)
        await writer.drain()
    writer.close()
