"""Answers from an answerer: piece by piece, with their timing, and without an upstream connection."""

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from calls.model import Request
from proxy.wire.config import Limits
from proxy.wire.engine import Answerer
from replay.answer import Answer, Duplex, Piece
from tests.support.h2wire import Peer, StreamBroken
from tests.support.wire import (
    MemoryRecorder,
    ScriptedAnswerer,
    Worker,
    answering,
    api_test_at,
    connect_through,
    open_worker,
    whole,
)

LIVE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlive"
ASK = b"GET http://nowhere.invalid/x HTTP/1.1\r\nHost: nowhere.invalid\r\n\r\n"


async def _plain(worker: Worker, request: bytes = ASK) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(request)
    return reader, writer


def _pieces(*pieces: bytes, every: int = 0, **more: object) -> Answer:
    made = tuple(Piece(n * every, piece) for n, piece in enumerate(pieces))
    return Answer(**{"status": 200, "reason": "OK", "headers": (("X-A", "1"),), "pieces": made} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize("http2", [False, True])
async def test_a_name_that_does_not_resolve_is_answered(tmp_path: Path, http2: bool) -> None:
    answerer = ScriptedAnswerer(whole(b"hello", ("X-A", "1")), alpn=("h2", "http/1.1") if http2 else ("http/1.1",))
    async with (
        open_worker(tmp_path, answerer=answerer) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("run-9"), verify=worker.tls, http2=http2) as client,
    ):
        response = await client.post("https://nowhere.invalid/v1/x?y=1", content=b"asked")
    assert (response.text, response.headers["x-a"]) == ("hello", "1")
    assert response.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
    request, run, owner = answerer.asked[0]
    assert (request.method, request.url) == ("POST", "https://nowhere.invalid/v1/x?y=1")
    assert (request.body.data, request.body.size, run, owner) == (b"asked", 5, "run-9", "local")


@pytest.mark.parametrize("http2", [False, True])
async def test_each_request_is_expected_before_it_is_answered(tmp_path: Path, http2: bool) -> None:
    """What was found out for an earlier request may be out of date: the head of this one has to come first."""
    answerer = ScriptedAnswerer(whole(b"1"), whole(b"2"), alpn=("h2", "http/1.1") if http2 else ("http/1.1",))
    async with (
        open_worker(tmp_path, answerer=answerer) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("run-9"), verify=worker.tls, http2=http2) as client,
    ):
        for text in "12":
            answerer.expected_runs.clear()  # such as by its tunnel
            assert (await client.get("https://nowhere.invalid/x")).text == text
            assert answerer.expected_runs[-1:] == ["run-9"]


async def test_an_answerer_sees_the_request_without_what_is_ours(tmp_path: Path) -> None:
    answerer = ScriptedAnswerer(whole(b"hello"))
    async with open_worker(tmp_path, answerer=answerer) as worker:
        own = b"X-Playhead-Bound-Run: run-3\r\nProxy-Authorization: Basic eDp5\r\nAuthorization: Bearer secret\r\n\r\n"
        reader, writer = await _plain(worker, ASK.replace(b"\r\n\r\n", b"\r\n" + own))
        await reader.readuntil(b"hello")
        writer.close()
    request, run, _ = answerer.asked[0]
    assert request.headers == (("Host", "nowhere.invalid"), ("Authorization", "Bearer secret"))
    # A bound run is that of the request. Credentials are those of the connection, which may carry several runs.
    assert run == "run-3"


async def test_an_answerer_gets_the_branch_of_the_run(tmp_path: Path) -> None:
    answerer = ScriptedAnswerer(whole(b"hello"))
    async with open_worker(tmp_path, answerer=answerer) as worker:
        reader, writer = await _plain(worker, ASK.replace(b"\r\n\r\n", b"\r\nX-Playhead-Actor: critic\r\n\r\n"))
        await reader.readuntil(b"hello")
        writer.close()
    assert answerer.actors == ["critic"]


@pytest.mark.parametrize(
    ("fields", "run"),
    [(b"X-Playhead-Run: run-3\r\n", "run-3"), (b"X-Claude-Code-Session-Id: s-1\r\n", None), (b"", None)],
)
async def test_only_what_was_meant_for_us_names_a_run(tmp_path: Path, fields: bytes, run: str | None) -> None:
    answerer = ScriptedAnswerer(whole(b"hello"))
    async with open_worker(tmp_path, answerer=answerer) as worker:
        reader, writer = await _plain(worker, ASK.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n"))
        await reader.readuntil(b"hello")
        writer.close()
    assert answerer.asked[0][1] == run


async def test_each_piece_is_a_chunk_of_its_own(tmp_path: Path) -> None:
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(_pieces(b"data: a\n\n", b"data: bb\n\n"))) as worker:
        reader, writer = await _plain(worker)
        got = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    assert got == (
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\na\r\ndata: bb\n\n\r\n0\r\n\r\n"
    )


