"""WebSockets that are answered from a recording: the handshake, messages and their timing, and every way to close."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from calls.model import ChunkKind, Headers
from replay.answer import Answer, Frame
from tests.support.wire import MemoryRecorder, ScriptedAnswerer, Worker, open_worker

HANDSHAKE: Headers = (
    ("Sec-WebSocket-Accept", "that of another time"),
    ("X-Request-Id", "r1"),
    ("Playhead", 'replayed; run="r"'),
)


def text(data: str, after: int = 0) -> Frame:
    return Frame(kind="text", data=data.encode(), after=after)


def close(code: int, reason: str = "") -> Frame:
    return Frame(kind="close", data=code.to_bytes(2) + reason.encode())


@dataclass
class Fake:
    """A dialogue that follows a script, and remembers what it receives."""

    first: list[Frame] = field(default_factory=list)
    then: Callable[[ChunkKind, bytes], list[Frame]] = lambda kind, data: [
        Frame(kind="close" if kind == "close" else "binary" if kind == "binary" else "text", data=data)
    ]
    late: list[Frame] = field(default_factory=list)
    heard: list[tuple[str, bytes]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> list[Frame]:
        return self.first

    def receive(self, kind: ChunkKind, data: bytes) -> list[Frame]:
        self.heard.append((kind, data))
        return self.then(kind, data)

    def answer_waiting_client(self) -> list[Frame]:
        return self.late

    def note_client_left(self) -> None:
        self.gone.set()


@asynccontextmanager
async def talking(
    tmp_path: Path, fake: Fake, *headers: tuple[str, str], **options: Any
) -> AsyncIterator[ClientConnection]:
    answerer = ScriptedAnswerer(Answer(status=101, headers=(*HANDSHAKE, *headers), dialogue=fake))
    async with (
        open_worker(tmp_path, answerer=answerer) as worker,
        connect("wss://nowhere.invalid/ws", proxy=worker.proxy(), ssl=worker.tls, **options) as connection,
    ):
        yield connection


async def test_the_handshake_is_made_anew_and_the_rest_of_it_is_the_recorded_one(tmp_path: Path) -> None:
    async with talking(tmp_path, Fake()) as connection:
        assert connection.response is not None
        assert connection.response.status_code == 101
        assert connection.response.headers["x-request-id"] == "r1"
        assert connection.response.headers["playhead"] == 'replayed; run="r"'
        await connection.send("hello")
        assert await connection.recv() == "hello"


@pytest.mark.parametrize(("recorded", "offered"), [(True, True), (True, False), (False, True)])
async def test_messages_are_packed_where_they_were_and_the_client_can(
    tmp_path: Path, recorded: bool, offered: bool
) -> None:
    headers = [("Sec-WebSocket-Extensions", "permessage-deflate; server_max_window_bits=12")] if recorded else []
    offer = {"extensions": [ClientPerMessageDeflateFactory(client_max_window_bits=11)]} if offered else {}
    async with talking(tmp_path, Fake(), *headers, compression=None, **offer) as connection:
        assert bool(connection.protocol.extensions) is (recorded and offered)
        for message in ("a" * 5000, b"\x00\xff" * 3000):
            await connection.send(message)
            assert await connection.recv() == message


@pytest.mark.parametrize(("offered", "chosen"), [(["realtime", "x"], "realtime"), (["x"], None), ([], None)])
async def test_a_subprotocol_is_chosen_only_where_it_is_offered(
    tmp_path: Path, offered: list[str], chosen: str | None
) -> None:
    recorded = ("Sec-WebSocket-Protocol", "realtime")
    async with talking(tmp_path, Fake(), recorded, subprotocols=offered or None) as connection:
        assert connection.subprotocol == chosen


async def test_fragments_are_one_message_and_pings_are_none(tmp_path: Path) -> None:
    fake = Fake(first=[text("first")])
    async with talking(tmp_path, fake) as connection:
        assert await connection.recv() == "first"
        await (await connection.ping(b"are you there"))
        await connection.send(["in ", "pieces"])
        assert await connection.recv() == "in pieces"
    assert fake.heard == [("text", b"in pieces"), ("close", (1000).to_bytes(2))]


async def test_a_frame_comes_at_its_time_and_in_its_order(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    fake = Fake(first=[text("1"), text("2", after=200_000_000), text("3")])
    began = loop.time()
    async with talking(tmp_path, fake) as connection:
        assert [await connection.recv() for _ in "123"] == ["1", "2", "3"]
        assert loop.time() - began > 0.2


async def test_a_goodbye_of_the_server_has_its_code_and_reason(tmp_path: Path) -> None:
    async with talking(tmp_path, Fake(first=[close(4001, "that was äll")])) as connection:
        await connection.wait_closed()
        assert (connection.close_code, connection.close_reason) == (4001, "that was äll")


async def test_a_client_that_is_cut_off_hears_no_goodbye(tmp_path: Path) -> None:
    async with talking(tmp_path, Fake(first=[text("last words"), Frame(kind="cut")])) as connection:
        assert await connection.recv() == "last words"
        await connection.wait_closed()
        assert connection.close_code == 1006


async def test_a_client_that_stays_gets_the_reason_and_one_that_speaks_has_not_stayed(tmp_path: Path) -> None:
    wait = Frame(kind="wait", after=150_000_000)
    fake = Fake(first=[wait], then=lambda _, data: [text(data.decode()), wait], late=[close(4424, "you stayed")])
    async with talking(tmp_path, fake) as connection:
        await connection.send("not yet")
        assert await connection.recv() == "not yet"
        await connection.wait_closed()
        assert (connection.close_code, connection.close_reason) == (4424, "you stayed")


async def test_it_learns_that_a_client_disconnected_without_a_message(tmp_path: Path) -> None:
    fake = Fake(first=[text("hello")])
    async with talking(tmp_path, fake) as connection:
        await connection.recv()
        connection.transport.abort()
        await fake.gone.wait()


async def test_what_breaks_the_protocol_is_parted_from(tmp_path: Path) -> None:
    fake = Fake()
    async with talking(tmp_path, fake) as connection:
        connection.transport.write(b"\xff\xff no frame at all")
        await connection.wait_closed()
        assert connection.close_code == 1002
    assert fake.gone.is_set()


async def test_a_client_that_reads_slowly_gets_everything(tmp_path: Path) -> None:
    big = "x" * 100_000
    fake = Fake(first=[text(f"{number}{big}") for number in range(60)])
    async with talking(tmp_path, fake) as connection:
        for number in range(60):
            assert await connection.recv() == f"{number}{big}"


async def _read_status(worker: Worker, *fields: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    head = (b"GET http://nowhere.invalid/ws HTTP/1.1", b"Host: nowhere.invalid", b"Connection: Upgrade", *fields)
    writer.write(b"\r\n".join((*head, b"", b"")))
    status = await reader.readuntil(b"\r\n")
    writer.close()
    return status


@pytest.mark.parametrize("key", [b"Sec-WebSocket-Key: short", b"Sec-WebSocket-Key: %%%", b"X: y"])
async def test_a_request_that_cannot_be_a_websocket_is_refused(tmp_path: Path, key: bytes) -> None:
    fake = Fake()
    answerer = ScriptedAnswerer(Answer(status=101, headers=HANDSHAKE, dialogue=fake))
    async with open_worker(tmp_path, answerer=answerer) as worker:
        assert b" 400 " in await _read_status(worker, b"Upgrade: websocket", key)
    assert fake.gone.is_set()


async def test_what_a_client_sends_with_its_opening_is_heard(tmp_path: Path) -> None:
    answerer = ScriptedAnswerer(Answer(status=101, headers=HANDSHAKE, dialogue=Fake(first=[text("1")])))
    async with open_worker(tmp_path, answerer=answerer) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(
            b"GET http://nowhere.invalid/ws HTTP/1.1\r\nHost: nowhere.invalid\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"\x81\x82\0\0\0\0hi"
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=" in head
        assert await reader.readexactly(7) == b"\x81\x011\x81\x02hi"
        writer.close()


async def test_a_refusal_is_read_by_the_client_as_what_it_is(tmp_path: Path) -> None:
    refused = Answer(status=424, reason="Failed Dependency", headers=(("x-should-retry", "false"),))
    answerer = ScriptedAnswerer(refused)
    async with open_worker(tmp_path, answerer=answerer) as worker:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await connect("wss://nowhere.invalid/ws", proxy=worker.proxy(), ssl=worker.tls)
    assert caught.value.response.status_code == 424


async def test_messages_that_join_a_run_are_reported_one_by_one(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    answer = Answer(status=101, headers=HANDSHAKE, dialogue=Fake(first=[text("1")]), recorded_outcome="completed")
    async with open_worker(tmp_path, recorder, ScriptedAnswerer(answer)) as worker:
        async with connect("wss://nowhere.invalid/ws", proxy=worker.proxy(), ssl=worker.tls) as connection:
            assert await connection.recv() == "1"
            await connection.send(b"\x00\xff")
            await connection.recv()
        await recorder.only.over.wait()
    bye = (1000).to_bytes(2)
    assert recorder.only.messages() == [
        ("response", b"1", "text"),
        ("request", b"\x00\xff", "binary"),
        ("response", b"\x00\xff", "binary"),
        ("request", bye, "close"),
        ("response", bye, "close"),
    ]
    assert recorder.only.head is not None
    assert (recorder.only.head[0], recorder.only.outcome) == (101, "completed")


async def test_an_opening_that_was_not_recorded_goes_live_where_it_may(tmp_path: Path) -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    recorder = MemoryRecorder()
    async with serve(echo, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        upstreams = {"api.test": f"http://127.0.0.1:{port}"}
        async with (
            open_worker(tmp_path, recorder, ScriptedAnswerer(None), mode="auto", upstreams=upstreams) as worker,
            connect("wss://api.test/ws", proxy=worker.proxy(), ssl=worker.tls) as connection,
        ):
            assert connection.response is not None
            assert connection.response.headers["playhead"].startswith("live;")
            await connection.send("hello")
            assert await connection.recv() == "hello"
    assert [message[1] for message in recorder.only.messages()][:2] == [b"hello", b"hello"]
