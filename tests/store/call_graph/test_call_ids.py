"""The links between a run's calls over REST, with real requests of real dialects, in pages of any size."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Exchange, Headers
from store.call_graph.call_ids import created_ids, returned_ids
from store.database.connection import Database
from store.ingest.batch_writer import BatchWriter, DerivedExchange
from store.query.call_reader import CallReader
from store.query.filters import Filters
from tests.store.running_store import PROFILES, open_store
from tests.store.samples import exchange

CHAT = "https://api.openai.com/v1/chat/completions"
JSON: Headers = (("content-type", "application/json"),)
understood = partial(derive_call, profiles=PROFILES)


def chat(number: int, *messages: dict[str, Any], asks: Sequence[tuple[str, str, Any]] = (), **more: Any) -> Exchange:
    """A turn of an agent; `asks` are the tool calls of the answer: id, name, arguments."""
    tools = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for id_, name, arguments in asks
    ]
    message = {
        "role": "assistant",
        "content": None if tools else "It rains.",
        **({"tool_calls": tools} if tools else {}),
    }
    answer = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "model": "gpt-5",
        "choices": [{"index": 0, "message": message}],
    }
    return json_exchange(number, CHAT, {"model": "gpt-5", "messages": list(messages)}, answer, **more)


def json_exchange(
    number: int, url: str, request: object, response: object, method: str = "POST", **more: Any
) -> Exchange:
    made = exchange(
        number, url=url, request=json.dumps(request).encode(), response=json.dumps(response).encode(), **more
    )
    assert made.response
    made = replace(made, request=replace(made.request, method=method, headers=JSON))
    return replace(made, response=made.response and replace(made.response, headers=JSON))


def weather(number: int, city: str) -> Exchange:
    made = json_exchange(number, f"https://weather.example.com/v1/now?city={city}", None, {"rain": 1}, method="GET")
    return replace(made, request=replace(made.request, body=replace(made.request.body, data=b"", chunks=(), size=0)))


def result(id_: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id_, "content": "1.4 mm"}


USER = {"role": "user", "content": "Will it rain?"}
ASSISTANT = {"role": "assistant", "tool_calls": []}


async def put(database: Database, *made: Exchange) -> None:
    await BatchWriter(database).write_batch([DerivedExchange(one, understood(one)) for one in made])


async def calls_of(database: Database, limit: int = 50) -> list[dict[str, Any]]:
    recorded, cursor, found = CallReader(database, understood), None, []
    while True:
        page = await recorded.run_calls("night-run", limit, cursor)
        found += page.items
        if (cursor := page.next) is None:
            return found


OSLO, ROME = ("call_1", "weather", {"city": "Oslo"}), ("call_2", "weather", {"city": "Rome"})


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_a_run_shows_which_tool_answer_fed_which_model_call(database: Database, limit: int) -> None:
    asked = chat(1, USER, asks=[OSLO, ROME])
    rome, oslo = weather(2, "Rome"), weather(3, "Oslo")
    answer = chat(4, USER, ASSISTANT, result("call_1"), result("call_2"))
    await put(database, asked, rome, oslo, answer)
    first, second, third, last = await calls_of(database, limit)
    assert [(tool["id"], tool["executed_by"], tool["answered_by"]) for tool in first["tool_calls"]] == [
        ("call_1", oslo.id, answer.id),
        ("call_2", rome.id, answer.id),
    ]
    assert second["executes"] == {"call": asked.id, "step": 1, "tool_call": "call_2"}
    assert third["executes"] == {"call": asked.id, "step": 1, "tool_call": "call_1"}
    assert last["follows"] == [{"call": asked.id, "step": 1, "by": ["call_1", "call_2"]}]
    assert [one["branch"] for one in (first, second, third, last)] == [1, 1, 1, 1]
    assert (first["follows"], first["executes"], last["executes"]) == (None, None, None)
    assert await CallReader(database, understood).call(oslo.id) == third


async def test_agents_that_work_side_by_side_are_branches(database: Database) -> None:
    made = [
        chat(1, USER, asks=[("a", "task", {"for": "x"}), ("b", "task", {"for": "y"})]),
        chat(2, USER, asks=[OSLO], actor="one"),
        chat(3, USER, asks=[ROME], actor="two"),
        chat(4, USER, ASSISTANT, result("call_2"), actor="two"),
        chat(5, USER, ASSISTANT, result("call_1"), actor="one"),
        chat(6, USER, ASSISTANT, result("a"), result("b")),
    ]
    await put(database, *made)
    found = await calls_of(database)
    assert [one["branch"] for one in found] == [1, 2, 3, 3, 2, 1]
    assert [one["actor"] for one in found] == [None, "one", "two", "two", "one", None]


async def test_a_call_that_was_tried_again_asks_and_answers_as_one(database: Database) -> None:
    failed = chat(1, USER, status=500)
    asked = chat(2, USER, asks=[OSLO])
    broken, tool = weather(3, "Oslo"), weather(4, "Oslo")
    assert broken.response
    broken = replace(broken, response=replace(broken.response, status=503))
    told_badly = chat(5, USER, ASSISTANT, result("call_1"), status=429)
    answer = chat(6, USER, ASSISTANT, result("call_1"))
    await put(database, failed, asked, broken, tool, told_badly, answer)
    first, second, third = await calls_of(database)
    assert first["exchanges"] == [failed.id, asked.id]
    assert [(one["executed_by"], one["answered_by"]) for one in first["tool_calls"]] == [(broken.id, told_badly.id)]
    assert second["executes"] == {"call": failed.id, "step": 1, "tool_call": "call_1"}
    assert third["follows"] == [{"call": failed.id, "step": 1, "by": ["call_1"]}]


async def test_what_nothing_tells_is_unknown(database: Database) -> None:
    await put(database, chat(1, USER), chat(2, USER, result("elsewhere")), weather(3, "Oslo"))
    for one in await calls_of(database):
        assert (one["branch"], one["follows"], one["executes"]) == (None, None, None)
    page = await CallReader(database, understood).calls(Filters())
    assert all(one["branch"] is None for one in page.items)


async def test_a_response_that_goes_on_from_another_follows_it(database: Database) -> None:
    def respond(number: int, **more: object) -> Exchange:
        answer = {"id": f"resp_{number}", "object": "response", "status": "completed", "model": "gpt-5", "output": []}
        return json_exchange(
            number, "https://api.openai.com/v1/responses", {"model": "gpt-5", "input": "x", **more}, answer
        )

    one, two, three = respond(1), respond(2, previous_response_id="resp_1"), respond(3, previous_response_id="resp_1")
    await put(database, one, two, three)
    found = await calls_of(database)
    assert [call["follows"] and call["follows"][0]["call"] for call in found] == [None, one.id, one.id]
    assert [call["branch"] for call in found] == [1, 1, 2]


async def test_an_mcp_call_is_known_by_its_tool_and_arguments(database: Database) -> None:
    asked = chat(1, USER, asks=[("call_1", "mcp__weather__now", {"city": "Oslo"})])
    rpc = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "now", "arguments": {"city": "Oslo"}}}
    tool = json_exchange(2, "https://mcp.example.com/mcp", rpc, {"jsonrpc": "2.0", "id": 3, "result": {"content": []}})
    answer = chat(3, USER, ASSISTANT, result("call_1"))
    await put(database, asked, tool, answer)
    first, second, _ = await calls_of(database)
    assert first["tool_calls"][0]["executed_by"] == tool.id
    assert second["executes"] == {"call": asked.id, "step": 1, "tool_call": "call_1"}


def test_only_models_give_and_take_ids() -> None:
    call = understood(chat(1, USER, result("call_9"), asks=[OSLO, OSLO]))
    assert (created_ids(call), returned_ids(call)) == (["call_1"], ["call_9"])
    assert created_ids(replace(call, kind="tool")) == returned_ids(replace(call, kind="tool")) == []


async def test_rest_lists_links(tmp_path: Path, database: Database) -> None:
    await put(database, chat(1, USER, asks=[OSLO]), chat(2, USER, ASSISTANT, result("call_1")))
    async with open_store(tmp_path / "spool", database) as running_store:
        found = (await running_store.api.get("/v1/runs/night-run/calls?fields=*")).json()["items"]
        assert found[1]["follows"][0]["step"] == 1
        assert (await running_store.api.get(f"/v1/calls/{found[1]['id']}")).json() == found[1]
