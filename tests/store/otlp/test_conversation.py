"""Messages are read from the requests of every dialect, and are valid under the published JSON schemas."""

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from calls.codec.json import parse_json_leniently
from store.database.connection import Database
from store.otlp.spans.conversation import Message, Part, answer_reasoning, embedded_texts, request_conversation
from store.otlp.spans.limits import MAX_MESSAGES, MAX_TEXT, cut_messages
from tests.store.otlp.recorded import agent, attributes, claude, decode_spans, export_run, from_corpus, store_run
from tests.support.corpus import cassettes


def part(kind: str, **members: Any) -> dict[str, Any]:
    """The schema of a part: these members, of which those in capitals may be missing or null."""
    required = [name for name in members if members[name] is not NULLABLE]
    return {"type": "object", "properties": {"type": {"const": kind}, **members}, "required": ["type", *required]}


TEXT = {"type": "string"}
NULLABLE = {"type": ["string", "null"]}
PARTS = {
    "type": "array",
    "items": {
        "oneOf": [
            part("text", content=TEXT),
            part("reasoning", content=TEXT),
            part("tool_call", id=NULLABLE, name=TEXT),
            part("tool_call_response", id=NULLABLE, response={}),
            part("uri", modality=TEXT, uri=TEXT),
            part("media", modality=TEXT),
        ]
    },
}
INPUT = {
    "type": "array",
    "items": {"type": "object", "properties": {"role": TEXT, "parts": PARTS}, "required": ["role", "parts"]},
}
OUTPUT = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"role": TEXT, "parts": PARTS, "finish_reason": TEXT},
        "required": ["role", "parts", "finish_reason"],
    },
}
"""What gen-ai-input-messages.json and gen-ai-output-messages.json of semantic-conventions-genai demand (b49cb9d, 8f24f0e), without
their last alternative, which allows any part with a type: of those we only write `media`."""


async def check_messages(database: Database, run: str) -> int:
    """Check the messages of all spans of a run; return their number."""
    checked = 0
    for span in map(attributes, decode_spans(await export_run(database, run, content=True))):
        for name, schema in (
            ("gen_ai.input.messages", INPUT),
            ("gen_ai.output.messages", OUTPUT),
            ("gen_ai.system_instructions", PARTS),
        ):
            if name in span:
                jsonschema.validate(json.loads(span[name]), schema)
                checked += 1
    return checked


async def test_messages_are_valid_under_the_published_schemas(database: Database) -> None:
    checked = 0
    for made in (agent("a"), claude("b")):
        checked += await check_messages(database, await store_run(database, made))
    for number, tape in enumerate(cassettes()[::40]):
        checked += await check_messages(database, await store_run(database, from_corpus(tape, f"tape-{number}")))
    assert checked > 20


