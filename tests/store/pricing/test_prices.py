"""What calls cost: by their own usage, at the prices of their day; and no figure where nobody can know."""

import json
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import set_custom_snapshot
from hypothesis import given
from msgspec.structs import replace

from calls.derive import derive_call
from calls.model import Call, Exchange
from store.active_profiles import load_profiles
from store.pricing import prices
from store.pricing.prices import Cost, call_cost
from tests.calls.sockets import socket
from tests.calls.strategies import json_values
from tests.calls.test_derive import answered_exchange

PROFILES = load_profiles()
NOON = 1_795_262_400_000_000_000

OPENAI = "https://api.openai.com/v1"


def make_call(url: str, answer: Any, model: str = "m") -> tuple[Exchange, Call]:
    made = answered_exchange(url, {"model": model}, json.dumps(answer, default=float).encode())
    made = replace(made, started_at=NOON)
    return made, derive_call(made, PROFILES)


def usd(url: str, answer: Any, model: str = "m") -> float | None:
    found = call_cost(*make_call(url, answer, model))
    return None if found is None else float(found.usd)


CHATTED = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 600}}
RESPONDED = {"input_tokens": 1000, "output_tokens": 100, "input_tokens_details": {"cached_tokens": 600}}


def chat(model: str, usage: Any = None, **more: Any) -> dict[str, Any]:
    return {"model": model, "choices": [], "usage": CHATTED if usage is None else usage, **more}


MINI = (400 * 0.15 + 600 * 0.075 + 100 * 0.6) / 1e6
"""What gpt-4o-mini takes for that: OpenAI's list price since July 2024, per million."""


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        pytest.param(f"{OPENAI}/chat/completions", chat("gpt-4o-mini-2024-07-18"), id="a chat"),
        pytest.param(f"{OPENAI}/responses", {"model": "gpt-4o-mini", "usage": RESPONDED}, id="a response"),
        pytest.param(
            "https://x.openai.azure.com/openai/deployments/ours/chat/completions", chat("gpt-4o-mini"), id="azure"
        ),
    ],
)
def test_what_was_cached_costs_less(url: str, answer: Any) -> None:
    assert usd(url, answer) == pytest.approx(MINI)


def test_anthropic_counts_what_was_cached_beside_its_input() -> None:
    usage = {
        "input_tokens": 400,
        "output_tokens": 100,
        "cache_read_input_tokens": 600,
        "cache_creation_input_tokens": 0,
    }
    answer = {"type": "message", "model": "claude-3-5-haiku-20241022", "content": [], "usage": usage}
    # $0.80 in, $0.08 from the cache, $4 out.
    assert usd("https://api.anthropic.com/v1/messages", answer) == pytest.approx(
        (400 * 0.8 + 600 * 0.08 + 100 * 4) / 1e6
    )


@pytest.mark.parametrize(
    ("cached", "cost"),
    [
        ([{"modality": "TEXT", "tokenCount": 400}], (400 * 0.3 + 400 * 0.03 + 200 * 1 + 140 * 2.5) / 1e6),
        (
            [{"modality": "TEXT", "tokenCount": 300}, {"modality": "AUDIO", "tokenCount": 100}],
            (500 * 0.3 + 300 * 0.03 + 100 * 1 + 100 * 0.1 + 140 * 2.5) / 1e6,
        ),
        (None, None),  # how much of the audio was cached is not said
    ],
)
def test_audio_beside_a_cached_text_has_its_price(cached: Any, cost: float | None) -> None:
    usage = {
        "promptTokenCount": 1000,
        "candidatesTokenCount": 40,
        "thoughtsTokenCount": 100,
        "totalTokenCount": 1140,
        "cachedContentTokenCount": 400,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 800}, {"modality": "AUDIO", "tokenCount": 200}],
        **({"cacheTokensDetails": cached} if cached else {}),
    }
    answer = {"candidates": [], "modelVersion": "gemini-2.5-flash", "usageMetadata": usage}
    url = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:generateContent"
    found = usd(url, answer)
    assert found == (None if cost is None else pytest.approx(cost))


