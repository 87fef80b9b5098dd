"""Every way in which an exchange can end is recorded as such, and visible to both sides."""

import asyncio
import json
import socket
import struct
from pathlib import Path

import pytest

from proxy.processes.ports import free_port
from proxy.wire.config import Limits
from tests.support.wire import (
    MemoryRecorder,
    Worker,
    answering,
    api_test_at,
    open_worker,
    read_request,
    serving,
)

ASK = b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"


async def _client(worker: Worker, request: bytes = ASK) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(request)
    return reader, writer


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize(
    ("head", "got"),
    [
        (HEAD, b"part"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n", b"part"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n2\r\nx", b""),
    ],
)
async def test_a_response_cut_by_the_upstream_is_cut_for_the_client(
    tmp_path: Path, how: str, head: bytes, got: bytes
) -> None:
    proceed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(head + got)
        await proceed.wait()
        if how == "reset":
            _reset(writer)

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await _client(worker)
        await recorder.begun.wait()
        await recorder.until(lambda: b"part" in recorder.only.body("response"))
        proceed.set()
        rest = await reader.read()
        assert b"part" in rest
        assert not rest.endswith(b"0\r\n\r\n")
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.outcome == "server_closed"
    assert recorder.only.error == "the upstream broke off before its response was complete"