async def test_framing_is_made_for_this_connection_and_not_as_recorded(tmp_path: Path) -> None:
    recorded = (("connection", "close"), ("transfer-encoding", "chunked"), ("Keep-Alive", "5"), ("X-A", "1"))
    answer = Answer(status=200, reason="Fine", http_version="HTTP/2", headers=recorded, pieces=(Piece(0, b"ab"),))
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        got = await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    assert got == b"HTTP/1.1 200 Fine\r\nX-A: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"


async def test_the_end_for_an_http_1_0_client_is_the_close(tmp_path: Path) -> None:
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(_pieces(b"ab", b"cd"))) as worker:
        reader, writer = await _plain(worker, b"GET http://nowhere.invalid/x HTTP/1.0\r\n\r\n")
        assert await reader.read() == b"HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nabcd"
        writer.close()


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_an_answer_may_have_no_body(tmp_path: Path, method: str, status: int) -> None:
    answers = [Answer(status=status, reason="OK", headers=(("ETag", "x"),)) for _ in range(2)]
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(*answers)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        for _ in range(2):
            writer.write(ASK.replace(b"GET", method.encode()))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 %d OK\r\nETag: x\r\n\r\n" % status
        writer.close()


async def test_pieces_come_at_their_times(tmp_path: Path) -> None:
    step = 150_000_000
    answer = _pieces(b"a", b"b", b"c", every=step, end_at=3 * step)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        await reader.readuntil(b"\r\n\r\n")
        began, times = time.monotonic(), []
        for _ in range(3):
            await reader.readuntil(b"\r\n")
            await reader.readuntil(b"\r\n")
            times.append(time.monotonic() - began)
        await reader.readuntil(b"0\r\n\r\n")
        writer.close()
    for number, at in enumerate(times):
        assert number * 0.15 - 0.05 <= at
    assert time.monotonic() - began >= 0.4


async def test_a_piece_that_never_gets_ready_is_sent_at_its_latest_time(tmp_path: Path) -> None:
    pieces = (Piece(0, b"a"), Piece(0, b"b", lambda: None, latest=50_000_000))
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(replace(_pieces(), pieces=pieces))) as worker:
        reader, writer = await _plain(worker)
        async with asyncio.timeout(30):
            assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
        writer.close()


