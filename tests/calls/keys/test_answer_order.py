"""Results of tools that were called at once come in any order: they count in that of the calls, in each API's form."""

import json
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.keys.element_memory import ElementMemory
from calls.keys.key import make_key
from tests.calls.sample_requests import (
    ANTHROPIC,
    OPENAI,
    PROFILES,
    VERSION,
    chat,
    explained_key,
    json_request,
    key,
    user,
)

type Result = tuple[str, str, str]
"""The id of a call, the name of its tool, and what the tool returned."""

type Form = Callable[[Sequence[tuple[str, str]], Sequence[Result]], dict[str, Any]]
"""Makes a body of calls (id and tool) and of the results that follow them."""

BEDROCK = "https://bedrock-runtime.eu-west-1.amazonaws.com/model"
GEMINI = "https://generativelanguage.googleapis.com/v1beta"
HI = "hi"


def chat_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"id": one, "type": "function", "function": {"name": tool, "arguments": "{}"}} for one, tool in calls]
    answers = [{"role": "tool", "tool_call_id": one, "content": text} for one, _, text in results]
    return chat(user(HI), {"role": "assistant", "tool_calls": called}, *answers, user("go on"))


def anthropic_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"type": "tool_use", "id": one, "name": tool, "input": {}} for one, tool in calls]
    blocks = [{"type": "tool_result", "tool_use_id": one, "content": text} for one, _, text in results]
    return chat(user(HI), {"role": "assistant", "content": called}, user(blocks), max_tokens=1)


def responses_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"type": "function_call", "call_id": one, "name": tool, "arguments": "{}"} for one, tool in calls]
    return {"model": "m", "input": [user(HI), *called, *response_items(results)]}


def stored_responses_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    return {"model": "m", "previous_response_id": "resp_1", "input": response_items(results)}


def custom_tools_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"type": "custom_tool_call", "call_id": one, "name": tool, "input": "x"} for one, tool in calls]
    return {"model": "m", "input": [user(HI), *called, *response_items(results, "custom_tool_call_output")]}


def response_items(results: Sequence[Result], kind: str = "function_call_output") -> list[dict[str, Any]]:
    return [{"type": kind, "call_id": one, "output": text} for one, _, text in results]


def gemini_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"functionCall": {"id": one, "name": tool, "args": {}}} for one, tool in calls]
    parts = [
        {"functionResponse": {"id": one, "name": tool, "response": {"output": text}}} for one, tool, text in results
    ]
    return gemini_contents(called, parts)


def gemini_form_without_ids(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"functionCall": {"name": tool, "args": {}}} for _, tool in calls]
    parts = [{"functionResponse": {"name": tool, "response": {"output": text}}} for _, tool, text in results]
    return gemini_contents(called, parts)


def gemini_snake_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"function_call": {"name": tool, "args": {}}} for _, tool in calls]
    parts = [{"function_response": {"name": tool, "response": {"output": text}}} for _, tool, text in results]
    return gemini_contents(called, parts)


def gemini_contents(called: list[dict[str, Any]], parts: list[dict[str, Any]]) -> dict[str, Any]:
    first = {"role": "user", "parts": [{"text": HI}]}
    return {"contents": [first, {"role": "model", "parts": called}, {"role": "user", "parts": parts}]}


def code_assist_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    return {"model": "gemini-2.5-pro", "request": gemini_form(calls, results)}


def converse_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"toolUse": {"toolUseId": one, "name": tool, "input": {}}} for one, tool in calls]
    blocks = [{"toolResult": {"toolUseId": one, "content": [{"text": text}]}} for one, _, text in results]
    return {
        "messages": [user([{"text": HI}]), {"role": "assistant", "content": called}, user(blocks)],
    }


def ai_gateway_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    called = [{"type": "tool-call", "toolCallId": one, "toolName": tool, "input": {}} for one, tool in calls]
    answers = [
        {"type": "tool-result", "toolCallId": one, "toolName": tool, "output": {"type": "text", "value": text}}
        for one, tool, text in results
    ]
    return {"prompt": [{"role": "assistant", "content": called}, {"role": "tool", "content": answers}]}


def mistral_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    return {"inputs": [{"type": "function.result", "tool_call_id": one, "result": text} for one, _, text in results]}


def assistants_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    return {"tool_outputs": [{"tool_call_id": one, "output": text} for one, _, text in results]}


def interactions_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    items = [{"type": "function_result", "call_id": one, "name": tool, "result": text} for one, tool, text in results]
    return {"model": "m", "previous_interaction_id": "i1", "input": items}


def dashscope_form(calls: Sequence[tuple[str, str]], results: Sequence[Result]) -> dict[str, Any]:
    return {"model": "m", "input": {"messages": chat_form(calls, results)["messages"]}, "parameters": {}}


