"""A re-framed answer means what the recorded one meant."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from calls.codec.json import dumps, parse_json
from calls.codec.lenient_json import as_object
from calls.derive import derive_call
from calls.dialects.aws.converse_writer import event_frame
from calls.model import Exchange, Headers, Json, Request, Response
from replay.reframing import reframe
from replay.reframing.adapt_answer import adapt_answer
from tests.replay.strategies import CHAT, JSON, PROFILES, body, chat, exchange, model_answer, ok, post, said_in_a_stream
from tests.support.corpus import cassettes

MESSAGES = "https://api.anthropic.com/v1/messages"
EVENTS = (("content-type", "text/event-stream"),)

TOOL: Json = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
OPENAI: dict[str, Json] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "gpt-test-2026",
    "system_fingerprint": "fp_1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Grüße", "refusal": None, "tool_calls": [TOOL, TOOL]},
            "logprobs": {"content": [{"token": "G", "logprob": -0.5}], "refusal": None},
            "finish_reason": "tool_calls",
        },
        {"index": 1, "message": {"role": "assistant", "content": "two"}, "logprobs": None, "finish_reason": "stop"},
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
}
ANTHROPIC: dict[str, Json] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-test",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "text", "text": "Grüße", "citations": [{"type": "char_location", "cited_text": "G"}]},
        {"type": "text", "text": "plain"},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris", "days": [1, 2]}},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 1},
}


def model_request(url: str, *, stream: bool) -> Request:
    more: dict[str, Json] = {"stream_options": {"include_usage": True}} if stream and "openai" in url else {}
    request: dict[str, Json] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    return post(url, dumps({**request, "stream": stream, **more}))


@pytest.mark.parametrize(("url", "answer"), [(CHAT, OPENAI), (MESSAGES, ANTHROPIC)], ids=["openai_chat", "anthropic"])
def test_a_whole_answer_asked_as_a_stream_means_the_same(url: str, answer: dict[str, Json]) -> None:
    recorded = exchange(model_request(url, stream=False), ok(dumps(answer)))
    fit = adapt_answer(recorded, model_request(url, stream=True), PROFILES)
    assert fit.is_reframed
    assert fit.exchange.response
    assert reframe.is_stream(fit.exchange.response)
    call = derive_call(fit.exchange, PROFILES)
    assert call.complete
    assert json.loads(dumps(call.answer)) == json.loads(dumps(answer))


@pytest.mark.parametrize(("url", "answer"), [(CHAT, OPENAI), (MESSAGES, ANTHROPIC)], ids=["openai_chat", "anthropic"])
def test_there_and_back_is_the_answer_again(url: str, answer: dict[str, Json]) -> None:
    asked = model_request(url, stream=True)
    there = adapt_answer(exchange(model_request(url, stream=False), ok(dumps(answer))), asked, PROFILES).exchange
    assert there.response
    back = adapt_answer(exchange(asked, there.response), model_request(url, stream=False), PROFILES)
    assert back.exchange.response
    assert json.loads(back.exchange.response.body.data) == json.loads(dumps(answer))
    assert ("Content-Length", str(len(back.exchange.response.body.data))) in back.exchange.response.headers


def test_usage_is_sent_only_to_who_asked_for_it() -> None:
    recorded = exchange(model_request(CHAT, stream=False), ok(dumps(OPENAI)))
    plain = post(CHAT, dumps({"model": "m", "messages": [{"role": "user", "content": "a"}], "stream": True}))
    response = adapt_answer(recorded, plain, PROFILES).exchange.response
    assert response
    assert b"usage" not in response.body.data


def test_each_message_is_a_piece() -> None:
    response = adapt_answer(exchange(chat("a"), model_answer("A")), chat("a", stream=True), PROFILES).exchange.response
    assert response
    assert len(response.body.chunks) == response.body.data.count(b"\n\n")


def test_a_compressed_answer_is_opened_first() -> None:
    data = gzip.compress(model_answer("A").body.data)
    recorded = exchange(chat("a"), Response(status=200, headers=(*JSON, ("content-encoding", "gzip")), body=body(data)))
    response = adapt_answer(recorded, chat("a", stream=True), PROFILES).exchange.response
    assert response
    assert b'"content":"A"' in response.body.data
    assert {name.lower() for name, _ in response.headers} == {"content-type"}


def test_an_error_is_given_as_it_is() -> None:
    recorded = exchange(chat("a"), ok(b'{"error":{"message":"slow down"}}', status=429))
    fit = adapt_answer(recorded, chat("a", stream=True), PROFILES)
    assert (fit.exchange, fit.is_reframed, fit.misfit) == (recorded, False, None)


def test_a_server_that_answered_otherwise_than_asked_does_so_again() -> None:
    recorded = exchange(chat("a", stream=True), model_answer("A"))
    fit = adapt_answer(recorded, chat("a", stream=True, user="ann"), PROFILES)
    assert (fit.is_reframed, fit.misfit) == (False, None)


def test_a_stream_whose_headers_were_not_kept_is_one_all_the_same() -> None:
    recorded = exchange(chat("a", stream=True), replace(said_in_a_stream("A"), headers=()))
    fit = adapt_answer(recorded, chat("a"), PROFILES)
    assert (fit.is_reframed, derive_call(fit.exchange, PROFILES).text) == (True, "A")
    again = adapt_answer(recorded, chat("a", stream=True, user="ann"), PROFILES)
    assert not again.is_reframed


OLLAMA = "http://localhost:11434/api/chat"
NDJSON = (
    b'{"model":"m","message":{"role":"assistant","content":"Hel"},"done":false}\n'
    b'{"model":"m","message":{"role":"assistant","content":"lo"},"done":true,"done_reason":"stop"}\n'
)
BEDROCK = "https://bedrock-runtime.us-east-1.amazonaws.com/model/m/converse"


def converse_stream() -> bytes:
    events: dict[str, Json] = {
        "messageStart": {"role": "assistant"},
        "contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": "Hello"}},
        "contentBlockStop": {"contentBlockIndex": 0},
        "messageStop": {"stopReason": "end_turn"},
        "metadata": {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}, "metrics": {"latencyMs": 1}},
    }
    return b"".join(event_frame(name, value) for name, value in events.items())


@pytest.mark.parametrize("headers", [(), (("content-type", "application/octet-stream"),)])
@pytest.mark.parametrize(
    ("then", "now", "data"),
    [
        (post(OLLAMA, b'{"model":"m"}'), post(OLLAMA, b'{"model":"m","stream":false}'), NDJSON),
        (post(f"{BEDROCK}-stream", b"{}"), post(BEDROCK, b"{}"), converse_stream()),
    ],
    ids=["ndjson", "eventstream"],
)
def test_a_stream_that_nothing_labels_is_made_whole(then: Request, now: Request, data: bytes, headers: Headers) -> None:
    recorded = exchange(then, ok(data, headers=headers))
    fit = adapt_answer(recorded, now, PROFILES)
    assert (fit.is_reframed, fit.misfit, derive_call(fit.exchange, PROFILES).text) == (True, None, "Hello")
    assert fit.exchange.response
    assert json.loads(fit.exchange.response.body.data)
    assert not adapt_answer(recorded, then, PROFILES).is_reframed


def test_the_older_completions_of_anthropic_stream_as_they_do() -> None:
    url = "https://api.anthropic.com/v1/complete"
    answer: dict[str, Json] = {
        "type": "completion",
        "id": "compl_1",
        "completion": " Hello",
        "stop_reason": "stop_sequence",
        "stop": "\n\nHuman:",
        "model": "claude-2.1",
    }
    ask: dict[str, Json] = {"model": "claude-2.1", "prompt": "a", "max_tokens_to_sample": 9}
    recorded = exchange(post(url, dumps(ask)), ok(dumps(answer)))
    fit = adapt_answer(recorded, post(url, dumps({**ask, "stream": True})), PROFILES)
    assert fit.is_reframed
    assert fit.exchange.response
    assert fit.exchange.response.body.data.count(b"event: completion\n") == 2
    assert b"message_start" not in fit.exchange.response.body.data
    call = derive_call(fit.exchange, PROFILES)
    assert (call.complete, call.text, call.finish_reason) == (True, " Hello", "stop_sequence")


@pytest.mark.parametrize("data", [b"", b"\n\n", b": ping\n\n"])
def test_a_stream_without_an_event_is_no_answer(data: bytes) -> None:
    call = derive_call(exchange(chat("a", stream=True), ok(data, headers=EVENTS)), PROFILES)
    assert (call.streamed, call.complete, call.answer) == (True, False, None)


@pytest.mark.parametrize(
    "cut",
    [b'data: {"choices":[{"index":0,"delta":{"content":"A"}}]}\n\n', b'data: {"error":{"message":"overloaded"}}\n\n'],
)
def test_a_stream_that_did_not_end_is_not_made_whole(cut: bytes) -> None:
    recorded = exchange(chat("a", stream=True), ok(cut, headers=EVENTS))
    fit = adapt_answer(recorded, chat("a"), PROFILES)
    assert fit.misfit
    assert "incomplete stream" in fit.misfit


def test_an_api_of_which_we_know_no_stream_is_left_alone() -> None:
    url = "https://tickets.example.com/v2/search"
    recorded = exchange(post(url, b'{"stream": false}'), ok(b"{}"))
    fit = adapt_answer(recorded, post(url, b'{"stream": true}'), PROFILES)
    assert not fit.is_reframed


def whole_answers_of_the_corpus() -> Iterator[tuple[Exchange, Any]]:
    """What real providers answered in one piece, in the dialects that we re-frame."""
    for one in (one for cassette in cassettes() for one in cassette.exchanges if one.status == 200):
        if one.url.partition("?")[0].endswith(("/chat/completions", "/v1/messages")):
            request = Request(method=one.method, url=one.url, headers=one.request_headers, body=body(one.request_body))
            response = Response(status=200, headers=one.response_headers, body=body(one.response_body))
            recorded = exchange(request, response)
            call = derive_call(recorded, PROFILES)
            if call.complete and not call.streamed and isinstance(call.answer, dict):
                yield recorded, call.answer


def test_whole_answers_of_real_providers_mean_the_same_as_a_stream() -> None:
    checked = 0
    for recorded, answer in whole_answers_of_the_corpus():
        asked = as_object(parse_json(recorded.request.body.data))
        options: Json = {"include_usage": True}
        streaming = post(recorded.request.url, dumps({**asked, "stream": True, "stream_options": options}))
        fit = adapt_answer(recorded, streaming, PROFILES)
        assert fit.is_reframed, fit.misfit
        assert said_in(derive_call(fit.exchange, PROFILES).answer) == said_in(answer)
        checked += 1
    assert checked > 100


def said_in(value: Any) -> Any:
    """An answer without what says nothing: null, empty, and the role that the assembly of a stream fills in."""
    if isinstance(value, dict):
        kept = {name: said_in(item) for name, item in value.items() if (name, item) != ("role", "assistant")}
        return {name: item for name, item in kept.items() if item not in (None, "", [], {})}
    return [said_in(item) for item in value] if isinstance(value, list) else value
