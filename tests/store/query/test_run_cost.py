"""Where the money of a run went: step by step, as a tree, and which context was sent again and again."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from sqlalchemy import RowMapping

from calls.model import Exchange
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.database.connection import Database
from store.query.prompt_parts import PromptPart
from store.query.run_cost import CostStep, PromptHistory
from tests.store.agents import MODEL, Agent, interleave
from tests.store.running_store import PROFILES, RunningStore, import_bundle, is_problem, open_store
from tests.store.samples import NOON, SECOND, exchange


@pytest.fixture
async def running_store(tmp_path: Path, database: Database) -> AsyncIterator[RunningStore]:
    async with open_store(tmp_path / "spool", database) as running_store:
        yield running_store


async def cost(running_store: RunningStore, run: str, exchanges: Sequence[Exchange], **query: Any) -> dict[str, Any]:
    """Store a run, and ask what it cost."""
    entries = tuple(Entry(exchange=each) for each in exchanges)
    await import_bundle(
        running_store, b"".join(bundle_lines(Bundle(run={"id": run}, profiles=PROFILES.digest, entries=entries)))
    )
    response = await running_store.api.get(f"/v1/runs/{run}/cost", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def chat(number: int, asked: Sequence[Any], *, tokens: int = 1000, model: str = "gpt-5", status: int = 200) -> Exchange:
    """A chat without tools."""
    usage = {"prompt_tokens": tokens, "completion_tokens": 10, "total_tokens": tokens + 10}
    answer: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "usage": usage,
    }
    answer |= {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}
    if status != 200:
        answer = {"error": {"type": "server_error", "message": "try later"}}
    request = {"model": model, "messages": list(asked)}
    asked, result = json.dumps(request).encode(), json.dumps(answer).encode()
    return exchange(
        number, run="chat", at=NOON + number * SECOND, url=MODEL, status=status, request=asked, response=result
    )


def say(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


async def test_the_steps_and_the_tree_add_up_to_the_run(running_store: RunningStore) -> None:
    agents = [Agent(turns=3, actor="planner").run("one"), Agent(turns=2, actor="worker", offset=3).run("other")]
    found = await cost(running_store, "team", [replace(each, run="team") for each in interleave(*agents)])
    total, steps, tree = found["total"], found["steps"], found["tree"]
    assert total["calls"] == len(steps) == tree["calls"] == 10
    assert total["known_cost_usd"] == pytest.approx(sum(step["known_cost_usd"] or 0 for step in steps))
    assert steps[-1]["cost_so_far_usd"] == pytest.approx(total["known_cost_usd"])
    assert tree["known_cost_usd"] == pytest.approx(total["known_cost_usd"])
    assert tree["usage"] == total["usage"]
    assert sum(step["usage"]["input_tokens"] or 0 for step in steps) == total["usage"]["input_tokens"]
    for step in steps:
        if step["kind"] == "model":
            assert step["new_tokens"] + step["repeated_tokens"] == step["usage"]["input_tokens"]
    assert {child["name"] for child in tree["children"]} == {"planner", "worker"}
    assert [child["known_cost_usd"] for child in tree["children"]] == sorted(
        (child["known_cost_usd"] for child in tree["children"]), reverse=True
    )
    planner = max(tree["children"], key=lambda child: child["calls"])
    assert {(child["kind"], child["calls"]) for child in planner["children"]} == {("branch", 5), ("tool", 1)}
    branch = next(child for child in planner["children"] if child["kind"] == "branch")
    # A tool's call belongs to the branch of the model that requested it, once that is known by its result.
    assert {(leaf["kind"], leaf["calls"]) for leaf in branch["children"]} == {("model", 3), ("tool", 2)}


async def test_a_repeated_history_is_distinguished_from_new_messages(running_store: RunningStore) -> None:
    system, long = {"role": "system", "content": "s" * 400}, say("u" * 400)
    exchanges = [
        chat(1, [system, long], tokens=800),
        chat(2, [system, long, {"role": "assistant", "content": "a" * 100}, say("n" * 100)], tokens=1000),
        chat(3, [say("something else")], tokens=50),
        chat(4, [system, long], tokens=800),
    ]
    found = await cost(running_store, "chat", exchanges)
    divided = [(step["new_tokens"], step["repeated_tokens"]) for step in found["steps"]]
    assert divided[0] == (800, 0)
    assert divided[1][0] == pytest.approx(200, abs=20)
    assert divided[2] == (50, 0)
    assert divided[3] == (0, 800)
    assert found["tree"]["repeated_tokens"] == divided[1][1] + 800
    assert "estimate" in found


async def test_an_unknown_price_is_no_price_of_zero_and_a_failed_call_lacks_none(running_store: RunningStore) -> None:
    exchanges = [chat(1, [say("a")], model="running_store-model"), chat(2, [say("b")]), chat(3, [say("c")], status=500)]
    found = await cost(running_store, "chat", exchanges)
    unknown, known, failed = found["steps"]
    assert (unknown["cost_usd"], unknown["calls_without_price"], unknown["prices"]) == (None, 1, None)
    assert known["cost_usd"] > 0
    assert known["calls_without_price"] == failed["calls_without_price"] == 0
    assert found["total"]["cost_usd"] is found["tree"]["cost_usd"] is None
    assert found["total"]["known_cost_usd"] == known["cost_usd"] == found["steps"][-1]["cost_so_far_usd"]


async def test_the_tokens_of_every_attempt_count_once(running_store: RunningStore) -> None:
    attempts = [chat(1, [say("again")], status=503), chat(2, [say("again")])]
    found = await cost(running_store, "chat", attempts)
    assert [step["attempts"] for step in found["steps"]] == [2]
    assert found["steps"][0]["usage"] == found["total"]["usage"]


async def test_of_a_long_run_the_first_steps_are_read_and_the_others_counted(running_store: RunningStore) -> None:
    exchanges = [chat(number, [say(str(number))]) for number in range(5)]
    found = await cost(running_store, "chat", exchanges, limit=2)
    assert [step["step"] for step in found["steps"]] == [1, 2]
    assert (found["steps_left_out"], found["tree"]["calls"], found["total"]["calls"]) == (3, 2, 5)


async def test_a_run_that_does_not_exist_and_a_limit_that_is_too_large_are_refused(running_store: RunningStore) -> None:
    is_problem(await running_store.api.get("/v1/runs/none/cost"), 404, "unknown_run")
    is_problem(await running_store.api.get("/v1/runs/none/cost?limit=2001"), 422)


def step_of(number: int, tokens: int | None, *, follows: str | None = None, branch: int | None = None) -> CostStep:
    step = CostStep(
        id=str(number), number=number, row=cast(RowMapping, {"actor": None}), follows=follows, branch=branch
    )
    step.amounts.tokens["input_tokens"] = tokens
    return step


def divide_prompt(
    history: PromptHistory, step: CostStep, *texts: str, is_continued: bool = False
) -> tuple[int | None, int | None]:
    history.divide(step, [PromptPart(text.encode(), 100) for text in texts], is_continued=is_continued)
    return step.new, step.repeated


def test_what_the_server_kept_of_a_conversation_is_repeated() -> None:
    history = PromptHistory()
    assert divide_prompt(history, step_of(1, 100, branch=1), "a") == (100, 0)
    more = step_of(2, 300, follows="1", branch=1)
    assert divide_prompt(history, more, "b", is_continued=True) == (200, 100), (
        "the first answer and the new input are new"
    )
    assert divide_prompt(history, step_of(3, 300), "b", is_continued=True) == (None, None), "it continues another run"


def test_a_branch_has_what_was_sent_up_to_where_it_begins() -> None:
    history = PromptHistory()
    divide_prompt(history, step_of(1, 100, branch=1), "common")
    divide_prompt(history, step_of(2, 200, follows="1", branch=1), "common", "later")
    assert divide_prompt(history, step_of(3, 200, follows="1", branch=2), "common", "later") == (100, 100)
    assert divide_prompt(history, step_of(4, 200, branch=3), "common", "later") == (200, 0), "a branch of its own"


def test_without_tokens_or_a_prompt_nothing_is_divided() -> None:
    history = PromptHistory()
    assert divide_prompt(history, step_of(1, None), "a") == (None, None)
    assert divide_prompt(history, step_of(2, 100)) == (None, None)
