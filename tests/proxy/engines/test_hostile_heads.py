"""Messages that two parsers could read differently: refused by every engine, in both versions and both directions.

A hostile message never reaches the other side as a complete one. The record of a hostile response says what was wrong.
"""

import asyncio
from pathlib import Path

from tests.support.h2frames import (
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    Fields,
    FrameReader,
    data_frame,
    head_frame,
)
from tests.support.h2quick import frame
from tests.support.h2workers import reach_upstreams
from tests.support.wire import (
    MemoryRecorder,
    Upstream,
    Worker,
    answering,
    api_test_at,
    connect_through,
    open_worker,
    read_request,
    serving,
    upstream_tls,
)

SPLITTING_FIELDS = (
    b"X-A: a\x1b[31mb\r\n",
    b"X-A: a\0b\r\n",
    b"X-A: a\x7fb\r\n",
    b"X-A: a\x0bb\r\n",
    b"X-A: a\nX-B: b\r\n",
    b"X-A: a\rX-B: b\r\n",
    b"X-A: a\r\n folded\r\n",
    b"X-A: a\r\n\tContent-Length: 3\r\n",
    b"X-A : b\r\n",
    b"X-A\t: b\r\n",
    b"X A: b\r\n",
    b": b\r\n",
    b"X-A\r\n",
    b"X\x1b: b\r\n",
    b"X-\xc3\xa9: b\r\n",
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length: 4\r\nContent-Length: 4\r\n",
    b"Content-Length: 4\r\nContent-Length: 5\r\n",
    b"Content-Length: 4, 4\r\n",
    b"Content-Length: 0x4\r\n",
    b"Content-Length: +4\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 010\r\n",
    b"Content-Length: 00\r\n",
    b"Content-Length: \r\n",
    b"Content-Length : 4\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding\r\n : chunked\r\n",
)
"""Heads of HTTP/1.1 requests and responses."""

REQUESTS = {
    **{
        b"POST http://api.test/x HTTP/1.1\r\nHost: api.test\r\n" + fields + b"\r\n0\r\n\r\n": 400
        for fields in (*SPLITTING_FIELDS, b"Host: other.test\r\n")
    },
    b"GET http://api.test/a b HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test/a\tb HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test/a\x1bb HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test/\x7f HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET  http://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET\thttp://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b" GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test/ HTTP/1.1 \r\nHost: api.test\r\n\r\n": 505,
    b"GET http://api.test/ HTTP/1.1\r\n Host: api.test\r\n\r\n": 400,
    b"GET http://api.test/ HTTP/1.1\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test/ HTTP/1.1\nHost: api.test\n\n": 400,
    b"GET http://api.test/x\r\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test/x HTTP/2.0\r\nHost: api.test\r\n\r\n": 505,
    b"PRI * HTTP/2.0\r\nHost: api.test\r\n\r\n": 505,
    b"\x16garbage\r\nHost: api.test\r\n\r\n": 400,
    b"G\xc9T http://api.test/x HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test:65536/x HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"CONNECT api.test:65536 HTTP/1.1\r\nHost: api.test\r\n\r\n": 400,
    b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\nX: " + b"a" * (150 << 10) + b"\r\n\r\n": 431,
    b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\n" + b"X: y\r\n" * 10_000 + b"\r\n": 431,
}


