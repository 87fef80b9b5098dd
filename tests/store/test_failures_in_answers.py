"""A call that fails only in what its answer says, under status 200, is a failure wherever failures are looked for."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Exchange
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.otlp.spans.call_facts import SpannedCall
from store.retention.facts import LAST_FAILED
from tests.store.running_store import PROFILES, RunningStore, import_bundle, open_store
from tests.store.samples import exchange

MCP: Final = "https://tools.example.com/mcp"
GRAPHQL: Final = "https://tracker.example.com/graphql"
AGENT: Final = "https://agent.example.com/"
CHAT: Final = "https://openrouter.ai/api/v1/chat/completions"
LEDGER: Final = "https://ledger.example.com/rpc"

TOOL: Final = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "refund", "arguments": {}}}
ASKED: Final = {
    MCP: TOOL,
    GRAPHQL: {"query": "mutation { createIssue { id } closeIssue { id } }"},
    AGENT: {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": {"parts": []}}},
    CHAT: {"model": "openai/gpt-5", "messages": [{"role": "user", "content": "hi"}]},
    LEDGER: {"jsonrpc": "2.0", "id": 1, "method": "transfer", "params": []},
}


def rpc(**answer: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, **answer}


def rpc_error(code: int, message: str) -> dict[str, Any]:
    return rpc(error={"code": code, "message": message})


def graphql(data: Any, *messages: str) -> dict[str, Any]:
    return {"data": data, "errors": [{"message": message} for message in messages]}


def tool_answer(text: str, *, is_error: bool) -> dict[str, Any]:
    return rpc(result={"content": [{"type": "text", "text": text}], "isError": is_error})


ANSWERS: Final[dict[str, tuple[str, Any, str | None, str | None]]] = {
    "tool-failed": (MCP, tool_answer("the card has expired", is_error=True), "error", "the card has expired"),
    "tool-unknown": (MCP, rpc_error(-32602, "Unknown tool: refund"), "error", "Unknown tool: refund"),
    "tool-worked": (MCP, tool_answer("refunded", is_error=False), None, None),
    "batch-in-part": (MCP, [tool_answer("no", is_error=True), tool_answer("yes", is_error=False)], "partial", None),
    "batch-failed": (MCP, [tool_answer("no", is_error=True), rpc_error(-32603, "broken")], "error", "no"),
    "probed": (MCP, rpc_error(-32601, "Method not found"), None, None),
    "mutation-failed": (GRAPHQL, graphql({"createIssue": None}, "no permission"), "error", "no permission"),
    "query-invalid": (GRAPHQL, {"errors": [{"message": "cannot query field"}]}, "error", "cannot query field"),
    "half-worked": (GRAPHQL, graphql({"createIssue": {"id": 1}, "closeIssue": None}, "closed"), "partial", None),
    "all-worked": (GRAPHQL, {"data": {"createIssue": None}}, None, None),
    "no-errors": (GRAPHQL, graphql({"createIssue": None}), None, None),
    "agent-failed": (AGENT, rpc(result={"kind": "task", "status": {"state": "failed"}}), "error", None),
    "agent-refused": (AGENT, rpc_error(-32603, "Internal error"), "error", "Internal error"),
    "agent-worked": (AGENT, rpc(result={"kind": "task", "status": {"state": "completed"}}), None, None),
    "model-failed": (CHAT, {"error": {"message": "No endpoints found", "code": 502}}, "error", "No endpoints found"),
    "model-worked": (CHAT, {"choices": [{"message": {"content": "hi"}}], "error": None}, None, None),
    "transfer-failed": (LEDGER, rpc_error(3, "execution reverted"), "error", "execution reverted"),
    "transfer-done": (LEDGER, rpc(result="0x1"), None, None),
}
"""By run: the address, the answer, its state, and why the call failed, as far as the answer says so."""

FAILED: Final = {run for run, (_, _, state, _) in ANSWERS.items() if state == "error"}


def answered_exchange(number: int, run: str) -> Exchange:
    url, answer, *_ = ANSWERS[run]
    made = exchange(
        number, run=run, url=url, request=json.dumps(ASKED[url]).encode(), response=json.dumps(answer).encode()
    )
    headers = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))
    return replace(made, request=replace(made.request, headers=headers))


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        for number, run in enumerate(ANSWERS, 1):
            bundle = Bundle(
                run={"id": run}, profiles=PROFILES.digest, entries=(Entry(exchange=answered_exchange(number, run)),)
            )
            await import_bundle(running_store, b"".join(bundle_lines(bundle)))
        await get(running_store, "stats", group_by="run", settled="true")
        yield running_store


async def get(running_store: RunningStore, path: str, **query: str) -> dict[str, Any]:
    response = await running_store.api.get(f"/v1/{path}", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_what_an_answer_says_of_its_call_counts_in_lists_sums_and_retention(
    running_store: RunningStore, database: Database
) -> None:
    calls = (await get(running_store, "calls", limit="100"))["items"]
    assert {call["run"]: call["answer_state"] for call in calls} == {run: one[2] for run, one in ANSWERS.items()}
    assert {call["run"] for call in calls if call["failed"]} == FAILED
    for value, expected in (("true", FAILED), ("false", set(ANSWERS) - FAILED)):
        for path, name in (("runs", "id"), ("calls", "run")):
            found = (await get(running_store, path, error=value, limit="100"))["items"]
            assert {item[name] for item in found} == expected, path
    by_run = (await get(running_store, "stats", group_by="run"))["items"]
    assert {item["group"]["run"] for item in by_run if item["errors"]} == FAILED
    only_failed = (await get(running_store, "stats", group_by="run", error="true"))["items"]
    assert {item["group"]["run"] for item in only_failed} == FAILED
    async with database.connection() as connection:
        rows = await connection.fetch(LAST_FAILED, "default", list(ANSWERS))
    assert {row["run"] for row in rows} == FAILED


async def test_a_timeline_says_in_the_words_of_the_answer_why_a_step_failed(running_store: RunningStore) -> None:
    for run, (_, _, state, error) in ANSWERS.items():
        [step] = (await get(running_store, f"runs/{run}/timeline"))["steps"]
        assert step["failed"] is (run in FAILED), run
        assert step["answer_state"] == state
        if error is not None:
            assert step["error"] == error


async def test_an_exported_span_has_the_type_of_its_error(running_store: RunningStore) -> None:
    types = {}
    for call in (await get(running_store, "calls", limit="100", fields="*"))["items"]:
        types[call["run"]] = SpannedCall(shape=call, started_at=0).error if call["failed"] else None
    assert types["tool-failed"] == "tool_error"
    assert types["tool-unknown"] == "-32602"
    assert types["mutation-failed"] == "answer_error"
    assert types["tool-worked"] is None


def test_a_call_that_failed_in_its_answer_is_no_attempt_that_is_tried_again() -> None:
    """An agent that asks again after an error of a tool has decided to: SDKs do not."""
    call = derive_call(answered_exchange(1, "tool-failed"), PROFILES)
    assert call.complete
    assert call.answer_state == "error"