def read(request: str) -> list[Any]:
    found = request_conversation(parse_json_leniently(request.encode()))
    system = [("system", [(one.kind, one.text) for one in found.system])] if found.system else []
    return [
        *system,
        *((one.role, [(p.kind, p.text or p.name or str(p.id)) for p in one.parts]) for one in found.messages),
    ]


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ('{"messages": [{"role": "user", "content": "a"}]}', [("user", [("text", "a")])]),
        (
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://b/c.png"}}]}]}',
            [("user", [("text", "a"), ("media", "https://b/c.png")])],
        ),
        (
            '{"instructions": "s", "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},'
            ' {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},'
            ' {"type": "function_call_output", "call_id": "1", "output": "r"}]}',
            [
                ("system", [("text", "s")]),
                ("user", [("text", "a")]),
                ("assistant", [("tool_call", "f")]),
                ("tool", [("tool_call_response", "1")]),
            ],
        ),
        ('{"input": "a"}', [("user", [("text", "a")])]),
        (
            '{"systemInstruction": {"parts": [{"text": "s"}]}, "contents": [{"role": "user", "parts": [{"text": "a"}]},'
            ' {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]},'
            ' {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}]}',
            [
                ("system", [("text", "s")]),
                ("user", [("text", "a")]),
                ("assistant", [("tool_call", "f")]),
                ("tool", [("tool_call_response", "f")]),
            ],
        ),
        ('{"contents": "a"}', [("user", [("text", "a")])]),
        (
            '{"system": [{"text": "s"}], "messages": [{"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "f", "input": {}}}]},'
            ' {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "content": [{"text": "r"}]}}]}]}',
            [("system", [("text", "s")]), ("assistant", [("tool_call", "f")]), ("tool", [("tool_call_response", "1")])],
        ),
        ('{"prompt": "a"}', [("user", [("text", "a")])]),
        ('{"input": {"prompt": "a"}}', [("user", [("text", "a")])]),
        (
            '{"preamble": "s", "chat_history": [{"role": "CHATBOT", "message": "a"}], "message": "b"}',
            [("system", [("text", "s")]), ("assistant", [("text", "a")]), ("user", [("text", "b")])],
        ),
        ('{"messages": 5, "system": {"a": 1}}', []),
        ('[1, "a"]', []),
        ("null", []),
    ],
)
def test_messages_are_read_from_the_request_of_each_api(request_text: str, expected: list[Any]) -> None:
    assert read(request_text) == expected


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ('{"input": "a"}', ["a"]),
        ('{"input": ["a", "b"]}', ["a", "b"]),
        ('{"texts": ["a"]}', ["a"]),
        ('{"content": {"parts": [{"text": "a"}]}}', ["a"]),
        ('{"requests": [{"content": {"parts": [{"text": "a"}]}}]}', ["a"]),
        ('{"input": [[1, 2, 3]]}', []),
    ],
)
def test_texts_to_embed_are_read(request_text: str, expected: list[str]) -> None:
    assert embedded_texts(parse_json_leniently(request_text.encode())) == expected


def test_the_newest_messages_are_kept_when_there_are_too_many() -> None:
    messages = [Message("user", (Part(kind="text", text=f"{number}" * (MAX_TEXT // 2)),)) for number in range(10)]
    found, is_cut = cut_messages(messages)
    assert is_cut
    assert found == messages[-len(found) :]
    assert sum(len(part.text) for one in found for part in one.parts) <= MAX_MESSAGES


def test_a_text_that_is_too_long_is_cut() -> None:
    found, is_cut = cut_messages([Message("user", (Part(kind="text", text="a" * (MAX_TEXT + 1)),))])
    assert is_cut
    assert len(found[0].parts[0].text) == MAX_TEXT


CAPTURES: Final = Path(__file__).parents[2] / "calls" / "captures"

REASONING: Final = {
    "ai_gateway/text_reasoning_and_a_tool": "Look it up.",
    "anthropic/thinking_and_tools": "Let me see.",
    "bedrock_converse/reasoning_and_tools": "The user wants the weather.",
    "bedrock_converse/citations_and_redacted_reasoning": None,
    "cohere_v2/whole": "hm",
    "gemini/thoughts_and_a_signature_on_empty_text": "**Greeting**\nSay hello.",
    "gemini_interactions/thought_text_and_call": "Hm.",
    "ollama/thinking": "Let me see.",
    "openai_chat/mistral_thinking": "Two and two.",
    "openai_chat/openrouter": "Thinking",
    "openai_chat/text": None,
    "openai_responses/reasoning_text_and_function": "Look it up.",
    "openai_responses/incomplete": None,
}
"""What models thought, by the capture of the answer."""


@pytest.mark.parametrize("capture", REASONING)
def test_the_reasoning_of_an_answer_is_read_in_every_form(capture: str) -> None:
    answer = json.loads((CAPTURES / f"{capture}.expected").read_bytes())["answer"]
    assert answer_reasoning(answer) == REASONING[capture]


@pytest.mark.parametrize(
    "answer", [None, "text", [], {"choices": [None]}, {"choices": {"0": 1}}, {"output": {"message": 1}}]
)
def test_an_answer_of_another_form_has_no_reasoning(answer: Any) -> None:
    assert answer_reasoning(answer) is None
