"""Edits of recorded answers, whole and streamed, judged by what the dialect reads from them afterwards."""

from typing import Any

import pytest
from msgspec.structs import replace

from calls.codec.json import dumps
from calls.derive import derive_call
from calls.keys.key import make_key
from calls.model import Exchange, Json, Response
from calls.overrides.overrides import read_overrides
from replay.overrides import apply as edits
from replay.overrides import faults
from replay.overrides.apply import CannotEdit, Edit
from replay.reframing import reframe
from tests.replay.strategies import JSON, PROFILES, chat, exchange, model_answer, ok, post

FUNCTION: dict[str, Json] = {"name": "refund", "arguments": '{"order":7,"amount":250.10}'}
CALLS: Json = [{"id": "call_1", "type": "function", "function": FUNCTION}]
MCP = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"))

ANSWERS: dict[str, tuple[str, dict[str, Json], dict[str, Json]]] = {
    "openai_chat": (
        "https://api.openai.com/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True},
        {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "I will refund it.", "tool_calls": CALLS},
                    "finish_reason": "tool_calls",
                }
            ],
        },
    ),
    "openai_responses": (
        "https://api.openai.com/v1/responses",
        {"model": "m", "input": "?", "stream": True},
        {
            "id": "r1",
            "object": "response",
            "model": "m",
            "status": "completed",
            "output": [
                {
                    "type": "message",
                    "id": "m1",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "I will refund it.", "annotations": []}],
                },
                {"type": "function_call", "id": "f1", "call_id": "call_1", **FUNCTION},
            ],
        },
    ),
    "anthropic": (
        "https://api.anthropic.com/v1/messages",
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}], "stream": True},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [
                {"type": "text", "text": "I will refund it."},
                {"type": "tool_use", "id": "t1", "name": "refund", "input": {"order": 7, "amount": 250.10}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
    ),
    "gemini": (
        "https://generativelanguage.googleapis.com/v1beta/models/m:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "?"}]}]},
        {
            "candidates": [
                {
                    "content": {
                        "role": "model",
                        "parts": [
                            {"text": "I will refund it."},
                            {"functionCall": {"name": "refund", "args": {"order": 7, "amount": 250.10}}},
                        ],
                    },
                    "finishReason": "STOP",
                }
            ]
        },
    ),
    "ollama": (
        "http://localhost:11434/api/chat",
        {"model": "m", "messages": [{"role": "user", "content": "?"}]},
        {
            "model": "m",
            "message": {
                "role": "assistant",
                "content": "I will refund it.",
                "tool_calls": [{"function": {"name": "refund", "arguments": {"order": 7, "amount": 250.10}}}],
            },
            "done": True,
            "done_reason": "stop",
        },
    ),
    "bedrock_converse": (
        "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse-stream",
        {"messages": [{"role": "user", "content": [{"text": "?"}]}]},
        {
            "output": {
                "message": {
                    "role": "assistant",
                    "content": [
                        {"text": "I will refund it."},
                        {"toolUse": {"toolUseId": "t", "name": "refund", "input": {"order": 7, "amount": 250.10}}},
                    ],
                }
            },
            "stopReason": "tool_use",
        },
    ),
    "cohere_v2": (
        "https://api.cohere.com/v2/chat",
        {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True},
        {
            "id": "x",
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "I will refund it."}],
                "tool_calls": CALLS,
            },
            "finish_reason": "TOOL_CALL",
        },
    ),
}
FORMS = {"gemini": "sse", "ollama": "ndjson", "bedrock_converse": "eventstream"}


def make_exchange(dialect: str, *, streamed: bool) -> Exchange:
    url, asked, answer = ANSWERS[dialect]
    request = post(url, dumps(asked))
    assert make_key(request, PROFILES).dialect == dialect
    response: Response | None = ok(dumps(answer))
    if streamed:
        assert response is not None
        response = reframe.write_stream(dialect, FORMS.get(dialect, "sse"), response, answer, asked)  # type: ignore[arg-type]
    assert response is not None
    return exchange(request, response)


def change(entry: dict[str, Any]) -> Any:
    (override,) = read_overrides([{"step": 1, **entry}])
    return override.change


def edit_exchange(recorded: Exchange, entry: dict[str, Any]) -> Exchange:
    edit: Edit = change(entry)
    return edits.apply_edit(recorded, make_key(recorded.request, PROFILES), edit)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", ANSWERS)
