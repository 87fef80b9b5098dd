"""The process of the store server: it reads its configuration from stdin, reports on stdout, and stops when it should."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from store.lock import Lock
from store.spool import Spool
from tests.store.ingest.test_ingester import RUN, conversation, write_records
from tests.support.exchange_events import exchange_events

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Process:
    """A store server's process and its first message."""

    process: asyncio.subprocess.Process
    said: dict[str, Any]
    data: Path

    @property
    def url(self) -> str:
        """The address of its API."""
        return f"http://127.0.0.1:{self.said['port']}"

    async def get(self, path: str) -> Any:
        """JSON from its API."""
        return (await self.answer(path, (self.data / "keys" / "api.token").read_text().strip())).json()

    async def answer(self, path: str, token: str | None) -> httpx2.Response:
        """Its answer to a request with this token."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with httpx2.AsyncClient(
            base_url=self.url, headers=headers, trust_env=False, verify=False, timeout=30
        ) as client:
            return await client.get(path)


@asynccontextmanager
async def store_server(data: Path, **options: Any) -> AsyncIterator[Process]:
    """Start a store server; it is always killed in the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "store.server"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write(json.dumps({"data": str(data), "database_url": None} | options).encode() + b"\n")
        async with asyncio.timeout(60):
            said = json.loads(await process.stdout.readline() or b"{}")
        yield Process(process, said, data)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def exit_status(one: Process, seconds: float = 60) -> int:
    async with asyncio.timeout(seconds):
        return await one.process.wait()


