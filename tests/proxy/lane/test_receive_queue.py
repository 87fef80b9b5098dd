"""The input of an HTTP/2 connection is processed in slices: a flood delays others by a few milliseconds in each turn."""

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import ngh2
import pytest

from proxy.lane import receive_queue
from proxy.lane.h2 import wire as h2wire
from proxy.lane.h2.wire import SEND_BYTES
from proxy.lane.receive_queue import FIRST_SLICE, FRAMES, SLICE, FrameGroups, ReceiveQueue
from proxy.wire import recording_guard
from tests.support.h2quick import QuickClient, frame
from tests.support.h2workers import answer_all, open_h2_upstream, reach_upstreams
from tests.support.wire import MemoryRecorder, Upstream, connect_through, open_worker, serving, upstream_tls

DATA, HEADERS, CONTINUATION = 0, 1, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

TICK = 0.001
"""Seconds by which the clock of these tests advances at each reading."""


def ends(data: bytes, cut: int = 1 << 20, *, preface: bool = False) -> list[int]:
    """The ends of the groups when the data is read in pieces of this size, without those at the end of a piece."""
    groups, found = FrameGroups(preface=preface), []
    for start in range(0, len(data), cut):
        piece, at = data[start : start + cut], 0
        while at < len(piece):
            at = groups.end_of_group(piece, at)
            if at < len(piece) or start + at == len(data):
                found.append(start + at)
    return found


def test_a_group_ends_behind_so_many_frames() -> None:
    one = frame(DATA, b"x", stream=1)
    assert ends(one * (2 * FRAMES + 1)) == [
        FRAMES * len(one),
        2 * FRAMES * len(one),
        (2 * FRAMES + 1) * len(one),
    ]


def test_a_group_ends_behind_each_part_of_a_head() -> None:
    parts = [frame(0, b"x"), frame(HEADERS, b"a" * 100), frame(CONTINUATION, b"b"), frame(HEADERS), frame(0, b"yy")]
    at = list(itertools.accumulate(map(len, parts)))
    assert ends(PREFACE + b"".join(parts), preface=True) == [len(PREFACE) + end for end in (at[1], at[2], at[3], at[4])]


@pytest.mark.parametrize("cut", [1, 5, 9, 10, 11, 64])
def test_groups_are_the_same_however_the_input_is_cut(cut: int) -> None:
    parts = [frame(HEADERS, b"a" * 7), frame(DATA, b"b" * 30), frame(HEADERS, b"c" * 2), frame(CONTINUATION)] * 5
    whole = b"".join(parts)
    assert set(ends(whole, cut)) <= set(ends(whole))


class Turns:
    """Count the turns of the event loop, and the work in each, until the context ends."""

    def __init__(self) -> None:
        self.done = Counter[int]()
        self._turn = 0

    def add(self, amount: int = 1) -> None:
        self.done[self._turn] += amount

    def _count(self) -> None:
        self._turn += 1
        self._next = asyncio.get_running_loop().call_soon(self._count)

    def __enter__(self) -> "Turns":
        self._count()
        return self

    def __exit__(self, *_: object) -> None:
        self._next.cancel()
        self._turn = -1

    @property
    def most(self) -> int:
        """The most work done in one turn."""
        return max(amount for turn, amount in self.done.items() if turn > 0)


class FloodedConnection:
    """A connection with this many groups of input left over."""

    def __init__(self, queue: ReceiveQueue, turns: Turns, left: int) -> None:
        self.left = left
        self._queue = queue
        self._turns = turns

    def process_input(self, deadline: float) -> bool:
        while self.left:
            self.left -= 1
            self._turns.add()
            if self._queue.clock() >= deadline:
                break
        return self.left > 0


def ticking() -> ReceiveQueue:
    """A queue whose clock advances only when it is read, so that each slice has a fixed number of groups."""
    now = itertools.count()
    return ReceiveQueue(lambda: next(now) * TICK)


async def test_all_connections_together_get_one_slice_in_each_turn() -> None:
    queue, turns = ticking(), Turns()
    flooded = [FloodedConnection(queue, turns, 50) for _ in range(5)]
    with turns:
        for connection in flooded:
            queue.add(connection)
        for _ in range(40):
            await asyncio.sleep(0)
    # No connection waits until another one is finished.
    assert all(0 < connection.left < 30 for connection in flooded)
    assert turns.most <= SLICE / TICK + 1


def head(upstream: Upstream, *, end: bool = False, stream: int = 1, more: bytes = b"") -> bytes:
    authority = f"localhost:{upstream.port}".encode()
    block = (b"\x82" if end else b"\x83") + b"\x87\x84\x01" + bytes([len(authority)]) + authority + more
    return frame(HEADERS, block, flags=END_HEADERS | (END_STREAM if end else 0), stream=stream)


