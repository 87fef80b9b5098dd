"""What a memory of elements knows never changes a key: wherever an element is, and after whichever ids."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from calls.keys.element_memory import ElementMemory
from calls.keys.key import make_key
from tests.calls.sample_requests import PROFILES, json_request

CHAT = "https://api.openai.com/v1/chat/completions"
ANTHROPIC = "https://api.anthropic.com/v1/messages"
GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro:generateContent"

TEXT = "word " * 60


def tool_call(name: str) -> dict[str, Any]:
    called = {"name": "look", "arguments": json.dumps({"q": TEXT})}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": name, "type": "function", "function": called}]}


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": TEXT},
    {"role": "user", "content": [{"type": "text", "text": TEXT}]},
    {"role": "user", "content": TEXT, "novelty": 1},
    {"role": "user", "content": f"Ünïcödé 𝄞 {TEXT}", "name": "a"},
    tool_call("call_1"),
    tool_call("call_2"),
    {"role": "tool", "tool_call_id": "call_1", "content": TEXT},
    {"role": "tool", "tool_call_id": "call_2", "content": TEXT},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": TEXT}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {"q": TEXT}}]},
    {"role": "user", "parts": [{"text": TEXT}], "novelty": {"\N{MUSICAL SYMBOL G CLEF}": 1, "\ufb01": 1.50}},
]
OTHERS: list[dict[str, Any]] = [
    {},
    {"tools": [{"type": "function", "function": {"name": "look", "description": TEXT}}]},
    {"model": "m", "temperature": 0.10, "novelty": {"a": TEXT}},
    {"\N{MUSICAL SYMBOL G CLEF}": TEXT, "\ufb01": TEXT},
]


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([(CHAT, "messages"), (ANTHROPIC, "messages"), (GEMINI, "contents")]),
            st.integers(0, 12) | st.just(12),
            st.lists(st.sampled_from(MESSAGES), max_size=8),
            st.sampled_from(OTHERS),
            st.booleans(),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_a_key_is_the_same_after_whatever_came_before(
    asked: list[tuple[tuple[str, str], int, list[dict[str, Any]], dict[str, Any], bool]],
) -> None:
    memory = ElementMemory()
    history: list[dict[str, Any]] = []
    for (url, member), common, messages, others, is_last in asked:
        # A conversation that goes on, or one that begins as an earlier one did.
        history = [*history[:common], *messages]
        more = {member: history}
        one = json_request(url, {**others, **more} if is_last else {**more, **others})
        key, again = make_key(one, PROFILES), make_key(one, PROFILES, memory)
        assert (again, again.request_body) == (key, key.request_body)
        for noted in ("left_out_fields", "renamed_ids", "normalized_fields"):
            assert getattr(again, noted) == getattr(key, noted)


def test_secrets_are_numbered_and_json_rpc_is_recognised_wherever_they_are() -> None:
    """What is known not to occur in earlier items is not looked for in them again."""
    memory = ElementMemory()
    secret = "PLAYHEAD_AMFRGGZDFMZTWQ2LK"
    history: list[dict[str, Any]] = []
    for text in ("a", "b", secret, "c", '"jsonrpc"', secret, "d"):
        history = [*history, {"role": "user", "content": f"{text} {TEXT}"}]
        for others in ({}, {"jsonrpc": "2.0", "method": "tools/call", "id": 1}, {"user": secret}):
            one = json_request(CHAT, {"messages": history, **others})
            key, again = make_key(one, PROFILES), make_key(one, PROFILES, memory)
            assert (again, again.route) == (key, key.route)
