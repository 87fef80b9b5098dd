"""HTTP/2 upstreams that end a connection, or one stream of it, while requests are under way (RFC 9113 6.8 and 8.7)."""

import asyncio
from pathlib import Path

import pytest
from h2.settings import SettingCodes
from hyperframe.frame import GoAwayFrame

from tests.support.h2wire import Peer, ReceivedStream
from tests.support.h2workers import OK, answer_all, open_h2_pair
from tests.support.wire import MemoryRecorder

REFUSED = 7


def _announce_end(peer: Peer, last_stream: int) -> None:
    """Send a GOAWAY as servers do that go on with their open streams. h2 would take the connection for closed."""
    peer.writer.write(GoAwayFrame(0, last_stream_id=last_stream, error_code=0).serialize())


async def _answer_or_reset(peer: Peer, authority: str) -> ReceivedStream:
    heard = peer.streams[peer.ask(authority, "/", method="POST", body=b"once")]
    while not heard.ended and heard.reset is None:
        await peer.step()
    return heard


@pytest.mark.parametrize("last_stream", [1, 2**31 - 1], ids=["at once", "in two steps"])
async def test_what_is_under_way_is_answered_after_a_goaway(tmp_path: Path, last_stream: int) -> None:
    connections, asked_again = 0, asyncio.Event()

    async def handler(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        number = connections
        stream, _ = await peer.request()
        if number == 1:
            peer.conn.send_headers(stream, OK)
            peer.conn.send_data(stream, b"be")
            peer.flush()
            _announce_end(peer, last_stream)
            await asked_again.wait()
            peer.conn.send_data(stream, b"gun", end_stream=True)
            peer.flush()
        else:
            peer.respond(stream, OK, [b"new"])
            asked_again.set()
        await peer.request()

    recorder = MemoryRecorder()
    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler, recorder) as (peer, authority),
    ):
        first = peer.ask(authority, "/", method="POST", body=b"a")
        while peer.streams[first].body != b"be":
            await peer.step()
        # Whoever asks now is not told of the goaway, and must not be sent to the connection that ends.
        second = peer.ask(authority, "/", method="POST", body=b"b")
        assert (await peer.answer(second)).body == b"new"
        assert (await peer.answer(first)).body == b"begun"
    assert connections == 2
    assert [exchange.outcome for exchange in recorder.exchanges] == ["completed", "completed"]


async def test_what_a_goaway_leaves_out_can_be_asked_again(tmp_path: Path) -> None:
    connections = 0

    async def handler(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        number = connections
        stream, _ = await peer.request()
        if number == 1:
            _announce_end(peer, 0)
        else:
            peer.respond(stream, OK, [b"ok"])
        await peer.request()

    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler) as (peer, authority),
    ):
        while (answer := await _answer_or_reset(peer, authority)).reset == REFUSED:
            pass
        assert (answer.body, answer.reset) == (b"ok", None)
    assert connections == 2


@pytest.mark.parametrize("code", [1, 2, 8, 11, REFUSED])
async def test_the_code_of_a_reset_reaches_the_client(tmp_path: Path, code: int) -> None:
    async def handler(peer: Peer) -> None:
        while True:
            stream, _ = await peer.request()
            peer.conn.reset_stream(stream, code)
            peer.flush()

    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler) as (peer, authority),
    ):
        assert (await _answer_or_reset(peer, authority)).reset == code


async def test_what_waits_for_room_when_a_goaway_comes_can_be_asked_again(tmp_path: Path) -> None:
    connections, ended = 0, asyncio.Event()

    async def handler(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        if connections > 1:
            await answer_all(peer)
        peer.conn.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        peer.flush()
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, OK)
        peer.flush()
        await both_asked.wait()
        _announce_end(peer, stream)
        await ended.wait()
        peer.conn.send_data(stream, b"first", end_stream=True)
        peer.flush()
        await peer.request()

    both_asked = asyncio.Event()
    recorder = MemoryRecorder()
    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler, recorder) as (peer, authority),
    ):
        first = peer.streams[peer.ask(authority, "/", method="POST", body=b"a")]
        while not first.headers:
            await peer.step()
        second = peer.streams[peer.ask(authority, "/", method="POST", body=b"b")]
        await recorder.until(lambda: len(recorder.exchanges) == 2)
        both_asked.set()
        while not second.ended and second.reset is None:
            await peer.step()
        if second.reset == REFUSED:
            second = await _answer_or_reset(peer, authority)
        assert (second.body, second.reset) == (b"ok", None)
        ended.set()
        while not first.ended:
            await peer.step()
        assert first.body == b"first"


async def test_a_client_that_opens_no_more_streams_gets_its_answers(tmp_path: Path) -> None:
    goaway_arrived = asyncio.Event()

    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        await goaway_arrived.wait()
        peer.respond(stream, OK, [b"ok"])
        await peer.request()

    recorder = MemoryRecorder()
    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler, recorder) as (peer, authority),
    ):
        stream = peer.ask(authority, "/", method="POST", body=b"a")
        await recorder.begun.wait()
        _announce_end(peer, 0)
        peer.conn.ping(b"arrived?")
        peer.flush()
        while not peer.pings:
            await peer.step()
        goaway_arrived.set()
        assert (await peer.answer(stream)).body == b"ok"
    assert recorder.only.outcome == "completed"
