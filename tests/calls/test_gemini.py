"""Keys and calls of Gemini and Vertex."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.derive import derive_call
from calls.keys.key import make_key
from calls.keys.normalize import camel_case, digest_base64
from calls.route import find_route
from tests.calls.sample_requests import PROFILES, explained_key, json_request, key, request
from tests.calls.test_derive import CAPTURES, answered_exchange

GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:"
WHOLE, STREAM = GEMINI + "generateContent", GEMINI + "streamGenerateContent?alt=sse"
VERTEX = (
    "https://us-central1-aiplatform.googleapis.com/v1/projects/{}/locations/us-central1/publishers/google/models/{}"
)


def gemini_request(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": list(parts)}], **fields}


def declare_function(parameters: Any, name: str = "parameters") -> dict[str, Any]:
    return gemini_request(tools=[{"functionDeclarations": [{"name": "f", name: parameters}]}])


PNG = {"inlineData": {"mimeType": "image/png", "data": "-_8="}}

SAME = [
    pytest.param(
        gemini_request(systemInstruction={"parts": []}, generationConfig={"thinkingConfig": {"includeThoughts": True}}),
        gemini_request(
            system_instruction={"parts": []}, generation_config={"thinking_config": {"include_thoughts": True}}
        ),
        id="both spellings of a name",
    ),
    pytest.param(PNG, {"inline_data": {"mime_type": "image/png", "data": "+/8"}}, id="both spellings of bytes"),
    pytest.param(
        declare_function({"type": "OBJECT", "properties": {"a_b": {"type": "string", "anyOf": [{"type": "NULL"}]}}}),
        declare_function({"type": "object", "properties": {"a_b": {"type": "STRING", "any_of": [{"type": "null"}]}}}),
        id="both spellings of a schema",
    ),
    pytest.param(
        gemini_request({"functionCall": {"name": "f", "id": "pyd_ai_1"}}, {"functionResponse": {"id": "pyd_ai_1"}}),
        gemini_request({"functionCall": {"name": "f", "id": "pyd_ai_2"}}, {"functionResponse": {"id": "pyd_ai_2"}}),
        id="ids that the client made up",
    ),
    pytest.param(
        gemini_request({"functionCall": {"id": None}}), gemini_request({"functionCall": {}}), id="null is absent"
    ),
    pytest.param(gemini_request(labels={"team": "a"}), gemini_request(labels={"team": "b"}), id="labels"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_what_google_reads_as_equal_has_one_key(one: Any, other: Any) -> None:
    one, other = (body if "contents" in body else gemini_request(body) for body in (one, other))
    assert key(WHOLE, one) == key(WHOLE, other)
    assert explained_key(WHOLE, other).warnings == ()


APART = [
    pytest.param(
        gemini_request({"functionCall": {"args": {"a_b": 1}}}),
        gemini_request({"functionCall": {"args": {"aB": 1}}}),
        id="arguments",
    ),
    pytest.param(
        gemini_request({"functionResponse": {"response": {"a_b": 1}}}),
        gemini_request({"functionResponse": {"response": {"aB": 1}}}),
        id="what a function answers",
    ),
    pytest.param(
        declare_function({"properties": {"a_b": {}}}),
        declare_function({"properties": {"aB": {}}}),
        id="the name of a property",
    ),
    pytest.param(
        declare_function({"type": "object"}, "parametersJsonSchema"),
        declare_function({"type": "OBJECT"}, "parametersJsonSchema"),
        id="a JSON schema is no schema of Google's",
    ),
    pytest.param(
        gemini_request(generationConfig={"a_b": 1}),
        gemini_request(generationConfig={"a_b": 1, "aB": 2}),
        id="both at once",
    ),
    pytest.param(gemini_request({"text": "a"}), gemini_request({"text": "a", "thought": True}), id="a thought"),
    pytest.param(gemini_request({"text": "a"}, {"text": "b"}), gemini_request({"text": "ab"}), id="two parts"),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_what_google_reads_differently_has_two_keys(one: Any, other: Any) -> None:
    assert key(WHOLE, one) != key(WHOLE, other)


def test_how_the_answer_is_sent_is_not_in_the_key() -> None:
    urls = [WHOLE, STREAM, GEMINI + "streamGenerateContent", WHOLE + "?key=secret"]
    assert len({key(url, gemini_request()) for url in urls}) == 1
    assert key(GEMINI + "countTokens", gemini_request()) != key(WHOLE, gemini_request())


def test_the_project_is_not_in_the_key_and_the_model_is() -> None:
    one, other = (VERTEX.format(project, "gemini-2.5-pro:generateContent") for project in ("a", "b"))
    assert key(one, gemini_request()) == key(other, gemini_request())
    assert key(one, gemini_request()) != key(one.replace("pro", "flash"), gemini_request())


def test_a_body_may_spell_its_schema_s_names_as_it_likes_and_the_record_keeps_it() -> None:
    body = gemini_request(generation_config={"response_schema": {"type": "string"}})
    made = explained_key(WHOLE, body)
    assert made.request_body == body
    assert {(one.pointer, one.rule) for one in made.normalized_fields} == {
        ("/body/generation_config", "names"),
        ("/body/generationConfig/response_schema", "names"),
        ("/body/generationConfig/responseSchema", "schema"),
    }


@pytest.mark.parametrize(
    ("path", "operation", "streams"),
    [
        ("/v1beta/models/m:generateContent", "generate_content", False),
        ("/v1beta/models/m:streamGenerateContent", "generate_content", True),
        ("/v1/tunedModels/m:generateContent", "generate_content", False),
        ("/v1/projects/p/locations/l/endpoints/m:streamGenerateContent", "generate_content", True),
        ("/v1beta/models/m:countTokens", "count_tokens", False),
        ("/v1beta/models/m:batchEmbedContents", "embeddings", False),
    ],
)
def test_the_path_says_what_is_asked(path: str, operation: str, streams: bool) -> None:
    found = find_route("POST", "generativelanguage.googleapis.com", path)
    assert (found.dialect, found.operation, found.model, found.streams) == ("gemini", operation, "m", streams)
    assert (found.kind, found.path) == ("model", path)


@pytest.mark.parametrize(
    "path", ["/v1beta/models/m", "/v1beta/models/m:doSomething", "/v1beta/models", "/x:generateContent"]
)
def test_other_paths_are_not_gemini_s(path: str) -> None:
    assert find_route("POST", "generativelanguage.googleapis.com", path).dialect == "generic"


def test_a_stream_is_a_call() -> None:
    tool = {"role": "function", "parts": [{"function_response": {"id": "c", "name": "f", "response": {"a": 1}}}]}
    spoke = {"role": "model", "parts": [{"functionResponse": {"name": "not this one"}}]}
    body = {"contents": [spoke, tool], "generationConfig": {"temperature": 0}}
    call = derive_call(
        answered_exchange(STREAM, body, (CAPTURES / "gemini" / "tools.sse").read_bytes(), "text/event-stream"), PROFILES
    )
    assert (call.provider, call.kind, call.operation) == ("gcp.gemini", "model", "generate_content")
    assert (call.model_requested, call.model_returned) == ("gemini-2.5-flash", "gemini-2.5-flash")
    assert [one.name for one in call.tool_calls] == ["multiply", "add_person"]
    assert call.tool_results == ({"id": "c", "name": "f", "content": {"a": 1}},)
    assert (call.streamed, call.complete) == (True, True)


def test_an_error_labelled_as_a_stream_is_an_answer() -> None:
    data = (CAPTURES / "gemini" / "error.json").read_bytes()
    call = derive_call(answered_exchange(STREAM, gemini_request(), data, "text/event-stream"), PROFILES)
    assert call.answer == json.loads(data)
    assert not call.streamed


@given(st.text(st.sampled_from("aB_9")))
def test_camel_case_is_its_own_camel_case(name: str) -> None:
    assert camel_case(camel_case(name)) == camel_case(name)


@given(st.text())
def test_no_text_surprises_the_digest_of_bytes(text: str) -> None:
    digest_base64(text)
    digest_base64("data:image/png;base64," + text)


@given(st.binary(min_size=1))
def test_bytes_have_one_digest_in_every_spelling(data: bytes) -> None:
    plain, safe = base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert digest_base64(plain) == digest_base64(safe)
    assert digest_base64("data:IMAGE/png;base64," + plain) == "data:image/png;" + digest_base64(safe)


def test_a_head_without_a_body_is_a_key() -> None:
    assert make_key(request(WHOLE), PROFILES).key != make_key(json_request(WHOLE, gemini_request()), PROFILES).key
