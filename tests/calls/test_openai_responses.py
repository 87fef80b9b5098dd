"""OpenAI Responses: what is one request in several spellings, what is not, and what a request and an answer say."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from calls.keys.key import make_key
from calls.model import Call, ToolCall
from calls.route import find_route
from tests.calls.sample_requests import PROFILES, explained_key, key, request
from tests.calls.test_derive import answered_exchange

RESPONSES = "https://api.openai.com/v1/responses"
CAPTURES = Path(__file__).parent / "captures" / "openai_responses"


def request_body(input: Any, **fields: Any) -> dict[str, Any]:  # noqa: A002 # the API's own word
    return {"model": "m", "input": input, **fields}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def function_call(call: str = "call_1", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call, "name": "f", "arguments": arguments, **more}


def output(call: str = "call_1", text: Any = "42", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": text, **more}


def reasoning_item(name: str, blob: str | None = None) -> dict[str, Any]:
    return {"type": "reasoning", "id": name, "summary": [], "encrypted_content": blob}


def program_items(name: str, blob: str) -> list[dict[str, Any]]:
    """As gpt-5.6-sol tells them (vercel/ai's programmatic-tool-calling.1): each telling has a fingerprint of its own."""
    program, call = f"call_{name}", f"call_f{name}"
    caller = {"type": "program", "caller_id": program}
    return [
        {"type": "program", "id": f"cm_{name}", "call_id": program, "code": "await tools.f({})", "fingerprint": blob},
        function_call(call, id=f"fc_{name}", caller=caller),
        output(call, caller=caller),
    ]


def answer(*texts: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    return {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": parts, **more}


SAME = [
    pytest.param(request_body("hi"), request_body([user("hi")]), id="a text and a message"),
    pytest.param(
        request_body("hi"), request_body([user("hi", type="message")]), id="the type that every item has by default"
    ),
    pytest.param(request_body("hi"), request_body([user([{"type": "input_text", "text": "hi"}])]), id="a single part"),
    pytest.param(
        request_body([user("a"), answer("b"), user("c")]),
        request_body([user("a"), {"role": "assistant", "content": "b"}, user("c")]),
        id="an answer as it came and as it is retold",
    ),
    pytest.param(
        request_body([function_call("call_1"), output("call_1")]),
        request_body([function_call("pyd_ai_0123", id="fc_1", status="completed"), output("pyd_ai_0123", id=None)]),
        id="ids of calls, and ids and states of items",
    ),
    pytest.param(
        request_body([function_call(arguments='{"a": 1, "b": 2.0}')]),
        request_body([function_call(arguments='{"b":2,"a":1}')]),
        id="arguments",
    ),
    pytest.param(
        request_body([output(text="42")]),
        request_body([output(text=[{"type": "input_text", "text": "42"}])]),
        id="an output as a text and as its part",
    ),
    pytest.param(
        request_body([reasoning_item("rs_1", "gAAA")]),
        request_body([reasoning_item("rs_tmp_2", "gBBB")]),
        id="11 two copies of one thought",
    ),
    pytest.param(
        request_body(program_items("1", "gAAA")),
        request_body(program_items("2", "gBBB")),
        id="a program and what it called",
    ),
    pytest.param(
        request_body([{"type": "shell_call", "id": "sh_1", "call_id": "call_1", "action": {"commands": ["ls"]}}]),
        request_body(
            [{"type": "shell_call", "call_id": "call_2", "action": {"commands": ["ls"]}, "status": "completed"}]
        ),
        id="a call of a shell with a name and without",
    ),
    pytest.param(
        request_body("hi", conversation="conv_1"),
        request_body("hi", conversation={"id": "conv_1"}),
        id="a conversation",
    ),
    pytest.param(
        request_body([user([{"type": "input_text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}])]),
        request_body("hi"),
        id="where the cache of a prompt ends",
    ),
    pytest.param(
        request_body("hi", text={"format": {"type": "text"}}, reasoning={"effort": None, "summary": None}),
        request_body("hi", previous_response_id=None, text={}),
        id="what holds where nothing is said",
    ),
    pytest.param(
        request_body("hi", stream=True, store=False, background=True, service_tier="flex", stream_options={}),
        request_body("hi", prompt_cache_key="agents-sdk:run:1", metadata={"a": "b"}, user="u"),
        id="how it is sent and whose it is",
    ),
    pytest.param(
        request_body("hi", tools=[{"type": "mcp", "server_url": "u", "authorization": "one", "headers": {"x": "1"}}]),
        request_body("hi", tools=[{"type": "mcp", "server_url": "u", "authorization": "two"}]),
        id="credentials of a tool's server",
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_the_api_treats_as_equal_has_one_key(one: Any, other: Any) -> None:
    assert key(RESPONSES, one) == key(RESPONSES, other)
    assert explained_key(RESPONSES, one).warnings == explained_key(RESPONSES, other).warnings == ()


APART = [
    pytest.param(request_body("hi"), request_body([{"role": "developer", "content": "hi"}]), id="who says it"),
    pytest.param(request_body("hi"), request_body([user("hi"), user("hi")]), id="how often"),
    pytest.param(request_body([user("a"), user("b")]), request_body([user("ab")]), id="two messages and one"),
    pytest.param(request_body([answer("a", "b")]), request_body([answer("ab")]), id="two parts and one"),
    pytest.param(
        request_body([answer("b")]),
        request_body(
            [answer("b", content=[{"type": "output_text", "text": "b", "annotations": [{"type": "file_path"}]}])]
        ),
        id="annotations",
    ),
    pytest.param(request_body("hi", previous_response_id="resp_1"), request_body("hi"), id="what went before"),
    pytest.param(
        request_body("hi", previous_response_id="resp_1"),
        request_body("hi", previous_response_id="resp_2"),
        id="another before",
    ),
    pytest.param(
        request_body("hi", conversation="conv_1"), request_body("hi", conversation="conv_2"), id="another conversation"
    ),
    pytest.param(
        request_body("hi", multi_agent={"enabled": True}), request_body("hi"), id="whether several agents work on it"
    ),
    pytest.param(
        request_body([{"type": "item_reference", "id": "msg_1"}]),
        request_body([{"type": "item_reference", "id": "msg_2"}]),
        id="an item that is nothing but its name",
    ),
    pytest.param(
        request_body([{"type": "web_search_call", "id": "ws_1"}]),
        request_body([{"type": "web_search_call", "id": "ws_2"}]),
        id="what a tool of the provider's found",
    ),
    pytest.param(
        request_body("hi", prompt={"id": "p", "version": "1"}), request_body("hi", prompt={"id": "p"}), id="a prompt"
    ),
    pytest.param(
        request_body([function_call("a"), function_call("b"), output("a", "1"), output("b", "2")]),
        request_body([function_call("a"), function_call("b"), output("b", "1"), output("a", "2")]),
        id="ids that tie other items together",
    ),
    pytest.param(request_body("hi", moderation_v9=1), request_body("hi", moderation_v9=2), id="unknown fields count"),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_the_model_would_see_differently_has_two_keys(one: Any, other: Any) -> None:
    assert key(RESPONSES, one) != key(RESPONSES, other)


@pytest.mark.parametrize(
    ("method", "path", "operation", "kind", "polls"),
    [
        ("POST", "/v1/responses", "chat", "model", None),
        ("POST", "/responses", "chat", "model", None),
        ("POST", "/openai/responses", "chat", "model", None),
        ("POST", "/openai/v1/responses", "chat", "model", None),
        ("POST", "/backend-api/codex/responses", "chat", "model", None),
        ("POST", "/api/v1/responses", "chat", "model", None),
        ("POST", "/v1/responses/compact", "compact", "model", None),
        ("POST", "/v1/responses/input_tokens", "count_tokens", "model", None),
        ("GET", "/v1/responses/resp_1", "poll", "model", "resp_1"),
        ("GET", "/v1/responses/resp_1/input_items", "input_items", "other", None),
        ("POST", "/v1/responses/resp_1/cancel", "cancel", "other", None),
        ("DELETE", "/v1/responses/resp_1", "delete", "other", None),
    ],
)
def test_what_is_asked_for(method: str, path: str, operation: str, kind: str, polls: str | None) -> None:
    found = find_route(method, "llm.example.com", path)
    assert (found.dialect, found.operation, found.kind, found.polls) == ("openai_responses", operation, kind, polls)


@pytest.mark.parametrize("path", ["/forms/f1/responses", "/API/v3/surveys/s/responses", "/v1/responses.json"])
def test_other_things_have_responses_too(path: str) -> None:
    assert find_route("POST", "api.typeform.com", path).dialect == "generic"


def derive_capture(name: str, body: Any, media: str = "text/event-stream") -> Call:
    return derive_call(answered_exchange(RESPONSES, body, (CAPTURES / name).read_bytes(), media), PROFILES)


def test_a_streamed_response_is_a_call() -> None:
    body = request_body(
        [user("hi"), function_call("call_0"), output("call_0")], stream=True, temperature=0, instructions="Be."
    )
    call = derive_capture("reasoning_text_and_function.sse", body)
    assert (call.kind, call.provider, call.operation) == ("model", "openai", "chat")
    assert (call.model_requested, call.model_returned, call.text) == ("m", "gpt-5-2025-08-07", "Grüß dich 😀")
    assert call.tool_calls == (ToolCall(id="call_1", name="lookup", arguments={"id": 9007199254740993}),)
    assert call.tool_results == ({"id": "call_0", "content": "42"},)
    assert (call.finish_reason, call.streamed, call.complete) == ("completed", True, True)
    assert (call.usage.input_tokens, call.usage.cached_tokens, call.usage.reasoning_tokens) == (9, 4, 5)
    assert call.params == {"temperature": 0}


def test_the_end_s_own_copy_of_a_thought_is_the_answer_s() -> None:
    answer: Any = derive_capture("reasoning_text_and_function.sse", request_body("hi")).answer
    assert answer["output"][0]["encrypted_content"] == "gAAA-of-the-end"


def test_a_response_in_the_background_is_not_complete_and_says_whom_to_ask_for_the_rest() -> None:
    call = derive_capture("queued.json", request_body("hi", background=True), "application/json")
    assert (call.pending, call.complete, call.finish_reason) == ("resp_1", False, None)
    assert derive_capture("whole.json", request_body("hi"), "application/json").pending is None


def test_a_stream_that_broke_off_leaves_nothing_behind_that_could_be_asked_after() -> None:
    call = derive_capture("cut_in_every_kind_of_item.sse", request_body("hi", stream=True))
    assert (call.pending, call.complete) == (None, False)


def test_a_poll_is_a_call_of_the_model_that_answers() -> None:
    asked = request(RESPONSES + "/resp_1", method="GET")
    exchange = answered_exchange(RESPONSES, {}, (CAPTURES / "whole.json").read_bytes())
    call = derive_call(replace(exchange, request=asked), PROFILES)
    assert (call.polls, call.pending, call.complete) == ("resp_1", None, True)
    assert (call.model_requested, call.model_returned) == (None, "gpt-5-2025-08-07")
    assert (call.operation, call.text) == ("poll", "Here. There.")


def test_where_a_resumed_stream_begins_is_in_the_key_and_that_it_is_one_is_not() -> None:
    keys = [
        make_key(request(f"{RESPONSES}/resp_1{query}", method="GET"), PROFILES).key
        for query in ("", "?stream=true", "?stream=true&starting_after=4", "?stream=true&starting_after=5")
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_only_the_outputs_since_the_model_s_last_word_are_this_call_s() -> None:
    turn = [function_call("old"), output("old"), reasoning_item("rs_1"), function_call("a"), function_call("b")]
    call = derive_capture(
        "whole.json", request_body([*turn, output("a"), output("b"), user("and?")]), "application/json"
    )
    assert [json.loads(json.dumps(one))["id"] for one in call.tool_results] == ["a", "b"]
