"""Replayed answers that become part of a new run: they are recorded before the client receives their end."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from replay.answer import Answer, Piece
from tests.support.wire import MemoryRecorder, ScriptedAnswerer, answering, open_worker, whole

RECORDED = replace(whole(b"hello", ("Playhead", 'replayed; run="base"; step=1')), recorded_outcome="completed")
ASK = b"POST http://nowhere.invalid/x HTTP/1.1\r\nHost: nowhere.invalid\r\nContent-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize("http2", [False, True])
async def test_the_run_holds_what_was_asked_and_what_was_answered(tmp_path: Path, http2: bool) -> None:
    answerer = ScriptedAnswerer(RECORDED, alpn=("h2", "http/1.1") if http2 else ("http/1.1",))
    recorder = MemoryRecorder()
    async with (
        open_worker(tmp_path, recorder, answerer, mode="auto") as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("child"), verify=worker.tls, http2=http2) as client,
    ):
        assert (await client.post("https://nowhere.invalid/v1/x", content=b"asked")).text == "hello"
    exchange = recorder.only
    assert exchange.begun["run"] == "child"
    assert (exchange.body("request"), exchange.body("response"), exchange.outcome) == (b"asked", b"hello", "completed")
    assert exchange.head is not None
    assert ("Playhead", 'replayed; run="base"; step=1') in exchange.head[-1]


class BrokenRecorder(MemoryRecorder):
    """A recorder that fails at its first call."""

    def begin(self, **_: Any) -> Any:
        raise LookupError("a mistake of ours")


@pytest.mark.parametrize("http2", [False, True])
async def test_a_recorder_that_fails_costs_nobody_the_answer(tmp_path: Path, http2: bool) -> None:
    answerer, recorder = ScriptedAnswerer(RECORDED, alpn=("h2",) if http2 else ("http/1.1",)), BrokenRecorder()
    async with (
        open_worker(tmp_path, recorder, answerer, mode="auto") as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("child"), verify=worker.tls, http2=http2) as client,
    ):
        assert (await client.get("https://nowhere.invalid/x")).text == "hello"
    assert recorder.gaps[0][:2] == ("child", "the recorder failed: LookupError")


@pytest.mark.parametrize("sized", [True, False])
async def test_nothing_ends_before_it_is_kept(tmp_path: Path, sized: bool) -> None:
    pieces = (Piece(0, b"hel"), Piece(0, b"lo"))
    answer = replace(RECORDED, pieces=pieces, headers=RECORDED.headers if sized else ())
    recorder = MemoryRecorder()
    recorder.gate.clear()
    async with open_worker(tmp_path, recorder, ScriptedAnswerer(answer), mode="auto") as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        await reader.readuntil(b"hel")
        await recorder.until(lambda: recorder.exchanges[0].outcome == "completed")
        rest = b"lo" if sized else b"0\r\n\r\n"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.readuntil(rest)
        recorder.gate.set()
        await reader.readuntil(rest)
        writer.close()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (replace(RECORDED, recorded_outcome="refused", status=403), "refused"),
        (replace(RECORDED, end="cut", headers=()), "server_closed"),
        (Answer(status=0, end="hold", patience=1_000_000, recorded_outcome="completed"), "timed_out"),
        (replace(RECORDED, status=204, pieces=(), headers=()), "completed"),
    ],
)
async def test_an_end_is_recorded_as_what_it_is(tmp_path: Path, answer: Answer, outcome: str) -> None:
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, ScriptedAnswerer(answer), mode="auto") as worker:
        _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        await recorder.until(lambda: bool(recorder.exchanges) and recorder.exchanges[0].outcome is not None)
        writer.close()
    assert recorder.only.outcome == outcome


async def test_a_client_that_leaves_in_the_middle_is_recorded_as_gone(tmp_path: Path) -> None:
    slow = replace(RECORDED, pieces=(Piece(0, b"hel"), Piece(60_000_000_000, b"lo")), end_at=60_000_000_000)
    recorder = MemoryRecorder()
    async with open_worker(tmp_path, recorder, ScriptedAnswerer(slow), mode="auto") as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(ASK)
        await reader.readuntil(b"hel")
        writer.close()
        await recorder.until(lambda: recorder.exchanges[0].outcome is not None)
    assert (recorder.only.outcome, recorder.only.body("response")) == ("client_closed", b"hel")


async def test_the_next_request_goes_live_and_into_the_same_run(tmp_path: Path) -> None:
    recorder = MemoryRecorder()
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlive") as upstream:
        origin = f"http://127.0.0.1:{upstream.port}"
        answerer = ScriptedAnswerer(RECORDED, None)
        settings: dict[str, Any] = {"mode": "auto", "upstreams": {"api.example": origin}}
        async with (
            open_worker(tmp_path, recorder, answerer, **settings) as worker,
            httpx.AsyncClient(timeout=60, proxy=worker.proxy("child"), verify=worker.tls) as client,
        ):
            answers = [(await client.get("http://api.example/x")).text for _ in range(2)]
    assert answers == ["hello", "live"]
    assert [exchange.begun["run"] for exchange in recorder.exchanges] == ["child", "child"]
    assert len(upstream.heads) == 1
