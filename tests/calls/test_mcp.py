"""The Model Context Protocol, judged by its official SDK: what its client was given is what our calls say."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.fastmcp import Context, FastMCP

from calls.derive import derive_call
from calls.dialects.protocols import mcp
from calls.keys.key import make_key
from calls.model import Call, Headers, ToolCall
from calls.route import route_request
from tests.calls.sample_requests import PROFILES, explained_key, json_request, key, request
from tests.calls.tapped import Tap

URL = "http://127.0.0.1:8000/mcp"
BOTH: tuple[str, str] = ("accept", "application/json, text/event-stream")
VERSION = ("mcp-protocol-version", "2025-11-25")


def server(*, whole: bool) -> FastMCP:
    """A server with a tool of every temper, which answers whole and without sessions or as a stream and with them."""
    app = FastMCP("tools", json_response=whole, stateless_http=whole, port=8000, log_level="ERROR")

    @app.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    @app.tool()
    async def tell(steps: int, ctx: Context[Any, Any, Any]) -> str:
        for step in range(steps):
            await ctx.report_progress(step, steps)
            await ctx.info(f"step {step}")
        return "Grüß dich 😀"

    @app.tool()
    async def fail() -> str:
        raise ValueError("no")

    @app.resource("data://one")
    def one() -> str:
        return "a resource"

    return app


@asynccontextmanager
async def session(*, whole: bool) -> AsyncIterator[tuple[ClientSession, Tap]]:
    """A client of the official SDK, and a tap on what it sends and gets."""
    app = server(whole=whole)
    tap = Tap(httpx.ASGITransport(app=app.streamable_http_app()))
    async with (
        app.session_manager.run(),
        httpx.AsyncClient(transport=tap) as http,
        streamable_http_client(URL, http_client=http) as (reads, writes, _),
        ClientSession(reads, writes) as client,
    ):
        await client.initialize()
        yield client, tap


async def nothing(progress: float, total: float | None, message: str | None) -> None:
    """Take progress, and do nothing with it."""


def calls(tap: Tap, operation: str) -> list[Call]:
    found = [derive_call(one, PROFILES) for one in tap.exchanges]
    assert {call.dialect for call in found} == {"mcp"}
    assert {warning for call in found for warning in call.warnings} == set()
    return [call for call in found if call.operation == operation]


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
async def test_a_tool_call_says_what_the_official_client_was_given(whole: bool) -> None:
    asked: list[tuple[str, dict[str, Any]]] = [("add", {"a": 1, "b": 2}), ("tell", {"steps": 2}), ("fail", {})]
    async with session(whole=whole) as (client, tap):
        given = [await client.call_tool(name, arguments, progress_callback=nothing) for name, arguments in asked]
    found = calls(tap, "execute_tool")
    assert [(one.tool_calls[0].name, one.tool_calls[0].arguments) for one in found] == asked
    for call, result in zip(found, given, strict=True):
        theirs = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        [ours] = call.tool_results
        assert isinstance(ours, dict)
        assert isinstance(call.answer, dict)
        assert ours["content"] == theirs["content"]
        assert ours.get("structured") == theirs.get("structuredContent")
        assert ours.get("is_error", False) == result.isError
        assert call.text == "\n".join(block["text"] for block in theirs["content"])
        assert (call.kind, call.streamed, call.complete) == ("tool", not whole, True)
        assert call.tool_calls[0].id == ours["id"] == str(call.answer["id"])


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
async def test_whatever_else_is_said_is_not_a_tool_call(whole: bool) -> None:
    async with session(whole=whole) as (client, tap):
        await client.list_tools()
        read = await client.read_resource("data://one")  # type: ignore[arg-type] # the SDK takes a text too
    assert [call.kind for call in calls(tap, "tools/list")] == ["other"]
    [resource] = calls(tap, "resources/read")
    assert (resource.kind, resource.text) == ("retrieval", read.contents[0].text)  # type: ignore[union-attr] # a text
    assert len(calls(tap, "initialize")) == len(calls(tap, "notifications/initialized")) == 1
    assert len(calls(tap, "close")) == (0 if whole else 1)


async def test_progress_and_logs_are_kept_in_their_order() -> None:
    async with session(whole=False) as (client, tap):
        await client.call_tool("tell", {"steps": 2}, progress_callback=nothing)
    [call] = calls(tap, "execute_tool")
    assert isinstance(call.answer, dict)
    notifications: Any = call.answer["notifications"]
    assert [one["method"].rpartition("/")[2] for one in notifications] == ["progress", "message"] * 2


async def test_two_sessions_that_ask_the_same_have_the_same_keys() -> None:
    keys = []
    for before in (0, 2):
        async with session(whole=False) as (client, tap):
            for _ in range(before):  # so that ids and progress tokens differ
                await client.send_ping()
            await client.call_tool("add", {"a": 1, "b": 2}, progress_callback=nothing)
        [call] = calls(tap, "execute_tool")
        keys.append(call.key)
    assert keys[0] == keys[1]


def message(**fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", **fields}


def tool(**params: Any) -> dict[str, Any]:
    return message(params={"name": "f", "arguments": {"a": 1}, **params})


META = {"progressToken": 7, "traceparent": "00-1", "io.modelcontextprotocol/clientInfo": {"version": "2"}}


@pytest.mark.parametrize(
    "other",
    [
        {**tool(), "id": 2},
        {**tool(), "id": "b6f0"},
        tool(_meta={}),
        tool(_meta=META),
        dict(reversed(tool().items())),
    ],
)
def test_what_changes_with_every_sending_is_not_in_the_key(other: dict[str, Any]) -> None:
    assert key(URL, other, VERSION) == key(URL, tool(), VERSION)
    assert key(URL, other, VERSION, ("mcp-session-id", "a")) == key(URL, tool(), VERSION, ("mcp-session-id", "b"))


@pytest.mark.parametrize(
    "other",
    [
        message(params={"name": "g", "arguments": {"a": 1}}),
        tool(arguments={"a": 2}),
        tool(inputResponses={"x": 1}),
        tool(_meta={"own": 1}),
        message(method="tools/list"),
    ],
)
def test_what_the_server_would_see_differently_has_another_key(other: dict[str, Any]) -> None:
    assert key(URL, other, VERSION) != key(URL, tool(), VERSION)


@pytest.mark.parametrize(("method", "name"), [("cancelled", "requestId"), ("progress", "progressToken")])
def test_which_number_a_request_had_is_not_in_the_key_of_what_is_said_about_it(method: str, name: str) -> None:
    def notification(number: int | str, reason: str = "late") -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": f"notifications/{method}", "params": {name: number, "message": reason}}

    assert key(URL, notification(3), VERSION) == key(URL, notification(1), VERSION)
    assert key(URL, notification("b6f0"), VERSION) == key(URL, notification(1), VERSION)
    assert key(URL, notification(1, "no more"), VERSION) != key(URL, notification(1), VERSION)
    batches = [[notification(one), notification(other)] for one, other in ((1, 2), (2, 1), (1, 1))]
    keys = [key(URL, batch, VERSION) for batch in batches]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("https://shop.example.com/runs", {"session_id": 0}),
        ("https://api.dify.ai/v1/chat-messages", {"conversation_id": 0, "query": "x"}),
        (URL, {"jsonrpc": "2.0", "method": "orders/refund", "params": {"requestId": 0}}),
        (
            URL,
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"requestId": 0}}},
        ),
    ],
)
def test_a_number_that_may_be_that_of_a_record_is_in_the_key(url: str, body: dict[str, Any]) -> None:
    def body_with(number: int) -> dict[str, Any]:
        return json.loads(json.dumps(body).replace(": 0", f": {number}"))  # type: ignore[no-any-return]

    assert key(url, body_with(4711)) != key(url, body_with(4712))


def test_the_version_of_the_protocol_is_in_the_key() -> None:
    assert key(URL, tool(), VERSION) != key(URL, tool(), ("mcp-protocol-version", "2025-06-18"))


def test_a_batch_is_several_calls_in_one() -> None:
    batch = [tool(), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    made = explained_key(URL, batch, VERSION)
    assert (made.operation, made.kind, made.profile, made.warnings) == ("batch", "tool", "mcp_batch/1", ())
    other = [{**tool(), "id": 9}, batch[1]]
    assert made.key == key(URL, other, VERSION)
    assert made.key != key(URL, [tool(id=1), batch[1]], VERSION)


@pytest.mark.parametrize(
    ("body", "headers", "dialect"),
    [
        (message(method="initialize"), (BOTH,), "mcp"),
        (message(method="tools/list"), (), "mcp"),
        (message(method="tasks/get"), (VERSION,), "mcp"),
        (message(method="tasks/get"), (), "a2a"),
        (message(method="initialize"), (), "generic"),
        (message(method="eth_call"), (BOTH,), "generic"),
        ({"id": 1, "method": "tools/call"}, (BOTH,), "generic"),
        ({"content": '{"jsonrpc": "2.0", "method": "tools/call"}'}, (BOTH,), "generic"),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, (VERSION,), "mcp"),
        (b'{"jsonrpc": ', (BOTH,), "generic"),
    ],
)
def test_who_speaks_it(body: Any, headers: Headers, dialect: str) -> None:
    assert route_request(json_request("https://tools.example.com/any", body, *headers)).dialect == dialect


@pytest.mark.parametrize(("method", "operation"), [("GET", "listen"), ("DELETE", "close")])
def test_a_session_is_listened_to_and_closed(method: str, operation: str) -> None:
    found = route_request(request(URL, b"", ("Mcp-Session-Id", "s"), method=method))
    assert (found.dialect, found.operation, found.kind) == ("mcp", operation, "other")


def test_the_newer_protocol_says_its_method_in_a_header() -> None:
    made = make_key(request(URL, b"", ("Mcp-Method", "tools/call")), PROFILES)
    assert (made.dialect, made.operation, made.kind) == ("mcp", "execute_tool", "tool")


def test_an_id_may_be_a_number() -> None:
    assert mcp.summarize_request(tool()).tool_calls == (ToolCall(id="1", name="f", arguments={"a": 1}),)
