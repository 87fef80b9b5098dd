"""HTTP/2 clients: many streams at once, backpressure, resets and errors."""

import asyncio
import gc
import subprocess
from pathlib import Path
from typing import Any

import ngh2
import pytest

from calls.model import ChunkKind
from proxy.lane import lane as lanes
from proxy.lane.client import Http1Connection
from proxy.lane.h2.client import H2Downstream, Http2Client
from proxy.lane.h2.upstreams import Http2Carrier
from proxy.lane.relay import RelayedExchange
from proxy.wire.config import Limits
from tests.support.h2quick import QuickClient
from tests.support.h2wire import Peer, StreamBroken
from tests.support.h2workers import OK, answer_all, open_h2_client, open_h2_upstream, reach_upstreams
from tests.support.wire import (
    MemoryExchange,
    MemoryRecorder,
    Side,
    answering,
    api_test_at,
    connect_through,
    open_worker,
)

CANCEL, CALM = 8, 11


async def test_a_hundred_streams_at_once(tmp_path: Path) -> None:
    async def handler(peer: Peer) -> None:
        waiting: list[int] = []
        while len(waiting) < 100:
            waiting.append((await peer.request())[0])
        # Respond only when all requests are there, in reverse order: no stream waits for another.
        for stream in reversed(waiting):
            peer.respond(stream, OK, [peer.streams[stream].header(":path").encode()])  # type: ignore[union-attr]
        await peer.request()

    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        streams = {peer.ask(authority, f"/{number}"): f"/{number}".encode() for number in range(100)}
        for stream, path in streams.items():
            assert (await peer.answer(stream)).body == path
    assert upstream.connections == 1
    assert {exchange.outcome for exchange in recorder.exchanges} == {"completed"}
    assert {exchange.body("response") for exchange in recorder.exchanges} == set(streams.values())


class Forgetful(MemoryRecorder):
    """Drops the bodies, because they are large."""

    def begin(self, **head: Any) -> MemoryExchange:
        self.exchanges.append(Bodiless(str(len(self.exchanges)), head, self))
        return self.exchanges[-1]


class Bodiless(MemoryExchange):
    def record_data(self, side: Side, data: bytes, at: int, kind: ChunkKind = "data") -> None:
        pass


async def test_events_pass_beside_a_large_upload(tmp_path: Path) -> None:
    size, events = 24 << 20, 20

    async def handler(peer: Peer) -> None:
        while len(peer.streams) < 2:
            await peer.step()
        upload, stream = sorted(peer.streams)
        peer.conn.send_headers(stream, [(":status", "200"), ("content-type", "text/event-stream")])
        for number in range(events):
            # One event for each part of the upload: this finishes only if both streams progress together.
            while sum(map(len, peer.streams[upload].pieces)) < number * (size // events):
                await peer.step()
            peer.conn.send_data(stream, b"data: %d\n\n" % number)
            peer.flush()
        peer.conn.end_stream(stream)
        while not peer.streams[upload].ended:
            await peer.step()
        peer.respond(upload, OK, [str(len(peer.streams[upload].body)).encode()])
        await peer.request()

    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, Forgetful(), **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        upload = peer.begin(authority, "/upload")
        stream = peer.ask(authority, "/events")
        await peer.pour(upload, size)
        heard = await peer.answer(stream)
        assert heard.pieces == [b"data: %d\n\n" % number for number in range(events)]
        assert (await peer.answer(upload)).body == str(size).encode()


async def test_an_upload_waits_for_an_upstream_that_takes_nothing(tmp_path: Path) -> None:
    """Also if more arrived before the upstream connection than its window allows."""
    recorder, early = MemoryRecorder(), 1 << 20

    async def handler(peer: Peer) -> None:
        while True:
            await peer.step()

    def body_size() -> int:
        return len(recorder.only.body("request"))

    async with (
        open_h2_upstream(handler, acknowledge=False) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
        asyncio.TaskGroup() as group,
    ):
        recorder.gate.clear()
        pouring = group.create_task(peer.pour(peer.begin(authority, "/upload"), 8 << 20))
        await recorder.until(lambda: bool(recorder.exchanges) and body_size() >= early)
        recorder.gate.set()
        # Only data in flight arrives now. That nothing more arrives cannot be awaited, so wait a while.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(recorder.until(lambda: body_size() > 2 * early), 0.5)
        pouring.cancel()


@pytest.mark.parametrize("code", [CANCEL, CALM])
async def test_why_a_client_gives_up_is_handed_on(tmp_path: Path, code: int) -> None:
    reached, result = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def handler(peer: Peer) -> None:
        _, heard = await peer.request()
        reached.set()
        while heard.reset is None:
            await peer.step()
        result.set_result(heard.reset)

    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        stream = peer.ask(authority, "/")
        await reached.wait()
        peer.conn.reset_stream(stream, code)
        peer.flush()
        assert await result == code
    assert recorder.only.outcome == "client_closed"


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        ([("x-playhead-run", "no run")], "400", b"bad_run"),
        ([("x-playhead-step", "first")], "400", b"bad_run"),
        ([("host", "evil.test")], "421", b"host_mismatch"),
        ([(f"x-{number}", "") for number in range(501)], "431", b"head_too_large"),
    ],
)
async def test_a_refused_request_gets_the_reason(
    tmp_path: Path, head: list[tuple[str, str]], status: str, code: bytes
) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(b"") as upstream,
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        for body in (b"", b"asked"):
            heard = await peer.answer(peer.ask("api.test", "/", method="POST", body=body, extra=head))
            assert (heard.header(":status"), code in heard.body) == (status, True)
        writer.close()
        assert upstream.connections == 0
    assert not recorder.exchanges