FORMS: list[Any] = [
    pytest.param(OPENAI, chat_form, "openai_chat/1", id="openai_chat"),
    pytest.param("https://api.openai.com/v1/responses", responses_form, "openai_responses/1", id="openai_responses"),
    pytest.param(
        "https://api.openai.com/v1/responses", stored_responses_form, "openai_responses/1", id="previous_response_id"
    ),
    pytest.param("https://api.openai.com/v1/responses", custom_tools_form, "openai_responses/1", id="custom_tools"),
    pytest.param(ANTHROPIC, anthropic_form, "anthropic/1", id="anthropic"),
    pytest.param(f"{GEMINI}/models/gemini-2.5-pro:generateContent", gemini_form, "gemini/1", id="gemini"),
    pytest.param(
        f"{GEMINI}/models/gemini-2.5-pro:generateContent", gemini_form_without_ids, "gemini/1", id="gemini_without_ids"
    ),
    pytest.param(f"{GEMINI}/models/gemini-2.5-pro:generateContent", gemini_snake_form, "gemini/1", id="gemini_snake"),
    pytest.param(
        "https://cloudcode-pa.googleapis.com/v1internal:generateContent",
        code_assist_form,
        "gemini_code/1",
        id="gemini_code",
    ),
    pytest.param(f"{GEMINI}/interactions", interactions_form, "gemini_interactions/1", id="gemini_interactions"),
    pytest.param(f"{BEDROCK}/amazon.nova-lite-v1:0/converse", converse_form, "bedrock_converse/1", id="converse"),
    pytest.param(f"{BEDROCK}/amazon.nova-lite-v1:0/invoke", converse_form, "bedrock_nova/1", id="nova"),
    pytest.param(
        f"{BEDROCK}/anthropic.claude-3-5-sonnet-20240620-v1:0/invoke",
        anthropic_form,
        "bedrock_anthropic/1",
        id="bedrock_anthropic",
    ),
    pytest.param("https://api.cohere.com/v2/chat", chat_form, "cohere_v2/1", id="cohere_v2"),
    pytest.param("http://localhost:11434/api/chat", chat_form, "ollama/1", id="ollama"),
    pytest.param("https://ai-gateway.vercel.sh/v3/ai/language-model", ai_gateway_form, "ai_gateway/1", id="ai_gateway"),
    pytest.param(
        "https://api.mistral.ai/v1/conversations/c1",
        mistral_form,
        "mistral_conversations/1",
        id="mistral_conversations",
    ),
    pytest.param(
        "https://api.openai.com/v1/threads/t1/runs/r1/submit_tool_outputs",
        assistants_form,
        "openai_assistants/1",
        id="openai_assistants",
    ),
    pytest.param(
        "https://dashscope.aliyuncs.com/api/v1/services/aigc/text-generation/generation",
        dashscope_form,
        "dashscope/1",
        id="dashscope",
    ),
]

CALLS = [("call_x", "read"), ("call_a", "search"), ("call_m", "list")]
RESULTS: list[Result] = [("call_x", "read", "1"), ("call_a", "search", "2"), ("call_m", "list", "3")]


@pytest.mark.parametrize(("url", "form", "profile"), FORMS)
def test_results_may_come_in_any_order(url: str, form: Form, profile: str) -> None:
    made = explained_key(url, form(CALLS, RESULTS))
    assert made.profile == profile
    assert {key(url, form(CALLS, order)) for order in permutations(RESULTS)} == {made.key}
    rules = [
        one.rule for order in permutations(RESULTS) for one in explained_key(url, form(CALLS, order)).normalized_fields
    ]
    assert "answers" in rules


@pytest.mark.parametrize(("url", "form", "profile"), FORMS)
def test_another_result_is_another_request(url: str, form: Form, profile: str) -> None:
    right = key(url, form(CALLS, RESULTS))
    swapped: list[Result] = [("call_a", "search", "1"), ("call_x", "read", "2"), ("call_m", "list", "3")]
    edited: list[Result] = [("call_m", "list", "3"), ("call_a", "search", "2"), ("call_x", "read", "0")]
    for results in (swapped, edited, RESULTS[:2], [*RESULTS, RESULTS[0]]):
        assert key(url, form(CALLS, results)) != right


@pytest.mark.parametrize("url", [one.values[0] for one in FORMS if one.values[1] in (chat_form, responses_form)])
def test_the_order_of_calls_counts(url: str) -> None:
    form = responses_form if url.endswith("/responses") else chat_form
    assert key(url, form(CALLS, RESULTS)) != key(url, form([CALLS[1], CALLS[0], CALLS[2]], RESULTS))


def test_results_of_one_tool_without_ids_count_in_their_order() -> None:
    url = f"{GEMINI}/models/gemini-2.5-pro:generateContent"
    calls = [("", "read"), ("", "read"), ("", "list")]
    one, other, last = ("", "read", "1"), ("", "read", "2"), ("", "list", "3")
    right = key(url, gemini_form_without_ids(calls, [one, other, last]))
    assert key(url, gemini_form_without_ids(calls, [last, one, other])) == right
    assert key(url, gemini_form_without_ids(calls, [other, one, last])) != right


