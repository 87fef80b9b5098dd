"""Vercel's gateway in the AI SDK's own protocol, whose model stands in a header (`@ai-sdk/gateway` 3.0)."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from calls.answer_form import requested_form
from calls.keys.key import KeyResult, make_key
from calls.model import Request
from calls.redaction.redactor import Redactor
from calls.route import route_request
from tests.calls.sample_requests import PROFILES, json_request

URL = "https://ai-gateway.vercel.sh/v3/ai/language-model"
PROMPT = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def redacted_request(body: Any, *headers: tuple[str, str], model: str = "openai/gpt-5", url: str = URL) -> Request:
    """A request as it is kept: redacted."""
    made = json_request(
        url, body, ("ai-language-model-id", model), ("Authorization", "Bearer vck_0123456789"), *headers
    )
    return replace(made, headers=Redactor(profiles=PROFILES, key=b"k" * 32).redact_request_headers(made.headers)[0])


def how(body: Any, *headers: tuple[str, str], model: str = "openai/gpt-5") -> KeyResult:
    return make_key(redacted_request(body, *headers, model=model), PROFILES)


def test_the_model_in_the_header_is_known_and_counts() -> None:
    one, other = how({"prompt": PROMPT}), how({"prompt": PROMPT}, model="anthropic/claude-opus-5")
    assert (one.route.provider, one.route.model, one.operation, one.kind) == ("vercel", "openai/gpt-5", "chat", "model")
    assert one.key != other.key
    assert one.warnings == ()


def test_options_of_the_gateway_and_the_form_of_answers_are_in_no_key() -> None:
    called = {"type": "tool-call", "toolCallId": "a", "toolName": "f", "input": '{"x": 1}'}
    result = {"type": "tool-result", "toolCallId": "a", "toolName": "f", "output": {"type": "text", "value": "1"}}
    asked_then = {
        "prompt": [*PROMPT, {"role": "assistant", "content": [called]}, {"role": "tool", "content": [result]}]
    }
    asked_now = json.loads(json.dumps(asked_then).replace('"a"', '"b"').replace('\\"x\\": 1', '\\"x\\":1'))
    more = {"headers": {"user-agent": "ai/6"}, "includeRawChunks": True, "providerOptions": {"gateway": {"user": "u"}}}
    streaming = ("ai-language-model-streaming", "true")
    assert how(asked_then).key == how({**asked_now, **more}, streaming).key


def test_where_a_cache_may_break_is_in_no_key() -> None:
    marked = {"anthropic": {"cacheControl": {"type": "ephemeral"}}}
    part = {"type": "text", "text": "hi"}
    tool = {"type": "function", "name": "f", "inputSchema": {}}
    plain = {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": [part]}], "tools": [tool]}
    system = {"role": "system", "content": "s", "providerOptions": marked}
    asked_now = {
        "prompt": [system, {"role": "user", "content": [{**part, "providerOptions": marked}]}],
        "tools": [{**tool, "providerOptions": marked}],
    }
    assert how(plain).key == how(asked_now).key
    thinking = {"providerOptions": {"anthropic": {"thinking": {"type": "enabled"}}}}
    assert how(plain).key != how({**plain, **thinking}).key


@pytest.mark.parametrize(("stream", "form"), [("true", "sse"), ("false", "whole")])
def test_a_header_asks_for_a_stream(stream: str, form: str) -> None:
    request = redacted_request({"prompt": PROMPT}, ("ai-language-model-streaming", stream))
    assert requested_form(make_key(request, PROFILES), request) == form


@pytest.mark.parametrize(
    ("url", "dialect", "operation"),
    [
        ("https://ai-gateway.vercel.sh/v4/ai/reranking-model", "ai_gateway", "rerank"),
        ("https://ai-gateway.vercel.sh/v3/ai/video-model", "ai_gateway", "video_generation"),
        ("https://models.grafana.example/api/ai/language-model", "ai_gateway", "chat"),
        ("https://ai-gateway.vercel.sh/v1/chat/completions", "openai_chat", "chat"),
    ],
)
def test_where_it_goes(url: str, dialect: str, operation: str) -> None:
    found = route_request(redacted_request({}, url=url))
    assert (found.dialect, found.operation) == (dialect, operation)


def test_a_path_that_is_called_so_by_chance_is_not_the_gateway() -> None:
    assert route_request(json_request("https://code.example.com/docs/ai/language-model", {})).dialect == "generic"