async def test_what_is_refused_says_so_and_is_counted(tmp_path: Path) -> None:
    async with open_worker(tmp_path, MemoryRecorder(), upstreams={"api.test": "http://127.0.0.1:9"}) as worker:
        quick = QuickClient(*await connect_through(worker, "api.test:443", alpn=("h2",)))
        assert b"connect_in_tunnel" in await quick.body(quick.ask("api.test:443", method="CONNECT"))
        assert b"connect_failed" in await quick.body(quick.ask("api.test"))
        quick.writer.close()
    counts = worker.config.counts
    assert (counts["errors/connect_in_tunnel"], counts["errors/connect_failed"]) == (1, 1)


async def test_a_worker_that_stops_says_so_and_lets_end_what_is_under_way(tmp_path: Path) -> None:
    proceed = asyncio.Event()

    async def handler(peer: Peer) -> None:
        stream, _ = await peer.request()
        await proceed.wait()
        peer.respond(stream, OK, [b"ok"])
        await peer.request()

    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(handler) as upstream,
        open_worker(tmp_path, recorder, limits=Limits(grace=10), **reach_upstreams(upstream)) as worker,
    ):
        authority = f"localhost:{upstream.port}"
        quick = QuickClient(*await connect_through(worker, authority, alpn=("h2",)))
        stream = quick.ask(authority)
        await recorder.begun.wait()
        worker.config.stop.set()
        last = (await quick.until(ngh2.GoAwayReceived)).last_stream_id
        proceed.set()
        assert (last, await quick.body(stream)) == (stream, b"ok")
        assert await quick.reader.read() == b""
        quick.writer.close()
    assert recorder.only.outcome == "completed"


async def test_a_fault_of_ours_ends_one_client_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    response = RelayedExchange.handle_response

    def fail_one(relay: RelayedExchange, exchange: Any, *, is_head_alone: bool) -> None:
        if "broken" in relay.request.url:
            raise LookupError("a mistake of ours")
        response(relay, exchange, is_head_alone=is_head_alone)

    monkeypatch.setattr(RelayedExchange, "handle_response", fail_one)
    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (one, authority),
        open_h2_client(worker, upstream) as (other, _),
    ):
        assert (await other.answer(other.ask(authority, "/"))).body == b"ok"
        with pytest.raises((StreamBroken, ConnectionError)):
            await one.answer(one.ask(authority, "/broken"))
        assert (await other.answer(other.ask(authority, "/"))).body == b"ok"
    assert [exchange.outcome for exchange in recorder.exchanges] == ["completed", "refused", "completed"]
    assert "a mistake of ours" in caplog.text


