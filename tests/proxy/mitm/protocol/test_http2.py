"""HTTP/2 on either side: the version is the one without a proxy, and a slow reader slows its sender down."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from calls.model import ChunkKind
from tests.support.h2wire import Fields, Peer, StreamBroken
from tests.support.h2workers import OK, answer_all, open_h2_client, open_h2_pair, open_h2_upstream, reach_upstreams
from tests.support.wire import (
    MemoryExchange,
    MemoryRecorder,
    Side,
    answering,
    api_test_at,
    connect_through,
    open_worker,
    serving,
    upstream_tls,
)


async def test_a_call_over_http_2_is_relayed_and_recorded(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        stream, heard = await peer.request()
        assert (heard.header(":path"), heard.header("x-b"), heard.body) == ("/v1?x=1", "2", b"asked")
        peer.respond(stream, OK, [b"one", b"two"], [("x-t", "v")])
        await peer.request()

    recorder = MemoryRecorder()
    async with open_h2_pair(tmp_path, handler, recorder) as (peer, authority):
        heard = await peer.answer(peer.ask(authority, "/v1?x=1", method="POST", body=b"asked", extra=[("x-b", "2")]))
        await recorder.only.over.wait()
    assert heard.headers == OK
    assert (heard.pieces, heard.trailers) == ([b"one", b"two"], [("x-t", "v")])
    exchange = recorder.only
    assert (exchange.begun["http_version"], exchange.begun["url"]) == ("HTTP/2", f"https://{authority}/v1?x=1")
    assert (exchange.pieces("response"), exchange.trailers("response")) == ([b"one", b"two"], (("x-t", "v"),))
    assert exchange.head == (200, "", "HTTP/2", (("x-a", "1"),))
    assert (exchange.body("request"), exchange.outcome) == (b"asked", "completed")


async def test_a_client_gets_the_protocol_of_the_upstream(tmp_path: Path) -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with (
        answering(ok, tls=upstream_tls("localhost")) as old,
        open_h2_upstream(answer_all) as new,
        open_worker(tmp_path, MemoryRecorder(), allow_private=True, connect_ports=(old.port, new.port)) as worker,
    ):
        for _ in range(2):
            async with httpx.AsyncClient(timeout=60, proxy=worker.proxy(), verify=worker.tls, http2=True) as client:
                assert (await client.get(f"https://localhost:{old.port}/")).http_version == "HTTP/1.1"
                assert (await client.get(f"https://localhost:{new.port}/")).http_version == "HTTP/2"
        async with httpx.AsyncClient(timeout=60, proxy=worker.proxy(), verify=worker.tls) as client:
            assert (await client.get(f"https://localhost:{old.port}/")).http_version == "HTTP/1.1"


async def test_what_an_upstream_speaks_is_asked_once(tmp_path: Path) -> None:
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, MemoryRecorder(), **reach_upstreams(upstream)) as worker,
    ):
        for expected in (1, 1, 1):
            before = upstream.connections
            async with open_h2_client(worker, upstream) as (_, _authority):
                pass
            # Only the first handshake contacts the upstream; later ones without a request do not.
            assert upstream.connections - before == (expected if before == 0 else 0)


async def test_an_old_upstream_answers_a_new_client(tmp_path: Path) -> None:
    """If an override leads to plain HTTP, client and upstream use different versions."""
    sent = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\r\n2\r\nab\r\n0\r\nX-T: v\r\n\r\n"
    recorder = MemoryRecorder()
    async with (
        answering(sent) as upstream,
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        heard = await peer.answer(peer.ask("api.test", "/x", method="POST", body=b"asked"))
        writer.close()
    assert (heard.headers, heard.body, heard.trailers) == (OK, b"ab", [("x-t", "v")])
    assert upstream.bodies == [b"5\r\nasked\r\n0\r\n\r\n"]


async def test_a_refusal_is_recorded_in_the_version_that_the_client_got(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        nowhere = {"api.test": f"http://127.0.0.1:{deaf.getsockname()[1]}"}
        async with open_worker(tmp_path, recorder, upstreams=nowhere) as worker:
            peer = Peer(*await connect_through(worker, "api.test:443", alpn=("h2",)), client=True)
            heard = await peer.answer(peer.ask("api.test", "/"))
            peer.writer.close()
    assert heard.header(":status") == "502"
    exchange = recorder.only
    assert exchange.head is not None
    assert (exchange.begun["http_version"], exchange.head[2]) == ("HTTP/2", "HTTP/2")


@pytest.mark.parametrize("status", ["103", "102"])
async def test_interim_responses_pass(tmp_path: Path, status: str) -> None:
    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, [(":status", status), ("link", "</a>")])
        peer.respond(stream, OK, [b"ok"])
        await peer.request()

    async with open_h2_pair(tmp_path, handler, MemoryRecorder()) as (peer, authority):
        heard = await peer.answer(peer.ask(authority, "/"))
    assert heard.interim == [[(":status", status), ("link", "</a>")]]
    assert heard.body == b"ok"


async def test_a_response_without_a_body_ends_at_its_head(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        while True:
            stream, _ = await peer.request()
            peer.respond(stream, [(":status", "204")])

    async with open_h2_pair(tmp_path, handler, MemoryRecorder()) as (peer, authority):
        assert (await peer.answer(peer.ask(authority, "/"))).headers == [(":status", "204")]


async def test_a_stream_that_the_upstream_resets_is_reset(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, OK)
        peer.conn.send_data(stream, b"part")
        peer.conn.reset_stream(stream, 2)
        peer.flush()
        stream, _ = await peer.request()
        peer.respond(stream, OK, [b"ok"])
        await peer.request()

    recorder = MemoryRecorder()
    async with open_h2_pair(tmp_path, handler, recorder) as (peer, authority):
        first = peer.ask(authority, "/")
        with pytest.raises(StreamBroken, match="reset"):
            await peer.answer(first)
        assert peer.streams[first].body == b"part"
        assert (await peer.answer(peer.ask(authority, "/"))).body == b"ok"
    assert [exchange.outcome for exchange in recorder.exchanges] == ["server_closed", "completed"]


async def test_a_stream_that_the_client_resets_is_reset_upstream(tmp_path: Path) -> None:
    reset = asyncio.Event()

    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, OK)
        peer.conn.send_data(stream, b"part")
        peer.flush()
        while peer.streams[stream].reset is None:
            await peer.step()
        reset.set()

    recorder = MemoryRecorder()
    async with open_h2_pair(tmp_path, handler, recorder) as (peer, authority):
        stream = peer.ask(authority, "/")
        while not peer.streams[stream].pieces:
            await peer.step()
        peer.conn.reset_stream(stream, 8)
        peer.flush()
        async with asyncio.timeout(60):
            await reset.wait()
            await recorder.only.over.wait()
    assert (recorder.only.outcome, recorder.only.body("response")) == ("client_closed", b"part")


async def test_a_goaway_in_the_middle_ends_what_was_under_way(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, OK)
        peer.conn.send_data(stream, b"part")
        peer.conn.close_connection(2)
        peer.flush()

    recorder = MemoryRecorder()
    async with open_h2_pair(tmp_path, handler, recorder) as (peer, authority):
        with pytest.raises(StreamBroken):
            await peer.answer(peer.ask(authority, "/"))
        await recorder.only.over.wait()
    assert recorder.only.outcome == "server_closed"


# Backpressure

BIG = 48 << 20
HELD = 4 << 20


async def test_an_upstream_is_held_back_by_a_reader_that_stops(tmp_path: Path) -> None:
    """mitmproxy grew by 152 MiB for 120 MB here."""
    upstreams: list[Peer] = []

    async def handler(peer: Peer) -> None:
        upstreams.append(peer)
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, OK)
        await peer.pour(stream, BIG)
        await peer.request()

    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, MemoryRecorderOfSizes(), **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream, acknowledge=False) as (peer, authority),
    ):
        stream = peer.ask(authority, "/")
        while len(peer.streams[stream].body) < 65535:
            await peer.step()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await peer.answer(stream)
        assert len(peer.streams[stream].body) == 65535
        # Data in flight: the announced window, the worker's buffer, and the socket buffers.
        assert upstreams[0].poured < HELD
        peer.widen(stream)
        assert len((await peer.answer(stream)).body) == BIG


class MemoryRecorderOfSizes(MemoryRecorder):
    """Drops the bodies, because they are large."""

    def begin(self, **head: Any) -> MemoryExchange:
        self.exchanges.append(Forgetful(str(len(self.exchanges)), head, self))
        return self.exchanges[-1]


class Forgetful(MemoryExchange):
    def record_data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None:
        pass


async def test_an_old_upstream_is_held_back_by_a_new_reader_that_stops(tmp_path: Path) -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BIG)
        for _ in range(BIG >> 14):
            writer.write(bytes(1 << 14))
            await writer.drain()
            sent += 1 << 14
        await reader.read()

    async with open_worker(tmp_path, MemoryRecorderOfSizes(), upstream=serving(handler)) as worker:
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True, acknowledge=False)
        stream = peer.ask("api.test", "/")
        while len(peer.streams[stream].body) < 65535:
            await peer.step()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await peer.answer(stream)
        assert sent < BIG // 2
        peer.widen(stream)
        assert len((await peer.answer(stream)).body) == BIG
        writer.close()


async def test_a_client_is_held_back_by_an_upstream_that_stops(tmp_path: Path) -> None:
    proceed = asyncio.Event()

    async def handler(peer: Peer) -> None:
        while not peer.streams:
            await peer.step()
        await proceed.wait()
        peer.widen(next(iter(peer.streams)))
        stream, heard = await peer.request()
        peer.respond(stream, OK, [str(len(heard.body)).encode()])
        await peer.request()

    recorder = MemoryRecorderOfSizes()
    async with (
        open_h2_upstream(handler, acknowledge=False) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        stream = peer.begin(authority, "/")
        async with asyncio.TaskGroup() as group:
            pouring = group.create_task(peer.pour(stream, BIG))
            await asyncio.wait([pouring], timeout=1)
            assert 0 < peer.poured < HELD
            proceed.set()
        assert (await peer.answer(stream)).body == str(BIG).encode()


async def test_one_stopped_reader_does_not_stop_the_others(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        big, _ = await peer.request()
        peer.conn.send_headers(big, OK)
        peer.flush()
        pouring = HELD
        while True:
            while pouring and (room := min(pouring, 16384, peer.conn.local_flow_control_window(big))) > 0:
                peer.conn.send_data(big, bytes(room))
                pouring -= room
                peer.flush()
            if peer.requests:
                stream, _ = await peer.request()
                peer.respond(stream, OK, [b"small"])
            await peer.step()

    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, MemoryRecorderOfSizes(), **reach_upstreams(upstream)) as worker,
    ):
        authority = f"localhost:{upstream.port}"
        reader, writer = await connect_through(worker, authority, alpn=("h2",))
        # The connection's window is large; the stream's window limits.
        peer = Peer(reader, writer, client=True, acknowledge=False)
        peer.conn.increment_flow_control_window(1 << 30)
        big = peer.ask(authority, "/big")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await peer.answer(big)
        async with asyncio.timeout(60):
            assert (await peer.answer(peer.ask(authority, "/small"))).body == b"small"
        writer.close()


# Not one field of 200 KiB: h2's encoder would need ten seconds for it.
@pytest.mark.parametrize(
    "extra", [[(f"x-{n}", "a" * (20 << 10)) for n in range(10)], [(f"x-{n}", "y") for n in range(5_000)]]
)
async def test_a_head_without_measure_goes_nowhere(tmp_path: Path, extra: Fields) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as upstream,
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        with pytest.raises((StreamBroken, ConnectionError)):
            await peer.answer(peer.ask("api.test", "/", extra=extra))
        writer.close()
        assert upstream.connections == 0
    assert not recorder.exchanges


async def test_an_authority_that_contradicts_the_tunnel_goes_nowhere(tmp_path: Path) -> None:
    async with (
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as upstream,
        open_worker(tmp_path, MemoryRecorder(), upstreams=api_test_at(upstream)) as worker,
    ):
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        heard = await peer.answer(peer.ask("evil.test", "/"))
        writer.close()
        assert upstream.connections == 0
    assert heard.header(":status") == "421"
    assert heard.header("content-type") == "application/problem+json"
