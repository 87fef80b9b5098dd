"""What a client without a token may hold: connections, and the beginnings of heads."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from store.api import server
from store.api.limits import connections
from store.database.connection import Database
from tests.store.running_store import RunningStore, open_store

TOKEN = "correct-horse-battery-staple"
AUTHORIZATION = b"Authorization: Bearer " + TOKEN.encode()
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@asynccontextmanager
async def opened_connection(
    running_store: RunningStore,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(running_store.api.base_url.host, running_store.api.base_url.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes a connection without an answer."""
    try:
        async with asyncio.timeout(10):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


async def status(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(10):
        return int((await reader.readline()).split()[1])


@pytest.mark.parametrize(
    "piece", [b"", b"X-A: " + b"a" * 60_000, b"X-A: b\r\n" * 7_500], ids=["target", "value", "fields"]
)
async def test_a_head_that_does_not_end_is_refused(tmp_path: Path, database: Database, piece: bytes) -> None:
    async with open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store:
        async with opened_connection(running_store) as (reader, writer):
            # A second one, on a connection that was in use before.
            writer.write(HEALTH + b"\r\n")
            assert await status(reader) == 200
            await reader.readuntil(b"}")
            writer.write(HEALTH + piece if piece else b"GET /" + b"a" * 60_000)
            for _ in range(100):
                writer.write((piece or b"a" * 60_000).removeprefix(b"X-A: ") if piece[-1:] != b"\n" else piece)
            assert await status(reader) == 400
        async with opened_connection(running_store) as (reader, writer):
            writer.write(HEALTH + b"X-A: " + b"a" * 60_000 + b"\r\n\r\n")
            assert await status(reader) == 200


async def test_a_connection_on_which_nothing_is_asked_is_closed(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT", 0.5)
    async with open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store:
        for beginning in (b"", b"\r\n", b"GET /healthz", HEALTH):
            async with opened_connection(running_store) as (reader, writer):
                writer.write(beginning)
                assert await is_closed(reader), beginning
        async with opened_connection(running_store) as (reader, writer), opened_connection(running_store) as streaming:
            # A request that is being answered may take as long as it likes.
            streaming[1].write(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n\r\n" % AUTHORIZATION)
            assert await status(streaming[0]) == 200
            # The token is refused, and the body, which nobody reads, does not end.
            writer.write(b"POST /v1/replays HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n")
            assert await status(reader) == 401
            await reader.readuntil(b"}")
            writer.write(b"{")
            assert await is_closed(reader)
            with pytest.raises(TimeoutError):  # noqa: PT012 -- it is read for as long as it lasts
                async with asyncio.timeout(0.2):
                    while await streaming[0].read(1000):
                        pass


async def test_connections_on_which_nothing_is_asked_make_room_for_others(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "connection_limit", lambda: 3)
    async with (
        open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store,
        AsyncExitStack() as stack,
    ):
        address = (running_store.api.base_url.host, running_store.api.base_url.port or 0)
        # All of them are there before the server can accept one.
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(50)]
        assert (await running_store.api.get("/healthz")).status_code == 200
        streams = [await asyncio.open_connection(sock=each) for each in idle]
        *older, (reader, writer) = streams
        assert [await is_closed(each) for each, _ in older[:47]] == [True] * 47
        writer.write(HEALTH + b"\r\n")
        assert await status(reader) == 200
        for _, each in streams:
            each.transport.abort()


def test_the_limit_leaves_files_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, expected in ((1024, 384), (400, 100), (64, 16), (20_000, 4096), (-1, 4096)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert connections.connection_limit() == expected


async def test_an_answer_in_two_pieces_does_not_wait_for_an_acknowledgement(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes the listener names no protocol, so asyncio does not switch off Nagle's algorithm."""
    delays: list[int] = []
    accept = connections.ApiConnection.connection_made

    def note_delay(self: connections.ApiConnection, transport: asyncio.Transport) -> None:
        delays.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        accept(self, transport)

    monkeypatch.setattr(connections.ApiConnection, "connection_made", note_delay)
    async with open_store(tmp_path / "spool", database, follows=False) as running_store:
        assert (await running_store.api.get("/healthz")).status_code == 200
    assert delays == [1]