async def test_an_upstream_that_closes_without_a_word_leaves_the_client_without_one(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await _client(worker)
        assert await reader.read() == b""
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.head is None
    assert recorder.only.outcome == "server_closed"


async def test_a_client_that_leaves_takes_the_upstream_with_it(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"part")
        await reader.read()
        left.set()

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await _client(worker)
        await reader.readexactly(len(HEAD) + 4)
        writer.close()
        async with asyncio.timeout(60):
            await left.wait()
            await recorder.only.over.wait()
    assert (recorder.only.outcome, recorder.only.body("response")) == ("client_closed", b"part")


CHUNKED = b"POST http://api.test/x HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"


@pytest.mark.parametrize("request_", [ASK, CHUNKED])
async def test_a_client_that_leaves_before_its_request_is_kept_is_not_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    recorder = MemoryRecorder()
    recorder.gate.clear()
    async with (
        answering(HEAD + b"0123456789") as upstream,
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        _, writer = await _client(worker, request_)
        await recorder.begun.wait()
        _reset(writer)
        await asyncio.sleep(0.05)  # for the reset to arrive
        recorder.gate.set()
        await recorder.only.over.wait()
        assert upstream.connections == 0
    assert recorder.only.outcome == "client_closed"
    assert not caplog.records


async def test_a_client_that_leaves_in_its_own_request_is_recorded(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(HEAD + b"0123456789") as upstream,
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        _, writer = await _client(worker, ASK.replace(b"\r\n\r\n", b"\r\nContent-Length: 100\r\n\r\npart"))
        await recorder.until(lambda: bool(recorder.exchanges) and recorder.only.body("request") == b"part")
        writer.close()
        await recorder.only.over.wait()
        assert upstream.connections == 0
    assert recorder.only.outcome == "client_closed"


async def _problem(worker: Worker, request: bytes = ASK) -> tuple[int, dict[str, object]]:
    """Return status and body of a refusal by the worker."""
    reader, writer = await _client(worker, request)
    head = await reader.readuntil(b"\r\n\r\n")
    fields = head.decode().lower()
    assert "content-type: application/problem+json" in fields
    length = int(fields.partition("content-length: ")[2].partition("\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    writer.close()
    assert body["status"] == int(head[9:12])
    assert body["error"]["message"] == body["detail"]
    return int(head[9:12]), body


async def test_an_upstream_that_refuses_the_connection_is_a_502_that_says_so(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    with socket.socket() as deaf:
        # It never listens, and nobody else can.
        deaf.bind(("127.0.0.1", 0))
        nowhere = {"api.test": f"http://127.0.0.1:{deaf.getsockname()[1]}"}
        async with open_worker(tmp_path, recorder, upstreams=nowhere) as worker:
            status, body = await _problem(worker)
    assert status == 502
    assert "refused" in str(body["detail"])
    assert (recorder.only.outcome, recorder.only.head[0] if recorder.only.head else None) == ("server_closed", 502)


async def test_a_name_that_does_not_resolve_is_a_502_that_says_so(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder) as worker:
        status, body = await _problem(worker, ASK.replace(b"api.test", b"nowhere.invalid"))
    assert status == 502
    assert "nowhere.invalid does not resolve" in str(body["detail"])
    assert recorder.only.outcome == "server_closed"


async def test_a_failed_connection_is_tried_again_for_the_next_request(tmp_path: Path) -> None:
    port = free_port("127.0.0.1", 0)
    async with open_worker(tmp_path, MemoryRecorder(), upstreams={"api.test": f"http://127.0.0.1:{port}"}) as worker:
        reader, writer = await _client(worker)
        head, _ = await read_request(reader)
        assert b" 502 " in head
        server = await asyncio.start_server(_answer_once, "127.0.0.1", port)
        writer.write(ASK)
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()
        server.close()


async def _answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(HEAD + b"0123456789")
    await writer.drain()
    writer.close()


async def test_an_upstream_that_does_not_accept_in_time_is_a_504(tmp_path: Path) -> None:
    with socket.socket() as deaf:
        # A full accept queue: further connections are not answered.
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        recorder = MemoryRecorder()
        limits = Limits(connect=0.2, grace=0.5)
        async with open_worker(
            tmp_path, recorder, upstreams={"api.test": f"http://127.0.0.1:{port}"}, limits=limits
        ) as worker:
            status, _ = await _problem(worker)
        for filler in fillers:
            filler.close()
    assert (status, recorder.only.outcome) == (504, "timed_out")


async def test_an_upstream_that_falls_silent_is_given_up_where_a_limit_is_set(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"part")
        await reader.read()

    recorder = MemoryRecorder()
    limits = Limits(silence=1, grace=0.5)
    async with open_worker(tmp_path, recorder, upstream=serving(handler), limits=limits) as worker:
        reader, writer = await _client(worker)
        assert await reader.read() == HEAD + b"part"
        writer.close()
    assert recorder.only.outcome == "timed_out"


async def test_an_upstream_that_never_answers_is_a_504_where_a_limit_is_set(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await reader.read()

    recorder = MemoryRecorder()
    limits = Limits(silence=0.2, grace=0.5)
    async with open_worker(tmp_path, recorder, upstream=serving(handler), limits=limits) as worker:
        status, _ = await _problem(worker)
    assert (status, recorder.only.outcome) == (504, "timed_out")


async def test_a_malformed_response_is_a_502(tmp_path: Path) -> None:
    bad = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(bad)) as worker:
        status, _ = await _problem(worker)
    assert (status, recorder.only.outcome) == (502, "refused")


async def test_an_early_response_reaches_the_client_while_it_still_sends(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
        await writer.drain()

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await _client(worker, ASK.replace(b"\r\n\r\n", b"\r\nContent-Length: 9000000\r\n\r\npart"))
        assert b" 413 " in await reader.readuntil(b"\r\n\r\nno")
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.head is not None
    assert recorder.only.head[0] == 413


async def test_a_stopping_worker_lets_a_response_end(tmp_path: Path) -> None:
    proceed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"part")
        await proceed.wait()
        writer.write(b"456789")

    recorder = MemoryRecorder()
    limits = Limits(grace=5)
    async with open_worker(tmp_path, recorder, upstream=serving(handler), limits=limits) as worker:
        reader, writer = await _client(worker)
        await reader.readexactly(len(HEAD) + 4)
        worker.config.stop.set()
        await asyncio.sleep(0.05)  # for the worker to stop listening
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", worker.port)
        proceed.set()
        assert await reader.read() == b"456789"
        writer.close()
    assert recorder.only.outcome == "completed"


async def test_a_stopping_worker_waits_no_longer_than_its_grace(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"part")
        await reader.read()

    recorder = MemoryRecorder()
    async with (
        serving(handler) as upstream,
        asyncio.timeout(60),
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream), limits=Limits(grace=0.1)) as worker,
    ):
        reader, writer = await _client(worker)
        await reader.readexactly(len(HEAD) + 4)
    writer.close()
    assert (recorder.only.outcome, recorder.only.error) == (
        "refused",
        "the worker stopped before the exchange was over",
    )


async def test_a_request_that_cannot_be_kept_is_refused_before_it_reaches_the_upstream(tmp_path: Path) -> None:
    recorder = MemoryRecorder("refuse")
    recorder.keeps = False
    async with (
        answering(HEAD + b"0123456789") as upstream,
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        status, body = await _problem(worker)
    assert (status, upstream.connections) == (503, 0)
    assert str(body["detail"]).endswith("it was not forwarded (the disk is full)")


async def test_a_response_that_cannot_be_kept_does_not_end(tmp_path: Path) -> None:
    recorder = MemoryRecorder("refuse")

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        recorder.keeps = False
        writer.write(HEAD + b"0123456789")
        await reader.read()

    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await _client(worker)
        assert await reader.read() == HEAD
        writer.close()
