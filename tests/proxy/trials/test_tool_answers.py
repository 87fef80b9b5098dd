"""What tools answered is found in recordings, and every edit of it can be made as an override."""

import json
from typing import Any

import pytest

from calls.model import Exchange
from calls.overrides.overrides import read_overrides
from calls.perturbation.entries import override_entries
from calls.perturbation.proposals import propose_edits
from calls.perturbation.shape import MAX_MEMBERS, AnswerShape, fits, merge_shapes, shape_of
from proxy.trials.corpus import ToolShapes
from proxy.trials.tool_answers import find_tool_answers, with_shapes
from replay.overrides.prepare import prepare_overrides
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry
from store.diff.steps import StepReader
from tests.calls.perturbation.test_variations import RECORDS
from tests.store.samples import NOON, exchange

PROFILES = load_profiles(None)
READING = StepReader(profiles=PROFILES, clean=lambda text: text)
TEXT = {"type": "text", "text": json.dumps(RECORDS)}


def mcp_call(result: Any) -> Exchange:
    params = {"name": "search", "arguments": {"q": "x"}}
    request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    answer = {"jsonrpc": "2.0", "id": 7, "result": result}
    return exchange(
        1,
        run="r",
        at=NOON,
        url="https://mcp.example.com/mcp",
        status=200,
        request=json.dumps(request).encode(),
        response=json.dumps(answer).encode(),
    )


@pytest.mark.parametrize(
    ("result", "form", "value"),
    [
        ({"content": [TEXT], "structuredContent": RECORDS}, "MCP structured", RECORDS),
        ({"content": [TEXT]}, "MCP text", RECORDS),
        ({"content": [{"type": "text", "text": "two were found"}]}, "MCP content", None),
    ],
)
def test_results_of_mcp_are_varied_in_the_form_that_the_tool_gave_them(result: Any, form: str, value: Any) -> None:
    call = mcp_call(result)
    (found,) = find_tool_answers([call], READING)
    assert (found.tool, found.form, found.value) == ("search", form, value or result["content"])
    known = ToolShapes(tools=frozenset(["search"]))
    known.learn([found], "r")
    answers = with_shapes([found], known.shapes, {})
    bundle = Bundle(run={"id": "r"}, profiles=PROFILES.digest, entries=(Entry(exchange=call),))
    edits = propose_edits(answers, [1], ["tools", "chunks"], 1)
    assert edits
    for edit in edits:
        edited, _ = prepare_overrides(bundle, read_overrides(override_entries(answers, [edit])), PROFILES)
        response = edited.entries[0].exchange.response
        assert response is not None
        made = json.loads(response.body.data)["result"]
        assert made.keys() == result.keys()
        assert made != result
        if form == "MCP structured":
            assert json.loads(made["content"][0]["text"]) == made["structuredContent"]


def test_answers_of_models_and_errors_are_no_answers_of_tools() -> None:
    chat = exchange(
        1, run="r", at=NOON, url="https://api.openai.com/v1/chat/completions", status=200, request=b"{}", response=b"{}"
    )
    failed = exchange(2, run="r", at=NOON, url="https://crm.example.com/r", status=500, request=b"{}", response=b"{}")
    assert not list(find_tool_answers([chat, failed], READING))


def listed_call(answer: Any, **more: Any) -> dict[str, Any]:
    place = {"method": "GET", "host": "crm.example.com", "path": "/records/17", "dialect": "generic", "kind": "tool"}
    return {"run": "r", **place, "complete": True, "answer": answer, "tool_calls": [], **more}


def test_shapes_are_learned_from_every_call_that_the_store_lists() -> None:
    known = ToolShapes(tools=frozenset(["GET crm.example.com/records/*", "search"]))
    said: list[str] = []
    calls = [
        *(listed_call({"id": number, "note": "x"}, run=f"r{number}") for number in range(200)),
        listed_call({"id": "text"}, run="old"),
        listed_call({"id": None}, run="varied"),
        listed_call({"id": None}, kind="model"),
        listed_call({"id": None}, complete=False),
        listed_call({"id": None}, path="/other"),
        listed_call("no JSON"),
        listed_call({"result": {"structuredContent": {"n": 1}}}, dialect="mcp", tool_calls=[{"name": "search"}]),
    ]
    known.learn_from_calls(calls, skipped="varied", limit_s=60, show=said.append)
    shape = known.shapes["GET crm.example.com/records/*"]
    assert shape.required == {"id"}
    assert shape.members["id"].types == {"integer", "string"}
    assert known.shapes["search"].members["n"].types == {"integer"}
    assert (known.summary, known.is_whole) == ("202 answers of 202 runs", True)
    known.learn_from_calls(calls, skipped="", limit_s=-1, show=said.append)
    assert (known.answers, known.is_whole, said) == (202, False, [])


def test_an_object_with_very_many_names_is_a_table_of_bounded_size() -> None:
    tables = [{f"id{run}-{number}": 1 for number in range(600)} for run in range(3)]
    shape = AnswerShape()
    for table in tables:
        shape = merge_shapes(shape, shape_of(table))
    assert len(shape.members) == MAX_MEMBERS
    assert fits(shape, {"another": 1})