FLOODS = {
    "data of one byte": lambda upstream: head(upstream) + frame(DATA, b"x", stream=1) * 20_000,
    "many heads": lambda upstream: b"".join(head(upstream, end=True, stream=n) for n in range(1, 501, 2)),
    "heads of many fields": lambda upstream: b"".join(
        head(upstream, end=True, stream=n, more=b"\x90" * 400) for n in range(1, 501, 2)
    ),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_is_processed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flood: str) -> None:
    monkeypatch.setattr("proxy.lane.lane.ReceiveQueue", ticking)
    turns, end_of_group = Turns(), FrameGroups.end_of_group

    def count(groups: FrameGroups, data: bytes, start: int) -> int:
        turns.add()
        return end_of_group(groups, data, start)

    monkeypatch.setattr(FrameGroups, "end_of_group", count)
    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
    ):
        bad = QuickClient(*await connect_through(worker, f"localhost:{upstream.port}", alpn=("h2",)))
        await bad.until(ngh2.SettingsAcknowledged)
        many = 20_000 if flood == "data of one byte" else 250
        with turns:
            bad.writer.write(FLOODS[flood](upstream))
            async with asyncio.timeout(30):
                await recorder.until(lambda: sum(len(one.pieces("request")) or 1 for one in recorder.exchanges) >= many)
        bad.writer.close()

    # The rest of one read, the start of the next one, and the upstream's response to it.
    assert turns.most <= (FIRST_SLICE + SLICE) / TICK + 4
    assert len(turns.done) > 20


async def test_what_a_server_said_before_it_left_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is closed while most of its input waits for its turn."""
    monkeypatch.setattr("proxy.lane.lane.ReceiveQueue", ticking)
    monkeypatch.setattr(receive_queue, "FRAMES", 4)
    pieces = 500

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = ngh2.Connection(ngh2.Role.SERVER)
        server.initiate_connection({})
        while True:
            server.receive_data(await reader.read(65536))
            for event in server.events():
                if isinstance(event, ngh2.RequestReceived):
                    server.send_response(event.stream_id, [(b":status", b"200")])
                    writer.write(server.data_to_send())
                    body = [frame(DATA, b"z", stream=event.stream_id)] * (pieces - 1)
                    writer.write(b"".join([*body, frame(DATA, b"z", flags=END_STREAM, stream=event.stream_id)]))
                    return
            writer.write(server.data_to_send())

    async with (
        serving(answer, tls=upstream_tls("localhost", alpn=("h2",))) as upstream,
        open_worker(tmp_path, MemoryRecorder(), **reach_upstreams(upstream)) as worker,
    ):
        client = QuickClient(*await connect_through(worker, f"localhost:{upstream.port}", alpn=("h2",)))
        async with asyncio.timeout(60):
            assert await client.body(client.ask(f"localhost:{upstream.port}")) == b"z" * pieces
        client.writer.close()


async def test_what_waits_to_be_sent_is_encoded_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that reference one large field by a byte each are hundreds of times larger towards an upstream."""
    turns, push = Turns(), h2wire.Wire.push

    def count(wire: h2wire.Wire) -> None:
        before = wire._unsent_size
        push(wire)
        turns.add(wire._unsent_size - before)

    monkeypatch.setattr(h2wire.Wire, "push", count)
    recorder = MemoryRecorder()
    large = b"\x40\x01a\x7f\xa1\x1e" + b"a" * 4000
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
    ):
        bad = QuickClient(*await connect_through(worker, f"localhost:{upstream.port}", alpn=("h2",)))
        await bad.until(ngh2.SettingsAcknowledged)
        heads = [head(upstream, end=True, stream=n, more=b"\xbe" * 14) for n in range(3, 103, 2)]
        with turns:
            bad.writer.write(head(upstream, end=True, more=large) + b"".join(heads))
            async with asyncio.timeout(60):
                await recorder.until(lambda: [one.outcome for one in recorder.exchanges].count("completed") == 51)
        bad.writer.close()

    assert turns.done.total() > 4 * SEND_BYTES
    assert turns.most <= 2 * SEND_BYTES


async def test_pieces_are_recorded_before_many_of_them_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []
    tell = recording_guard.RecordingGuard._flush_pieces

    def note(one: recording_guard.RecordingGuard) -> None:
        waiting.append(len(one._pieces))
        tell(one)

    monkeypatch.setattr(recording_guard.RecordingGuard, "_flush_pieces", note)
    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
    ):
        client = QuickClient(*await connect_through(worker, f"localhost:{upstream.port}", alpn=("h2",)))
        await client.until(ngh2.SettingsAcknowledged)
        client.writer.write(head(upstream) + frame(DATA, b"x", stream=1) * 5000)
        async with asyncio.timeout(60):
            await recorder.until(lambda: sum(len(one.pieces("request")) for one in recorder.exchanges) == 5000)
        client.writer.close()
    assert max(waiting) == recording_guard.MAX_PENDING_PIECES
