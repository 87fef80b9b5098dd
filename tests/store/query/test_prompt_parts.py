"""The parts of a prompt are found again in later requests, in whatever form a client sends them."""

import json
from typing import Any

import pytest

from store.query.prompt_parts import DATA_WEIGHT, PromptPart, PromptParts

IMAGE = "iVBORw0KGgo" * 1000


def prompt_parts(request: Any) -> list[PromptPart]:
    return PromptParts().divide(json.dumps(request).encode())


def message(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **more}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (message("hello"), message([{"type": "text", "text": "hello"}])),
        (
            message([{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]),
            message([{"type": "text", "text": "hello"}]),
        ),
        (message([{"text": "hello"}, {"cachePoint": {"type": "default"}}]), message([{"text": "hello"}])),
        (message("hello") | {"temperature": 1, "model": "a"}, message("hello") | {"temperature": 0, "model": "b"}),
    ],
    ids=["text or block", "cache marker", "cache point", "parameters"],
)
def test_the_same_prompt_has_the_same_parts(one: Any, other: Any) -> None:
    assert prompt_parts(one) == prompt_parts(other)


def test_other_words_and_other_roles_are_other_parts() -> None:
    assert prompt_parts(message("hello")) != prompt_parts(message("hullo"))
    assert prompt_parts(message("hello")) != prompt_parts(message("hello", role="assistant"))


@pytest.mark.parametrize(
    ("request_body", "count"),
    [
        ({"system": [{"type": "text", "text": "s"}], "messages": [{"role": "user", "content": "u"}]}, 2),
        ({"contents": [{"role": "user", "parts": [{"text": "a"}, {"text": "b"}]}]}, 2),
        ({"input": "one text", "instructions": "be brief"}, 2),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]}, 1),
        ({"messages": [], "tools": [{"name": "a"}, {"name": "b"}]}, 2),
        ({"tools": [{"functionDeclarations": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}]}, 3),
        (message(None, role="assistant", tool_calls=[{"id": "call_1", "function": {"name": "f"}}]), 1),
        ({"model": "m", "stream": True}, 0),
        ("not an object", 0),
        (None, 0),
    ],
)
def test_each_message_block_and_tool_is_a_part(request_body: Any, count: int) -> None:
    assert len(prompt_parts(request_body)) == count


def test_an_image_weighs_about_as_much_as_providers_count_and_not_as_its_characters() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    inline = {"type": "image", "source": {"type": "base64", "data": IMAGE}}
    for block in (image, inline):
        assert sum(part.weight for part in prompt_parts(message([block]))) == pytest.approx(DATA_WEIGHT, rel=0.05)
    prose = "word " * 10_000
    assert sum(part.weight for part in prompt_parts(message(prose))) == len(prose)


def test_what_is_no_json_has_no_parts() -> None:
    parts = PromptParts()
    for body in (b"", b"{", b'{"messages": [', b'{"messages": "\xff"}', b"[1]", b"--boundary"):
        assert parts.divide(body) == []


def test_what_was_divided_before_is_divided_the_same_again() -> None:
    parts = PromptParts()
    body = json.dumps(message("hello")).encode()
    assert parts.divide(body) == parts.divide(body) == prompt_parts(message("hello")) != []
