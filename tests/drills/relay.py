"""What stands between a store server and its Postgres, and can let it be away or hung as networks and servers are."""

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
    """A Postgres of its own, as far as its clients can tell."""

    url: str
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared, nothing passes any more, and nobody is told."""

    away: bool = False
    refused: int = 0
    """How often somebody came while it was away."""

    open: set[asyncio.StreamWriter] = field(default_factory=set)

    def go_away(self) -> None:
        """Break every connection and take no more."""
        self.away = True
        for writer in self.open:
            writer.transport.abort()

    def come_back(self) -> None:
        """Be there again, and answer."""
        self.away = False
        self.goes_on.set()


@asynccontextmanager
async def relay(database_url: str) -> AsyncIterator[Relay]:
    """A relay in front of a Postgres that listens on a Unix socket."""
    parts = urlsplit(database_url)
    upstream = Path(parse_qs(parts.query)["host"][0], SOCKET)
    with tempfile.TemporaryDirectory(prefix="playhead-test-") as place:
        between = Relay(url=f"postgresql://{parts.path}?host={place}&user=playhead")
        between.goes_on.set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if between.away:
                between.refused += 1
                writer.transport.abort()
                return
            theirs_reader, theirs = await asyncio.open_unix_connection(upstream)
            between.open |= {writer, theirs}
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pass(between, reader, theirs))
                    both.create_task(_pass(between, theirs_reader, writer))
            except* OSError:
                pass  # broken off, as relays are here
            finally:
                for end in (writer, theirs):
                    between.open.discard(end)
                    end.close()

        server = await asyncio.start_unix_server(serve, Path(place, SOCKET))
        async with server:
            yield between
            between.go_away()


async def _pass(between: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        await between.goes_on.wait()
        writer.write(data)
        await writer.drain()
    writer.close()