async def test_trailers_are_answered(tmp_path: Path) -> None:
    answers = [_pieces(b"ab", trailers=(("X-T", "v"),)) for _ in range(2)]
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(*answers, alpn=("h2",))) as worker:
        reader, writer = await _plain(worker)
        assert (await reader.readuntil(b"v\r\n\r\n")).endswith(b"2\r\nab\r\n0\r\nX-T: v\r\n\r\n")
        writer.close()
        reader, writer = await connect_through(worker, "nowhere.invalid:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        heard = await peer.answer(peer.ask("nowhere.invalid", "/x"))
        writer.close()
    assert (heard.body, heard.trailers) == (b"ab", [("x-t", "v")])


async def test_each_piece_is_a_frame_of_its_own_in_http_2(tmp_path: Path) -> None:
    async with open_worker(
        tmp_path, answerer=ScriptedAnswerer(_pieces(b"one", b"two", b"three"), alpn=("h2",))
    ) as worker:
        reader, writer = await connect_through(worker, "nowhere.invalid:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        heard = await peer.answer(peer.ask("nowhere.invalid", "/x"))
        writer.close()
    assert heard.pieces == [b"one", b"two", b"three"]


async def test_a_piece_waits_until_it_is_ready(tmp_path: Path) -> None:
    looks: list[bytes | None] = [b"late", None, None]
    answer = Answer(status=200, headers=(), pieces=(Piece(0, b"early"), Piece(0, b"late", looks.pop)))
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        await reader.readuntil(b"late")
        writer.close()
    assert not looks


async def test_a_cut_answer_breaks_off_at_its_byte(tmp_path: Path) -> None:
    recorded = (("Content-Length", "100"),)
    answers = [_pieces(b"part", headers=recorded, end="cut") for _ in range(2)]
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(*answers, alpn=("h2",))) as worker:
        reader, writer = await _plain(worker)
        assert await reader.read() == b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"
        writer.close()
        reader, writer = await connect_through(worker, "nowhere.invalid:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        stream = peer.ask("nowhere.invalid", "/x")
        with pytest.raises(StreamBroken, match="reset"):
            await peer.answer(stream)
        assert peer.streams[stream].body == b"part"
        writer.close()


async def test_an_answer_without_a_head_is_no_answer_at_all(tmp_path: Path) -> None:
    left = asyncio.Event()
    answer = Answer(status=0, end="cut", note_client_left=lambda _: left.set())
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        assert await reader.read() == b""
        writer.close()
    assert not left.is_set(), "it was we who left"


async def test_a_held_answer_waits_for_the_client_to_leave(tmp_path: Path) -> None:
    answer = _pieces(b"part", end="hold", patience=60_000_000_000)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        await reader.readuntil(b"part\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        writer.close()


async def test_a_client_that_stays_with_a_held_answer_is_broken_off(tmp_path: Path) -> None:
    asked = []

    def answer_late() -> Answer:
        asked.append(1)
        return whole(b"never sent")

    answer = _pieces(b"part", end="hold", patience=50_000_000, answer_waiting_client=answer_late)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        assert (await reader.read()).endswith(b"part\r\n")
        writer.close()
    assert asked == [1]


async def test_a_client_that_stays_before_any_head_gets_the_reason(tmp_path: Path) -> None:
    answer = Answer(
        status=0, end="hold", patience=50_000_000, answer_waiting_client=lambda: whole(b"incomplete", status=424)
    )
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        assert (await reader.readuntil(b"incomplete")).startswith(b"HTTP/1.1 424 ")
        writer.close()


async def test_a_client_that_leaves_in_the_middle_disturbs_nobody(tmp_path: Path) -> None:
    slow = _pieces(b"a", b"b", every=100_000_000)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(slow, whole(b"next"))) as worker:
        reader, writer = await _plain(worker)
        await reader.readuntil(b"a\r\n")
        writer.close()
        reader, writer = await _plain(worker)
        assert (await reader.readuntil(b"next")).startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize("http2", [False, True])
async def test_whoever_answers_hears_of_a_client_that_left_before_it_had_all(tmp_path: Path, http2: bool) -> None:
    left = asyncio.Event()
    answer = _pieces(b"first", b"second", every=int(600e9), note_client_left=lambda _: left.set())
    alpn = ("h2",) if http2 else ("http/1.1",)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer, alpn=alpn)) as worker:
        async with (
            httpx.AsyncClient(timeout=60, proxy=worker.proxy(), verify=worker.tls, http2=http2) as client,
            client.stream("GET", "https://nowhere.invalid/x") as response,
        ):
            await anext(response.aiter_raw())
            assert not left.is_set()
        async with asyncio.timeout(60):
            await left.wait()


@pytest.mark.parametrize(("body", "large"), [(b"half", False), (b"too much", True)])
async def test_whoever_answers_hears_of_a_request_that_it_does_not_get(
    tmp_path: Path, body: bytes, large: bool
) -> None:
    answerer = ScriptedAnswerer()
    upload = b"POST http://nowhere.invalid/x HTTP/1.1\r\nHost: nowhere.invalid\r\nX-Playhead-Run: r\r\nContent-Length: 9\r\n\r\n"
    async with open_worker(tmp_path, answerer=answerer, limits=Limits(answered_request=6)) as worker:
        reader, writer = await _plain(worker, upload + body)
        if large:
            assert b" 413 " in await reader.readline()
            problem = await reader.readuntil(b"send less at once, or let requests to its host go live (allowed_hosts)")
            assert b"longer than 6 bytes" in problem
        writer.close()
        await answerer.heard.wait()
    assert (answerer.lost, answerer.asked) == ([("r", large)], [])


async def test_a_client_that_left_with_all_of_the_body_has_not_left_early(tmp_path: Path) -> None:
    left = asyncio.Event()
    answer = _pieces(b"first", b"last", note_client_left=lambda _: left.set(), end_at=int(600e9))
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer)) as worker:
        reader, writer = await _plain(worker)
        await reader.readuntil(b"last")
        writer.close()
    assert not left.is_set()


