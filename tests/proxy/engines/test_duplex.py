"""Calls that are answered before their request ends, through the wire engines."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from calls.model import Exchange
from replay.replays import Replays
from tests.replay.strategies import run_of
from tests.replay.test_duplex import URL, report_of, turns
from tests.replay.test_replays import replays_of
from tests.support.h2wire import Peer, ReceivedStream
from tests.support.wire import connect_through, open_worker

HOST, PATH = "speech.example.com", URL.removeprefix("https://speech.example.com")


@asynccontextmanager
async def _asking(directory: Path, *recorded: Exchange) -> AsyncIterator[tuple[Peer, Replays]]:
    """A client of HTTP/2, and the replays that answer it."""
    replays = await replays_of(run_of(*recorded))
    async with asyncio.timeout(60), open_worker(directory, answerer=replays) as worker:
        reader, writer = await connect_through(worker, f"{HOST}:443", alpn=("h2",))
        yield Peer(reader, writer, client=True), replays
        writer.close()


def _send(peer: Peer, stream: int, data: bytes, *, end: bool = False) -> None:
    peer.conn.send_data(stream, data, end_stream=end)
    peer.flush()


async def _until(peer: Peer, heard: ReceivedStream, body: bytes) -> None:
    while heard.body != body:
        assert heard.reset is None
        await peer.step()


async def _until_end(peer: Peer, heard: ReceivedStream) -> None:
    while not heard.ended and heard.reset is None:
        await peer.step()


@pytest.mark.parametrize("is_half_closed", [True, False])
async def test_each_part_is_answered_before_the_next_is_sent(tmp_path: Path, is_half_closed: bool) -> None:
    async with _asking(tmp_path, turns(), turns(b"uno", 2)) as (peer, replays):
        for first in (b"uno", b"one"):
            stream = peer.begin(HOST, PATH)
            heard = peer.streams[stream]
            _send(peer, stream, first)
            await _until(peer, heard, b"ONE")
            _send(peer, stream, b"two", end=is_half_closed)
            await _until_end(peer, heard)
            assert (heard.body, heard.trailers, heard.ended) == (b"ONETWO", [("grpc-status", "0")], True)
            assert heard.header("playhead") == f'replayed; run="run-1"; step={1 + (first == b"uno")}; match=strict'
    assert report_of(replays)["verdict"] == "right"


async def test_a_request_that_leaves_the_recording_is_broken_off(tmp_path: Path) -> None:
    async with _asking(tmp_path, turns(), turns(b"uno", 2)) as (peer, replays):
        stream = peer.begin(HOST, PATH)
        heard = peer.streams[stream]
        _send(peer, stream, b"one")
        await _until(peer, heard, b"ONE")
        _send(peer, stream, b"three")
        await _until_end(peer, heard)
        assert (heard.body, heard.ended, heard.reset) == (b"ONE", False, 2)
        assert [entry["reason"] for entry in report_of(replays)["misses"]] == ["no_match"]
        # The connection goes on.
        stream = peer.begin(HOST, PATH)
        _send(peer, stream, b"uno")
        await _until(peer, peer.streams[stream], b"ONE")


async def test_a_request_that_begins_differently_is_refused_while_it_waits(tmp_path: Path) -> None:
    async with _asking(tmp_path, turns()) as (peer, replays):
        stream = peer.begin(HOST, PATH)
        heard = peer.streams[stream]
        _send(peer, stream, b"other")
        await _until_end(peer, heard)
        assert heard.header(":status") == "424"
        assert b"in the first 5 bytes" in heard.body
    assert [entry["reason"] for entry in report_of(replays)["misses"]] == ["no_match"]


async def test_a_request_that_comes_at_once_is_answered_as_ever(tmp_path: Path) -> None:
    async with _asking(tmp_path, turns()) as (peer, replays):
        heard = await peer.answer(peer.ask(HOST, PATH, method="POST", body=b"onetwo"))
        assert (heard.body, heard.trailers) == (b"ONETWO", [("grpc-status", "0")])
    assert report_of(replays)["verdict"] == "right"


async def test_a_client_that_leaves_in_the_middle_is_one_miss(tmp_path: Path) -> None:
    async with _asking(tmp_path, turns()) as (peer, replays):
        stream = peer.begin(HOST, PATH)
        _send(peer, stream, b"one")
        await _until(peer, peer.streams[stream], b"ONE")
        peer.conn.reset_stream(stream, 8)
        peer.flush()
        # Its answer comes when the reset has been handled.
        await peer.answer(peer.ask(HOST, "/other"))
        misses = report_of(replays)["misses"]
    assert [entry["reason"] for entry in misses] == ["client_left", "no_match"]


async def test_chunks_of_http_1_are_parts_too(tmp_path: Path) -> None:
    recorded = turns()
    plain = replace(recorded, request=replace(recorded.request, url=f"http://{HOST}{PATH}", http_version="HTTP/1.1"))
    replays = await replays_of(run_of(plain))
    async with asyncio.timeout(60), open_worker(tmp_path, answerer=replays) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        head = f"POST http://{HOST}{PATH} HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"3\r\none\r\n")
        assert (await reader.readuntil(b"3\r\nONE\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"3\r\nTWO\r\n0\r\ngrpc-status: 0\r\n\r\n"
        writer.close()
    assert report_of(replays)["verdict"] == "right"


async def test_a_grpc_call_that_was_not_recorded_is_refused_while_it_waits(tmp_path: Path) -> None:
    async with _asking(tmp_path, turns()) as (peer, replays):
        stream = peer.conn.get_next_available_stream_id()
        pseudo_fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", HOST),
            (":path", "/speech.Speech/Other"),
        ]
        peer.conn.send_headers(stream, [*pseudo_fields, ("content-type", "application/grpc")])
        heard = peer.streams[stream] = ReceivedStream()
        _send(peer, stream, b"first")
        await _until_end(peer, heard)
        assert (heard.header(":status"), heard.header("grpc-status"), heard.body) == ("200", "3", b"")
        assert "no call there has this URL" in (heard.header("grpc-message") or "")
    assert [entry["reason"] for entry in report_of(replays)["misses"]] == ["no_match"]
