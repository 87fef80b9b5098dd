"""HTTP/2 connections to upstreams: which clients share them, and which requests are sent a second time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.lane.h2 import routes as h2ways
from proxy.lane.h2 import upstreams as h2upstreams
from proxy.lane.receive_queue import ReceiveQueue
from proxy.lane.upstream import Upstreams
from proxy.trust.ca import ensure_ca
from proxy.wire.config import EngineConfig, Limits
from proxy.wire.engine_state import EngineState
from tests.support.h2wire import Fields, Peer, StreamBroken
from tests.support.h2workers import OK, answer_all, open_h2_client, open_h2_pair, open_h2_upstream, reach_upstreams
from tests.support.wire import MemoryRecorder, Upstream, answering, api_test_at, connect_through, open_worker

REFUSED, INTERNAL, CANCEL = 7, 2, 8


async def test_all_clients_share_a_connection(tmp_path: Path) -> None:
    async with open_h2_upstream(answer_all) as upstream, open_worker(tmp_path, **reach_upstreams(upstream)) as worker:
        async with open_h2_client(worker, upstream) as (one, authority), open_h2_client(worker, upstream) as (other, _):
            for peer in (one, other, one):
                assert (await peer.answer(peer.ask(authority, "/"))).body == b"ok"
        assert upstream.connections == 1


async def test_who_shows_a_name_for_a_connection_has_it_for_himself(tmp_path: Path) -> None:
    ntlm: Fields = [("authorization", "NTLM TlRMTVNT")]
    upstream, left = Upstream(), [asyncio.Event() for _ in range(4)]

    async def handler(peer: Peer) -> None:
        number = upstream.connections
        try:
            await answer_all(peer)
        finally:
            left[number].set()

    async with (
        open_h2_upstream(handler, upstream=upstream),
        open_worker(tmp_path, **reach_upstreams(upstream)) as worker,
    ):
        async with open_h2_client(worker, upstream) as (one, authority), open_h2_client(worker, upstream) as (other, _):
            await one.answer(one.ask(authority, "/", extra=ntlm))
            await one.answer(one.ask(authority, "/"))
            assert upstream.connections == 2  # the first was made to learn what the upstream speaks
            await other.answer(other.ask(authority, "/"))
            await other.answer(other.ask(authority, "/", extra=ntlm))
            assert upstream.connections == 3
            assert not left[2].is_set()
        # A client's own connections close with it; shared ones stay open.
        await left[2].wait()
        await left[3].wait()
        assert not left[1].is_set()


async def test_more_streams_than_an_upstream_takes_get_another_connection(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)

    async def handler(peer: Peer) -> None:
        peer.conn.update_settings({3: 1})
        peer.flush()
        stream, _ = await peer.request()
        await both.wait()
        peer.respond(stream, OK, [b"ok"])
        await peer.request()

    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        for stream in [peer.ask(authority, "/") for _ in range(2)]:
            assert (await peer.answer(stream)).body == b"ok"
        assert upstream.connections == 2


async def test_a_client_that_stops_reading_does_not_stop_the_other(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        big, _ = await peer.request()
        peer.conn.send_headers(big, OK)
        left = 8 << 20
        while True:
            while left and (room := min(left, 16384, peer.conn.local_flow_control_window(big))) > 0:
                peer.conn.send_data(big, bytes(room))
                left -= room
                peer.flush()
            if peer.requests:
                peer.respond((await peer.request())[0], OK, [b"ok"])
            await peer.step()

    async with open_h2_upstream(handler) as upstream, open_worker(tmp_path, **reach_upstreams(upstream)) as worker:
        async with (
            open_h2_client(worker, upstream, acknowledge=False) as (one, authority),
            open_h2_client(worker, upstream) as (other, _),
        ):
            stream = one.ask(authority, "/big")
            while len(one.streams[stream].body) < 65535:
                await one.step()
            for _ in range(3):
                assert (await other.answer(other.ask(authority, "/"))).body == b"ok"
            one.widen(stream)
            while len(one.streams[stream].body) < 8 << 20:
                await one.step()
        assert upstream.connections == 1


async def _resets(code: int, method: str) -> tuple[Any, list[str]]:
    """An upstream that resets its first request, and the requests that it received."""
    asked: list[str] = []

    async def handler(peer: Peer) -> None:
        while True:
            stream, heard = await peer.request()
            asked.append(f"{heard.header(':method')} {heard.body.decode()}")
            if len(asked) == 1:
                peer.conn.reset_stream(stream, code)
                peer.flush()
            else:
                peer.respond(stream, OK, [b"ok"])

    return handler, asked


async def test_what_was_refused_before_anything_was_done_is_asked_again(tmp_path: Path) -> None:
    handler, asked = await _resets(REFUSED, "POST")
    recorder = MemoryRecorder()
    async with open_h2_pair(tmp_path, handler, recorder) as (peer, authority):
        head: Fields = [("content-length", "4")]
        heard = await peer.answer(peer.ask(authority, "/", method="POST", body=b"once", extra=head))
    assert heard.body == b"ok"
    assert asked == ["POST once", "POST once"]
    assert (recorder.only.outcome, recorder.only.body("request")) == ("completed", b"once")


@pytest.mark.parametrize("code", [INTERNAL, CANCEL, 13])
async def test_what_was_reset_otherwise_is_not_asked_again(tmp_path: Path, code: int) -> None:
    handler, asked = await _resets(code, "POST")
    recorder = MemoryRecorder()
    async with open_h2_pair(tmp_path, handler, recorder) as (peer, authority):
        with pytest.raises(StreamBroken, match=f"code {code}$"):
            await peer.answer(peer.ask(authority, "/", method="POST", body=b"once"))
        await recorder.only.over.wait()
    assert asked == ["POST once"]
    assert recorder.only.outcome == "server_closed"


async def test_an_upstream_that_refuses_without_end_is_believed(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        while True:
            stream, _ = await peer.request()
            peer.conn.reset_stream(stream, REFUSED)
            peer.flush()

    async with open_h2_pair(tmp_path, handler) as (peer, authority):
        with pytest.raises(StreamBroken, match=r"code 7$"):
            await peer.answer(peer.ask(authority, "/"))


async def test_a_goaway_sends_what_was_not_looked_at_elsewhere(tmp_path: Path) -> None:
    upstream = Upstream()

    async def handler(peer: Peer) -> None:
        if upstream.connections > 1:
            await answer_all(peer)
        first, _ = await peer.request()
        peer.conn.send_headers(first, OK)
        await peer.request()
        # RFC 9113 6.8: the second one was not, and will not be processed.
        peer.conn.close_connection(0, last_stream_id=first)
        peer.flush()
        # h2 considers the connection closed now and would not end the first stream, so write the frame by hand.
        peer.writer.write(b"\0\0\4\0\1" + first.to_bytes(4) + b"last")
        await peer.reader.read()

    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(handler, upstream=upstream),
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        head: Fields = [("content-length", "4")]
        first, second = (peer.ask(authority, path, method="POST", body=b"once", extra=head) for path in ("/1", "/2"))
        assert (await peer.answer(first)).body == b"last"
        assert (await peer.answer(second)).body == b"ok"
        assert (await peer.answer(peer.ask(authority, "/3"))).body == b"ok"
    assert upstream.connections == 2
    assert [exchange.outcome for exchange in recorder.exchanges] == ["completed"] * 3


@pytest.mark.parametrize(("method", "asked"), [("GET", 2), ("POST", 1)])
async def test_a_connection_that_breaks_without_a_word(tmp_path: Path, method: str, asked: int) -> None:
    """A reused connection broke: safe requests are repeated; others may have been processed."""
    upstream, heads = Upstream(), []

    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        if upstream.connections == 1:
            peer.respond(stream, OK, [b"ok"])
            heads.append((await peer.request())[1])
        else:
            heads.append(peer.streams[stream])
            peer.respond(stream, OK, [b"ok"])
            await peer.request()

    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(handler, upstream=upstream),
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        await peer.answer(peer.ask(authority, "/"))
        stream = peer.ask(authority, "/", method=method, extra=[("content-length", "0")])
        if method == "GET":
            assert (await peer.answer(stream)).body == b"ok"
        else:
            with pytest.raises(StreamBroken):
                await peer.answer(stream)
            await recorder.exchanges[-1].over.wait()
    assert len(heads) == asked
    assert recorder.exchanges[-1].outcome == ("completed" if method == "GET" else "server_closed")


async def test_a_connection_that_nobody_needs_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2ways, "KEEP_SECONDS", 0.0)
    gone = asyncio.Event()

    async def handler(peer: Peer) -> None:
        try:
            await answer_all(peer)
        finally:
            gone.set()

    async with open_h2_pair(tmp_path, handler) as (peer, authority):
        await peer.answer(peer.ask(authority, "/"))
        async with asyncio.timeout(60):
            await gone.wait()


async def test_nobody_else_is_put_on_a_connection_that_may_be_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h2upstreams, "SILENT_SECONDS", 0.0)
    upstream, silent, answered = Upstream(), asyncio.Event(), asyncio.Event()

    async def handler(peer: Peer) -> None:
        if upstream.connections == 1:
            stream, _ = await peer.request()
            silent.set()
            await answered.wait()
            peer.respond(stream, OK, [b"late"])
        await answer_all(peer)

    async with (
        open_h2_upstream(handler, upstream=upstream),
        open_worker(tmp_path, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        first = peer.ask(authority, "/")
        await silent.wait()
        assert (await peer.answer(peer.ask(authority, "/"))).body == b"ok"
        answered.set()
        assert (await peer.answer(first)).body == b"late"
    assert upstream.connections == 2


async def test_an_upload_goes_elsewhere_where_a_connection_took_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may just have received a GOAWAY."""
    begin = h2upstreams.SharedConnection.open_stream
    refused: list[h2upstreams.SharedConnection] = []

    def once_closing(shared: h2upstreams.SharedConnection, *args: Any, **kwargs: Any) -> bool:
        if refused:
            return begin(shared, *args, **kwargs)
        refused.append(shared)
        shared.retire()
        return False

    monkeypatch.setattr(h2upstreams.SharedConnection, "open_stream", once_closing)
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, limits=Limits(buffered_request=0), **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        upload = peer.ask(authority, "/", method="POST", body=bytes(10_000), extra=[("content-length", "10000")])
        assert (await peer.answer(upload)).body == b"ok"
        assert upstream.connections == 2