async def test_one_reset_stream_leaves_the_others(tmp_path: Path) -> None:
    slow = _pieces(b"a", b"b", b"c", every=60_000_000)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(slow, slow, alpn=("h2",))) as worker:
        reader, writer = await connect_through(worker, "nowhere.invalid:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True)
        first, second = peer.ask("nowhere.invalid", "/1"), peer.ask("nowhere.invalid", "/2")
        while not peer.streams[first].pieces:
            await peer.step()
        peer.conn.reset_stream(first)
        peer.flush()
        assert (await peer.answer(second)).body == b"abc"
        writer.close()


async def test_a_body_that_is_expected_is_asked_for_by_us(tmp_path: Path) -> None:
    answerer = ScriptedAnswerer(whole(b"hello"))
    async with open_worker(tmp_path, answerer=answerer) as worker:
        expects = b"\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        reader, writer = await _plain(worker, ASK.replace(b"\r\n\r\n", expects))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        await reader.readuntil(b"hello")
        writer.close()
    assert answerer.asked[0][0].body.data == b"body"


async def test_what_is_not_recorded_goes_live_in_auto(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(LIVE) as upstream,
        open_worker(
            tmp_path,
            recorder,
            ScriptedAnswerer(whole(b"recorded"), None),
            mode="auto",
            upstreams=api_test_at(upstream),
        ) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("run-4"), verify=worker.tls) as client,
    ):
        assert (await client.post("https://api.test/x", content=b"1")).text == "recorded"
        assert upstream.connections == 0
        response = await client.post("https://api.test/x", content=b"2")
        await recorder.only.over.wait()
    assert (response.text, response.headers["playhead"]) == ("live", 'live; run="run-4"')
    assert (recorder.only.body("request"), recorder.only.body("response")) == (b"2", b"live")
    assert recorder.only.head is not None
    assert "Playhead" not in dict(recorder.only.head[3])


async def test_nothing_goes_live_in_replay(tmp_path: Path) -> None:
    async with (
        answering(LIVE) as upstream,
        open_worker(tmp_path, None, ScriptedAnswerer(None), upstreams=api_test_at(upstream)) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy(), verify=worker.tls) as client,
    ):
        response = await client.get("https://api.test/x")
        assert upstream.connections == 0
    assert (response.status_code, response.json()["error"]["code"]) == (502, "not_answered")


@pytest.mark.parametrize("name", ["api.test", "*.test"])
async def test_a_host_that_may_be_asked_is_asked_in_replay_and_nobody_else(tmp_path: Path, name: str) -> None:
    answerer = ScriptedAnswerer(whole(b"recorded"))
    async with answering(LIVE) as upstream:
        origin = f"http://127.0.0.1:{upstream.port}"
        async with (
            open_worker(
                tmp_path,
                None,
                answerer,
                upstreams={"api.test": origin, "api.example": origin},
                modes={name: "passthrough"},
            ) as worker,
            httpx.AsyncClient(timeout=60, proxy=worker.proxy("run-1"), verify=worker.tls) as client,
        ):
            allowed = await client.get("https://api.test/x")
            other = await client.get("https://api.example/x")
    assert (allowed.status_code, other.text) == (200, "recorded")
    assert "playhead" not in allowed.headers
    assert (upstream.connections, answerer.passing, len(answerer.asked)) == (1, ["run-1"], 1)


@pytest.mark.parametrize(
    ("fields", "passes"), [(b"X-Playhead-Run: free\r\n", True), (b"X-Claude-Code-Session-Id: free\r\n", False)]
)
async def test_a_run_s_mode_is_for_whoever_names_it_to_us(tmp_path: Path, fields: bytes, passes: bool) -> None:
    async with (
        answering(LIVE) as upstream,
        open_worker(
            tmp_path,
            recorder := MemoryRecorder(),
            mode="record",
            run_mode=lambda run: "passthrough" if run == "free" else None,
            upstreams={"nowhere.invalid": f"http://127.0.0.1:{upstream.port}"},
        ) as worker,
    ):
        reader, writer = await _plain(worker, ASK.replace(b"\r\n\r\n", b"\r\n" + fields + b"\r\n"))
        await reader.readuntil(b"live")
        writer.close()
    assert bool(recorder.exchanges) != passes


async def test_a_host_that_must_be_replayed_does_not_go_live_in_auto(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with (
        answering(LIVE) as upstream,
        open_worker(
            tmp_path,
            recorder,
            ScriptedAnswerer(None),
            mode="auto",
            upstreams=api_test_at(upstream),
            modes={"api.test": "replay"},
        ) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy(), verify=worker.tls) as client,
    ):
        response = await client.get("https://api.test/x")
        assert upstream.connections == 0
    assert response.json()["error"]["code"] == "not_answered"