def test_another_text_is_what_the_dialect_reads(dialect: str, streamed: bool) -> None:
    call = derive_call(edit_exchange(make_exchange(dialect, streamed=streamed), {"text": "No “refund” ✂"}), PROFILES)
    assert (call.text, call.complete, call.streamed) == ("No “refund” ✂", True, streamed)
    assert [tool.name for tool in call.tool_calls] == ["refund"]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", ANSWERS)
def test_one_argument_of_a_tool_call_is_patched(dialect: str, streamed: bool) -> None:
    patch = [{"op": "replace", "path": "/amount", "value": 5}]
    made = edit_exchange(make_exchange(dialect, streamed=streamed), {"arguments": {"tool": "refund", "patch": patch}})
    call = derive_call(made, PROFILES)
    assert [tool.arguments for tool in call.tool_calls] == [{"order": 7, "amount": 5}]
    assert call.text == "I will refund it."


def test_a_client_that_left_at_the_end_mark_has_had_all_of_the_answer() -> None:
    left = replace(make_exchange("openai_chat", streamed=True), outcome="client_closed")
    made = edit_exchange(left, {"text": "edited"})
    assert (derive_call(made, PROFILES).text, made.outcome) == ("edited", "completed")


def test_a_piece_of_the_text_is_replaced_wherever_it_stands() -> None:
    made = edit_exchange(exchange(chat("?"), model_answer("a b a")), {"text": {"find": "a", "replace": "c"}})
    assert derive_call(made, PROFILES).text == "c b c"


def test_a_text_is_said_where_there_was_none() -> None:
    url, asked, answer = ANSWERS["openai_chat"]
    silent: Any = {**answer, "choices": [{"index": 0, "message": {"role": "assistant", "content": None}}]}
    made = edit_exchange(
        exchange(post(url, dumps({**asked, "stream": False})), ok(dumps(silent))), {"text": "now I speak"}
    )
    assert derive_call(made, PROFILES).text == "now I speak"


def test_a_patch_reaches_everything_and_keeps_every_digit() -> None:
    body = b'{"big":123456789012345678901234567890,"price":0.10,"tags":["a"]}'
    tool = exchange(post("https://tools.example.com/x", b"{}"), ok(body))
    made = edit_exchange(tool, {"patch": [{"op": "add", "path": "/tags/-", "value": {"b": 1}}]})
    assert made.response is not None
    assert made.response.body.data == (b'{"big":123456789012345678901234567890,"price":0.10,"tags":["a",{"b":1}]}')


def test_a_whole_answer_takes_the_place_of_the_recorded_one() -> None:
    made = edit_exchange(
        exchange(chat("?"), None, outcome="server_closed"),
        {"answer": {"status": 503, "headers": {"X-Why": "away"}, "body": {"error": {"message": "away"}}}},
    )
    assert made.response is not None
    assert (made.response.status, made.outcome, made.response.body.data) == (
        503,
        "completed",
        b'{"error":{"message":"away"}}',
    )
    assert dict(made.response.headers)["X-Why"] == "away"


def test_a_status_alone_keeps_the_body() -> None:
    made = edit_exchange(exchange(chat("?"), model_answer("a")), {"answer": {"status": 500}})
    assert made.response is not None
    assert made.response.status == 500
    assert b'"a"' in made.response.body.data


def test_a_value_becomes_a_stream_where_a_stream_was_asked_for() -> None:
    answer = ANSWERS["anthropic"][2]
    made = edit_exchange(
        make_exchange("anthropic", streamed=True), {"answer": {"body": {**answer, "stop_reason": "end_turn"}}}
    )
    call = derive_call(made, PROFILES)
    assert (call.streamed, call.finish_reason) == (True, "end_turn")


def mcp(answer: bytes, media: str) -> Exchange:
    asked: Json = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "search", "arguments": {}}}
    return exchange(
        post("https://mcp.example.com/mcp", dumps(asked), MCP), ok(answer, headers=(("Content-Type", media),))
    )


RESULT = b'{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":"three"}]}}'


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("value", "text"), [("none", "none"), ({"found": 0}, '{"found":0}'), ({"content": []}, None)], ids=str
)
def test_an_mcp_tool_answers_something_else(streamed: bool, value: Any, text: str | None) -> None:
    was = (
        mcp(b"event: message\ndata: " + RESULT + b"\n\n", "text/event-stream")
        if streamed
        else mcp(RESULT, "application/json")
    )
    call = derive_call(edit_exchange(was, {"tool_result": value}), PROFILES)
    assert (call.text, call.streamed, call.complete) == (text, streamed, True)