async def test_a_fault_in_a_look_at_the_time_ends_one_client_and_no_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "CHECK_INTERVAL", 0.05)
    faults = [LookupError("a mistake of ours")]
    overdue = Http1Connection.check_timeouts

    def look(client: Http1Connection, now: float) -> None:
        if faults:
            raise faults.pop()
        overdue(client, now)

    monkeypatch.setattr(Http1Connection, "check_timeouts", look)
    async with open_worker(tmp_path, limits=Limits(idle=0.3, grace=0.5)) as worker:
        both = [await asyncio.open_connection("127.0.0.1", worker.port) for _ in range(2)]
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*(reader.read() for reader, _ in both), return_exceptions=True)
        for _, writer in both:
            writer.close()
    assert {type(end) for end in ends} <= {bytes, ConnectionResetError}


async def test_a_silent_client_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "CHECK_INTERVAL", 0.05)
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, limits=Limits(idle=1, grace=0.5), **reach_upstreams(upstream)) as worker,
        open_h2_client(worker, upstream) as (peer, authority),
    ):
        assert (await peer.answer(peer.ask(authority, "/"))).body == b"ok"
        async with asyncio.timeout(60):
            with pytest.raises((StreamBroken, ConnectionError)):
                await _to_the_end(peer)


async def _to_the_end(peer: Peer) -> None:
    while True:
        await peer.step()


@pytest.mark.parametrize("mode", ["record", "passthrough"])
async def test_clients_that_are_gone_leave_nothing(tmp_path: Path, mode: str) -> None:
    gc.freeze()  # to look through what the process had before takes a second
    async with (
        open_h2_upstream(answer_all) as upstream,
        open_worker(tmp_path, MemoryRecorder(), **reach_upstreams(upstream), mode=mode) as worker,
    ):
        for _ in range(5):
            async with open_h2_client(worker, upstream) as (peer, authority):
                for stream in [peer.ask(authority, "/") for _ in range(4)]:
                    await peer.answer(stream)
                peer.begin(authority, "/half")  # and is left in the middle of it
        for _ in range(500):
            if not _count_instances(Http2Client):
                break
            await asyncio.sleep(0.02)  # for the last one's end to arrive
        assert [_count_instances(kind) for kind in (Http2Client, H2Downstream, RelayedExchange, Http2Carrier)] == [
            0,
            0,
            0,
            0,
        ]


def _count_instances(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


# Of their own make


async def _ran(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def test_curl(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    async with (
        open_h2_upstream(_answer_measured) as upstream,
        open_worker(tmp_path, Forgetful(), **reach_upstreams(upstream)) as worker,
    ):
        trusts = f"{worker.config.authority.certificate}"
        url = f"https://localhost:{upstream.port}/"
        common = [
            "curl",
            "-sS",
            "--http2",
            "-x",
            worker.url,
            "--cacert",
            trusts,
            "-w",
            " %{http_version} %{http_code}\n",
        ]
        assert await _ran(*common, "--data-binary", f"@{tmp_path}/large", url) == f"{3 << 20} 2 200\n"
        assert await _ran(*common, "-T", f"{tmp_path}/large", url) == f"{3 << 20} 2 200\n"
        many = await _ran(*common, "-Z", *[f"{url}{number}" for number in range(20)])
        assert many.count(" 2 200\n") == 20


async def test_node(tmp_path: Path) -> None:
    script = Path(__file__).with_name("h2_asker.mjs")
    recorder = MemoryRecorder()
    async with (
        open_h2_upstream(_answer_measured) as upstream,
        open_worker(tmp_path, recorder, **reach_upstreams(upstream)) as worker,
    ):
        authority, ca = f"localhost:{upstream.port}", str(worker.config.authority.certificate)
        said = await _ran("node", str(script), str(worker.port), authority, ca)
    assert said == ",".join(str(number) for number in range(100)) + "\n"
    assert {exchange.outcome for exchange in recorder.exchanges} == {"completed"}
    assert len(recorder.exchanges) == 100


async def _answer_measured(peer: Peer) -> None:
    while True:
        stream, heard = await peer.request()
        peer.respond(stream, OK, [str(len(heard.body)).encode()])
