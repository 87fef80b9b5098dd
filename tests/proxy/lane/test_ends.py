"""Responses before the end of their requests, clients that leave meanwhile, and data after a last request."""

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.lane.relay import RelayedExchange
from proxy.lane.upstream import Upstream as Connection
from proxy.lane.upstream import UpstreamAddress, Upstreams
from proxy.lane.upstream_http1 import ClientPool
from proxy.trust.ca import ensure_ca
from replay.answer import Answer, Piece
from tests.support.h2wire import Peer, StreamBroken
from tests.support.h2workers import OK as OK2
from tests.support.h2workers import open_h2_client, open_h2_pair, open_h2_upstream, reach_upstreams
from tests.support.wire import (
    MemoryExchange,
    MemoryRecorder,
    ScriptedAnswerer,
    Side,
    answering,
    connect_through,
    open_worker,
    serving,
    whole,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
ASK = b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\n\r\n"
UPLOAD = b"POST /x HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n"


class Holding(MemoryRecorder):
    """Records the end of one side's message only when its gate is open."""

    def __init__(self, held: Side) -> None:
        super().__init__()
        self.held = held
        self.gate.clear()

    def begin(self, *, buffers_request: bool = False, memo: object = None, **head: Any) -> MemoryExchange:
        self.exchanges.append(HeldRecorder(str(len(self.exchanges)), head, self))
        self.begun.set()
        return self.exchanges[-1]

    def has_ended(self, side: Side) -> bool:
        return any(word[:2] == ("ended", side) for exchange in self.exchanges for word in exchange.words)


class HeldRecorder(MemoryExchange):
    def is_recorded_now(self) -> bool:
        last = [word[1] for word in self.words if word[0] == "ended"][-1:]
        return last != [self.recorder.held]  # type: ignore[attr-defined]


class Speaker:
    """A client that uploads piece by piece, over HTTP/1.1 or HTTP/2."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, http2: bool) -> None:
        self.reader, self.writer = reader, writer
        self.peer = Peer(reader, writer, client=True) if http2 else None

    def begin(self) -> None:
        if self.peer is None:
            self.writer.write(UPLOAD + b"2\r\nab\r\n")
            return
        self.stream = self.peer.begin("api.test", "/x")
        self.peer.conn.send_data(self.stream, b"ab")
        self.peer.flush()

    def end(self) -> None:
        if self.peer is None:
            self.writer.write(b"0\r\n\r\n")
            return
        self.peer.conn.end_stream(self.stream)
        self.peer.flush()

    async def answer(self) -> bytes:
        if self.peer is None:
            return (await self.reader.readexactly(len(OK)))[-5:]
        return (await self.peer.answer(self.stream)).body


@asynccontextmanager
async def _uploading(
    directory: Path, recorder: MemoryRecorder, handler: Callable[..., Any], *, http2: bool
) -> AsyncIterator[Speaker]:
    async with open_worker(directory, recorder, upstream=serving(handler)) as worker:
        speaker = Speaker(
            *await connect_through(worker, "api.test:443", alpn=("h2" if http2 else "http/1.1",)), http2=http2
        )
        try:
            yield speaker
        finally:
            speaker.writer.close()


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("held", ["request", "response"])
async def test_an_answer_that_is_there_before_its_request_ends_nothing_too_early(
    tmp_path: Path, held: Side, http2: bool
) -> None:
    """Otherwise the upstream would read the next request on that connection as the rest of this body."""
    recorder, begun, rest = Holding(held), asyncio.Event(), asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"ab\r\n")
        begun.set()
        if held == "request":
            await recorder.until(lambda: recorder.has_ended("request"))
        writer.write(OK)
        rest.set_result(await reader.readexactly(5))

    async with _uploading(tmp_path, recorder, handler, http2=http2) as speaker:
        speaker.begin()
        await begun.wait()
        if held == "request":
            speaker.end()
            assert await speaker.answer() == b"hello"
        else:
            await recorder.until(lambda: recorder.has_ended("response"))
            speaker.end()
            await recorder.until(lambda: recorder.has_ended("request"))
        recorder.gate.set()
        async with asyncio.timeout(60):
            assert await rest == b"0\r\n\r\n"
            if held == "response":
                assert await speaker.answer() == b"hello"
            await recorder.only.over.wait()
    assert recorder.only.outcome == "completed"


def _at_a_standstill(tmp_path: Path) -> tuple[Upstreams, Connection]:
    way = UpstreamAddress("127.0.0.1", 9, None)
    return Upstreams(str(ensure_ca(tmp_path).certificate)), Connection(way)


def test_a_connection_that_was_made_for_a_client_that_has_left_is_for_the_next_one(tmp_path: Path) -> None:
    upstreams, connection = _at_a_standstill(tmp_path)
    lender = ClientPool(upstreams, None)  # type: ignore[arg-type]  # nothing is connected
    lender.close()
    lender.take_back(connection)
    assert upstreams.take_idle(connection.address, is_repeatable=True) is connection


def test_a_connection_that_has_not_taken_all_of_its_last_request_is_for_nobody(tmp_path: Path) -> None:
    upstreams, connection = _at_a_standstill(tmp_path)
    lender = ClientPool(upstreams, None)  # type: ignore[arg-type]  # as above
    connection.pause_writing()
    lender.take_back(connection)
    assert connection.is_gone
    assert lender.lend(connection.address, is_repeatable=True) is None


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), whole(b"one")),
        (ASK, Answer(status=200, headers=(("Content-Length", "5"),), pieces=(Piece(0, b"one"),), end="cut")),
    ],
)
async def test_what_stands_behind_a_last_request_is_not_looked_at(tmp_path: Path, first: bytes, answer: Answer) -> None:
    """It would use up the recorded answer for a client that comes back for it."""
    answerer = ScriptedAnswerer(answer, whole(b"two"))
    async with open_worker(tmp_path, answerer=answerer) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(first + ASK)
        assert (await reader.read()).endswith(b"one")
        writer.close()
    assert len(answerer.asked) == 1


async def test_a_fault_of_ours_in_an_answer_is_not_the_upstream_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise LookupError("a mistake of ours")

    monkeypatch.setattr(RelayedExchange, "handle_whole_response", fail)
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
    assert recorder.only.outcome == "refused"
    assert "a mistake of ours" in caplog.text


# HTTP/2 on both sides


async def test_a_get_that_was_reset_is_not_asked_again(tmp_path: Path) -> None:
    """A reset is a response of the upstream: only a connection that breaks without one counts as unanswered."""
    asked: list[str | None] = []

    async def handler(peer: Peer) -> None:
        while True:
            stream, heard = await peer.request()
            asked.append(heard.header(":path"))
            if asked[-1] == "/reset":
                peer.conn.reset_stream(stream, 2)
                peer.flush()
            else:
                peer.respond(stream, OK2, [b"ok"])

    async with open_h2_pair(tmp_path, handler) as (peer, authority):
        await peer.answer(peer.ask(authority, "/"))
        with pytest.raises(StreamBroken, match=r"code 2$"):
            await peer.answer(peer.ask(authority, "/reset"))
    assert asked == ["/", "/reset"]


async def test_all_that_came_before_an_upstream_broke_off_reaches_a_slow_client(tmp_path: Path) -> None:
    size, recorder = 200_000, MemoryRecorder()

    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, OK2)
        left = size
        while left:
            room = min(left, 16384, peer.conn.local_flow_control_window(stream))
            if room <= 0:
                await peer.step()
                continue
            peer.conn.send_data(stream, bytes(room))
            left -= room
            peer.flush()
        peer.conn.reset_stream(stream, 2)
        peer.flush()
        await peer.request()

    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream, acknowledge=False) as (peer, authority),
    ):
        stream = peer.ask(authority, "/")
        await recorder.begun.wait()
        await recorder.only.over.wait()
        peer.widen(stream)
        with pytest.raises(StreamBroken, match=r"code 2$"):
            await peer.answer(stream)
    assert len(peer.streams[stream].body) == len(recorder.only.body("response")) == size


# Bodies that end with their connection: an orderly close would complete them

CLOSE_DELIMITED = [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"]


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def _receive(port: int, request: bytes, may_read: threading.Event) -> tuple[bytes, bool]:
    """Return what a client receives that reads only once it may, and whether its connection was reset."""
    received = b""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(request)
        may_read.wait()
        try:
            while data := client.recv(4096):
                received += data
        except ConnectionResetError:
            return received, True
    return received, False


@pytest.mark.parametrize("head", CLOSE_DELIMITED)
@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_body_that_ends_by_close_and_was_reset_has_no_orderly_end(
    tmp_path: Path, head: bytes, is_reset: bool
) -> None:
    """And nothing of what came before the reset is lost, even where the client's system has no room for it yet."""
    body, may_read = bytes(200_000), threading.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        await recorder.until(lambda: len(recorder.only.body("response")) == len(body))
        if is_reset:
            _reset(writer)

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        receiving = asyncio.get_running_loop().run_in_executor(None, _receive, worker.port, ASK, may_read)
        try:
            await recorder.begun.wait()
            await recorder.only.over.wait()
        finally:
            may_read.set()
        received, was_reset = await receiving
    assert (received.partition(b"\r\n\r\n")[2], was_reset) == (body, is_reset)
    assert recorder.only.outcome == ("server_closed" if is_reset else "completed")


@pytest.mark.parametrize("head", CLOSE_DELIMITED)
async def test_a_body_in_tls_that_ends_by_close_and_was_reset_has_no_orderly_end(tmp_path: Path, head: bytes) -> None:
    """Many clients take the end of a connection for the end of its TLS."""
    part_arrived = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"part")
        await part_arrived.wait()
        _reset(writer)

    async with open_worker(tmp_path, MemoryRecorder(), upstream=serving(handler)) as worker:
        reader, writer = await connect_through(worker, "api.test:443")
        writer.write(b"GET /x HTTP/1.1\r\nHost: api.test\r\n\r\n")
        await reader.readuntil(b"part")
        part_arrived.set()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_replayed_body_that_ends_by_close_and_was_cut_has_no_orderly_end(tmp_path: Path) -> None:
    answer = Answer(status=200, reason="OK", http_version="HTTP/1.0", pieces=(Piece(0, b"part"),), end="cut")
    may_read = threading.Event()
    may_read.set()
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        received, was_reset = await asyncio.to_thread(_receive, worker.port, ASK, may_read)
    assert received.endswith(b"\r\n\r\npart")
    assert was_reset