@pytest.fixture
def data() -> Iterator[Path]:
    """A data directory that the account of an embedded Postgres can access."""
    directory = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    directory.chmod(0o711)
    yield directory
    # What a killed store server's Postgres still writes is none of a test's business.
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def quit_ignored() -> Iterator[None]:
    """Ignore SIGQUIT in what is started, as shells do in what they start in the background."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGQUIT, before)


async def test_it_stores_what_workers_spool_and_stops_when_its_stdin_ends(data: Path, database_url: str) -> None:
    async with store_server(data, database_url=database_url) as one:
        assert one.said["ready"] is True
        with Spool(data / "spool" / "worker") as spool:
            for exchange in conversation(2):
                await write_records(spool, exchange_events(exchange))
            calls = await one.get(f"/v1/runs/{RUN}/calls?settled=true")
        assert (calls["settled"], len(calls["items"])) == (True, 2)
        assert one.process.stdin
        one.process.stdin.close()
        assert await exit_status(one) == 0


async def test_sigterm_stops_it_cleanly_and_what_came_last_is_in(data: Path, database_url: str) -> None:
    async with store_server(data, database_url=database_url) as one:
        with Spool(data / "spool" / "worker") as spool:
            await write_records(spool, exchange_events(conversation(1)[0]))
        one.process.send_signal(signal.SIGTERM)
        assert await exit_status(one) == 0
    async with store_server(data, database_url=database_url) as two:
        assert (await two.get(f"/v1/runs/{RUN}"))["calls"] == 1


@pytest.mark.slow
async def test_killed_again_and_again_it_stores_everything_once(data: Path, database_url: str) -> None:
    sent = conversation(12)
    with Spool(data / "spool" / "worker") as spool:
        for n in range(0, 12, 3):
            async with store_server(data, database_url=database_url) as one:
                for exchange in sent[n : n + 3]:
                    await write_records(spool, exchange_events(exchange))
                await asyncio.sleep(0.05 * n)
                one.process.kill()
                await exit_status(one)
        async with store_server(data, database_url=database_url) as last:
            calls = await last.get(f"/v1/runs/{RUN}/calls?settled=true&limit=100")
    assert [call["id"] for call in calls["items"]] == [exchange.id for exchange in sent]


@pytest.mark.slow
async def test_an_embedded_postgres_that_is_killed_comes_back(data: Path) -> None:
    async with store_server(data) as one:
        with Spool(data / "spool" / "worker") as spool:
            await write_records(spool, exchange_events(conversation(1)[0]))
            assert (await one.get(f"/v1/runs/{RUN}?settled=true"))["calls"] == 1
            os.kill(int((data / "pg" / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
            await write_records(spool, exchange_events(conversation(2)[1]))
            async with asyncio.timeout(60):
                while not (await one.get("/v1/runs")).get("items"):  # noqa: ASYNC110 - it answers 503 meanwhile
                    await asyncio.sleep(0.1)
            assert (await one.get(f"/v1/runs/{RUN}?settled=true"))["calls"] == 2
        one.process.send_signal(signal.SIGTERM)
        assert await exit_status(one) == 0
    assert not (data / "pg" / "data" / "postmaster.pid").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("quit_ignored")
async def test_it_stops_although_its_postgres_cannot_be_reached(data: Path) -> None:
    """The supervisor still runs, for which each attempt to start Postgres again waits for minutes."""
    async with store_server(data) as one:
        postmaster = int((data / "pg" / "data" / "postmaster.pid").read_text().split()[0])
        (data / "pg" / ".s.PGSQL.5432").unlink()
        with Spool(data / "spool" / "worker") as spool:
            _end_connections(postmaster)
            await write_records(spool, exchange_events(conversation(1)[0]))
            async with asyncio.timeout(60):
                while not Lock(data / "pg" / "start.lock").is_held():  # noqa: ASYNC110 - then another start waits
                    await asyncio.sleep(0.05)
            one.process.send_signal(signal.SIGTERM)
            assert await exit_status(one, 30) == 0
    async with store_server(data) as two:
        assert (await two.get(f"/v1/runs/{RUN}?settled=true"))["calls"] == 1


def _end_connections(postmaster: int) -> None:
    for child in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
        if b"postgres: playhead" in Path("/proc", child, "cmdline").read_bytes():
            os.kill(int(child), signal.SIGTERM)


async def test_it_asks_for_the_token_of_its_data_directory(data: Path, database_url: str) -> None:
    file = data / "keys" / "api.token"
    async with store_server(data, database_url=database_url, tokens=["another"]) as one:
        refused = await one.answer("/v1/runs", None)
        assert (refused.status_code, f"{file} holds it" in refused.json()["detail"]) == (401, True)
        assert file.stat().st_mode & 0o777 == 0o600
        for token in (file.read_text().strip(), "another"):
            assert (await one.answer("/v1/runs", token)).status_code == 200
        one.process.terminate()
        await exit_status(one)
    async with store_server(data, database_url=database_url, open_api=True) as one:
        assert (await one.answer("/v1/runs", None)).status_code == 200


async def test_a_second_store_server_on_one_data_directory_refuses(data: Path, database_url: str) -> None:
    async with store_server(data, database_url=database_url), store_server(data, database_url=database_url) as second:
        assert "another store server uses" in second.said["failed"]
        assert await exit_status(second) == 125


async def refusal(data: Path, **options: Any) -> str:
    async with store_server(data, **options) as one:
        assert await exit_status(one) == 125
        words: str = one.said["failed"]
    return words


@pytest.mark.slow
async def test_what_it_cannot_use_is_said_in_one_sentence(data: Path, database_url: str) -> None:
    url = {"database_url": database_url}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in await refusal(data, **url, port=port)
    assert "remove open_api" in await refusal(data, **url, listen="0.0.0.0", open_api=True)
    assert "cannot listen on 192.0.2.1" in await refusal(data, **url, listen="192.0.2.1", tokens=["t"])
    assert "Postgres" in await refusal(data, database_url="postgresql://x@127.0.0.1:1/x")
    assert "postgresql://" in await refusal(data, database_url="mysql://x")
    assert "line 2" in await refusal(data, **url, profiles_toml="[[profile]]\nname = 3\n")
    (data / "version").write_text("99")
    assert "version 99" in await refusal(data, **url)


async def test_words_it_does_not_understand_are_refused(data: Path) -> None:
    assert "the configuration of the store server is invalid" in await refusal(data, port="many")