def test_an_http_tool_answers_something_else() -> None:
    made = edit_exchange(
        exchange(post("https://tools.example.com/x", b"{}"), ok(b'{"a":1}')), {"tool_result": {"a": 2}}
    )
    assert made.response is not None
    assert made.response.body.data == b'{"a":2}'
    text = exchange(post("https://tools.example.com/x", b"{}"), ok(b"hi", headers=(("Content-Type", "text/plain"),)))
    made = edit_exchange(text, {"tool_result": "bye"})
    assert made.response is not None
    assert (made.response.body.data, dict(made.response.headers)["Content-Type"]) == (b"bye", "text/plain")


STREAM = (("Content-Type", "text/event-stream"),)


@pytest.mark.parametrize(
    ("was", "entry", "words"),
    [
        (exchange(chat("?"), None, outcome="server_closed"), {"text": "x"}, "its answer is incomplete"),
        (exchange(chat("?"), ok(b'{"id":'), outcome="server_closed"), {"text": "x"}, "its answer is incomplete"),
        (exchange(chat("?"), model_answer("a")), {"text": {"find": "zz", "replace": "x"}}, "'zz' does not occur in its text, which is 'a'"),
        (exchange(chat("?"), model_answer("a")), {"arguments": {"patch": [{"op": "remove", "path": "/a"}]}}, "does not request a tool call"),
        (exchange(chat("?"), model_answer("a")), {"patch": [{"op": "remove", "path": "/nothing"}]}, "the patch does not apply"),
        (exchange(chat("?"), model_answer("a")), {"patch": [{"op": "test", "path": "/id", "value": "z"}]}, "test failed"),
        (
            exchange(post("https://tools.example.com/events", b"{}"), ok(b"data: {}\n\n", headers=STREAM)),
            {"patch": [{"op": "add", "path": "/-", "value": 1}]},
            "a stream (sse) of generic, which Playhead cannot write",
        ),
        (
            exchange(post("https://tools.example.com/events", b"{}"), ok(b"data: {}\n\n", headers=STREAM)),
            {"tool_result": {}},
            "it is a stream of a tool",
        ),
        (exchange(post("https://tools.example.com/x", b"{}"), ok(b"hi")), {"patch": [{"op": "remove", "path": ""}]}, "not JSON"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(was: Exchange, entry: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotEdit) as caught:
        edit_exchange(was, entry)
    assert words in str(caught.value)


def inject_fault(was: Exchange, fault: dict[str, Any]) -> Exchange:
    return faults.inject_fault(was, make_key(was.request, PROFILES), change({"fault": fault}))


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        ("openai_chat", b'"type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"'),
        ("anthropic", b'{"type":"error","error":{"type":"rate_limit_error"'),
        ("gemini", b'"status":"RESOURCE_EXHAUSTED"'),
        ("bedrock_converse", b'{"message":'),
        ("ollama", b'{"error":"'),
    ],
)
def test_a_refusal_has_the_providers_own_shape(dialect: str, words: bytes) -> None:
    response = inject_fault(make_exchange(dialect, streamed=True), {"status": 429, "retry_after": 0.25}).response
    assert response is not None
    assert response.status == 429
    assert words in response.body.data
    assert {"Retry-After": "1", "retry-after-ms": "250"}.items() <= dict(response.headers).items()


def test_a_cut_ends_at_the_byte() -> None:
    made = inject_fault(make_exchange("openai_chat", streamed=True), {"cut": 100})
    assert made.response is not None
    assert (len(made.response.body.data), made.outcome) == (100, "server_closed")
    with pytest.raises(CannotEdit, match="cannot be cut after 100000"):
        inject_fault(make_exchange("openai_chat", streamed=True), {"cut": 100_000})


@pytest.mark.parametrize("dialect", [name for name in ANSWERS if name != "bedrock_converse"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_malformed_json_is_no_json_in_a_message_that_is_whole(dialect: str, streamed: bool) -> None:
    was = make_exchange(dialect, streamed=streamed)
    made = inject_fault(was, {"malformed": True})
    assert made.outcome == "completed"
    assert made.response is not None
    assert was.response is not None
    assert made.response.body.data != was.response.body.data
    assert derive_call(made, PROFILES).answer != derive_call(was, PROFILES).answer


def test_frames_with_checksums_are_not_broken_by_halves() -> None:
    with pytest.raises(CannotEdit, match="checksums"):
        inject_fault(make_exchange("bedrock_converse", streamed=True), {"malformed": True})


def test_json_tools_are_cut_in_the_middle_of_their_json() -> None:
    made = inject_fault(
        exchange(post("https://tools.example.com/x", b"{}"), ok(b'{"a":1}', headers=JSON)), {"malformed": True}
    )
    assert made.response is not None
    assert made.response.body.data == b'{"a'
