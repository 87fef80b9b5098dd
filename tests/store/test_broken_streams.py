"""A stream that ends in an error, or without its end mark, under status 200 is a failure wherever failures are looked for."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from msgspec.structs import replace

from calls.model import Exchange, Outcome, is_answer_broken
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.retention.facts import LAST_FAILED
from tests.store.running_store import PROFILES, RunningStore, import_bundle, open_store
from tests.store.samples import NOON, SECOND, exchange

CAPTURES: Final = Path(__file__).parents[1] / "calls" / "captures"
URL: Final = "https://api.anthropic.com/v1/messages"
ASKED: Final = b'{"model":"claude-sonnet-4-5","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}]}'

WHOLE: Final = (CAPTURES / "anthropic" / "thinking_and_tools.sse").read_bytes()
OVERLOADED: Final = (CAPTURES / "anthropic" / "overloaded_after_200.sse").read_bytes()
FAILED_RESPONSE: Final = (CAPTURES / "openai_responses" / "failed.sse").read_bytes()
CUT: Final = WHOLE[: WHOLE.index(b"event: message_delta")]
"""A stream that a proxy on the way has ended, in good order as far as HTTP can tell."""


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


async def record(
    running_store: RunningStore,
    run: str,
    number: int,
    stream: bytes,
    outcome: Outcome = "completed",
    url: str = URL,
    unkept: Literal["request", "response"] | None = None,
) -> None:
    """Record a call whose answer is this stream; of `unkept`, bytes are not recorded."""
    made = exchange(number, run=run, url=url, request=ASKED, response=stream, at=NOON + number * SECOND)
    assert made.response is not None
    response = replace(made.response, headers=(("content-type", "text/event-stream"),))
    streamed: Exchange = replace(made, response=response, outcome=outcome)
    if unkept == "request":
        request = replace(made.request, body=replace(made.request.body, truncated=True))
        streamed = replace(streamed, request=request)
    elif unkept == "response":
        streamed = replace(streamed, response=replace(response, body=replace(response.body, truncated=True)))
    bundle = Bundle(run={"id": run}, profiles=PROFILES.digest, entries=(Entry(exchange=streamed),))
    await import_bundle(running_store, b"".join(bundle_lines(bundle)))


async def get(running_store: RunningStore, path: str, **query: str) -> dict[str, Any]:
    response = await running_store.api.get(f"/v1/{path}", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_what_ends_in_an_error_under_200_is_among_the_failures(
    running_store: RunningStore, database: Database
) -> None:
    streams = {"whole": WHOLE, "overloaded": OVERLOADED, "cut": CUT}
    for number, (run, stream) in enumerate(streams.items(), 1):
        await record(running_store, run, number, stream)
    await record(running_store, "left", 4, CUT, outcome="client_closed")
    await record(running_store, "response", 5, FAILED_RESPONSE, url="https://api.openai.com/v1/responses")
    await get(running_store, "stats", group_by="run", settled="true")

    failed = {"overloaded", "cut", "response"}
    for value, expected in (("true", failed), ("false", {"whole", "left"})):
        assert {run["id"] for run in (await get(running_store, "runs", error=value))["items"]} == expected
        assert {call["run"] for call in (await get(running_store, "calls", error=value))["items"]} == expected
    by_run = (await get(running_store, "stats", group_by="run"))["items"]
    assert {item["group"]["run"] for item in by_run if item["errors"]} == failed
    for run in (*streams, "left", "response"):
        [step] = (await get(running_store, f"runs/{run}/timeline"))["steps"]
        assert step["failed"] is (run in failed), run
    [step] = (await get(running_store, "runs/overloaded/timeline"))["steps"]
    assert "verload" in step["error"]
    [step] = (await get(running_store, "runs/cut/timeline"))["steps"]
    assert step["error"] == "the answer ended without its own end mark"
    async with database.connection() as connection:
        rows = await connection.fetch(LAST_FAILED, "default", [*streams, "left", "response"])
    assert {row["run"] for row in rows} == failed, "retention keeps what has failed"


async def test_an_answer_whose_end_was_not_recorded_has_not_failed(
    running_store: RunningStore, database: Database
) -> None:
    await record(running_store, "large-answer", 1, CUT, unkept="response")
    await record(running_store, "large-request", 2, WHOLE, unkept="request")
    await record(running_store, "broken-off", 3, CUT, unkept="response", outcome="server_closed")
    await record(running_store, "cut", 4, CUT, unkept="request")
    await record(
        running_store, "overloaded", 5, FAILED_RESPONSE, unkept="response", url="https://api.openai.com/v1/responses"
    )
    await get(running_store, "stats", group_by="run", settled="true")

    states = {
        "large-answer": "unkept",
        "large-request": "unkept",
        "broken-off": "unkept",
        "cut": None,
        "overloaded": "error",
    }
    failed = {"broken-off", "cut", "overloaded"}
    assert {run["id"] for run in (await get(running_store, "runs", error="true"))["items"]} == failed
    calls = (await get(running_store, "calls"))["items"]
    assert {call["run"]: call["answer_state"] for call in calls} == states
    assert {call["run"] for call in calls if call["failed"]} == failed
    assert not any(call["complete"] for call in calls)
    by_run = (await get(running_store, "stats", group_by="run"))["items"]
    assert {item["group"]["run"] for item in by_run if item["errors"]} == failed
    async with database.connection() as connection:
        rows = await connection.fetch(LAST_FAILED, "default", list(states))
    assert {row["run"] for row in rows} == failed


@pytest.mark.parametrize(
    ("differs", "is_broken"),
    [
        ({}, True),
        ({"complete": True}, False),
        ({"kind": "tool"}, False),  # a stream of MCP may be resumed elsewhere
        ({"streamed": False}, False),  # work in the background, which is polled
        ({"status": 101}, False),  # a WebSocket, which either side may close at any time
        ({"outcome": "client_closed"}, False),
        ({"complete": True, "finish_reason": "failed"}, True),  # OpenAI's Responses
        ({"outcome": "client_closed", "complete": True, "finish_reason": "failed"}, True),
        ({"complete": True, "finish_reason": "length"}, False),
        ({"kind": "tool", "complete": True, "finish_reason": "failed"}, False),
        ({"outcome": "server_closed", "kind": "tool", "streamed": False}, True),
        ({"outcome": "timed_out", "status": 101}, True),
        ({"answer_state": "unkept"}, False),  # its end is not in the record
        ({"answer_state": "unkept", "outcome": "server_closed"}, True),
        ({"answer_state": "partial"}, True),
        ({"kind": "tool", "streamed": False, "complete": True, "answer_state": "error"}, True),
        ({"kind": "tool", "streamed": False, "complete": True, "answer_state": "partial"}, False),
    ],
)
def test_a_broken_answer_is_one_that_its_client_waited_for(differs: dict[str, Any], is_broken: bool) -> None:
    model: dict[str, Any] = {
        "kind": "model",
        "streamed": True,
        "status": 200,
        "outcome": "completed",
        "complete": False,
        "finish_reason": None,
        "answer_state": None,
    }
    assert is_answer_broken(**(model | differs)) is is_broken
