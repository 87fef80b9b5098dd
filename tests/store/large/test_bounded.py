"""The store server itself stays small, whatever is stored, read, imported and judged: the kernel says how large it was at most."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import httpx2

from calls.events import encode
from calls.exchange_builder import events_of
from calls.model import Body, Chunk, Exchange
from store.generations.auto_session_file import Take
from store.spool import Spool
from tests.store import exchanges as made
from tests.store.test_keeper_process import Process, data, keeper

__all__ = ["data"]

SIZE = 16_000_000
"""Bytes of a body that no compression makes shorter."""

ROOM = 10 << 20
"""Bytes that the store server may grow by: less than the body, more than what its modules and threads take."""


def exchange() -> Exchange:
    (plain,) = made.conversation(1)
    assert plain.response is not None
    body = hashlib.shake_128(b"body").digest(SIZE)
    chunks = tuple(Chunk(n, n << 20, 1 << 20) for n in range(SIZE >> 20))
    answer = Body(data=body, chunks=(*chunks, Chunk(99, len(chunks) << 20, SIZE - (len(chunks) << 20))), size=SIZE)
    headers = (("content-type", "application/octet-stream"),)
    return replace(plain, response=replace(plain.response, headers=headers, body=answer))


def resident(one: Process, name: str) -> int:
    """`VmRSS`, or `VmHWM`: what a process has, or had at most, since it was reset."""
    lines = Path(f"/proc/{one.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


async def test_it_opens_no_large_body_itself_whatever_is_asked_of_it(data: Path, database_url: str) -> None:
    sent = exchange()
    growth: dict[str, int] = {}
    async with keeper(data, database_url=database_url, open_api=True) as one:
        at_rest = resident(one, "VmRSS")

        def note(what: str) -> None:
            growth[what] = resident(one, "VmHWM") - at_rest
            Path(f"/proc/{one.process.pid}/clear_refs").write_text("5")

        async with httpx2.AsyncClient(base_url=one.url, trust_env=False, timeout=100) as api:
            with Spool(data / "spool" / "worker") as spool:
                last = [spool.append(encode(event)) for event in events_of(sent)][-1]
                await spool.reached(last)
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
            take = Take(id="copy", run="copy", recording="copy", candidate=made.RUN, report=report)
            take.write(data / "replays" / "one.done")
            async with asyncio.timeout(100):
                while (data / "replays" / "one.done").exists():  # noqa: ASYNC110 - another process takes it
                    await asyncio.sleep(0.05)
            note("judged")
            assert (await api.get("/v1/runs/copy:g2")).json()["exchanges"] == 2
    assert {what: size for what, size in growth.items() if size > ROOM} == {}
