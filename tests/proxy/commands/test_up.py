"""What `up` does with a process that will not live."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, cast

import pytest

from proxy.commands.store_elsewhere import StoreElsewhere
from proxy.commands.up import LONGEST_PAUSE, _keep_running
from proxy.errors import Failure
from proxy.processes.child_process import ChildProcess
from proxy.processes.ports import free_port
from proxy.processes.store_client import Api
from tests.support.service import command, surroundings


@dataclass
class ShortLived:
    """A child that ends as soon as it has begun."""

    name: str = "store"
    log: str = "store.log"
    ready: Mapping[str, Any] = field(default_factory=dict)

    async def messages(self) -> AsyncIterator[Mapping[str, Any]]:
        yield {}

    async def wait(self) -> int:
        return 1


class Enough(Exception):
    """Ends the loop under test."""


@pytest.mark.parametrize("starts", [True, False])
async def test_what_dies_again_and_again_is_started_ever_more_slowly(
    starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`starts`: it serves for a moment each time; else it did once, and cannot start any more."""
    pauses: list[float] = []
    said: list[str] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            raise Enough

    async def start() -> ChildProcess:
        if pauses and not starts:
            raise Failure("the database is away")
        return cast(ChildProcess, ShortLived())

    monkeypatch.setattr("proxy.commands.up.asyncio.sleep", pause)
    with pytest.raises(Enough):
        await _keep_running(start, asyncio.get_running_loop().create_future(), said.append, asyncio.Event())
    assert all(later > before for before, later in pairwise(pauses[:5]))
    assert pauses[-1] == LONGEST_PAUSE
    assert len(said) == 10


async def test_what_cannot_start_at_all_is_not_tried_again() -> None:
    async def start() -> ChildProcess:
        raise Failure("the port is taken")

    with pytest.raises(Failure, match="the port is taken"):
        await _keep_running(start, asyncio.get_running_loop().create_future(), print, asyncio.Event())


class StoreServer(BaseHTTPRequestHandler):
    """Answers `/readyz` with what `troubles` says, and all else for the token `mine` alone."""

    troubles: ClassVar[dict[str, str]] = {}

    def do_GET(self) -> None:
        body = json.dumps({"troubles": self.troubles}).encode()
        is_mine = self.headers["Authorization"] == "Bearer mine"
        is_open = self.path.startswith("/readyz")
        self.send_response((503 if self.troubles else 200) if is_open else 200 if is_mine else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(port: int) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", port), StoreServer) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield
        server.shutdown()


async def test_workers_wait_for_the_store_that_has_what_they_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.commands.store_elsewhere.RETRY_PAUSES", (0.01, 0.02))
    said: list[str] = []
    prepared = asyncio.Event()
    port = free_port("127.0.0.1", 0)
    waiting = StoreElsewhere(Api(f"http://127.0.0.1:{port}", "mine"), said.append).wait(prepared)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(waiting)
        while not said:  # noqa: ASYNC110 - it says it to a list
            await asyncio.sleep(0.01)
        assert "nothing that answers" in said[0]
        StoreServer.troubles = {"database": "Postgres is not available: away."}
        with serving(port):
            while len(said) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert "Postgres is not available: away." in said[1]
            assert not prepared.is_set()
            # Trouble with a spool keeps nobody from fetching what is stored.
            StoreServer.troubles = {"worker-a": "the spool worker-a cannot be drained"}
            await prepared.wait()
    assert len(said) == 3
    assert "is ready, after" in said[2]


async def test_what_workers_record_and_nobody_stores_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.commands.store_elsewhere.RETRY_PAUSES", (0.01, 0.02))
    monkeypatch.setattr("proxy.commands.store_elsewhere.LOOK_EVERY", 0.02)
    monkeypatch.setattr("proxy.commands.store_elsewhere.PATIENCE", 0.2)
    said: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    StoreServer.troubles = {}
    port = free_port("127.0.0.1", 0)
    url, token = f"http://127.0.0.1:{port}", Path("/data/keys/api.token")

    def watching(own_token: str) -> asyncio.Task[None]:
        server = StoreElsewhere(Api(url, own_token, token), said.put_nowait)
        return loop.create_task(server.watch(Path("/data/spool"), 1 << 20))

    async with asyncio.timeout(60):
        began = loop.time()
        task = watching("mine")
        first = await said.get()
        # One that starts at the same time is not missed yet.
        assert loop.time() - began >= 0.2
        assert f"nothing that answers /readyz listens at {url} ([Errno 111] Connection refused)" in first
        assert "It waits in /data/spool, up to 1,048,576 bytes (spool_limit)." in first
        with serving(port):
            assert await said.get() == f"the store server at {url} stores what is recorded again"
            task.cancel()
            # The same server with another data directory never sees these spools.
            task = watching("other")
            assert "refuses the API token in /data/keys/api.token, so it has another data directory" in await said.get()
            task.cancel()
    assert said.empty()


async def test_up_of_workers_alone_waits_unready_and_stops_on_a_signal(tmp_path: Path) -> None:
    port = free_port("127.0.0.1", 0)
    flags = (
        "--part",
        "proxy",
        "--mode",
        "replay",
        "--replay",
        "night",
        "--proxy-port",
        "0",
        "--data",
        str(tmp_path / "d"),
    )
    process = await asyncio.create_subprocess_exec(
        *command("up", *flags),
        env={**surroundings(), "PLAYHEAD_STORE_URL": f"http://127.0.0.1:{port}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while b"waiting for the store server" not in (line := await process.stderr.readline()):
            assert line, "it has ended"
        process.terminate()
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert out == b""