def test_what_spoke_only_http_1_is_asked_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = ensure_ca(tmp_path)
    engine = EngineState(config=EngineConfig(authority=authority), recorder=None, answerer=None, trust=tmp_path)
    ways = h2ways.RouteTable(Upstreams(str(authority.certificate)), engine, lambda _: None, ReceiveQueue())
    engine.remember_alpn("old.test", 443, b"http/1.1")
    engine.remember_alpn("new.test", 443, b"h2")
    ways.sweep()
    assert len(engine.alpn) == 2
    monkeypatch.setattr(h2ways, "RECHECK_SECONDS", -1.0)
    ways.sweep()
    assert engine.alpn == {("new.test", 443): b"h2"}


async def test_a_connection_that_is_closed_as_soon_as_it_is_made_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Upstreams.connect

    async def connect_and_close(*args: Any, **kwargs: Any) -> Any:
        made = await connect(*args, **kwargs)
        made.is_gone = True
        return made

    async with open_h2_pair(tmp_path, answer_all) as (peer, authority):
        monkeypatch.setattr(Upstreams, "connect", connect_and_close)
        monkeypatch.setattr(h2upstreams.SharedConnection, "has_room", False)
        heard = await peer.answer(peer.ask(authority, "/"))
    assert (heard.header(":status"), b"connect_failed" in heard.body) == ("502", True)


