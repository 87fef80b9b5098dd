"""An answer of Vercel's gateway, put into the other form, means what it meant."""

from calls.codec.json import dumps, parse_json
from calls.derive import derive_call
from calls.model import Json
from replay.reframing.adapt_answer import adapt_answer
from tests.calls.sample_requests import PROFILES, json_request
from tests.replay.strategies import exchange, ok

URL = "https://ai-gateway.vercel.sh/v3/ai/language-model"
WHOLE: dict[str, Json] = {
    "content": [
        {"type": "reasoning", "text": "Hm.", "providerMetadata": {"anthropic": {"signature": "c2ln"}}},
        {"type": "text", "text": "Grüße"},
        {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": '{"a":1}'},
        {"type": "source", "sourceType": "url", "id": "s", "url": "https://e.example"},
    ],
    "finishReason": {"unified": "tool-calls", "raw": "tool_use"},
    "usage": {"inputTokens": {"total": 3}, "outputTokens": {"total": 2}},
    "response": {"id": "r", "modelId": "m-1"},
    "warnings": [],
}


def test_there_and_back_is_the_answer_again() -> None:
    whole, stream = (
        json_request(URL, {"prompt": []}, ("ai-language-model-streaming", result)) for result in ("false", "true")
    )
    recorded = exchange(whole, ok(dumps(WHOLE)))

    there = adapt_answer(recorded, stream, PROFILES)
    call = derive_call(there.exchange, PROFILES)

    assert (there.is_reframed, there.misfit, call.streamed, call.complete) == (True, None, True, True)
    assert call.answer == WHOLE
    assert (call.model_returned, call.usage.output_tokens) == ("m-1", 2)
    back = adapt_answer(exchange(stream, there.exchange.response), whole, PROFILES)
    assert back.exchange.response is not None
    assert parse_json(back.exchange.response.body.data) == WHOLE
