"""Messages are forwarded unchanged, and reported to the recorder completely and in time."""

import asyncio
import gzip
from pathlib import Path

import httpx
import pytest

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


async def _raw(worker: Worker, request: bytes, *, until: bytes | None = None) -> bytes:
    """Return the bytes of the response to a plain proxy request, until `until` or until the worker closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(request)
    try:
        return await (reader.readuntil(until) if until else reader.read())
    finally:
        writer.close()


def _ask(method: str = "GET", path: str = "/x", *fields: str, body: bytes = b"") -> bytes:
    lines = [f"{method} http://api.test{path} HTTP/1.1", "Host: api.test", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_call_is_relayed_and_recorded(tmp_path: Path, scheme: str) -> None:
    recorder = MemoryRecorder()
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        async with httpx.AsyncClient(timeout=60, proxy=worker.proxy("run-7"), verify=worker.tls) as client:
            response = await client.post(f"{scheme}://api.test/v1/things?q=a%20b", content=b"body")
        await recorder.only.over.wait()
    exchange = recorder.only
    assert response.text == "hello"
    assert upstream.heads[0].startswith(b"POST /v1/things?q=a%20b HTTP/1.1\r\nHost: api.test\r\n")
    assert upstream.bodies == [b"body"]
    assert exchange.begun["url"] == f"{scheme}://api.test/v1/things?q=a%20b"
    assert (exchange.begun["run"], exchange.begun["method"], exchange.begun["http_version"]) == (
        "run-7",
        "POST",
        "HTTP/1.1",
    )
    assert (exchange.body("request"), exchange.body("response"), exchange.outcome) == (b"body", b"hello", "completed")


async def test_every_word_comes_once_and_in_order(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        await _raw(worker, _ask("POST", "/x", "Content-Length: 2", body=b"ab"), until=b"hello")
        await recorder.only.over.wait()
    words = [word[:2] if word[0] in ("data", "ended", "closed") else word[:1] for word in recorder.only.words]
    assert words == [
        ("data", "request"),
        ("ended", "request"),
        ("response",),
        ("data", "response"),
        ("ended", "response"),
        ("closed", "completed"),
    ]


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        (
            b"X-First: 1\r\nx-second: 2\r\nX-First: 3\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\nContent-Length: 2\r\n",
            b"ok",
        ),
        (b"Content-Length: 0\r\n", b""),
        (
            b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(gzip.compress(b"zip", mtime=0)),
            gzip.compress(b"zip", mtime=0),
        ),
        (b"X-Latin: caf\xe9\r\nContent-Length: 1\r\n", b"\xff"),
        (b"Transfer-Encoding: chunked\r\n", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nTrailer: X-T\r\n", b"3\r\nabc\r\n0\r\nX-T: v\r\nx-u: w\r\n\r\n"),
    ],
)
async def test_a_response_s_bytes_pass_unchanged(tmp_path: Path, fields: bytes, body: bytes) -> None:
    sent = b"HTTP/1.1 200 Quite Fine\r\n" + fields + b"\r\n" + body
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(sent)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(_ask())
        assert await reader.readexactly(len(sent)) == sent
        writer.close()
        await recorder.only.over.wait()
    head = recorder.only.head
    assert head is not None
    assert head[:2] == (200, "Quite Fine")
    assert "".join(f"{name}: {value}\r\n" for name, value in head[3]).encode("latin-1") == fields
    assert recorder.only.outcome == "completed"


async def test_a_request_s_bytes_pass_unchanged(tmp_path: Path) -> None:
    fields = ("X-First: 1", "x-second: 2", "X-First: 3", "accept:", "Transfer-Encoding: chunked")
    body = b"3\r\nabc\r\n2\r\nde\r\n0\r\nX-T: v\r\n\r\n"
    recorder = MemoryRecorder()
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        await _raw(worker, _ask("POST", "/a//b/../c?x=1&x=2;&%2f", *fields, body=body), until=b"hello")
        await recorder.only.over.wait()
    # mitmproxy serialises heads again; the lane forwards even empty values unchanged.
    lines = upstream.heads[0].decode().replace("accept:\r\n", "accept: \r\n").split("\r\n")
    assert lines == [
        "POST /a//b/../c?x=1&x=2;&%2f HTTP/1.1",
        "Host: api.test",
        *fields[:3],
        "accept: ",
        fields[4],
        "",
        "",
    ]
    assert upstream.bodies == [body]
    assert recorder.only.pieces("request") == [b"abc", b"de"]
    assert recorder.only.trailers("request") == (("X-T", "v"),)


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_ends_at_its_head(tmp_path: Path, status: int) -> None:
    sent = b"HTTP/1.1 %d Nothing\r\nETag: x\r\n\r\n" % status
    recorder = MemoryRecorder()
    async with answering(sent) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        # Two requests on one connection: the engine must not wait in between.
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        for _ in range(2):
            writer.write(_ask())
            assert await reader.readuntil(b"\r\n\r\n") == sent
        writer.close()
    assert [exchange.outcome for exchange in recorder.exchanges] == ["completed"] * 2


async def test_head_has_a_length_and_no_body(tmp_path: Path) -> None:
    sent = b"HTTP/1.1 200 OK\r\nContent-Length: 4711\r\n\r\n"
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(sent)) as worker:
        assert await _raw(worker, _ask("HEAD"), until=b"\r\n\r\n") == sent
    assert recorder.only.outcome == "completed"


async def test_a_body_may_end_with_the_connection(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        assert await _raw(worker, _ask()) == b"HTTP/1.1 200 OK\r\n\r\nuntil the end"
    assert (recorder.only.body("response"), recorder.only.outcome) == (b"until the end", "completed")


async def test_an_http_1_0_client_gets_no_chunks(tmp_path: Path) -> None:
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    async with open_worker(tmp_path, upstream=answering(sent)) as worker:
        got = await _raw(worker, b"GET http://api.test/x HTTP/1.0\r\nHost: api.test\r\n\r\n")
    assert got == b"HTTP/1.1 200 OK\r\n\r\nabc"


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n" * 2]
)
async def test_interim_responses_pass_and_are_not_the_answer(tmp_path: Path, interim: bytes) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(interim, OK)) as worker:
        assert await _raw(worker, _ask(), until=b"hello") == interim + OK
    assert recorder.only.head is not None
    assert recorder.only.head[0] == 200


async def test_a_client_that_expects_100_gets_it_from_the_upstream(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Expect: 100-continue" in head
        asked.set()
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(4) == b"body"
        writer.write(OK)
        await reader.read()

    async with open_worker(tmp_path, MemoryRecorder(), upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(_ask("PUT", "/x", "Content-Length: 4", "Expect: 100-continue"))
        await asked.wait()
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert await reader.readexactly(len(OK)) == OK
        writer.close()


async def test_an_upstream_may_refuse_what_is_expected(tmp_path: Path) -> None:
    no = b"HTTP/1.1 417 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(no)

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        asked = _ask("PUT", "/x", "Content-Length: 4", "Expect: 100-continue")
        assert await _raw(worker, asked, until=b"\r\n\r\n") == no
        await recorder.only.over.wait()
    assert recorder.only.head is not None
    assert recorder.only.head[0] == 417


async def test_nothing_is_forwarded_before_it_is_kept(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    recorder.gate.clear()
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(_ask("POST", "/x", "Content-Length: 2", body=b"ab"))
        await recorder.begun.wait()
        await asyncio.sleep(0.1)  # time enough for a connection, if one were made
        assert upstream.connections == 0
        recorder.gate.set()
        assert await reader.readexactly(len(OK)) == OK
        writer.close()


async def test_a_long_request_goes_on_piece_by_piece_but_for_its_last(tmp_path: Path) -> None:
    arrived = asyncio.Queue[bytes]()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while data := await reader.read(65536):
            arrived.put_nowait(data)

    recorder = MemoryRecorder()
    size = 2 << 20
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(_ask("POST", "/x", f"Content-Length: {size}", body=b"a" * 1000))
        assert await arrived.get() == b"a" * 1000
        recorder.gate.clear()
        writer.write(b"b" * (size - 1001))
        got = 0
        while got < size - 1001:
            got += len(await arrived.get())
        writer.write(b"c")
        await recorder.until(lambda: recorder.only.pieces("request")[-1:] == [b"c"])
        await asyncio.sleep(0.05)  # time enough for it to arrive, if it were sent
        assert arrived.empty()
        recorder.gate.set()
        assert await arrived.get() == b"c"
        writer.close()


@pytest.mark.parametrize(
    ("head", "pieces", "end"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n", [b"ab", b"cd"], b"ef"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", [b"2\r\nab\r\n", b"2\r\ncd\r\n"], b"0\r\n\r\n"),
        (b"", [], b"HTTP/1.1 204 No Content\r\n\r\n"),
    ],
)
async def test_only_what_completes_a_response_waits_until_it_is_kept(
    tmp_path: Path, head: bytes, pieces: list[bytes], end: bytes
) -> None:
    proceed = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in (head, *pieces):
            writer.write(piece)
        await proceed.wait()
        writer.write(end)
        await reader.read()

    recorder = MemoryRecorder()
    async with serving(handler) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(_ask())
        await recorder.begun.wait()
        sent = head + b"".join(pieces)
        # From here on nothing is recorded; everything but the end is still forwarded.
        await upstream.connected.wait()
        recorder.gate.clear()
        assert await reader.readexactly(len(sent)) == sent
        proceed.set()
        await recorder.only.over.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        recorder.gate.set()
        assert await reader.readexactly(len(end)) == end
        writer.close()


async def test_each_chunk_is_a_piece_of_its_own(tmp_path: Path) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (b"data: a\n\n", b"data: bb\n\n", b"data: [DONE]\n\n"))
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(sent)) as worker:
        assert await _raw(worker, _ask(), until=b"0\r\n\r\n") == sent
    assert recorder.only.pieces("response") == [b"data: a\n\n", b"data: bb\n\n", b"data: [DONE]\n\n"]


async def test_alt_svc_is_neither_passed_on_nor_recorded(tmp_path: Path) -> None:
    sent = b'HTTP/1.1 200 OK\r\nAlt-Svc: h3=":443"\r\nContent-Length: 2\r\n\r\nok'
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(sent)) as worker:
        got = await _raw(worker, _ask(), until=b"ok")
    assert got == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    assert recorder.only.head is not None
    assert recorder.only.head[3] == (("Content-Length", "2"),)


async def test_our_own_headers_never_reach_the_upstream(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        own = (
            "X-Playhead-Run: r-9",
            "x-playhead-step: 4",
            "X-Playhead-Actor: planner",
            "Proxy-Authorization: Basic eDp5",
        )
        await _raw(worker, _ask("GET", "/x", *own), until=b"hello")
    assert b"playhead" not in upstream.heads[0].lower()
    assert b"proxy-" not in upstream.heads[0].lower()
    assert all("playhead" not in name.lower() for name, _ in recorder.only.begun["headers"])


async def test_many_calls_share_one_connection(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with answering(OK) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        reader, writer = await connect_through(worker, "api.test:443")
        for _ in range(5):
            writer.write(b"GET /x HTTP/1.1\r\nHost: api.test\r\n\r\n")
            assert await reader.readexactly(len(OK)) == OK
        writer.close()
    assert upstream.connections == 1
    assert len(recorder.exchanges) == 5


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(_ask("GET", "/1") + _ask("GET", "/2") + b"\r\n" + _ask("GET", "/3"))
        assert await reader.readexactly(3 * len(OK)) == OK * 3
        writer.close()
    assert [exchange.begun["url"][-2:] for exchange in recorder.exchanges] == ["/1", "/2", "/3"]


async def test_passing_through_records_nothing_and_changes_nothing(tmp_path: Path) -> None:
    async with open_worker(tmp_path, upstream=answering(OK)) as worker:
        assert await _raw(worker, _ask(), until=b"hello") == OK