async def test_an_upstream_of_http_1_gets_http_1(tmp_path: Path) -> None:
    """RFC 9113 8.2.3, 8.3.1: Host for :authority, and one Cookie."""
    async with (
        answering(b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nok") as upstream,
        open_worker(tmp_path, recorder := MemoryRecorder(), upstreams=api_test_at(upstream)) as worker,
    ):
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        crumbs: Fields = [("cookie", "a=1"), ("x-playhead-step", "3"), ("x-b", "2"), ("cookie", "b=2")]
        first, heard = [await peer.answer(peer.ask("api.test", "/x", extra=crumbs)) for _ in range(2)]
        writer.close()
    assert upstream.heads == [b"GET /x HTTP/1.1\r\nHost: api.test\r\ncookie: a=1; b=2\r\nx-b: 2\r\n\r\n"] * 2
    assert upstream.connections == 1
    assert first.headers == heard.headers == [(":status", "200"), ("x-a", "1"), ("content-length", "2")]
    exchange = recorder.exchanges[0]
    assert exchange.begun["headers"] == (("cookie", "a=1"), ("x-b", "2"), ("cookie", "b=2"))
    assert exchange.begun["step"] == 3
    assert exchange.head is not None
    assert exchange.head[:3] == (200, "OK", "HTTP/1.1")