async def test_a_hostile_request_of_http_1_goes_nowhere(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    answers: dict[bytes, int] = {}
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with answering(ok) as upstream, open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker:
        for request in REQUESTS:
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            writer.write(request)
            async with asyncio.timeout(60):
                answers[request] = int((await reader.readuntil(b"\r\n"))[9:12])
            writer.close()
        assert answers == REQUESTS
        assert (upstream.connections, recorder.exchanges) == (0, [])


RESPONSES = (
    *[b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n0\r\n\r\n" for fields in SPLITTING_FIELDS],
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 204 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 O\x1bK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 O\0K\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1\t200\tOK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\nok",
    b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b" HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n X-A: b\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"http/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"ICY 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 +200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 2_00 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nX-A: a\x1bb\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nX-A: a\r\n b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early\nX-A: a\n\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
)
SOUND_RESPONSES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: caf\xc3\xa9\r\nx-B: a\tb\r\n\r\nok",
    b"HTTP/1.1 200 caf\xc3\xa9\r\nContent-Length: 2\r\nX-A: \x9b\r\n\r\nok",
    b"HTTP/1.1 999 \r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nX-A: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
)


async def test_a_hostile_response_of_http_1_is_refused_and_a_sound_one_passes_as_it_is(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    answer = b""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()

    passed: list[bytes] = []
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        for answer in (*RESPONSES, *SOUND_RESPONSES):
            recorder.exchanges.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            writer.write(b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n")
            heard = await reader.read()
            writer.close()
            error = "the upstream's response is malformed: "
            if heard == answer and recorder.only.outcome == "completed":
                passed.append(answer)
            else:
                assert heard.startswith(b"HTTP/1.1 502 "), (answer, heard)
                assert b'"upstream_malformed"' in heard, (answer, heard)
                assert (recorder.only.outcome, (recorder.only.error or "")[: len(error)]) == ("refused", error), answer
    assert tuple(passed) == SOUND_RESPONSES


def _message(start: list[tuple[bytes, bytes]], fields: Fields, body: bytes | None, trailers: Fields | None) -> bytes:
    bare = body is None and trailers is None
    sent = head_frame([*start, *fields], end=bare)
    if body is not None:
        sent += data_frame(body, end=trailers is None)
    return sent if trailers is None else sent + head_frame(trailers, end=True)


def _request(
    *fields: tuple[bytes, bytes],
    method: bytes = b"POST",
    path: bytes = b"/x",
    body: bytes | None = None,
    trailers: Fields | None = None,
) -> bytes:
    start = [(b":method", method), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path)]
    return _message(start, fields, body, trailers)


def _response(
    *fields: tuple[bytes, bytes], status: bytes = b"200", body: bytes | None = b"abc", trailers: Fields | None = None
) -> bytes:
    return _message([(b":status", status)], fields, body, trailers)


LENGTH = b"content-length"
TRAILERS: Fields = [(b"x-t", b"v")]
BAD_LENGTHS: tuple[list[tuple[bytes, bytes]], ...] = (
    [(LENGTH, b"2")],
    [(LENGTH, b"5")],
    [(LENGTH, b"0")],
    [(LENGTH, b"3"), (LENGTH, b"4")],
    [(LENGTH, b"3"), (LENGTH, b"3")],
    *[[(LENGTH, value)] for value in (b"+3", b"03", b"3, 3", b"0_3", b" 3", b"")],
)
"""Framings for a body of three bytes, with and without trailers."""

BAD_FIELDS: tuple[tuple[bytes, bytes], ...] = (
    *[(b"x-a", value) for value in (b"a\x1bb", b"a\0b", b"a\nb", b"a\rb", b"a\x7fb", b"a\x0bb", b" a", b"a ")],
    *[
        (name, b"b")
        for name in (b"X-A", b"x-a ", b"", b"x:a", b":x", b"connection", b"transfer-encoding", b"keep-alive")
    ],
)
REQUESTS_OF_HTTP_2 = (
    *[_request(*fields, body=b"abc") for fields in BAD_LENGTHS],
    *[_request(*fields, body=b"abc", trailers=TRAILERS) for fields in BAD_LENGTHS],
    *[_request((LENGTH, b"3"), method=method) for method in (b"POST", b"GET", b"HEAD")],
    _request((LENGTH, b"5"), method=b"HEAD", body=b"abc"),
    *[
        _request(path=path)
        for path in (b"/a b", b"/a\tb", b"/\x1b", b"/\n", b"/\r", b"/\0", b"/\x7f", b"", b"*", b"x", b"@b/")
    ],
    *[_request(method=method) for method in (b"GET /", b"", b"GET\r\n")],
    *[_request(field) for field in BAD_FIELDS],
    _request((b"te", b"gzip")),
    _request((b"upgrade", b"h2c")),
    _request((b"host", b"other.test")),
    _request((b":path", b"/y")),
    _request((b"x-a", b"b"), (b":path", b"/y")),
    _request(body=b"abc", trailers=[(b":path", b"/y")]),
    _request(body=b"abc", trailers=[(b"x-a", b"a\x1bb")]),
)
RESPONSES_OF_HTTP_2 = (
    *[_response(*fields) for fields in BAD_LENGTHS],
    *[_response(*fields, trailers=TRAILERS) for fields in BAD_LENGTHS],
    _response((LENGTH, b"3"), body=None),
    _response((LENGTH, b"3"), status=b"204", body=None),
    *[_response(status=status) for status in (b"204", b"304", b"000", b"2a0", b"+200", b"2000", b" 200", b"101")],
    *[_response(field) for field in BAD_FIELDS],
    _response((b"x-a", b"b"), (b":status", b"200")),
    _response(trailers=[(b":status", b"200")]),
    _response(trailers=[(b"x-a", b"a\x1bb")]),
    head_frame([(b"x-a", b"b")]) + data_frame(b"abc"),
    head_frame([(b":status", b"103"), (b"x-a", b"a\x1bb")]) + _response(),
    head_frame([(b":status", b"103"), (LENGTH, b"3")]) + _response(),
)
SOUND_OF_HTTP_2 = ((LENGTH, b"3"), (b"x-a", b"caf\xc3\xa9"), (b"x-b", b"a\tb"), (b"te", b"trailers"))


class _Client:
    """Sends messages written for stream 1, each on its own stream, until the connection ends."""

    def __init__(self, worker: Worker, upstream: Upstream) -> None:
        self._worker, self._authority = worker, f"localhost:{upstream.port}"
        self._stream = 0
        self._frames: FrameReader | None = None
        self._writer: asyncio.StreamWriter

    async def ask(self, message: bytes) -> tuple[int | None, bytes, bool]:
        if self._frames is None:
            reader, self._writer = await connect_through(self._worker, self._authority, alpn=("h2",))
            self._frames, self._stream = FrameReader(reader), -1
            self._writer.write(PREFACE + frame(SETTINGS))
        self._stream += 2
        self._writer.write(message.replace((1).to_bytes(4), self._stream.to_bytes(4)))
        answer = await self._frames.answer(self._stream)
        if self._frames.over:
            self.close()
        return answer

    def close(self) -> None:
        self._frames = None
        self._writer.close()


async def test_a_hostile_request_of_http_2_goes_nowhere(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    ended = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        await reader.readexactly(len(PREFACE))
        writer.write(frame(SETTINGS))
        frames = FrameReader(reader)
        while True:
            kind, flags, stream, _ = await frames.next()
            if kind in (HEADERS, DATA) and flags & END_STREAM:
                ended += 1
                writer.write(head_frame([(b":status", b"200")], stream=stream, end=True))

    tls = upstream_tls("localhost", alpn=("h2",))
    async with (
        serving(handler, tls=tls) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
    ):
        sound = _request(*SOUND_OF_HTTP_2, body=b"abc", trailers=TRAILERS)
        client = _Client(worker, upstream)
        for request in (*REQUESTS_OF_HTTP_2, sound):
            status, _, whole = await client.ask(request)
            if request is sound:
                assert (status, whole, ended) == (200, True, 1)
            else:
                assert ended == 0, request
                assert not whole or (status or 0) // 100 == 4, request
        client.close()
    assert [exchange.outcome for exchange in recorder.exchanges].count("completed") == 1


async def test_a_hostile_response_of_http_2_is_refused(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    answer = b""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(PREFACE))
        writer.write(frame(SETTINGS))
        frames = FrameReader(reader)
        while True:
            stream = await frames.head_stream()
            writer.write(answer.replace((1).to_bytes(4), stream.to_bytes(4)))

    tls = upstream_tls("localhost", alpn=("h2",))
    async with (
        serving(handler, tls=tls) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
    ):
        sound = _response(*SOUND_OF_HTTP_2[:3], trailers=TRAILERS)
        client = _Client(worker, upstream)
        for answer in (*RESPONSES_OF_HTTP_2, sound):
            recorder.exchanges.clear()
            status, body, whole = await client.ask(_request(method=b"GET"))
            exchange = recorder.only
            if answer is sound:
                assert (status, body, whole, exchange.outcome) == (200, b"abc", True, "completed")
            elif whole:
                assert (status, exchange.outcome, b'"upstream_malformed"' in body) == (502, "refused", True), answer
            else:
                assert exchange.outcome == "server_closed", answer
            if answer is not sound:
                assert (exchange.error or "").startswith("the upstream's response is malformed: "), (
                    answer,
                    exchange.error,
                )
        client.close()
