"""MCP by its official SDK through a running `playhead up`: what a client was told is what its calls say, also where the
answer came on another exchange; and what of it replays.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import uvicorn
from mcp import ClientSession, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from starlette.types import ASGIApp

from tests.support.service import Service, running

HOST = "mcp.example.com"


class Events(EventStore):
    """What a server keeps so that a client can go on where a stream broke off."""

    def __init__(self) -> None:
        self._kept: list[tuple[StreamId, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: StreamId, message: types.JSONRPCMessage | None) -> EventId:
        self._kept.append((stream_id, message))
        return str(len(self._kept))

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        seen = int(last_event_id)
        stream = self._kept[seen - 1][0]
        for number, (name, message) in enumerate(self._kept[seen:], seen + 1):
            if name == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def tools() -> FastMCP:
    app = FastMCP("tools", log_level="ERROR", event_store=Events(), retry_interval=20)
    app.settings.transport_security = None

    @app.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    @app.tool()
    async def slow(ctx: Context[Any, Any, Any]) -> str:
        await ctx.close_sse_stream()
        await asyncio.sleep(0.1)
        return "after all"

    return app


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[int]:
    """A server on a free port."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([port]))
            try:
                yield port.getsockname()[1]
            finally:
                server.should_exit = True


@asynccontextmanager
async def recording(data: Path, app: ASGIApp, database_url: str) -> AsyncIterator[Service]:
    flags = ("--database-url", database_url)
    async with (
        serving(app) as port,
        running(data, *flags, config=f'[upstreams]\n"{HOST}" = "http://127.0.0.1:{port}"\n') as up,
    ):
        yield up


def through(
    up: Service, headers: dict[str, str] | None = None, timeout: httpx.Timeout | None = None
) -> httpx.AsyncClient:
    """A client that goes through the proxy and names the run."""
    named = {**(headers or {}), "x-playhead-run": "mcp"}
    return httpx.AsyncClient(headers=named, timeout=timeout, proxy=up.proxy, trust_env=False, verify=False)


@asynccontextmanager
async def session(up: Service, *, old: bool) -> AsyncIterator[ClientSession]:
    async with AsyncExitStack() as stack:
        if old:
            client = sse_client(
                f"http://{HOST}/sse",
                httpx_client_factory=lambda headers=None, timeout=None, auth=None: through(up, headers, timeout),
            )
            reads, writes = await stack.enter_async_context(client)
        else:
            http = await stack.enter_async_context(through(up, timeout=httpx.Timeout(10)))
            streams = streamable_http_client(f"http://{HOST}/mcp", http_client=http)
            reads, writes, _ = await stack.enter_async_context(streams)
        mcp = await stack.enter_async_context(ClientSession(reads, writes))
        await mcp.initialize()
        yield mcp


async def call_tool(mcp: ClientSession, tool: str, **arguments: int) -> str:
    (block,) = (await mcp.call_tool(tool, arguments)).content
    assert isinstance(block, types.TextContent)
    return block.text


async def api(up: Service, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient(
        base_url=up.api, headers=up.headers, trust_env=False, verify=False, timeout=30
    ) as client:
        return await client.get(path)


async def tool_calls(up: Service) -> list[dict[str, Any]]:
    calls = (await api(up, "/v1/runs/mcp/calls?settled=true&fields=*")).json()["items"]
    return [call for call in calls if call["operation"] == "execute_tool"]


def is_whole(call: dict[str, Any], text: str, exchanges: int) -> None:
    assert (call["text"], call["complete"], len(call["exchanges"])) == (text, True, exchanges)
    assert [result["content"] for result in call["tool_results"]] == [[{"type": "text", "text": text}]]
    assert call["answer"]["result"]["isError"] is False
    assert 0 < call["duration_ms"] < 10_000


async def test_the_older_transport_is_one_call_with_the_answer_that_came_on_the_stream(
    data: Path, database_url: str
) -> None:
    async with recording(data, tools().sse_app(), database_url) as up:
        async with session(up, old=True) as mcp:
            await mcp.send_ping()  # which the replay lacks, so that its calls come under other ids
            assert [await call_tool(mcp, "add", a=1, b=n) for n in (1, 2)] == ["2", "3"]
        one, two = await tool_calls(up)
        is_whole(one, "2", 2)
        is_whole(two, "3", 2)
        assert one["exchanges"][1] == two["exchanges"][1]
        assert (await api(up, f"/v1/calls/{two['id']}")).json() == two
        bundle = (await api(up, "/v1/runs/mcp/bundle")).content
    file = data.with_name("old.jsonl")
    file.write_bytes(bundle)
    async with (
        running(data, "--mode", "replay", "--replay", str(file), "--database-url", database_url) as up,
        session(up, old=True) as mcp,
    ):
        assert [await call_tool(mcp, "add", a=1, b=n) for n in (1, 2)] == ["2", "3"]


async def test_a_stream_that_broke_off_and_was_gone_on_with_is_one_call_and_replays(
    data: Path, database_url: str
) -> None:
    async def work(up: Service) -> list[str]:
        async with session(up, old=False) as mcp:
            return [await call_tool(mcp, "slow"), await call_tool(mcp, "add", a=1, b=2)]

    async with recording(data, tools().streamable_http_app(), database_url) as up:
        recorded = await work(up)
        assert recorded == ["after all", "3"]
        slow, add = await tool_calls(up)
        is_whole(slow, "after all", 2)
        is_whole(add, "3", 1)
        bundle = (await api(up, "/v1/runs/mcp/bundle")).content
    file = data.with_name("new.jsonl")
    file.write_bytes(bundle)
    async with running(data, "--mode", "replay", "--replay", str(file), "--database-url", database_url) as up:
        assert await work(up) == recorded


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", logger="mcp")
