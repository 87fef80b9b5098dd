"""Chunk extensions and trailers that are not forwarded."""

import asyncio
from pathlib import Path

from calls.model import Headers
from replay.answer import Answer, Piece
from tests.support.h2wire import Peer
from tests.support.h2workers import open_h2_pair
from tests.support.wire import MemoryRecorder, ScriptedAnswerer, answering, api_test_at, connect_through, open_worker

SENT: Headers = (
    ("X-Before", "1"),
    ("Content-Length", "9"),
    ("Transfer-Encoding", "chunked"),
    ("host", "evil.test"),
    ("Authorization", "Bearer x"),
    ("Set-Cookie", "a=1"),
    ("Content-Type", "text/evil"),
    ("Range", "bytes=0-1"),
    ("Cache-Control", "public"),
    ("Alt-Svc", "h3"),
    ("Playhead-Run", "r"),
    ("X-Playhead-Run", "r"),
    ("Grpc-Status", "0"),
)
PASSED: Headers = (("X-Before", "1"), ("Grpc-Status", "0"))
REFUSED_BY_HTTP_2 = ("Content-Length", "Transfer-Encoding", "host")
"""Trailers that libnghttp2 refuses, because they contradict the head."""

OF_HTTP_2 = [(name.lower(), value) for name, value in SENT if name not in REFUSED_BY_HTTP_2]
PASSED_OF_HTTP_2 = [("x-before", "1"), ("grpc-status", "0")]


def _chunked_body(trailers: Headers, extension: bytes = b"") -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in trailers).encode()
    chunks = b"2%b\r\nab\r\n3%b\r\ncde\r\n0%b\r\n" % (extension, extension, extension)
    return chunks + lines + b"\r\n"


async def test_extensions_and_forbidden_trailers_of_http_1_are_not_passed_on(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    recorder = MemoryRecorder()
    async with (
        answering(head + _chunked_body(SENT, b';name="v;w"')) as upstream,
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        request = b"POST http://api.test/ HTTP/1.1\r\nHost: api.test\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(request + _chunked_body(SENT, b";name=v"))
        heard = await reader.readuntil(b"0\r\nX-Before: 1\r\nGrpc-Status: 0\r\n\r\n")
        writer.close()
        peer = Peer(*await connect_through(worker, "api.test:443", alpn=("h2",)), client=True)
        stream = peer.begin("api.test", "/")
        peer.conn.send_data(stream, b"abcde")
        peer.conn.send_headers(stream, OF_HTTP_2, end_stream=True)
        peer.flush()
        answer = await peer.answer(stream)
        peer.writer.close()
    assert heard == head + _chunked_body(PASSED)
    assert (answer.body, answer.trailers) == (b"abcde", PASSED_OF_HTTP_2)
    old, new = upstream.bodies
    assert old == _chunked_body(PASSED)
    assert new == b"5\r\nabcde\r\n0\r\nx-before: 1\r\ngrpc-status: 0\r\n\r\n"
    for exchange, asked in zip(recorder.exchanges, (SENT, tuple(OF_HTTP_2)), strict=True):
        assert (exchange.trailers("request"), exchange.trailers("response")) == (asked, SENT)
        assert (exchange.body("request"), exchange.body("response")) == (b"abcde", b"abcde")


async def test_forbidden_trailers_of_http_2_are_not_passed_on(tmp_path: Path) -> None:
    asked = []

    async def handler(peer: Peer) -> None:
        while True:
            stream, heard = await peer.request()
            asked.append(heard.trailers)
            only_forbidden = heard.header(":path") == "/none"
            peer.respond(stream, [(":status", "200")], [b"ok"], OF_HTTP_2[1:-1] if only_forbidden else OF_HTTP_2)

    recorder = MemoryRecorder()
    async with open_h2_pair(tmp_path, handler, recorder) as (peer, authority):
        answers = []
        for path, trailers in (("/", OF_HTTP_2), ("/none", OF_HTTP_2[1:-1])):
            stream = peer.begin(authority, path)
            peer.conn.send_data(stream, b"asked")
            peer.conn.send_headers(stream, trailers, end_stream=True)
            peer.flush()
            answers.append(await peer.answer(stream))
    assert asked == [PASSED_OF_HTTP_2, []]
    assert [(answer.body, answer.trailers) for answer in answers] == [(b"ok", PASSED_OF_HTTP_2), (b"ok", [])]
    assert recorder.exchanges[1].trailers("response") == tuple(OF_HTTP_2[1:-1])


async def test_forbidden_trailers_of_a_recording_are_not_answered(tmp_path: Path) -> None:
    recorded = Answer(status=200, reason="OK", headers=(), pieces=(Piece(0, b"ok"),), trailers=SENT)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(recorded, recorded, alpn=("h2",))) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n")
        heard = await reader.readuntil(b"Grpc-Status: 0\r\n\r\n")
        writer.close()
        peer = Peer(*await connect_through(worker, "api.test:443", alpn=("h2",)), client=True)
        answer = await peer.answer(peer.ask("api.test", "/"))
        peer.writer.close()
    assert heard.endswith(b"0\r\nX-Before: 1\r\nGrpc-Status: 0\r\n\r\n")
    assert (answer.body, answer.trailers) == (b"ok", PASSED_OF_HTTP_2)
