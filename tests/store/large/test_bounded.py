"""The store server's own memory stays small whatever it stores, reads, imports and judges; the kernel reports the peak."""

import asyncio
import hashlib
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace

from calls.events import encode_records
from calls.model import Body, Chunk, Exchange
from store.generations.auto_session_file import AutoSession
from store.spool import Spool
from tests.store import exchanges as made
from tests.store.samples import NOON, uuid7
from tests.store.test_store_server_process import Process, data, store_server
from tests.support.exchange_events import exchange_events

__all__ = ["data"]

SIZE = 16_000_000
"""Bytes of an incompressible body."""

ROOM = 10 << 20
"""Bytes that the store server may grow by: less than the body, and more than its modules and threads need."""


def exchange() -> Exchange:
    (plain,) = made.conversation(1)
    assert plain.response is not None
    body = hashlib.shake_128(b"body").digest(SIZE)
    chunks = tuple(Chunk(n, n << 20, 1 << 20) for n in range(SIZE >> 20))
    answer = Body(data=body, chunks=(*chunks, Chunk(99, len(chunks) << 20, SIZE - (len(chunks) << 20))), size=SIZE)
    headers = (("content-type", "application/octet-stream"),)
    return replace(plain, response=replace(plain.response, headers=headers, body=answer))


def reset_peak(one: Process) -> None:
    """Reset `VmHWM` to the present size of the process."""
    Path(f"/proc/{one.process.pid}/clear_refs").write_text("5")


def resident(one: Process, name: str) -> int:
    """`VmRSS`, the size of a process, or `VmHWM`, its peak since it was reset."""
    lines = Path(f"/proc/{one.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


async def test_it_opens_no_large_body_itself_whatever_is_asked_of_it(data: Path, database_url: str) -> None:
    sent = exchange()
    growth: dict[str, int] = {}
    async with store_server(data, database_url=database_url, open_api=True) as one:
        at_rest = resident(one, "VmRSS")

        def note(what: str) -> None:
            growth[what] = resident(one, "VmHWM") - at_rest
            Path(f"/proc/{one.process.pid}/clear_refs").write_text("5")

        async with httpx2.AsyncClient(base_url=one.url, trust_env=False, verify=False, timeout=100) as api:
            with Spool(data / "spool" / "worker") as spool:
                last = [spool.append(encode_records(event)) for event in exchange_events(sent)][-1]
                await spool.wait_until_durable(last)
            for _ in range(10):  # each waits for up to 10 s
                answer = await api.get(f"/v1/runs/{made.RUN}/calls?settled=true&limit=1")
                if answer.status_code == 200 and answer.json()["settled"]:
                    break
            note("stored")
            assert (await api.get(f"/v1/runs/{made.RUN}/calls?fields=*")).status_code == 200
            note("listed")
            bundle = (await api.get(f"/v1/runs/{made.RUN}/bundle")).content
            note("bundle")
            rows = (await api.get(f"/v1/runs/{made.RUN}/rows")).content
            note("rows")
            assert min(len(bundle), len(rows)) > SIZE
            assert (await api.post("/v1/import?as=copy", content=bundle)).status_code == 201
            note("import")
            report = {"live": 1, "missed": 0, "interrupted": False, "allow_unused": False}
            take = AutoSession(id="copy", run="copy", recording="copy", candidate=made.RUN, report=report)
            take.write(data / "replays" / "one.done")
            async with asyncio.timeout(100):
                while (data / "replays" / "one.done").exists():  # noqa: ASYNC110 - another process removes it
                    await asyncio.sleep(0.05)
            note("judged")
            assert (await api.get("/v1/runs/copy:g2")).json()["exchanges"] == 2
    assert {what: size for what, size in growth.items() if size > ROOM} == {}


def streamed_exchange(run: str, number: int, size: int) -> Exchange:
    """A long streamed answer, which ends differently in each run."""
    (plain,) = made.conversation(1)
    assert plain.response is not None
    event = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%06d so it was, and so it is "}}]'
    # As OpenAI pads its events: each takes time to read, however long it is.
    event += b',"obfuscation":"%s"}\n\n' % (b"x" * 300)
    body = b"".join(event % n for n in range(size // len(event % 0)))
    body += b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\ndata: [DONE]\n\n' % run.encode()
    step = 1 << 20
    chunks = tuple(Chunk(n, at, min(step, len(body) - at)) for n, at in enumerate(range(0, len(body), step)))
    answer = replace(
        plain.response,
        headers=(("content-type", "text/event-stream"),),
        body=Body(data=body, chunks=chunks, size=len(body)),
    )
    at = NOON + number * 10**9
    return replace(plain, id=uuid7(at, number), run=run, started_at=at, response=answer)


@pytest.mark.slow
@pytest.mark.timeout(300)  # a helper process may take as long as a busy machine makes it take
async def test_it_compares_runs_of_large_streamed_answers_in_a_helper_process(data: Path, database_url: str) -> None:
    """Two runs with an answer of 10 MB each, which is all that the server may grow by, and every request about them."""
    sent = [streamed_exchange(run, number, 10_000_000) for number, run in enumerate(("one", "other"))]
    growth: dict[str, int] = {}
    statuses: dict[str, int] = {}
    async with store_server(data, database_url=database_url, open_api=True) as one:
        at_rest = resident(one, "VmRSS")
        with Spool(data / "spool" / "worker") as spool:
            for exchange in sent:
                last = [spool.append(encode_records(event)) for event in exchange_events(exchange)][-1]
                await spool.wait_until_durable(last)
        async with httpx2.AsyncClient(base_url=one.url, trust_env=False, verify=False, timeout=200) as api:
            for _ in range(20):  # each waits for up to 10 s
                answer = await api.get("/v1/runs/other/calls?settled=true&limit=1")
                if answer.status_code == 200 and answer.json()["settled"]:
                    break
            call = (await api.get("/v1/runs/one/calls")).json()["items"][0]["id"]
            for path in (
                "/runs",
                "/runs/one",
                "/calls",
                "/runs/one/calls",
                "/runs/one/diff/other",
                "/drift",
                f"/calls/{call}",
                f"/calls/{call}/explain",
                f"/exchanges/{sent[0].id}/chunks",
                f"/exchanges/{sent[0].id}/response",
            ):
                reset_peak(one)
                name = path.replace(call, "ID").replace(sent[0].id, "ID")
                statuses[name] = (await api.get(f"/v1{path}")).status_code
                growth[name] = resident(one, "VmHWM") - at_rest
    print({name: f"{statuses[name]}, {size >> 20} MiB" for name, size in growth.items()}, at_rest >> 20)
    # Comparing answers of this size takes more memory than a helper process may have: it is refused, and nothing else fails.
    allowed = {"/runs/one/diff/other": (200, 507)}
    assert {name: status for name, status in statuses.items() if status not in allowed.get(name, (200,))} == {}
    assert at_rest + max(growth.values()) < 300_000_000
    assert {name: size for name, size in growth.items() if size > ROOM} == {}
