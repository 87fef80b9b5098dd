"""HTTP/2: no part of a request is forwarded, and no message is completed, before it is recorded."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from tests.support.h2wire import Fields, Peer, ReceivedStream, StreamBroken
from tests.support.h2workers import OK, open_h2_pair
from tests.support.wire import MemoryRecorder

SIZED: Fields = [*OK, ("content-length", "6")]


async def _next_request(peer: Peer) -> tuple[int, ReceivedStream]:
    """Return the next request, as far as it has arrived."""
    while not peer.requests:
        await peer.step()
    stream = peer.requests.popleft()
    return stream, peer.streams[stream]


async def _has(peer: Peer, heard: ReceivedStream, body: bytes) -> None:
    while heard.body != body:
        await peer.step()


async def _not_now(coming: Awaitable[object]) -> None:
    """Wait long enough for data to arrive, if it were sent."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(coming, 0.1)


async def test_nothing_is_forwarded_before_it_is_kept(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def handler(peer: Peer) -> None:
        await _next_request(peer)
        asked.set()
        stream = next(iter(peer.streams))
        while not peer.streams[stream].ended:
            await peer.step()
        peer.respond(stream, OK, [b"ok"])
        await _next_request(peer)

    recorder = MemoryRecorder()
    recorder.gate.clear()
    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler, recorder) as (peer, authority),
    ):
        stream = peer.ask(authority, "/x", method="POST", body=b"ab")
        await recorder.begun.wait()
        await _not_now(asked.wait())
        recorder.gate.set()
        assert (await peer.answer(stream)).body == b"ok"


async def test_a_request_does_not_end_before_it_is_kept(tmp_path: Path) -> None:
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def handler(peer: Peer) -> None:
        stream, heard = await _next_request(peer)
        await _has(peer, heard, b"ab")
        arrived.set()
        while not heard.ended:
            await peer.step()
        assert heard.body == b"abcd"
        ended.set()
        peer.respond(stream, OK, [b"ok"])
        await _next_request(peer)

    recorder = MemoryRecorder()
    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler, recorder) as (peer, authority),
    ):
        stream = peer.begin(authority, "/x")
        peer.conn.send_data(stream, b"ab")
        peer.flush()
        await arrived.wait()
        recorder.gate.clear()
        peer.conn.send_data(stream, b"cd", end_stream=True)
        peer.flush()
        await recorder.until(lambda: recorder.only.body("request") == b"abcd")
        await _not_now(ended.wait())
        recorder.gate.set()
        assert (await peer.answer(stream)).body == b"ok"


@pytest.mark.parametrize(("head", "over"), [(OK, True), (SIZED, True), (SIZED, False)])
async def test_only_what_completes_a_response_waits_until_it_is_kept(tmp_path: Path, head: Fields, over: bool) -> None:
    """`over`: the last piece ends the stream. Otherwise only the length shows that it is the last."""
    proceed, complete = asyncio.Event(), asyncio.Event()

    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        peer.conn.send_headers(stream, head)
        peer.conn.send_data(stream, b"abcd")
        peer.flush()
        await proceed.wait()
        peer.conn.send_data(stream, b"ef", end_stream=over)
        peer.flush()
        await complete.wait()
        if not over:
            peer.conn.send_data(stream, b"", end_stream=True)
        peer.flush()
        await _next_request(peer)

    recorder = MemoryRecorder()
    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler, recorder) as (peer, authority),
    ):
        stream = peer.ask(authority, "/x")
        await _has(peer, heard := peer.streams[stream], b"abcd")
        recorder.gate.clear()
        proceed.set()
        await recorder.until(lambda: recorder.only.body("response") == b"abcdef")
        if head is SIZED:
            await _not_now(_has(peer, heard, b"abcdef"))
        complete.set()
        await recorder.only.over.wait()
        await _not_now(peer.answer(stream))
        recorder.gate.set()
        assert (await peer.answer(stream)).body == b"abcdef"


async def test_what_cannot_be_kept_goes_nowhere_and_does_not_end(tmp_path: Path) -> None:
    recorder = MemoryRecorder("refuse")
    asked = []

    async def handler(peer: Peer) -> None:
        stream, heard = await peer.request()
        asked.append(heard.header(":path"))
        recorder.keeps = False
        peer.respond(stream, SIZED, [b"abcdef"])
        await _next_request(peer)

    async with (
        asyncio.timeout(60),
        open_h2_pair(tmp_path, handler, recorder) as (peer, authority),
    ):
        with pytest.raises(StreamBroken, match="reset"):
            await peer.answer(stream := peer.ask(authority, "/first"))
        assert b"f" not in peer.streams[stream].body
        assert (await peer.answer(peer.ask(authority, "/second"))).header(":status") == "503"
    assert asked == ["/first"]
