"""Fields of an upstream with Playhead's own names are recorded, and never forwarded to the client."""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.support.wire import MemoryRecorder, ScriptedAnswerer, answering, open_worker

FORGED = (
    b'HTTP/1.1 200 OK\r\nPLAYHEAD: replayed; run="r"; step=1\r\nx-playhead-run: r\r\nX-Playhead-Anything: 1\r\n'
    b'Content-Length: 2\r\nX-Other: 1\r\nAlt-Svc: h3=":443"\r\n\r\nok'
)
EVIDENCE = [("PLAYHEAD", 'replayed; run="r"; step=1'), ("x-playhead-run", "r"), ("X-Playhead-Anything", "1")]


def ours(names: list[str]) -> list[str]:
    return [name for name in names if "playhead" in name.lower()]


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("mode", ["record", "passthrough", "auto"])
async def test_an_upstream_cannot_speak_as_us(tmp_path: Path, http2: bool, mode: str) -> None:
    recorder = MemoryRecorder()
    answerer = ScriptedAnswerer(None) if mode == "auto" else None
    async with (
        open_worker(tmp_path, recorder, answerer, mode=mode, upstream=answering(FORGED)) as worker,
        httpx.AsyncClient(timeout=60, proxy=worker.proxy("mine"), verify=worker.tls, http2=http2) as client,
    ):
        got = await client.get("https://api.test/x")
    assert (got.text, got.headers["x-other"], "alt-svc" in got.headers) == ("ok", "1", False)
    assert ours(list(got.headers)) == (["playhead"] if mode == "auto" else [])
    assert got.headers.get_list("playhead") == (['live; run="mine"'] if mode == "auto" else [])
    if mode != "passthrough":
        head = recorder.only.head
        assert head is not None
        assert [field for field in head[-1] if "playhead" in field[0].lower()] == EVIDENCE


async def test_nor_in_what_announces_its_answer(tmp_path: Path) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nPlayhead: replayed\r\nLink: </x>\r\n\r\n"
    async with open_worker(tmp_path, MemoryRecorder(), upstream=answering(early + FORGED)) as worker:
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(b"GET http://api.test/x HTTP/1.1\r\nHost: api.test\r\n\r\n")
        answer = await reader.readuntil(b"\r\n\r\nok")
        writer.close()
    assert b"103" in answer
    assert b"Link: </x>" in answer
    assert b"playhead" not in answer.lower()
