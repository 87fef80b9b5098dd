"""Floods by HTTP/2 clients: each ends the connection of that client only."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import ngh2
import pytest

from tests.support.h2quick import QuickClient, frame
from tests.support.h2wire import Peer
from tests.support.h2workers import OK, answer_all, open_h2_upstream, reach_upstreams
from tests.support.wire import MemoryRecorder, Upstream, Worker, connect_through, open_worker

HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4


async def _answer_all_but_held(peer: Peer) -> None:
    """An upstream that never answers requests for `/held`."""
    while True:
        stream, head = await peer.request()
        if head.header(":path") != "/held":
            peer.respond(stream, OK, [b"ok"])


@asynccontextmanager
async def _worker_under_attack(directory: Path) -> AsyncIterator[tuple[Worker, Upstream, QuickClient, QuickClient]]:
    """A worker with a well-behaved client and a flooding one."""
    async with (
        open_h2_upstream(_answer_all_but_held) as upstream,
        open_worker(directory, MemoryRecorder(), **reach_upstreams(upstream)) as worker,
    ):
        good, bad = [
            QuickClient(*await connect_through(worker, f"localhost:{upstream.port}", alpn=("h2",))) for _ in range(2)
        ]
        await bad.until(ngh2.SettingsAcknowledged)
        yield worker, upstream, good, bad
        assert await good.body(good.ask(f"localhost:{upstream.port}")) == b"ok"
        good.writer.close()
        bad.writer.close()


async def _thrown_out(client: QuickClient, flood: bytes, times: int = 200) -> None:
    """Send the data this many times, and check that the worker ends the connection before or right after that."""
    try:
        for _ in range(times):
            client.writer.write(flood)
            await client.writer.drain()
        while await client.reader.read(65536):
            pass
    except ConnectionError:
        return


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(frame(SETTINGS, b"\0\3\0\0\0\1") * 2000, id="settings"),
        pytest.param(frame(PING, bytes(8)) * 2000, id="pings"),
    ],
)
async def test_what_asks_for_answers_and_takes_none_is_cut_off(tmp_path: Path, flood: bytes) -> None:
    async with _worker_under_attack(tmp_path) as (_, _, _, bad):
        # Nothing is read: the worker's responses fill the socket buffers, then wait in the worker.
        await _thrown_out(bad, flood)


async def test_a_head_that_does_not_end_is_cut_off(tmp_path: Path) -> None:
    """CVE-2024-27316 and similar attacks."""
    async with _worker_under_attack(tmp_path) as (_, _, _, bad):
        bad.writer.write(frame(HEADERS, b"", stream=1))
        await _thrown_out(bad, frame(CONTINUATION, b"", stream=1))


async def test_a_head_that_grows_when_it_is_unpacked_is_cut_off(tmp_path: Path) -> None:
    """CVE-2016-6581: one large field is put into the header table, then referenced by one byte, again and again."""
    large = b"\x40\x01a\x7f\xc1\x1e" + b"a" * 4000
    async with _worker_under_attack(tmp_path) as (_, _, _, bad):
        block = b"\x83\x87\x84" + large + b"\xbe" * 16_000
        bad.writer.write(frame(HEADERS, block[:16_000], stream=1))
        await _thrown_out(bad, frame(CONTINUATION, block[16_000:], flags=END_HEADERS, stream=1), 1)


async def test_streams_that_are_opened_only_to_be_reset_are_cut_off(tmp_path: Path) -> None:
    """CVE-2023-44487."""
    async with _worker_under_attack(tmp_path) as (_, upstream, _, bad):
        head, reset = _head(upstream), (8).to_bytes(4)
        streams = range(1, 10_001, 2)
        flood = [
            frame(HEADERS, head, flags=END_HEADERS | END_STREAM, stream=n) + frame(RST_STREAM, reset, stream=n)
            for n in streams
        ]
        await _thrown_out(bad, b"".join(flood), 1)


async def test_more_streams_than_were_offered_are_cut_off(tmp_path: Path) -> None:
    async with _worker_under_attack(tmp_path) as (_, upstream, _, bad):
        most = (await bad.until(ngh2.SettingsReceived)).settings[ngh2.Setting.MAX_CONCURRENT_STREAMS]
        flood = [
            frame(HEADERS, _head(upstream), flags=END_HEADERS | END_STREAM, stream=n) for n in range(1, 4 * most, 2)
        ]
        await _thrown_out(bad, b"".join(flood), 1)


def _head(upstream: Upstream) -> bytes:
    """GET https://localhost:PORT/held, encoded with RFC 7541's static table, without an entry in the dynamic one."""
    authority = f"localhost:{upstream.port}".encode()
    return b"\x82\x87\x04\x05/held\x01" + bytes([len(authority)]) + authority


async def test_what_is_no_http_2_at_all_is_cut_off(tmp_path: Path) -> None:
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, MemoryRecorder(), **reach_upstreams(upstream)) as worker,
    ):
        for noise in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", os.urandom(64)):
            reader, writer = await connect_through(worker, f"localhost:{upstream.port}", alpn=("h2",))
            writer.write(noise)
            async with asyncio.timeout(60):
                while await reader.read(65536):
                    pass
            writer.close()
