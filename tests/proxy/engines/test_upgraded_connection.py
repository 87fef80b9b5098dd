"""WebSockets, and other protocols after a 101 response."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
import wsproto
from mitmproxy.websocket import WebSocketMessage
from wsproto.connection import ConnectionType
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Ping, Pong, Request, TextMessage
from wsproto.extensions import Extension, PerMessageDeflate

from proxy.wire.config import Limits
from tests.support.wire import MemoryRecorder, Worker, connect_through, open_worker, serving


class Socket:
    """One end of a WebSocket over a stream, HTTP handshake included."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: ConnectionType) -> None:
        self.reader, self.writer = reader, writer
        self.ws = wsproto.WSConnection(kind)
        self.raw = b""
        self.events: list[Any] = []

    def send(self, event: Any) -> None:
        self.writer.write(self.ws.send(event))

    async def next(self) -> Any:
        """Return the next event."""
        while not self.events:
            data = await self.reader.read(65536)
            self.raw += data
            self.ws.receive_data(data or None)
            self.events += list(self.ws.events())
        return self.events.pop(0)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An upstream that echoes each message, and answers a ping with a pong."""
    socket = Socket(reader, writer, ConnectionType.SERVER)
    while True:
        match await socket.next():
            case Request(extensions=offered):
                accepted: list[Extension] = [PerMessageDeflate()] if offered else []
                socket.send(AcceptConnection(extensions=accepted))
            case Ping() as ping:
                socket.send(ping.response())
            case Message() as message:
                socket.send(message)
            case CloseConnection(code=code) as close:
                if code != 1006:  # the other side sent nothing
                    socket.send(close.response())
                return


async def _open(worker: Worker, *, deflate: bool = False) -> Socket:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    socket = Socket(reader, writer, ConnectionType.CLIENT)
    handshake = socket.ws.send(
        Request(host="api.test", target="/ws", extensions=[PerMessageDeflate()] if deflate else [])
    )
    writer.write(handshake.replace(b"GET /ws", b"GET http://api.test/ws"))
    assert isinstance(await socket.next(), AcceptConnection)
    return socket


@pytest.mark.parametrize("deflate", [False, True])
async def test_messages_pass_and_are_recorded(tmp_path: Path, deflate: bool) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(_echo)) as worker:
        socket = await _open(worker, deflate=deflate)
        socket.send(TextMessage('{"type": "hellö"}'))
        assert (await socket.next()).data == '{"type": "hellö"}'
        socket.send(BytesMessage(b"\x00\xff" * 1000))
        assert bytes((await socket.next()).data) == b"\x00\xff" * 1000
        socket.send(CloseConnection(1000, "done"))
        assert isinstance(await socket.next(), CloseConnection)
        socket.writer.close()
        await recorder.only.over.wait()
    text, blob, close = '{"type": "hellö"}'.encode(), b"\x00\xff" * 1000, (1000).to_bytes(2) + b"done"
    assert recorder.only.messages() == [
        ("request", text, "text"),
        ("response", text, "text"),
        ("request", blob, "binary"),
        ("response", blob, "binary"),
        ("request", close, "close"),
        ("response", close, "close"),
    ]
    assert recorder.only.head is not None
    assert (recorder.only.head[0], recorder.only.outcome) == (101, "completed")


async def test_what_passes_is_what_came_to_the_byte(tmp_path: Path) -> None:
    """Fragments, masks, pings and reserved bits are forwarded unchanged."""
    arrived, sent = asyncio.Queue[bytes](), b"\x01\x03abc\x89\x01p\x80\x02de"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        arrived.put_nowait(await reader.readexactly(11))
        writer.write(sent)
        await reader.read()

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(
            b"GET http://api.test/ws HTTP/1.1\r\nHost: api.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        frame = b"\x81\x85\x01\x02\x03\x04" + bytes(
            b ^ m for b, m in zip(b"hello", b"\x01\x02\x03\x04\x01", strict=True)
        )
        writer.write(frame)
        assert await arrived.get() == frame
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.messages() == [("request", b"hello", "text"), ("response", b"abcde", "text")]
    assert recorder.only.outcome == "client_closed"


async def test_a_fragment_is_not_held_back_until_its_message_is_whole(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(_echo)) as worker:
        socket = await _open(worker)
        socket.send(TextMessage("first ", message_finished=False))
        got = await socket.next()
        assert (got.data, got.message_finished) == ("first ", False)
        assert not recorder.only.messages()
        socket.send(Ping(b"p"))
        assert isinstance(await socket.next(), Pong)
        socket.writer.close()


async def test_a_broken_websocket_is_reported_as_broken(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = Socket(reader, writer, ConnectionType.SERVER)
        await socket.next()
        socket.send(AcceptConnection())
        socket.send(TextMessage("last words"))

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        socket = await _open(worker)
        assert (await socket.next()).data == "last words"
        await recorder.only.over.wait()
        socket.writer.close()
    assert recorder.only.outcome == "server_closed"


async def test_what_breaks_the_protocol_passes_and_is_noted(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = Socket(reader, writer, ConnectionType.SERVER)
        await socket.next()
        socket.send(AcceptConnection())
        await socket.next()
        writer.write(b"\xff\xff no frame at all")
        await reader.read()

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        socket = await _open(worker)
        socket.send(Ping())
        assert await socket.reader.readexactly(18) == b"\xff\xff no frame at all"
        socket.writer.close()
        await recorder.only.over.wait()
    assert [gap[1] for gap in recorder.gaps] == ["the WebSocket violates its protocol; what follows is not recorded"]


async def test_another_protocol_passes_and_is_noted(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Upgrade: tcp" in head
        writer.write(b"HTTP/1.1 101 Switching\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n")
        writer.write((await reader.readexactly(4)).upper())
        await reader.read()

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(
            b"POST http://api.test/c HTTP/1.1\r\nHost: api.test\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"abcd")
        assert await reader.readexactly(4) == b"ABCD"
        writer.close()
        await recorder.only.over.wait()
    assert len(recorder.gaps) == 1


async def test_h2c_is_not_switched_to(tmp_path: Path) -> None:
    """The data after the switch could not be recorded. Without the offer, the upstream responds in HTTP/1."""
    heads = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()

    async with open_worker(tmp_path, MemoryRecorder(), upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        fields = b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n"
        writer.write(b"GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n" + fields)
        await reader.readuntil(b"ok")
        writer.close()
    assert heads == [b"GET / HTTP/1.1\r\nHost: api.test\r\n\r\n"]


async def test_a_silent_websocket_is_not_cut_for_being_idle(tmp_path: Path) -> None:
    limits = Limits(idle=1, silence=1, grace=0.5)
    async with open_worker(tmp_path, MemoryRecorder(), upstream=serving(_echo), limits=limits) as worker:
        socket = await _open(worker)
        await asyncio.sleep(2.5)
        socket.send(TextMessage("still here"))
        assert (await socket.next()).data == "still here"
        socket.writer.close()


async def test_a_websocket_within_tls_passes(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(_echo)) as worker:
        reader, writer = await connect_through(worker, "api.test:443")
        socket = Socket(reader, writer, ConnectionType.CLIENT)
        socket.send(Request(host="api.test", target="/ws"))
        assert isinstance(await socket.next(), AcceptConnection)
        socket.send(TextMessage("hello"))
        assert (await socket.next()).data == "hello"
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.begun["url"] == "https://api.test/ws"
    assert [message[1] for message in recorder.only.messages()] == [b"hello", b"hello"]


async def test_messages_do_not_pile_up(tmp_path: Path) -> None:
    """mitmproxy keeps all messages of a WebSocket until it ends."""
    gc.freeze()  # to look through what the process had before takes a second
    async with open_worker(tmp_path, MemoryRecorder(), upstream=serving(_echo)) as worker:
        socket = await _open(worker)
        for number in range(50):
            socket.send(TextMessage(f"message {number}"))
            await socket.next()
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, WebSocketMessage)]
        socket.writer.close()


async def test_a_message_goes_on_when_it_is_kept(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(_echo)) as worker:
        socket = await _open(worker)
        recorder.gate.clear()
        socket.send(TextMessage("hello"))
        await recorder.until(lambda: len(recorder.only.messages()) == 1)
        recorder.gate.set()
        assert (await socket.next()).data == "hello"
        socket.writer.close()


async def test_a_message_that_cannot_be_kept_goes_nowhere_where_that_is_the_policy(tmp_path: Path) -> None:
    recorder = MemoryRecorder(on_failure="refuse")
    async with open_worker(tmp_path, recorder, upstream=serving(_echo)) as worker:
        socket = await _open(worker)
        recorder.keeps = False
        socket.send(TextMessage("hello"))
        assert await socket.reader.read() == b""
        await recorder.only.over.wait()
        socket.writer.close()
    assert recorder.only.outcome == "refused"
    assert recorder.only.messages() == [("request", b"hello", "text")]


@pytest.mark.parametrize(
    "extensions", [b"permessage-deflate; server_max_window_bits=8", b"permessage-deflate; client_max_window_bits=x"]
)
async def test_an_extension_that_cannot_be_read_passes_and_is_noted(tmp_path: Path, extensions: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(head + b"Sec-WebSocket-Extensions: " + extensions + b"\r\n\r\n\x81\x02hi")
        await reader.read()

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(
            b"GET http://api.test/ws HTTP/1.1\r\nHost: api.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"\x81\x02hi"
        writer.close()
        await recorder.only.over.wait()
    assert len(recorder.gaps) == 1
