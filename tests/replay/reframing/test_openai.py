"""A whole answer of OpenAI's API, sent as a stream, means the same: to us, and to the SDK."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from calls.codec.json import dumps
from calls.codec.lenient_json import as_object
from calls.dialects.openai.embeddings import respell_vectors
from calls.dialects.parts.stream_writing import sse_message
from calls.dialects.table import BY_NAME
from calls.model import Json, Request
from replay.reframing.adapt_answer import adapt_answer
from tests.calls.judging import client, derive_corpus
from tests.calls.strategies import json_values
from tests.replay.strategies import PROFILES, exchange, ok, post

STREAMED = ("openai_responses", "openai_completions", "openai_rest")


def stream(dialect: str, answer: Any, request: Json = None) -> bytes:
    asked = {**as_object(request), "stream_options": {"include_usage": True}}
    pieces = BY_NAME[dialect].stream_writers["sse"](as_object(answer), asked)
    assert pieces is not None
    return b"".join(pieces)


def plain(value: Json) -> Any:
    return json.loads(dumps(value))


def read(dialect: str, data: bytes) -> Any:
    assembly = BY_NAME[dialect].assemble("text/event-stream")
    assembly.feed(data)
    assembly.finish()
    assert assembly.is_complete
    return plain(assembly.answer)


def test_whole_answers_of_the_corpus_mean_the_same_as_a_stream() -> None:
    seen: Counter[str] = Counter()
    for name, recorded, call in derive_corpus():
        if call.dialect not in STREAMED or recorded.status != 200 or call.streamed or call.kind != "model":
            continue
        if call.operation == "moderation" or not isinstance(call.answer, dict):
            continue
        seen[call.dialect] += 1
        if call.provider == "writer":
            assert stream(call.dialect, call.answer) == sse_message("", {"value": call.text})
            continue
        assert read(call.dialect, stream(call.dialect, call.answer, call.request)) == plain(call.answer), name
    assert seen["openai_responses"] > 70
    assert seen["openai_completions"] > 70
    assert seen["openai_rest"] >= 3


def test_the_sdk_reads_a_response_that_was_recorded_whole() -> None:
    import openai  # not while tests are collected, which each worker does

    read_so = 0
    for name, recorded, call in derive_corpus():
        answer: Any = call.answer
        if (
            call.dialect != "openai_responses"
            or call.streamed
            or recorded.status != 200
            or not isinstance(answer, dict)
        ):
            continue
        api = openai.OpenAI(api_key="none", max_retries=0, http_client=client(stream("openai_responses", answer)))
        with api.responses.stream(model="any", input="") as events:
            *_, last = events
        assert last.response.output_text == (call.text or ""), name
        read_so += 1
    assert read_so > 70


ITEMS: list[Json] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "x"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "Grüße", "annotations": [{"type": "url_citation"}], "logprobs": []},
            {"type": "refusal", "refusal": "no"},
        ],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c",
        "name": "f",
        "arguments": '{"a": 1}',
        "status": "completed",
    },
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "mcp_call", "id": "mcp_1", "name": "s", "server_label": "d", "arguments": "{}", "output": "found"},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1+1", "container_id": "c", "outputs": []},
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "d", "name": "sql", "input": "SELECT 1"},
]


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed"])
def test_every_kind_of_item_arrives_with_and_without_the_end(status: str) -> None:
    answer: Json = {
        "id": "resp_1",
        "object": "response",
        "status": status,
        "model": "m",
        "output": ITEMS,
        "usage": None,
    }
    data = stream("openai_responses", answer)
    assert read("openai_responses", data) == plain(answer)
    # A client that goes by the pieces alone comes to the same items.
    messages = data.decode().split("\n\n")[:-2]
    pieces = [one for one in messages if ".done\n" not in one.partition("data:")[0]]
    assembly = BY_NAME["openai_responses"].assemble("text/event-stream")
    assembly.feed("\n\n".join([*pieces, ""]).encode() + b"\n\n")
    assembly.finish()
    assert plain(as_object(assembly.answer)["output"]) == plain(ITEMS)


def test_vectors_are_spelled_as_they_are_asked_for() -> None:
    numbers: Json = {"data": [{"embedding": [0.5, -1.0]}], "model": "m"}
    as_base64: Json = {"encoding_format": "base64"}
    packed = respell_vectors(numbers, {}, as_base64)
    assert plain(packed) == {"data": [{"embedding": "AAAAPwAAgL8="}], "model": "m"}
    assert plain(respell_vectors(packed, as_base64, {})) == plain(numbers)
    assert respell_vectors(packed, as_base64, as_base64) is None


@given(json_values, json_values)
def test_no_answer_surprises_us(answer: Json, request: Json) -> None:
    for dialect in STREAMED:
        for odd in (
            answer,
            {"output": [answer, {"type": "message", "content": answer}]},
            {"choices": answer, "data": answer},
        ):
            stream(dialect, odd, request)
    respell_vectors(answer, request, {})


EMBEDDINGS = "https://api.openai.com/v1/embeddings"
VECTORS: Json = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1]}], "model": "m"}


def embedding(**more: Json) -> Request:
    return post(EMBEDDINGS, dumps({"model": "m", "input": "hi", **more}))


def test_vectors_recorded_in_one_spelling_serve_the_other() -> None:
    recorded = exchange(embedding(), ok(dumps(VECTORS)))
    packed = adapt_answer(recorded, embedding(encoding_format="base64"), PROFILES)
    assert packed.exchange.response
    assert b'"embedding":"AAAAPwAAgL8="' in packed.exchange.response.body.data
    back = adapt_answer(replace(packed.exchange, request=embedding(encoding_format="base64")), embedding(), PROFILES)
    assert back.exchange.response
    assert (packed.is_reframed, back.is_reframed) == (True, True)
    assert json.loads(back.exchange.response.body.data) == plain(VECTORS)


def test_vectors_in_the_spelling_that_is_asked_for_keep_their_bytes() -> None:
    recorded = exchange(embedding(), ok(dumps(VECTORS) + b" "))
    fit = adapt_answer(recorded, embedding(encoding_format="float", user="ann"), PROFILES)
    assert (fit.exchange, fit.is_reframed) == (recorded, False)


def test_a_response_recorded_whole_serves_who_asks_for_a_stream_and_the_reverse() -> None:
    url = "https://api.openai.com/v1/responses"
    answer: Json = {"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": ITEMS}
    whole, streaming = (post(url, dumps({"model": "m", "input": "hi", "stream": stream})) for stream in (False, True))
    there = adapt_answer(exchange(whole, ok(dumps(answer))), streaming, PROFILES)
    assert (there.is_reframed, there.misfit) == (True, None)
    assert there.exchange.response
    back = adapt_answer(exchange(streaming, there.exchange.response), whole, PROFILES)
    assert back.exchange.response
    assert json.loads(back.exchange.response.body.data) == plain(answer)