class _BrokenAnswerer:
    """An answerer that raises an error."""

    async def answer(self, request: Request, *, run: str | None, owner: str, actor: str | None = None) -> Answer | None:
        raise RuntimeError("a fault of ours")

    async def open_duplex(
        self, request: Request, *, run: str | None, owner: str, actor: str | None = None
    ) -> Duplex | None:
        raise AssertionError("every request has a length here")

    def expect_run(self, run: str) -> None:
        """Do nothing: all is loaded."""

    def note_passed_request(self, *, run: str | None) -> None:
        raise AssertionError("nobody has a mode of its own here")

    def note_unseen_request(self, *, run: str | None, large: bool = False) -> None:
        raise AssertionError("every request is whole here")

    def note_refused_connection(self, destination: str, reason: str, *, run: str | None) -> None:
        raise AssertionError("no connection is captured here")

    def recorded_protocols(self, authority: str) -> tuple[str, ...] | None:
        return None

    def loaded_authorities(self) -> Iterable[str]:
        return ()

    async def recorded_authorities(self, run: str) -> Iterable[str]:
        return ()

    def rehearsal(self) -> tuple[Request, Answerer] | None:
        return None


async def test_an_answerer_that_fails_ends_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with open_worker(tmp_path, answerer=_BrokenAnswerer()) as worker:
        reader, writer = await _plain(worker)
        assert await reader.read() == b""
        writer.close()
    assert "a connection was closed after an internal error" in caplog.text


async def test_a_reader_that_stops_costs_no_memory(tmp_path: Path) -> None:
    many = tuple(Piece(0, bytes(1 << 16)) for _ in range(400))
    answer = Answer(status=200, reason="OK", headers=(), pieces=many)
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer, alpn=("h2",))) as worker:
        reader, writer = await connect_through(worker, "nowhere.invalid:443", alpn=("h2",))
        peer = Peer(reader, writer, client=True, acknowledge=False)
        stream = peer.ask("nowhere.invalid", "/x")
        while len(peer.streams[stream].body) < 65535:
            await peer.step()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await peer.answer(stream)
        # Only the client's window was sent; now it reads the rest.
        assert len(peer.streams[stream].body) == 65535
        peer.acknowledge = True
        peer.conn.increment_flow_control_window(1 << 30)
        peer.conn.increment_flow_control_window(1 << 30, stream)
        peer.flush()
        assert len((await peer.answer(stream)).body) == 400 << 16
        writer.close()


@pytest.mark.parametrize("pieces", [3, 200, 2000])
async def test_a_stream_is_cut_behind_all_that_came_before(tmp_path: Path, pieces: int) -> None:
    """Also if that is more than the client's window: a reset would discard the queued data."""
    answer = _pieces(*[bytes(1000)] * pieces, end="cut")
    async with open_worker(tmp_path, answerer=ScriptedAnswerer(answer, alpn=("h2",))) as worker:
        peer = Peer(*await connect_through(worker, "api.test:443", alpn=("h2",)), client=True)
        stream = peer.ask("api.test", "/")
        with pytest.raises(StreamBroken, match=r"code 2$"):
            await peer.answer(stream)
        peer.writer.close()
    assert len(peer.streams[stream].body) == 1000 * pieces


ISOLATED = """
import asyncio, socket, ssl, sys, pathlib
from tests.support.wire import ScriptedAnswerer, connect_through, open_worker, whole

async def main(directory):
    try:
        socket.create_connection(("192.0.2.1", 80), 1)
    except OSError as error:
        print("network:", error.strerror)
    async with open_worker(pathlib.Path(directory), answerer=ScriptedAnswerer(whole(b"hello"))) as worker:
        reader, writer = await connect_through(worker, "api.openai.com:443")
        writer.write(b"GET /x HTTP/1.1\\r\\nHost: api.openai.com\\r\\n\\r\\n")
        print((await reader.readuntil(b"hello")).decode())
        writer.close()

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="util-linux is not installed")
def test_it_works_where_there_is_no_network(tmp_path: Path) -> None:
    inner = 'ip link set lo up 2>/dev/null || python3 -c "$UP"; exec "$0" -c "$ISOLATED" "$1"'
    up = "import fcntl,socket,struct;s=socket.socket();fcntl.ioctl(s,0x8914,struct.pack('16sH14s',b'lo',0x1|0x40,b''))"
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", inner, sys.executable, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "ISOLATED": ISOLATED, "UP": up},
        check=False,
    )
    if "unshare" in ran.stderr:
        pytest.skip(f"no network namespaces here: {ran.stderr}")
    assert "network: Network is unreachable" in ran.stdout, ran.stderr
    assert ran.stdout.strip().endswith("hello"), ran.stdout + ran.stderr
