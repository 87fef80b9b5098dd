"""Defects of mitmproxy that the engines do not have; what is not HTTP is refused, and so are the worker's own addresses."""

import asyncio
import gc
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.connection import Client
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import _http2

from proxy.mitm import relay_stream as relayed
from proxy.mitm.connection import Watchdog
from proxy.mitm.layer_events import Await
from proxy.mitm.protocol import http1, http2
from proxy.wire.config import Limits
from proxy.wire.engine_state import Options
from tests.support.h2quick import frame
from tests.support.h2wire import Peer
from tests.support.wire import (
    MemoryRecorder,
    Worker,
    answering,
    api_test_at,
    connect_through,
    open_worker,
    read_request,
    serving,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
ASK = b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\n\r\n"


async def _got(worker: Worker, request: bytes) -> tuple[int, dict[str, Any]]:
    """Return status and body of the response to a raw request, if it is a problem by the worker."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(request)
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"application/problem+json" not in head:
            return int(head[9:12]), {}
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return int(head[9:12]), json.loads(await reader.readexactly(length))
    finally:
        writer.close()


async def test_more_than_five_connections_to_one_upstream_are_open_at_once(tmp_path: Path) -> None:
    """mitmproxy allows five connections and delays the others."""
    everyone = asyncio.Barrier(12)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await everyone.wait()
        writer.write(OK)
        await reader.read()

    async with (
        asyncio.timeout(60),
        serving(handler) as upstream,
        open_worker(tmp_path, MemoryRecorder(), upstreams=api_test_at(upstream)) as worker,
    ):
        # One HTTP/2 connection from the client, and an upstream that needs a connection for each request.
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        streams = [peer.ask("api.test", "/x") for _ in range(12)]
        assert [(await peer.answer(stream)).body for stream in streams] == [b"hello"] * 12
        writer.close()


async def test_a_silent_stream_is_not_cut_for_being_idle(tmp_path: Path) -> None:
    """mitmproxy closes after 600 s without a byte, even if the model is only thinking."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
        await asyncio.sleep(2.5)
        writer.write(b"llo")
        await reader.read()

    limits = Limits(idle=1, grace=0.5)
    async with open_worker(tmp_path, MemoryRecorder(), upstream=serving(handler), limits=limits) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        assert await reader.readexactly(len(OK)) == OK
        # Now the connection is idle, and is closed.
        assert await reader.read() == b""
        writer.close()


async def test_what_begins_while_the_watchdog_sleeps_is_not_closed_by_it() -> None:
    closed = asyncio.Event()

    async def close() -> None:
        closed.set()

    watchdog = Watchdog(0, close)
    watchdog.timeout = 0.01  # type: ignore[assignment]  # as `Options` has it
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watchdog.watch())
        await asyncio.sleep(0)
        with watchdog.disarm():
            time.sleep(0.02)  # noqa: ASYNC251 - a loop that is late
            for _ in range(5):
                await asyncio.sleep(0)
            assert not closed.is_set()
        await closed.wait()
        await watching


async def test_no_upstream_is_contacted_before_there_is_a_request(tmp_path: Path) -> None:
    async with (
        answering(OK) as upstream,
        open_worker(tmp_path, MemoryRecorder(), upstreams=api_test_at(upstream)) as worker,
    ):
        _, writer = await connect_through(worker, "api.test:443", alpn=("h2", "http/1.1"))
        assert upstream.connections == 0
        writer.close()


async def test_a_head_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    async with open_worker(tmp_path) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"GET http://api.test/x HTTP/1.1\r\n")
        for _ in range(20):
            writer.write(b"X-More: " + b"a" * 10_000 + b"\r\n")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_an_endless_chunk_header_ends_the_connection(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + b"1" * (1 << 20))
        await recorder.begun.wait()
        await recorder.only.over.wait()
        writer.close()
    assert recorder.only.outcome == "client_closed"