def test_what_is_between_two_results_parts_them() -> None:
    def body(*results: Result) -> dict[str, Any]:
        form = chat_form(CALLS, results)
        form["messages"].insert(3, user("wait"))
        return form

    assert key(OPENAI, body(*RESULTS)) != key(OPENAI, body(RESULTS[1], RESULTS[0], RESULTS[2]))
    assert key(OPENAI, body(*RESULTS)) == key(OPENAI, body(RESULTS[0], RESULTS[2], RESULTS[1]))


def test_results_whose_calls_are_unknown_count_in_their_order() -> None:
    unknown: list[Result] = [("call_1", "read", "1"), ("call_2", "list", "2")]
    for url, form in ((OPENAI, chat_form), ("https://api.cohere.com/v2/chat", chat_form)):
        assert key(url, form(CALLS, unknown)) != key(url, form(CALLS, unknown[::-1]))


TEXT = "word " * 160
CALL_IDS = ("call_1", "call_2", "call_3")
CHAT_MESSAGES: list[dict[str, Any]] = [
    user(TEXT),
    {
        "role": "assistant",
        "tool_calls": [
            {"id": one, "type": "function", "function": {"name": "look", "arguments": json.dumps({"q": TEXT})}}
            for one in CALL_IDS
        ],
    },
    *({"role": "tool", "tool_call_id": one, "content": f"{one} {TEXT}"} for one in CALL_IDS),
]
ANTHROPIC_MESSAGES: list[dict[str, Any]] = [
    user(TEXT),
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": one, "name": "look", "input": {"q": TEXT}} for one in CALL_IDS],
    },
    *(
        user([{"type": "tool_result", "tool_use_id": one, "content": f"{one} {TEXT}"} for one in order])
        for order in permutations(CALL_IDS)
    ),
]
RESPONSE_ITEMS: list[dict[str, Any]] = [
    user(TEXT),
    *({"type": "function_call", "call_id": one, "name": "look", "arguments": TEXT} for one in CALL_IDS),
    *({"type": "function_call_output", "call_id": one, "output": f"{one} {TEXT}"} for one in CALL_IDS),
]


@given(
    st.sampled_from(
        [
            (OPENAI, "messages", CHAT_MESSAGES),
            (ANTHROPIC, "messages", ANTHROPIC_MESSAGES),
            ("https://api.openai.com/v1/responses", "input", RESPONSE_ITEMS),
        ]
    ),
    st.lists(st.tuples(st.integers(0, 12) | st.just(12), st.lists(st.integers(0, 7), max_size=6)), max_size=8),
)
def test_a_key_is_the_same_after_whatever_came_before(
    form: tuple[str, str, list[dict[str, Any]]], turns: list[tuple[int, list[int]]]
) -> None:
    """A conversation that goes on within a group of results, or after it, is sorted as one that is read at once."""
    url, member, messages = form
    memory = ElementMemory()
    history: list[dict[str, Any]] = []
    for common, more in turns:
        history = [*history[:common], *(messages[number % len(messages)] for number in more)]
        one = json_request(url, {"model": "m", member: history}, VERSION)
        made, again = make_key(one, PROFILES), make_key(one, PROFILES, memory)
        assert (again.key, again.request_body) == (made.key, made.request_body)
        assert (again.renamed_ids, again.normalized_fields) == (made.renamed_ids, made.normalized_fields)


@pytest.mark.parametrize(
    ("url", "member", "first", "then"),
    [
        pytest.param(OPENAI, "messages", [0, 1, 4], [0, 1, 4, 2], id="within a group"),
        pytest.param(OPENAI, "messages", [0, 1, 4, 2], [0, 1, 4, 2, 3, 0], id="a group that goes on"),
        pytest.param(OPENAI, "messages", [0, 1, 4, 2, 3], [0, 1, 4, 2], id="a group that was longer"),
        pytest.param(OPENAI, "messages", [0, 1, 4, 2, 3], [0, 1, 4, 2, 0], id="a group that ended earlier"),
        pytest.param(ANTHROPIC, "messages", [1, 7], [0, 7], id="calls that are not known any more"),
        pytest.param(ANTHROPIC, "messages", [0, 7], [1, 7], id="calls that were not known"),
    ],
)
def test_a_group_of_results_is_sorted_whatever_of_it_was_read_before(
    url: str, member: str, first: list[int], then: list[int]
) -> None:
    messages = CHAT_MESSAGES if url == OPENAI else ANTHROPIC_MESSAGES
    memory = ElementMemory()
    for numbers in (first, then):
        one = json_request(url, {"model": "m", member: [messages[number] for number in numbers]}, VERSION)
        made, again = make_key(one, PROFILES), make_key(one, PROFILES, memory)
        assert (again.key, again.request_body) == (made.key, made.request_body)
        assert (again.renamed_ids, again.normalized_fields) == (made.renamed_ids, made.normalized_fields)
