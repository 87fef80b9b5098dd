"""A whole answer of a cloud, asked for as a stream, means the same; so says whoever reads it, and so says the cloud's own SDK."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from calls.answer_form import received_form, requested_form
from calls.codec.json import dumps
from calls.derive import derive_call
from calls.dialects.parts.answer_forms import AnswerForm
from calls.dialects.table import BY_NAME
from calls.keys.key import make_key
from calls.model import Exchange, Json, Request, Response
from replay.reframing.adapt_answer import adapt_answer
from tests.calls.judging import differences, without_defaults
from tests.calls.test_cloud_sdks import (
    by_cohere_v1,
    by_cohere_v2,
    by_converse,
    by_converse_whole,
    by_google,
    by_google_whole,
    by_ollama,
)
from tests.replay.strategies import PROFILES, body, exchange, ok, post
from tests.support.corpus import cassettes

STREAMING = {
    ":generateContent": ":streamGenerateContent?alt=sse",
    "/converse": "/converse-stream",
    "/invoke": "/invoke-with-response-stream",
}
"""How the path of a stream differs from that of a whole answer."""


def streaming(request: Request) -> Request:
    """The same request, for a stream."""
    path, mark, query = request.url.partition("?")
    found = next((path.removesuffix(end) + more for end, more in STREAMING.items() if path.endswith(end)), None)
    if found:
        url = found + ("&" if mark and "?" in found else mark) + query
        return post(url, request.body.data, request.headers)
    return post(request.url, dumps({**json.loads(request.body.data), "stream": True}), request.headers)


def whole_answers() -> list[tuple[Exchange, Any]]:
    """What the clouds answered in one piece."""
    found = []
    for one in (one for cassette in cassettes() for one in cassette.exchanges if one.status == 200):
        request = Request(method=one.method, url=one.url, headers=one.request_headers, body=body(one.request_body))
        recorded = exchange(request, Response(status=200, headers=one.response_headers, body=body(one.response_body)))
        key = make_key(request, PROFILES)
        if (
            key.dialect in FORMS
            and key.operation in ("chat", "generate_content", "text_completion")
            and one.request_body
        ):
            call = derive_call(recorded, PROFILES)
            if call.complete and not call.streamed and isinstance(call.answer, dict):
                found.append((recorded, call.answer))
    return found


FORMS: dict[str, AnswerForm] = {
    "gemini": "sse",
    "bedrock_converse": "eventstream",
    "bedrock_invoke": "eventstream",
    "cohere_v1": "ndjson",
    "cohere_v2": "sse",
    "ollama": "ndjson",
}


READ_WHOLE: dict[str, Callable[[Any], Any]] = {"gemini": by_google_whole, "bedrock_converse": by_converse_whole}


def sdk(dialect: str, data: bytes, url: str) -> Any:
    match dialect:
        case "gemini":
            return by_google(data)
        case "bedrock_converse":
            return by_converse(data)
        case "cohere_v1":
            return by_cohere_v1(data)
        case "cohere_v2":
            return by_cohere_v2(data)
        case _:
            return by_ollama(data, url)


def test_whole_answers_of_the_clouds_mean_the_same_as_a_stream() -> None:
    made: Counter[str] = Counter()
    for recorded, answer in whole_answers():
        fit = adapt_answer(recorded, streaming(recorded.request), PROFILES)
        dialect = make_key(recorded.request, PROFILES).dialect
        if fit.misfit:
            assert "to which it cannot be converted" in fit.misfit
            made[f"{dialect} in no other form"] += 1
            continue
        assert fit.is_reframed, recorded.request
        assert fit.exchange.response
        call = derive_call(fit.exchange, PROFILES)
        assert (call.streamed, call.complete) == (True, True), recorded.request.url
        assert (
            list(
                differences(
                    without_defaults(json.loads(dumps(call.answer))), without_defaults(json.loads(dumps(answer)))
                )
            )
            == []
        )
        made[dialect] += 1
    assert set(made) == {*FORMS, "bedrock_invoke in no other form"}
    assert made.total() > 100


@pytest.mark.parametrize("dialect", [name for name in FORMS if name != "bedrock_invoke"])
def test_the_official_sdk_reads_the_stream_that_we_make(dialect: str) -> None:
    found = [one for one in whole_answers() if make_key(one[0].request, PROFILES).dialect == dialect]
    for recorded, answer in found[:8]:
        fit = adapt_answer(recorded, streaming(recorded.request), PROFILES)
        assert fit.exchange.response
        theirs = sdk(dialect, fit.exchange.response.body.data, recorded.request.url.partition("?")[0])
        ours = READ_WHOLE.get(dialect, lambda same: same)(json.loads(dumps(answer)))
        plain = json.loads(json.dumps(theirs, default=str))
        assert set(differences(without_defaults(ours), without_defaults(plain))) <= {
            "/metrics/latencyMs",
            "/created_at",
        }
    assert found


GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/g:"
ANSWER: Json = {"candidates": [{"content": {"parts": [{"text": "Hi"}], "role": "model"}, "finishReason": "STOP"}]}


@pytest.mark.parametrize(
    ("path", "form", "starts"),
    [
        ("generateContent", "whole", b"{"),
        ("streamGenerateContent", "array", b"[{"),
        ("streamGenerateContent?alt=sse", "sse", b"data: {"),
    ],
)
@pytest.mark.parametrize("recorded_path", ["generateContent", "streamGenerateContent", "streamGenerateContent?alt=sse"])
def test_gemini_s_three_forms_are_one_answer(recorded_path: str, path: str, form: AnswerForm, starts: bytes) -> None:
    """Whichever was recorded, whichever is asked for."""
    whole = exchange(post(GEMINI + "generateContent", b"{}"), ok(dumps(ANSWER)))
    first = adapt_answer(whole, post(GEMINI + recorded_path, b"{}"), PROFILES).exchange
    recorded = exchange(post(GEMINI + recorded_path, b"{}"), first.response)
    request = post(GEMINI + path, b"{}")
    response = adapt_answer(recorded, request, PROFILES).exchange.response
    assert response
    assert response.body.data.startswith(starts)
    call = derive_call(exchange(request, response), PROFILES)
    assert call.answer == ANSWER
    assert received_form(response, call) == requested_form(make_key(request, PROFILES), request) == form


def test_ollama_streams_unless_the_request_says_not_to() -> None:
    url = "http://localhost:11434/api/generate"
    forms = [
        requested_form(make_key(post(url, data), PROFILES), post(url, data)) for data in (b"{}", b'{"stream":false}')
    ]
    assert forms == ["ndjson", "whole"]


def test_a_stream_that_we_cannot_make_is_refused_and_says_so() -> None:
    url = "https://bedrock-runtime.us-east-1.amazonaws.com/model/ai21.j2-mid-v1/invoke"
    recorded = exchange(post(url, b"{}"), ok(b'{"id":1,"completions":[{"data":{"text":"Hi"}}]}'))
    fit = adapt_answer(recorded, post(url + "-with-response-stream", b"{}"), PROFILES)
    assert fit.misfit == (
        "it was recorded in one form (whole) and is now requested in another (eventstream), to which it cannot be converted"
    )


def test_every_dialect_s_streams_are_known_by_their_form() -> None:
    assert set(FORMS) <= set(BY_NAME)
