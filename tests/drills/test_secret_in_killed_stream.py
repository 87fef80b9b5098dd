"""kill -9 of a worker that holds back the record of a streamed secret: nothing clear is stored, and what is lacking is a gap."""

import asyncio
import json
import ssl
from pathlib import Path

import httpx
import pytest

from tests.drills.leaks import files, find_leaks, tables
from tests.drills.test_secrets import HOST, chunk, request_with_secrets
from tests.drills.up_processes import RunningUp, bundle, kill_process, read_spools, until, until_true, up
from tests.support.wire import Upstream, read_request, serving

CANARY = "dandelion"
SECRET = "ghp_" + "R7vKx2Qm9TzLw4Yc8NbJ1HfD6sGp3UaE5iOt"
DELTA = 4
BEFORE = (f"{CANARY} grows here. ", "It is yellow; ", "now the key: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "spelt"),
    # What is held back is decided in the redactor, for both engines.
    [("lane", 3 * DELTA), ("lane", 24), ("lane", len(SECRET)), ("mitmproxy", 24)],
    ids=["lane-begun", "lane-half", "lane-whole", "mitmproxy-half"],
)
async def test_of_a_secret_that_is_held_back_nothing_is_stored_when_its_worker_is_killed(
    data: Path, database_url: str, engine: str, spelt: int
) -> None:
    said = [*BEFORE, *(SECRET[n : min(n + DELTA, spelt)] for n in range(0, spelt, DELTA))]
    for_ever = asyncio.Event()

    async def spelling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for delta in said:
            writer.write(chunk(delta))
            await writer.drain()
            await asyncio.sleep(0.02)
        await for_ever.wait()

    upstream = Upstream()
    async with serving(spelling, upstream=upstream):
        config = f'engine = "{engine}"\n[upstreams]\n"{HOST}" = "http://127.0.0.1:{upstream.port}"\n'
        async with up(data, "--database-url", database_url, config=config) as processes:
            received = await _receive_until_killed(processes, len(b"".join(map(chunk, said))))
            in_spool = read_spools(data)
            night = await bundle(processes.api, "night")
            stored = await tables(database_url)
            everything = [*stored, ("spool", in_spool), *files(data)]
        for_ever.set()

    assert received == b"".join(map(chunk, said)), "the client gets all of it at once"
    (exchange,) = night.exchanges
    assert exchange.ended_at is None
    assert [gap.exchange for gap in night.gaps] == [exchange.id]
    assert "data after the last piece is not recorded" in night.gaps[0].reason
    assert exchange.response is not None
    assert exchange.response.body is not None
    # All that came before is there, as it was, and of what came behind it nothing but what is no secret.
    kept = exchange.response.body.data
    assert kept.startswith(b"".join(map(chunk, BEFORE[:1])))
    assert received.startswith(kept)
    assert find_leaks({"canary": CANARY}, everything), "the scan is blind"
    # Neither the text nor its deltas, one after the other as a reader would join them.
    assert not find_leaks({"secret": SECRET[: max(spelt // 2, 12)]}, everything)
    joined = "".join(_deltas(kept))
    assert SECRET[:8] not in joined
    assert not [
        place for place, value in everything if SECRET[4:8].encode() in value and SECRET[8:12].encode() in value
    ]


async def _receive_until_killed(processes: RunningUp, size: int) -> bytes:
    """What a client gets of the answer, until so much has come and the worker is killed."""
    trust = ssl.create_default_context(cafile=processes.ready["ca"])
    received = b""
    async with httpx.AsyncClient(
        proxy=f"http://night:x@127.0.0.1:{processes.port}", verify=trust, trust_env=False, timeout=30
    ) as client:
        request = request_with_secrets("/v1/chat/completions/stream")
        plain = {"json": {"model": "gpt-4o", "stream": True, "messages": []}, "url": request["url"]}
        try:
            async with client.stream("POST", **plain) as answer:  # type: ignore[arg-type] # built just above
                async for piece in answer.aiter_raw():
                    received += piece
                    if len(received) >= size:
                        # The worker writes what it does not hold back: at once, and in a moment if it should not have.
                        await until_true(lambda: chunk(BEFORE[0]) in read_spools(processes.data))
                        await asyncio.sleep(0.2)
                        await kill_process(processes.workers[0])
        except httpx.TransportError:
            pass

    async def is_stored() -> bool:
        found = (await bundle(processes.api, "night")).exchanges
        return bool(found)

    await until(is_stored)
    return received


def _deltas(body: bytes) -> list[str]:
    events = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
    return [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