@pytest.mark.parametrize("url", [OPENAI, "https://x.openai.azure.com/openai/deployments/ours"])
def test_audio_is_not_charged_at_the_price_of_text(url: str) -> None:
    """The tables have no price of audio for gpt-4o-audio-preview: sixteen times that of text."""
    spoken = {
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "prompt_tokens_details": {"audio_tokens": 200, "cached_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 20},
    }
    silent = {**spoken, "prompt_tokens_details": {"audio_tokens": 0}, "completion_tokens_details": {"audio_tokens": 0}}
    heard_only = {**spoken, "completion_tokens_details": {"audio_tokens": 0}}
    for usage in (spoken, heard_only):
        assert usd(f"{url}/chat/completions", chat("gpt-4o-audio-preview", usage)) is None
    assert usd(f"{OPENAI}/chat/completions", chat("gpt-4o-audio-preview", silent)) == pytest.approx(
        (1000 * 2.5 + 50 * 10) / 1e6
    )
    assert usd(f"{OPENAI}/chat/completions", chat("gpt-audio", spoken)) == pytest.approx(
        (800 * 2.5 + 200 * 32 + 30 * 10 + 20 * 64) / 1e6
    )


@pytest.mark.parametrize(
    ("model", "usage", "cost"),
    [
        pytest.param(
            "gpt-4o-transcribe",
            {
                "type": "tokens",
                "input_tokens": 100,
                "input_token_details": {"text_tokens": 10, "audio_tokens": 90},
                "output_tokens": 20,
            },
            (10 * 2.5 + 90 * 6 + 20 * 10) / 1e6,
            id="by tokens",
        ),
        pytest.param("whisper-1", {"type": "duration", "seconds": 600}, 600 / 3600 * 0.36, id="by time"),
        pytest.param("gpt-4o-transcribe", {"type": "duration", "seconds": 600}, None, id="no price of time"),
    ],
)
def test_what_was_transcribed_costs_what_audio_costs(model: str, usage: Any, cost: float | None) -> None:
    found = usd(f"{OPENAI}/audio/transcriptions", {"text": "hello", "usage": usage}, model)
    assert found == (None if cost is None else pytest.approx(cost))


def test_each_search_that_openai_charges_by_use_is_added_to_the_tokens() -> None:
    """Ten dollars for a thousand searches of the web, two and a half for a thousand of files; a page that was opened is free."""
    output = [
        {"type": "web_search_call", "action": {"type": "search", "query": "a"}},
        {"type": "web_search_call", "action": {"type": "open_page", "url": "https://example.com"}},
        {"type": "web_search_call"},
        {"type": "file_search_call", "queries": ["b"]},
        {"type": "message", "content": []},
    ]
    answer = {"model": "gpt-4o-mini", "usage": RESPONDED, "output": output}
    assert usd(f"{OPENAI}/responses", answer) == pytest.approx(MINI + 2 * 0.01 + 0.0025)
    assert usd(f"{OPENAI}/responses", {**answer, "output": output[-1:]}) == pytest.approx(MINI)


def test_a_figure_says_whose_prices_it_is_of() -> None:
    found = call_cost(*make_call(f"{OPENAI}/chat/completions", chat("gpt-4o-mini")))
    assert found is not None
    assert found.prices == prices.tables_version()
    assert found.prices.startswith("genai-prices/0.")


def test_what_openrouter_says_that_it_cost_counts_and_so_does_the_key_that_one_brings() -> None:
    url = "https://openrouter.ai/api/v1/chat/completions"
    usage = {**CHATTED, "cost": 0.00000537, "cost_details": {"upstream_inference_cost": 0.00417}}
    assert call_cost(*make_call(url, chat("m", usage))) == Cost(usd=Decimal("0.00000537"), prices="provider")
    assert usd(url, chat("m", {**usage, "cost": 0, "is_byok": True})) == pytest.approx(0.00417)


def test_what_vercels_gateway_says_that_it_cost_counts() -> None:
    answer = {"content": [], "providerMetadata": {"gateway": {"cost": "0.00021"}}}
    url = "https://ai-gateway.vercel.sh/v3/ai/language-model"
    assert call_cost(*make_call(url, answer)) == Cost(usd=Decimal("0.00021"), prices="provider")
    assert call_cost(*make_call(url, {"content": [], "providerMetadata": {"gateway": {"cost": "dear"}}})) is None


UNKNOWN = {
    "a model of one's own": (f"{OPENAI}/chat/completions", chat("our-model")),
    "a server of one's own": ("http://localhost:8000/v1/chat/completions", chat("gpt-4o-mini")),
    "a gateway": ("https://llm.example.com/v1/chat/completions", chat("gpt-4o-mini")),
    "no usage": (f"{OPENAI}/chat/completions", {"model": "gpt-4o-mini", "choices": []}),
    "usage that is none": (f"{OPENAI}/chat/completions", chat("gpt-4o-mini", {"prompt_tokens": -1})),
    "a sum that is none": (f"{OPENAI}/chat/completions", chat("gpt-4o-mini", {"prompt_tokens": 10**30})),
    "an error": (f"{OPENAI}/chat/completions", {"error": {"message": "no"}}),
    "a tool": ("https://tickets.example.com/", chat("gpt-4o-mini")),
    "work that goes on": (
        f"{OPENAI}/responses",
        {"id": "r", "status": "queued", "background": True, "model": "gpt-4o-mini", "usage": RESPONDED},
    ),
}


@pytest.mark.parametrize(("url", "answer"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_nobody_can_know_has_no_figure(url: str, answer: Any) -> None:
    assert usd(url, answer) is None


def test_a_number_that_no_float_holds_has_no_figure() -> None:
    answer = b'{"model": "gpt-4o-mini", "choices": [], "usage": {"prompt_tokens": 1e400}}'
    made = replace(answered_exchange(f"{OPENAI}/chat/completions", {"model": "m"}, answer), started_at=NOON)
    assert call_cost(made, derive_call(made, PROFILES)) is None


@pytest.mark.parametrize(
    ("mark", "free"),
    [('replayed; run="base"; step=1', True), ('edited; run="base"', True), ('live; run="child"', False), ("", False)],
)
def test_what_a_recording_answered_was_paid_for_once(mark: str, free: bool) -> None:
    made, call = make_call(f"{OPENAI}/chat/completions", chat("gpt-4o-mini"))
    assert made.response is not None
    response = replace(made.response, headers=(*made.response.headers, *((("Playhead", mark),) if mark else ())))
    found = call_cost(replace(made, response=response), call)
    assert found is not None
    assert (found.usd == 0, found.prices == "record") == (free, free)


def test_to_count_tokens_is_free() -> None:
    assert usd("https://api.anthropic.com/v1/messages/count_tokens", {"input_tokens": 5}) == 0


def test_prices_fetched_meanwhile_by_somebody_else_in_the_process_are_not_ours() -> None:
    set_custom_snapshot(prices._tables().__class__(providers=[], from_auto_update=True))
    try:
        with pytest.raises(LookupError):
            calc_price(Usage(input_tokens=1), "gpt-4o-mini", provider_id="openai")
        prices._table_prices.cache_clear()
        assert usd(f"{OPENAI}/chat/completions", chat("gpt-4o-mini")) == pytest.approx(MINI)
    finally:
        set_custom_snapshot(None)


@given(json_values)
def test_no_usage_surprises_us(usage: Any) -> None:
    for result in (usage, {"prompt_tokens": usage}, {"prompt_tokens": 1, "prompt_tokens_details": usage}):
        usd(f"{OPENAI}/chat/completions", chat("gpt-4o-mini", result))
        usd("https://openrouter.ai/api/v1/chat/completions", chat("m", {"cost": result}))
        usd("https://api.anthropic.com/v1/messages", {"model": "claude-3-5-haiku-20241022", "usage": result})


SPOKEN_USAGE: Any = {
    "total_tokens": 150,
    "input_tokens": 100,
    "output_tokens": 50,
    "input_token_details": {"text_tokens": 40, "audio_tokens": 60, "cached_tokens": 0},
    "output_token_details": {"text_tokens": 10, "audio_tokens": 40},
}
LIVE_USAGE: Any = {
    "promptTokenCount": 100,
    "responseTokenCount": 50,
    "totalTokenCount": 150,
    "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 60}, {"modality": "TEXT", "tokenCount": 40}],
    "responseTokensDetails": [{"modality": "AUDIO", "tokenCount": 50}],
}
GOOGLE_LIVE = "https://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1beta.GenerativeService"


def realtime_cost(model: str, *usages: Any) -> float | None:
    done: Any = [{"type": "response.done", "response": {"id": f"r{n}", "usage": u}} for n, u in enumerate(usages)]
    session: Any = {"type": "session.created", "session": {"id": "s", "model": model}}
    said = socket(
        *(("response", one) for one in (session, *done)), url=f"wss://api.openai.com/v1/realtime?model={model}"
    )
    found = call_cost(replace(said, started_at=NOON), derive_call(said, PROFILES))
    return None if found is None else float(found.usd)


def live_cost(model: str, *usages: Any) -> float | None:
    turns: Any = [{"serverContent": {"turnComplete": True}, "usageMetadata": usage} for usage in usages]
    setup: Any = {"setup": {"model": f"models/{model}"}}
    said = socket(("request", setup), *(("response", one) for one in turns), url=f"{GOOGLE_LIVE}.BidiGenerateContent")
    found = call_cost(replace(said, started_at=NOON), derive_call(said, PROFILES))
    return None if found is None else float(found.usd)


@pytest.mark.parametrize("turns", [1, 3])
def test_what_is_spoken_over_a_websocket_costs_what_audio_costs(turns: int) -> None:
    spoken = (40 * 4 + 60 * 32 + 10 * 16 + 40 * 64) / 1e6
    assert realtime_cost("gpt-realtime", *[SPOKEN_USAGE] * turns) == pytest.approx(spoken * turns)
    lived = (40 * 0.5 + 60 * 3 + 50 * 12) / 1e6
    assert live_cost("gemini-live-2.5-flash", *[LIVE_USAGE] * turns) == pytest.approx(lived * turns)


def test_speech_of_a_live_model_without_a_price_of_audio_has_no_cost() -> None:
    assert live_cost("gemini-2.5-flash", LIVE_USAGE) is None
    assert realtime_cost("gpt-realtime", SPOKEN_USAGE, {"input_tokens": "many"}) is None