async def test_host_is_what_was_asked_for_and_not_what_it_says(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        await _got(worker, ASK.replace(b"Host: api.test", b"Host: evil.test"))
    assert b"\r\nHost: api.test\r\n" in upstream.heads[0]
    assert recorder.only.begun["url"] == "http://api.test/x"


async def test_a_tunnel_is_for_the_host_it_was_asked_for(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        reader, writer = await connect_through(worker, "api.test:443")
        writer.write(b"GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 421 ")
        writer.close()
        assert upstream.connections == 0


async def test_a_connect_inside_a_tunnel_goes_nowhere(tmp_path: Path) -> None:
    async with answering(OK) as upstream, open_worker(tmp_path, upstreams=api_test_at(upstream)) as worker:
        reader, writer = await connect_through(worker, "api.test:443")
        writer.write(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        writer.close()
        assert upstream.connections == 0


async def test_a_request_to_the_proxy_itself_gets_the_reason(tmp_path: Path) -> None:
    async with open_worker(tmp_path) as worker:
        got, problem = await _got(worker, b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert (got, problem["error"]["code"]) == (400, "not_a_proxy_request")


@pytest.mark.engine("mitmproxy")
async def test_a_crash_of_a_layer_ends_the_connection_and_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """mitmproxy logs "mitmproxy has crashed!" and leaves the client waiting."""

    def crash(*_: object) -> None:
        raise NotImplementedError("something that mitmproxy does not know")

    monkeypatch.setattr(relayed.RelayStream, "response_head", crash)
    recorder = MemoryRecorder()
    async with asyncio.timeout(60), open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        assert await reader.read() == b""
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.outcome == "refused"
    assert "a connection was closed after an internal error" in caplog.text


@pytest.mark.engine("mitmproxy")
async def test_a_hook_that_fails_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """mitmproxy logs an addon's error and continues."""

    def fail(*_: object) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr("proxy.mitm.layers.LayerChooser._admit_connect", fail)
    async with asyncio.timeout(60), open_worker(tmp_path) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
    assert "a fault of ours" in caplog.text


@pytest.mark.engine("mitmproxy")
async def test_a_fault_in_connecting_ends_the_connection_and_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """mitmproxy connects in a task whose errors are lost."""

    async def fail(*_: object, **__: object) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr("proxy.wire.destinations.Destinations.connect", fail)
    recorder = MemoryRecorder()
    async with asyncio.timeout(60), open_worker(tmp_path, recorder) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        assert await reader.read() == b""
        writer.close()
    assert (recorder.only.outcome, recorder.only.error) == (
        "refused",
        "the proxy failed while it forwarded this exchange",
    )
    assert "a fault of ours" in caplog.text


class _Failing(MemoryRecorder):
    """A recorder that raises errors."""

    def __init__(self, on_failure: Any, where: str) -> None:
        super().__init__(on_failure)
        self.where = where

    def begin(self, **head: Any) -> Any:
        if self.where == "begin":
            raise RuntimeError("a fault of ours")
        exchange = super().begin(**head)
        if self.where != "nowhere":
            setattr(exchange, self.where, self._fail)
        return exchange

    def _fail(self, *_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")


@pytest.mark.parametrize(
    "where", ["begin", "record_data", "record_end", "record_response_head", "record_close", "wait_until_recorded"]
)
async def test_a_recorder_that_fails_does_not_break_what_it_records(tmp_path: Path, where: str) -> None:
    recorder = _Failing("gap", where)
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        got, _ = await _got(worker, ASK.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\na"))
    assert got == 200
    assert [gap[1] for gap in recorder.gaps] == ["the recorder failed: RuntimeError"]


@pytest.mark.parametrize("where", ["begin", "record_data", "record_end", "wait_until_recorded"])
async def test_a_recorder_that_fails_lets_nothing_pass_where_that_is_the_policy(tmp_path: Path, where: str) -> None:
    recorder = _Failing("refuse", where)
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        got, _ = await _got(worker, ASK.replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\na"))
        assert (got, upstream.connections) == (503, 0)
    assert recorder.gaps


async def test_a_bomb_passes_as_it_is(tmp_path: Path) -> None:
    """254 KiB of gzip that decompress to 256 MiB: the worker does not decompress it."""
    bomb = gzip.compress(bytes(1 << 26), 9, mtime=0)
    sent = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(sent)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
    assert recorder.only.body("response") == bomb


async def test_a_client_that_sends_far_ahead_is_not_read(tmp_path: Path) -> None:
    proceed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await proceed.wait()
            writer.write(OK)

    async with open_worker(tmp_path, upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        block, size = ASK * 1000, 0
        try:
            async with asyncio.timeout(0.5):
                while size < 64 << 20:
                    writer.write(block)
                    size += len(block)
                    await writer.drain()
        except TimeoutError:
            pass
        # The worker's buffer, and the kernel's buffers of both ends.
        assert size < 24 << 20
        proceed.set()
        assert await reader.readexactly(len(OK) * 3) == OK * 3
        writer.close()


@pytest.mark.engine("mitmproxy")
async def test_connections_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    """An HTTP/2 client of an HTTP/1 upstream needs a new connection for each request; mitmproxy keeps all of them."""
    gc.freeze()  # to look through what the process had before takes a second
    async with answering(OK) as upstream, open_worker(tmp_path, upstreams=api_test_at(upstream)) as worker:
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        for _ in range(20):
            await peer.answer(peer.ask("api.test", "/x"))
        assert upstream.connections == 20
        gc.collect()
        assert sum(isinstance(thing, http1.Http1UpstreamSide) for thing in gc.get_objects()) < 5
        writer.close()


def test_frames_that_cost_much_let_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One read of a socket can contain 6,000 DATA frames of one byte each."""
    handled: list[bytes] = []

    def costly(self: http2.Http2, event: events.DataReceived) -> Iterator[commands.Command]:
        handled.append(event.data)
        over = time.perf_counter() + http2.TURN_SECONDS
        while time.perf_counter() < over:
            pass
        yield from ()

    monkeypatch.setattr(_http2.Http2Connection, "_handle_event", costly)
    client = Client(peername=("127.0.0.1", 1), sockname=("127.0.0.1", 2), timestamp_start=0.0)
    connection = http2.Http2ClientSide(Context(client, Options(1.0)))  # type: ignore[arg-type]
    sent = frame(0, bytes(5000))
    turns = list(connection._process_in_slices(events.DataReceived(client, sent)))
    assert b"".join(handled) == sent
    assert len(turns) == len(handled) == -(-len(sent) // http2.SLICE_BYTES)
    assert all(isinstance(turn, Await) for turn in turns)
