"""Both engines record the same for the same HTTP/2 exchanges."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import wire
from tests.support.h2wire import Fields, Peer, StreamBroken
from tests.support.h2workers import open_h2_client, open_h2_upstream, reach_upstreams
from tests.support.wire import MemoryRecorder, ScriptedAnswerer, answering, api_test_at, connect_through, open_worker

ASKED: Fields = [
    ("x-b", "2"),
    ("cookie", "a=1"),
    ("authorization", "Bearer secret"),
    ("x-a", "1"),
    ("cookie", "b=2"),
    ("x-playhead-run", "mine"),
    ("x-playhead-step", "7"),
    ("x-latin", "caf\xc3\xa9"),
    ("x-b", ""),
]
SAID: Fields = [(":status", "200"), ("set-cookie", "a=1"), ("x-z", "1"), ("set-cookie", "b=2"), ("alt-svc", "h3")]


async def _handler(peer: Peer) -> None:
    while True:
        stream, heard = await peer.request()
        match heard.header(":path"):
            case "/none":
                peer.respond(stream, [(":status", "204"), ("x-a", "1")])
            case "/head":
                peer.respond(stream, [(":status", "200"), ("content-length", "5")])
            case "/sized":
                peer.respond(stream, [(":status", "200"), ("content-length", "5")], [b"hello"])
            case "/broken":
                peer.conn.send_headers(stream, SAID)
                peer.conn.send_data(stream, b"part")
                peer.flush()
                peer.conn.reset_stream(stream, 2)
                peer.flush()
            case _:
                peer.conn.send_headers(stream, [(":status", "103"), ("link", "</a>")])
                peer.respond(stream, SAID, [b"one", b"two"], [("x-t", "v"), ("x-s", "w")])


async def _conversation(directory: Path) -> tuple[list[Any], list[Any]]:
    """What the recorder is told and what the client receives."""
    recorder = MemoryRecorder()
    heard: list[Any] = []
    async with (
        open_h2_upstream(_handler) as upstream,
        open_worker(directory, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        for method, path, body in (
            ("POST", "/x?y=%20z", b"asked"),
            ("GET", "/none", b""),
            ("HEAD", "/head", b""),
            ("GET", "/sized", b""),
            ("GET", "/broken", b""),
        ):
            stream = peer.ask(authority, path, method=method, body=body, extra=ASKED)
            try:
                answer = await peer.answer(stream)
            except StreamBroken:
                answer = peer.streams[stream]
            heard.append((answer.interim, answer.headers, answer.pieces, answer.trailers, answer.reset))
        for exchange in recorder.exchanges:
            await exchange.over.wait()
    return [_comparable_words(exchange, upstream.port) for exchange in recorder.exchanges], heard


def _comparable_words(answer: wire.MemoryExchange, port: int) -> Any:
    begun = dict(answer.begun)
    begun["url"] = begun["url"].replace(str(port), "PORT")
    # Both engines name the run before the exchange has an id.
    return begun, [word[:2] if word[0] == "closed" else word for word in answer.words]


async def test_a_conversation_is_reported_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_engine = {}
    for engine in wire.ENGINES:
        monkeypatch.setattr(wire, "engine", engine)
        (tmp_path / engine).mkdir()
        by_engine[engine] = await _conversation(tmp_path / engine)
    assert by_engine["lane"] == by_engine["mitmproxy"]
    result, heard = by_engine["lane"]
    assert len(result) == len(heard) == 5


async def _of_old(directory: Path) -> Any:
    """The same with an upstream of HTTP/1.1."""
    sent = (
        b"HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\nKeep-Alive: timeout=5\r\nx-a: 2\r\n\r\n"
        b"2\r\nab\r\n3\r\ncde\r\n0\r\nX-T: v\r\n\r\n"
    )
    recorder = MemoryRecorder()
    async with (
        answering(sent) as upstream,
        open_worker(directory, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        peer = Peer(*await connect_through(worker, "api.test:443", alpn=("h2",)), client=True)
        heard = await peer.answer(peer.ask("api.test", "/x", method="POST", body=b"asked", extra=ASKED))
        peer.writer.close()
    return _comparable_words(recorder.only, 0), (heard.headers, heard.body, heard.trailers), upstream.bodies


async def test_a_conversation_with_an_upstream_of_http_1_is_reported_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_engine = {}
    for engine in wire.ENGINES:
        monkeypatch.setattr(wire, "engine", engine)
        (tmp_path / engine).mkdir()
        by_engine[engine] = await _of_old(tmp_path / engine)
    assert by_engine["lane"] == by_engine["mitmproxy"]


async def test_an_answerer_is_asked_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    for engine in wire.ENGINES:
        monkeypatch.setattr(wire, "engine", engine)
        answerer = ScriptedAnswerer(wire.whole(b"hello"), alpn=("h2",))
        async with open_worker(tmp_path, answerer=answerer) as worker:
            peer = Peer(*await connect_through(worker, "api.test:443", alpn=("h2",)), client=True)
            stream = peer.begin("api.test", "/x")
            peer.conn.send_data(stream, b"as")
            peer.flush()
            peer.conn.send_data(stream, b"ked")
            peer.conn.send_headers(stream, [("x-t", "v")], end_stream=True)
            peer.flush()
            assert (await peer.answer(stream)).body == b"hello"
            peer.writer.close()
        request, run, owner = answerer.asked[0]
        chunks = [(chunk.offset, chunk.size) for chunk in request.body.chunks]
        asked[engine] = (
            request.method,
            request.url,
            request.http_version,
            request.headers,
            request.trailers,
            chunks,
            run,
            owner,
        )
    assert asked["lane"] == asked["mitmproxy"]
    assert asked["lane"][:3] == ("POST", "https://api.test/x", "HTTP/2")
