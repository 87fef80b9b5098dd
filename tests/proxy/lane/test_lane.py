"""Which engine serves a connection, which clients may reuse an upstream connection, and what does not wait."""

import asyncio
import gc
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.lane import lane as lanes
from proxy.lane import upstream as upstreams
from proxy.lane.client import SLOW_FEED, Http1Connection
from proxy.lane.lane import Lane
from proxy.lane.relay import RelayedExchange
from proxy.lane.tls import LeafContexts
from proxy.wire.config import Limits
from tests.support.h2wire import Peer
from tests.support.wire import (
    MemoryExchange,
    MemoryRecorder,
    ScriptedAnswerer,
    Upstream,
    Worker,
    answering,
    api_test_at,
    connect_through,
    open_worker,
    read_request,
    serving,
    upstream_tls,
    whole,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
ASK = b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\n\r\n"
WITHIN = b"GET /x HTTP/1.1\r\nHost: api.test\r\n\r\n"


@pytest.fixture
def handed_over_data(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The data with which connections were handed over to mitmproxy."""
    found: list[bytes] = []
    hand_over = Lane.hand_over

    def note_data(lane: Lane, transport: Any, data: bytes, begun: Any) -> None:
        found.append(data)
        hand_over(lane, transport, data, begun)

    monkeypatch.setattr(Lane, "hand_over", note_data)
    return found


async def _got(worker: Worker, request: bytes, size: int = len(OK)) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(request)
    try:
        return await reader.readexactly(size)
    finally:
        writer.close()
        await writer.wait_closed()


# Choice of the engine


async def test_what_agents_send_stays_on_the_lane(tmp_path: Path, handed_over_data: list[bytes]) -> None:
    async with open_worker(tmp_path, MemoryRecorder(), upstream=answering(OK)) as worker:
        assert await _got(worker, ASK) == OK
        for alpn in ((), ("http/1.1",), ("h2", "http/1.1")):
            reader, writer = await connect_through(worker, "api.test:443", alpn=alpn)
            writer.write(WITHIN)
            assert await reader.readexactly(len(OK)) == OK
            chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            assert chosen == ("http/1.1" if alpn else None)
            writer.close()
    assert handed_over_data == []


@pytest.mark.parametrize(
    "request_",
    [
        b"FOO http://api.test/x HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET http://api.test/x HTTP/1.0\r\nHost: api.test\r\n\r\n",
        b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"OPTIONS http://api.test HTTP/1.1\r\nHost: api.test\r\nExpect: 200-ok\r\n\r\n",
    ],
)
async def test_what_it_does_not_speak_goes_on_as_it_came(
    tmp_path: Path, handed_over_data: list[bytes], request_: bytes
) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        assert await _got(worker, request_) == OK
    assert handed_over_data == [request_]
    assert recorder.only.outcome == "completed"


async def test_a_client_that_speaks_only_http_2_gets_it(tmp_path: Path, handed_over_data: list[bytes]) -> None:
    async with open_worker(tmp_path, MemoryRecorder(), upstream=answering(OK)) as worker:
        reader, writer = await connect_through(worker, "api.test:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        assert (await peer.answer(peer.ask("api.test", "/x"))).body == b"hello"
        writer.close()
    assert handed_over_data == []


async def test_what_was_recorded_over_http_2_is_replayed_over_it(tmp_path: Path, handed_over_data: list[bytes]) -> None:
    for recorded, chosen in (("h2", "h2"), ("http/1.1", "http/1.1")):
        answerer = ScriptedAnswerer(alpn=(recorded,))
        async with open_worker(tmp_path, answerer=answerer) as worker:
            _, writer = await connect_through(worker, "api.test:443", alpn=("h2", "http/1.1"))
            assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
            writer.close()
    assert handed_over_data == []


async def test_a_connection_changes_engines_between_two_requests(tmp_path: Path, handed_over_data: list[bytes]) -> None:
    recorder = MemoryRecorder()
    odd = b"FOO /x HTTP/1.1\r\nHost: api.test\r\n\r\n"
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        reader, writer = await connect_through(worker, "api.test:443")
        for request in (WITHIN, odd, WITHIN):
            writer.write(request)
            assert await reader.readexactly(len(OK)) == OK
        writer.close()
    assert handed_over_data == [odd]
    assert [exchange.begun["url"] for exchange in recorder.exchanges] == ["https://api.test/x"] * 3
    assert {exchange.begun["run"] for exchange in recorder.exchanges} == {"local"}


async def test_two_requests_at_once_of_which_one_is_not_for_the_lane(
    tmp_path: Path, handed_over_data: list[bytes]
) -> None:
    odd = ASK.replace(b"GET", b"FOO")
    async with open_worker(tmp_path, MemoryRecorder(), upstream=answering(OK)) as worker:
        assert await _got(worker, ASK + odd + ASK, 3 * len(OK)) == OK * 3
    assert handed_over_data == [odd + ASK]


async def test_nothing_of_mitmproxy_is_loaded_before_it_is_needed(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom proxy import lane\nfrom proxy.trust.ca import ensure_ca\n"
        "from proxy.wire.config import EngineConfig\n"
        "config = EngineConfig(authority=ensure_ca(Path(sys.argv[1])), mode='passthrough')\n"
        "def ready(_):\n    config.stop.set()\n"
        "asyncio.run(lane.run(config, None, None, ready))\nprint('mitmproxy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "keys")]
    root = Path(__file__).parents[3]
    ran = await asyncio.create_subprocess_exec(*command, cwd=root, stdout=subprocess.PIPE)
    assert (await ran.communicate())[0] == b"False\n"


# Reuse of upstream connections


@asynccontextmanager
async def _upstream_with_counts(**more: Any) -> AsyncIterator[tuple[Upstream, list[int]]]:
    """An upstream, and the number of the connection on which each request arrived."""
    upstream, asked = Upstream(), []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = upstream.connections
        while True:
            head, _ = await read_request(reader)
            asked.append(number)
            negotiates = b"/negotiate" in head
            writer.write(
                OK.replace(b"\r\n", b"\r\nWWW-Authenticate: NTLM\r\n", 1).replace(b"200", b"401") if negotiates else OK
            )

    async with serving(handler, upstream=upstream, **more):
        yield upstream, asked


async def test_the_next_client_finds_a_connection(tmp_path: Path) -> None:
    async with (
        _upstream_with_counts() as (upstream, asked),
        open_worker(tmp_path, upstreams=api_test_at(upstream)) as worker,
    ):
        for _ in range(3):
            assert await _got(worker, ASK) == OK
            await asyncio.sleep(0.02)  # for the worker to see that the client has left
    assert asked == [1, 1, 1]


async def test_two_clients_at_once_have_one_each(tmp_path: Path) -> None:
    async with (
        _upstream_with_counts() as (upstream, asked),
        open_worker(tmp_path, upstreams=api_test_at(upstream)) as worker,
    ):
        clients = [await connect_through(worker, "api.test:443") for _ in range(2)]
        for _ in range(2):
            for reader, writer in clients:
                writer.write(WITHIN)
                assert await reader.readexactly(len(OK)) == OK
        for _, writer in clients:
            writer.close()
    assert asked == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "first",
    [ASK.replace(b"/x", b"/negotiate"), ASK.replace(b"\r\n\r\n", b"\r\nAuthorization: NTLM TlRMTVNT\r\n\r\n")],
)
async def test_a_connection_on_which_somebody_has_a_name_is_for_nobody_else(tmp_path: Path, first: bytes) -> None:
    async with (
        _upstream_with_counts() as (upstream, asked),
        open_worker(tmp_path, upstreams=api_test_at(upstream)) as worker,
    ):
        await _got(worker, first)
        await asyncio.sleep(0.02)  # as above
        await _got(worker, ASK)
    assert asked == [1, 2]


async def test_what_must_not_be_asked_twice_wants_a_fresh_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "FRESH_SECONDS", 0.0)
    post = ASK.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")
    async with (
        _upstream_with_counts() as (upstream, asked),
        open_worker(tmp_path, upstreams=api_test_at(upstream)) as worker,
    ):
        for request in (ASK, post, ASK):
            assert await _got(worker, request) == OK
            await asyncio.sleep(0.02)  # as above
    assert asked[:2] == [1, 2]


async def test_a_get_on_a_connection_that_was_just_closed_is_asked_again(tmp_path: Path) -> None:
    upstream = Upstream()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream.heads.append((await read_request(reader))[0])
        writer.write(OK)
        if upstream.connections == 1:
            upstream.heads.append((await read_request(reader))[0])

    recorder = MemoryRecorder()
    async with (
        serving(handler, upstream=upstream),
        open_worker(tmp_path, recorder, upstreams=api_test_at(upstream)) as worker,
    ):
        assert await _got(worker, ASK + ASK, 2 * len(OK)) == OK * 2
    assert len(upstream.heads) == 3
    assert [exchange.outcome for exchange in recorder.exchanges] == ["completed"] * 2


async def test_a_body_that_ends_without_a_goodbye_may_lack_something(tmp_path: Path) -> None:
    """A TLS connection that is closed without close_notify: an attacker could have cut it."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nnot al")
        await writer.drain()
        connection = writer.get_extra_info("socket")
        with socket.fromfd(connection.fileno(), connection.family, connection.type) as below:
            below.shutdown(socket.SHUT_WR)

    recorder = MemoryRecorder()
    async with (
        serving(handler, tls=upstream_tls("localhost")) as upstream,
        open_worker(tmp_path, recorder, upstreams={"api.test": f"https://localhost:{upstream.port}"}) as worker,
    ):
        reader, writer = await connect_through(worker, "api.test:443")
        writer.write(WITHIN)
        assert (await reader.read()).endswith(b"not al")
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.outcome == "server_closed"


async def test_an_upstream_that_hangs_up_at_once_is_not_our_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"))
        assert await reader.read() == b""
        writer.close()
        await recorder.only.over.wait()
    assert recorder.only.outcome == "server_closed"
    assert not caplog.records


# No unnecessary waiting


async def test_a_client_that_sends_far_ahead_and_half_a_request_is_read_on(tmp_path: Path) -> None:
    count, proceed = 3000, asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await proceed.wait()
        writer.write(OK)
        while True:
            await read_request(reader)
            writer.write(OK)

    async with serving(handler) as upstream, open_worker(tmp_path, upstreams=api_test_at(upstream)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK * count + ASK[:-7])
        await upstream.connected.wait()
        await asyncio.sleep(0.1)  # for the worker to stop reading
        proceed.set()
        assert await reader.readexactly(len(OK) * count) == OK * count
        writer.write(ASK[-7:])
        assert await reader.readexactly(len(OK)) == OK
        writer.close()


async def test_who_sends_much_waits_for_a_recorder_that_is_behind(tmp_path: Path) -> None:
    """The records of other exchanges would be written after its own, and they would wait for that."""
    size, sent = 64 << 20, 0
    recorder, stuck = MemoryRecorder(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        recorder.is_behind = True
        recorder.gate.clear()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                stuck.set()
                await writer.drain()

    async with open_worker(tmp_path, recorder, upstream=serving(handler)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            reading = group.create_task(reader.readexactly(size))
            await stuck.wait()
            assert sent < size // 2
            recorder.is_behind = False
            recorder.gate.set()
            await reading
        writer.close()


async def test_a_body_that_takes_long_to_redact_lets_others_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece takes longer than `SLOW_FEED`; a call meanwhile takes several turns of the event loop, but not several pieces."""
    size, slow, began = 4 << 20, 0, asyncio.Event()
    record_data = MemoryExchange.record_data

    def record_slowly(answer: MemoryExchange, side: Any, data: bytes, *more: Any) -> None:
        nonlocal slow
        if len(data) > 4096:
            time.sleep(1.2 * SLOW_FEED)
            slow += 1
            began.set()
        record_data(answer, side, data, *more)

    monkeypatch.setattr(MemoryExchange, "record_data", record_slowly)
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % size))
        writer.write(bytes(size))
        async with asyncio.timeout(60):
            await began.wait()
            before = slow
            assert await _got(worker, ASK) == OK
            assert slow - before <= 2
            assert await reader.readexactly(len(OK)) == OK
        writer.close()
        assert slow > 8


async def test_a_handshake_that_does_not_end_is_not_waited_for(tmp_path: Path) -> None:
    async with open_worker(tmp_path, limits=Limits(head=0.2, grace=0.5)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"\x16\x03\x01")
        assert await reader.read() == b""
        writer.close()


async def test_clients_that_are_gone_leave_nothing(tmp_path: Path) -> None:
    gc.freeze()  # to look through what the process had before takes a second
    async with open_worker(tmp_path, MemoryRecorder(), upstream=answering(OK)) as worker:
        for _ in range(20):
            await _got(worker, ASK)
        await asyncio.sleep(0.05)  # for the last one's end to arrive
        gc.collect()
        # By their types and not by name: SDKs have clients as well.
        kinds = [type(thing) for thing in gc.get_objects()]
    assert (kinds.count(Http1Connection), kinds.count(RelayedExchange)) == (0, 0)


# On the event loop that workers use


async def _conversation(directory: Path) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(OK, tls=upstream_tls("localhost")) as upstream,
        open_worker(directory, recorder, upstreams={"api.test": f"https://localhost:{upstream.port}"}) as worker,
    ):
        assert await _got(worker, ASK) == OK
        for alpn in ("http/1.1", "h2"):
            reader, writer = await connect_through(worker, "api.test:443", alpn=(alpn,))
            if alpn == "h2":
                peer = Peer(reader, writer, client=True)
                assert (await peer.answer(peer.ask("api.test", "/x"))).body == b"hello"
            else:
                writer.write(WITHIN * 2)
                assert await reader.readexactly(2 * len(OK)) == OK * 2
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", upstream.port, ssl=ssl.create_default_context())
    assert [exchange.outcome for exchange in recorder.exchanges] == ["completed"] * 4


async def _answer_in_pieces(directory: Path) -> None:
    answerer = ScriptedAnswerer(whole(b"one"), whole(b"two"))
    async with open_worker(directory, answerer=answerer) as worker:
        reader, writer = await connect_through(worker, "api.test:443")
        writer.write(WITHIN * 2)
        await reader.readuntil(b"one")
        await reader.readuntil(b"two")
        writer.close()


@pytest.mark.parametrize("scenario", [_conversation, _answer_in_pieces])
def test_it_runs_on_uvloop(tmp_path: Path, scenario: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario(tmp_path))


# Writing to the spool, alone and together


@pytest.mark.parametrize(("busy_seconds", "is_shared"), [(0.0, False), (60.0, True)])
async def test_only_a_call_beside_others_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_seconds: float, is_shared: bool
) -> None:
    shared = []
    call_soon = Lane.call_soon

    def note_call(lane: Lane, *what: Any) -> None:
        shared.append(what)
        call_soon(lane, *what)

    monkeypatch.setattr(lanes, "BUSY_SECONDS", busy_seconds)
    monkeypatch.setattr(Lane, "call_soon", note_call)
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, upstream=answering(OK)) as worker:
        for _ in range(2):
            assert await _got(worker, ASK) == OK
    assert [exchange.outcome for exchange in recorder.exchanges] == ["completed"] * 2
    assert len(shared) == (3 if is_shared else 0)  # of two requests and two answers, all but the first


async def test_certificates_of_recorded_hosts_are_made_before_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, str | None]] = []
    is_done = asyncio.Event()
    make = LeafContexts.context

    def note_context(contexts: LeafContexts, host: str, *, alpn: str | None) -> ssl.SSLContext:
        made.append((host, alpn))
        if host == "last.test":
            loop.call_soon_threadsafe(is_done.set)
        return make(contexts, host, alpn=alpn)

    monkeypatch.setattr(LeafContexts, "context", note_context)
    loop = asyncio.get_running_loop()
    answerer = ScriptedAnswerer(whole(b"hello"), alpn=("http/1.1",))
    answerer.authorities = ("api.test", "[::1]:8443", "", "[::1", f"{'a' * 64}.test", "last.test:444")
    async with open_worker(tmp_path, answerer=answerer) as worker, asyncio.timeout(30):
        await is_done.wait()
        assert (await _got(worker, ASK)).endswith(b"hello")
    assert [host for host, _ in made if len(host) < 60] == ["api.test", "::1", "last.test"]
    assert {alpn for _, alpn in made} == {"http/1.1"}


async def test_an_answer_that_is_recorded_again_is_whole_where_its_call_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "BUSY_SECONDS", 0.0)
    recorder, answer = MemoryRecorder(), replace(whole(b"hello"), recorded_outcome="completed")
    ask = b"GET http://nowhere.invalid/ HTTP/1.1\r\nHost: nowhere.invalid\r\n\r\n"
    async with open_worker(tmp_path, recorder, ScriptedAnswerer(answer), mode="auto") as worker:
        assert await _got(worker, ask) == OK
    assert (recorder.only.body("response"), recorder.only.outcome) == (b"hello", "completed")
