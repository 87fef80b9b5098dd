"""Results of tool calls that have no ids (Gemini) are linked with the answer that requested them, by name and in order."""

from typing import Any

from store.timeline.conversation import make_conversation
from store.timeline.facts import SpokenCall, ToolLinks


def ask(number: int, contents: list[Any], tools: list[dict[str, Any]]) -> SpokenCall:
    return SpokenCall(
        call=f"call-{number}",
        number=number,
        kind="model",
        actor=None,
        request={"contents": contents},
        text=None if tools else "done",
        tool_calls=tools,
    )


def tool(number: int, name: str) -> SpokenCall:
    calls: list[dict[str, Any]] = [{"id": None, "name": name, "arguments": {}}]
    return SpokenCall(call=f"call-{number}", number=number, kind="tool", actor=None, request={}, tool_calls=calls)


def wants(name: str, at: int) -> dict[str, Any]:
    return {"id": None, "name": name, "arguments": {"at": at}}


def result(name: str, at: int) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {"at": at}}}


def test_results_without_ids_are_linked_by_name_and_order() -> None:
    begin = [{"role": "user", "parts": [{"text": "Look twice."}]}]
    said = {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in ("look", "go", "look")]}
    answered = {"role": "user", "parts": [result("go", 1), result("look", 0), result("look", 2), result("other", 9)]}
    asked = [wants("look", 0), wants("go", 1), wants("look", 2)]
    calls = [
        ask(1, begin, asked),
        tool(2, "look"),
        tool(3, "go"),
        ask(4, [*begin, said, answered], []),
    ]
    first, look, go, last = make_conversation(calls, ToolLinks())
    links = [(one["name"], one["executed_by"], one["answered_by"]) for one in first["answer"]["tool_calls"]]
    assert links == [("look", 2, 4), ("go", 3, 4), ("look", None, 4)]
    parts = [part for message in last["prompt"]["messages"] for part in message["parts"]]
    found = [(one["name"], one["asked_by"], one["executed_by"]) for one in parts if one["kind"] == "tool_call_response"]
    assert found == [("go", 1, 3), ("look", 1, 2), ("look", 1, None), ("other", None, None)]
    assert [one["executes"]["step"] for one in (look, go)] == [1, 1]


def test_ids_have_priority_over_names() -> None:
    asked = [{"id": "a", "name": "look", "arguments": {}}]
    begin = [{"role": "user", "parts": [{"text": "Look."}]}]
    answered = {"role": "user", "parts": [result("look", 0)]}
    first, _ = make_conversation([ask(1, begin, asked), ask(2, [*begin, answered], [])], ToolLinks())
    assert first["answer"]["tool_calls"][0]["answered_by"] is None
