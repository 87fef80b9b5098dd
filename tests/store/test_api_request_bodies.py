"""Neither an endless nor a slow body of one client harms the store server or the requests of others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from store.api.limits import request_bodies
from store.api.spilled_answers import TURNS
from store.database.connection import Database
from tests.store.running_store import RUN, RunningStore, import_bundle, is_problem, open_store

TOKEN = "correct-horse-battery-staple"
AUTHORIZED = {"authorization": f"Bearer {TOKEN}"}
JSON = {"content-type": "application/json"}


@asynccontextmanager
async def begun_request(running_store: RunningStore, method: str, path: str) -> AsyncIterator[asyncio.StreamReader]:
    """A request of which only the first byte of the body is sent."""
    address = running_store.api.base_url
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())
        await writer.drain()
        yield reader
    finally:
        writer.close()
        await writer.wait_closed()


async def pieces(size: int) -> AsyncIterator[bytes]:
    """A body whose length is not stated."""
    for _ in range(0, size, 1 << 16):
        yield b"[" * (1 << 16)


async def test_a_body_beyond_the_limit_is_refused(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store:
        too_large = request_bodies.LARGEST + 1
        for headers, path, content, status in (
            # Anybody may send this one.
            (JSON, "/v1/session", b"[" * 16_385, 413),
            (JSON, "/v1/session", pieces(1 << 17), 413),
            (JSON, "/v1/session", b'"%s"' % (b"x" * 16_382), 422),
            (JSON | AUTHORIZED, "/v1/replays", b"[" * too_large, 413),
            (JSON | AUTHORIZED, "/v1/replays", pieces(too_large), 413),
            (JSON | AUTHORIZED, "/v1/replays", b'"%s"' % (b"x" * (1 << 20)), 422),
            (JSON, "/v1/replays", b"{}", 401),
        ):
            answer = await running_store.api.post(path, headers=headers, content=content)
            is_problem(answer, status, "too_large" if status == 413 else None)


@pytest.mark.parametrize(("method", "path"), [("PATCH", f"/v1/runs/{RUN}"), ("POST", "/v1/import")])
async def test_bodies_that_do_not_come_keep_no_other_request_waiting(
    tmp_path: Path, database: Database, method: str, path: str
) -> None:
    async with (
        open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store,
        AsyncExitStack() as stack,
    ):
        running_store.api.headers.update(AUTHORIZED)
        await import_bundle(running_store)
        for _ in range(TURNS):
            await stack.enter_async_context(begun_request(running_store, method, path))
        # Those requests have arrived: later ones on other connections are served after them.
        assert (await running_store.api.get("/healthz")).status_code == 200
        async with asyncio.timeout(10):
            assert (await running_store.api.get("/v1/runs")).status_code == 200


@pytest.mark.parametrize(("method", "path"), [("PATCH", f"/v1/runs/{RUN}"), ("POST", "/v1/import")])
async def test_a_body_that_stops_coming_is_refused_after_a_while(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    monkeypatch.setattr(request_bodies, "STALL_TIMEOUT", 0.2)
    async with open_store(tmp_path / "spool", database, tokens=[TOKEN], follows=False) as running_store:
        async with begun_request(running_store, method, path) as answer, asyncio.timeout(10):
            head = await answer.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in head.lower()
