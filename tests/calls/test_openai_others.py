"""What else OpenAI's API answers: completions, vectors, runs of threads, media. Keys, and what becomes of them as calls."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.derive import derive_call
from calls.dialects.openai.embeddings import as_base64, as_numbers
from calls.keys.key import make_key
from calls.model import Call, ToolCall
from calls.redaction.redactor import Redactor
from tests.calls.sample_requests import OPENAI, PROFILES, chat, explained_key, key, request, user
from tests.calls.secrets import KEY, SECRETS
from tests.calls.strategies import json_values
from tests.calls.test_derive import answered_exchange

CAPTURES = Path(__file__).parent / "captures"

API = "https://api.openai.com/v1"
COMPLETIONS, EMBEDDINGS, RUNS = f"{API}/completions", f"{API}/embeddings", f"{API}/threads/t/runs"
IMAGES = f"{API}/images/generations"


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, **fields}


def embedding(input: Any, **fields: Any) -> dict[str, Any]:  # noqa: A002 # the API's own word
    return {"model": "m", "input": input, **fields}


SAME = [
    pytest.param(COMPLETIONS, completion("hi"), completion(["hi"]), id="a prompt and a list of one"),
    pytest.param(COMPLETIONS, completion([1, 2]), completion([[1, 2]]), id="tokens and a list of one"),
    pytest.param(COMPLETIONS, completion("", stop="x", n=None), completion("", stop=["x"], stream=True), id="stop"),
    pytest.param(OPENAI, chat(stop="x"), chat(stop=["x"]), id="a chat's stop"),
    pytest.param(EMBEDDINGS, embedding("hi"), embedding(["hi"], encoding_format="base64", user="u"), id="a text"),
    pytest.param(EMBEDDINGS, embedding("hi", dimensions=None), embedding("hi"), id="no dimensions"),
    pytest.param(RUNS, {"assistant_id": "a", "instructions": None}, {"assistant_id": "a", "stream": True}, id="a run"),
    pytest.param(
        RUNS + "/r/submit_tool_outputs",
        {"tool_outputs": [{"tool_call_id": "call_1", "output": "42"}]},
        {"tool_outputs": [{"tool_call_id": "call_2", "output": "42"}], "metadata": {"a": "b"}},
        id="ids of calls",
    ),
    pytest.param(
        f"{API}/threads/t/messages",
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "metadata": {}},
        id="a message",
    ),
    pytest.param(IMAGES, {"prompt": "a cat", "user": "u"}, {"prompt": "a cat", "stream": True}, id="a picture"),
]


@pytest.mark.parametrize(("url", "one", "other"), SAME)
def test_what_the_api_treats_as_equal_has_one_key(url: str, one: Any, other: Any) -> None:
    assert key(url, one) == key(url, other)
    assert explained_key(url, one).warnings == explained_key(url, other).warnings == ()


APART = [
    pytest.param(COMPLETIONS, completion("hi"), completion(["hi", "hi"]), id="one prompt and two"),
    pytest.param(COMPLETIONS, completion([1]), completion(["1"]), id="a token and a text"),
    pytest.param(COMPLETIONS, completion([1]), completion(1), id="a list of a token and nothing of the kind"),
    pytest.param(COMPLETIONS, completion("hi", logprobs=1), completion("hi"), id="a parameter"),
    pytest.param(EMBEDDINGS, embedding("hi"), embedding("hi", dimensions=3), id="dimensions"),
    pytest.param(EMBEDDINGS, embedding("hi"), embedding("hi", input_type="query"), id="what it is for"),
    pytest.param(EMBEDDINGS, embedding(["a", "b"]), embedding(["b", "a"]), id="the order of texts"),
    pytest.param(RUNS, {"assistant_id": "a"}, {"assistant_id": "b"}, id="whom is asked"),
    pytest.param(IMAGES, {"prompt": "a cat"}, {"prompt": "a dog"}, id="what is to be seen"),
    pytest.param(
        IMAGES, {"prompt": "x", "response_format": "url"}, {"prompt": "x", "response_format": "b64_json"}, id="form"
    ),
]


@pytest.mark.parametrize(("url", "one", "other"), APART)
def test_what_the_model_would_see_differently_has_two_keys(url: str, one: Any, other: Any) -> None:
    assert key(url, one) != key(url, other)


def picture(url: str) -> dict[str, Any]:
    return chat(user([{"type": "image_url", "image_url": {"url": url}}]))


def test_media_counts_by_its_bytes_however_they_are_written() -> None:
    assert key(OPENAI, picture("data:image/png;base64,/+8=")) == key(OPENAI, picture("data:image/PNG;base64,_-8"))
    assert key(OPENAI, picture("data:image/png;base64,/+8=")) != key(OPENAI, picture("data:image/gif;base64,/+8="))
    assert key(OPENAI, picture("https://example.com/a.png")) != key(OPENAI, picture("https://example.com/b.png"))


def derive_capture(url: str, body: Any, name: str, media: str = "text/event-stream") -> Call:
    return derive_call(answered_exchange(url, body, (CAPTURES / name).read_bytes(), media), PROFILES)


def test_a_streamed_completion_is_a_call() -> None:
    body = completion("hi", temperature=1, stream=True)
    call = derive_capture(COMPLETIONS, body, "openai_completions/two_choices_with_logprobs.sse")
    assert (call.kind, call.operation, call.text) == ("model", "text_completion", "Grüß dich 😀")
    assert (call.finish_reason, call.complete, call.params) == ("stop", True, {"temperature": 1})
    assert (call.usage.input_tokens, call.usage.output_tokens) == (3, 5)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (COMPLETIONS, "openai_completions/writer.sse"),
        ("https://api.writer.com/v1/chat", "openai_chat/writer_without_end_mark.sse"),
    ],
)
def test_where_a_server_has_no_end_mark_http_tells_whether_the_answer_is_whole(url: str, name: str) -> None:
    exchange = answered_exchange(url, {}, (CAPTURES / name).read_bytes(), "text/event-stream")
    assert derive_call(exchange, PROFILES).complete
    assert not derive_call(replace(exchange, outcome="client_closed"), PROFILES).complete


def test_vectors_are_a_call_and_come_as_numbers() -> None:
    call = derive_capture(EMBEDDINGS, embedding("hi", encoding_format="base64"), "openai_embeddings/base64.json")
    answer: Any = call.answer
    assert (call.operation, call.model_returned, call.text) == ("embeddings", "text-embedding-3-small", None)
    assert (call.usage.input_tokens, call.params) == (8, {})
    assert answer["data"][0]["embedding"] == pytest.approx([0.0023064255, -0.009327292, 1.0], rel=1e-7)


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False))))
def test_base64_and_numbers_are_the_same_vectors(vectors: list[list[float]]) -> None:
    numbers: Any = {"data": [{"embedding": vector} for vector in vectors]}
    assert as_numbers(as_base64(numbers)) == numbers
    assert as_numbers(numbers) == numbers


@given(json_values)
def test_what_is_no_vector_stays_what_it_is(value: Any) -> None:
    for odd in (value, {"data": value}, {"data": [value]}, {"data": [{"embedding": value}]}):
        as_numbers(as_base64(odd))
        as_base64(as_numbers(odd))


def test_a_run_that_waits_for_its_tools_says_what_it_asks_them() -> None:
    call = derive_capture(RUNS, {"assistant_id": "a", "stream": True}, "openai_assistants/requires_action.sse")
    assert (call.operation, call.finish_reason, call.pending, call.complete) == (
        "invoke_agent",
        "requires_action",
        None,
        True,
    )
    assert call.tool_calls == (ToolCall(id="call_1", name="lookup", arguments={"id": 9007199254740993}),)


def test_what_tools_answered_is_a_run_s_too() -> None:
    outputs = {"tool_outputs": [{"tool_call_id": "call_1", "output": "42"}]}
    call = derive_capture(RUNS + "/r/submit_tool_outputs", outputs, "openai_assistants/queued.json", "application/json")
    assert call.tool_results == ({"id": "call_1", "content": "42"},)
    assert (call.pending, call.complete, call.finish_reason) == ("run_1", False, None)


def test_a_run_that_is_asked_after_is_the_model_s_call() -> None:
    exchange = answered_exchange(RUNS, {}, (CAPTURES / "openai_assistants/completed.json").read_bytes())
    call = derive_call(replace(exchange, request=request(RUNS + "/run_1", method="GET")), PROFILES)
    assert (call.operation, call.polls, call.pending, call.complete) == ("poll", "run_1", None, True)
    assert (call.model_returned, call.usage.cached_tokens, call.usage.reasoning_tokens) == ("gpt-4o-mini", 128, 7)


def test_the_text_of_a_list_of_messages_is_the_newest_answer_s() -> None:
    exchange = answered_exchange(RUNS, {}, (CAPTURES / "openai_assistants/messages.json").read_bytes())
    call = derive_call(replace(exchange, request=request(f"{API}/threads/t/messages", method="GET")), PROFILES)
    assert (call.kind, call.operation, call.text) == ("other", "get_messages", "new")


FORM = """--{0}\r
content-disposition: form-data; name="model"\r
\r
whisper-1\r
--{0}\r
content-disposition: form-data; name="temperature"\r
\r
0.2\r
--{0}\r
content-disposition: form-data; name="file"; filename="a.wav"\r
content-type: audio/wav\r
\r
RIFF\r
--{0}--\r
"""


@pytest.mark.parametrize("media", ["text/plain; charset=utf-8", "text/vtt", "application/x-subrip"])
def test_a_transcription_is_a_call_of_its_model(media: str) -> None:
    exchange = answered_exchange(API, {}, (CAPTURES / "openai_rest/transcript_plain.txt").read_bytes(), media)
    headers = ("content-type", "multipart/form-data; boundary=x1")
    asked = [
        request(f"{API}/audio/transcriptions", FORM.format(boundary).encode(), (headers[0], headers[1][:-2] + boundary))
        for boundary in ("x1", "y2")
    ]
    call = derive_call(replace(exchange, request=asked[0]), PROFILES)
    assert (call.kind, call.operation, call.model_requested) == ("model", "transcription", "whisper-1")
    assert (call.text, call.params, call.complete) == ("Hello there.\n", {"temperature": "0.2"}, True)
    assert make_key(asked[0], PROFILES).key == make_key(asked[1], PROFILES).key


def test_a_picture_comes_without_its_sketches() -> None:
    call = derive_capture(IMAGES, {"model": "gpt-image-1", "prompt": "a cat", "size": "auto"}, "openai_rest/image.sse")
    answer: Any = call.answer
    assert (call.operation, call.params, call.complete) == ("image_generation", {"size": "auto"}, True)
    assert answer["data"] == [{"b64_json": "iVBO"}]
    assert call.usage.output_tokens == 272


def test_results_of_a_vector_store_are_listed_one_by_one() -> None:
    url = f"{API}/vector_stores/vs_1/search"
    call = derive_capture(url, {"query": "x"}, "openai_rest/found.json", "application/json")
    assert call.kind == "retrieval"
    assert [json.loads(json.dumps(one, default=float))["file_id"] for one in call.tool_results] == ["file_1"]


def test_a_deployment_is_the_model_where_the_body_names_none() -> None:
    url = "https://x.openai.azure.com/openai/deployments/my-gpt/chat/completions?api-version=1"
    assert derive_capture(url, {"messages": []}, "openai_chat/azure.sse").model_requested == "my-gpt"


SHELL = {"network_policy": {"domain_secrets": [{"domain": "x.example", "name": "TOKEN", "value": SECRETS[1]}]}}
SERVED = {"tools": [{"type": "mcp", "transport": {"type": "stdio", "env": {"SEEK": SECRETS[1]}}}]}
TOLD_IN_SECRET = [
    pytest.param(f"{API}/agents/sessions", {"agent": SERVED, "input": "hi"}, id="a session of an agent"),
    pytest.param(f"{API}/agents", {"model": "m", **SERVED}, id="a saved agent"),
    pytest.param(f"{API}/vaults/vault_1/credentials", {"auth": {"token": SECRETS[1]}}, id="a vault"),
    pytest.param(f"{API}/containers", SHELL, id="a container"),
    pytest.param(f"{API}/responses", {"tools": [{"type": "shell", "environment": SHELL}]}, id="a shell"),
    pytest.param(
        f"{API}/responses", {"tools": [{"type": "code_interpreter", "container": SHELL}]}, id="an interpreter"
    ),
]


@pytest.mark.parametrize(("url", "body"), TOLD_IN_SECRET)
def test_what_is_put_into_a_vault_a_container_or_an_agent_is_not_written_down(url: str, body: Any) -> None:
    redactor = Redactor(key=KEY, profiles=PROFILES).for_request("POST", url, (("content-type", "application/json"),))
    written, count, _ = redactor.redact_body(json.dumps(body).encode(), "application/json")
    assert SECRETS[1].encode() not in written
    assert count
    assert explained_key(url, body).warnings == ()
