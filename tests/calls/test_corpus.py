"""Every exchange that the corpus holds means a call, and none of them is a surprise."""

import json
from functools import lru_cache

from calls.codec.json import dumps
from calls.derive import derive_call
from calls.events import ExchangeClosed
from calls.exchange_builder import ExchangeBuilder
from calls.keys.explain import explain_key
from calls.keys.key import make_key, raw_digest
from calls.model import Call, Exchange
from store.active_profiles import load_profiles
from tests.calls.recorded import exchange
from tests.support.corpus import cassettes
from tests.support.exchange_events import exchange_events

PROFILES = load_profiles()


@lru_cache(maxsize=1)
def calls() -> list[tuple[Exchange, Call]]:
    found = [exchange(one, cassette.name) for cassette in cassettes() for one in cassette.exchanges]
    return [(one, derive_call(one, PROFILES)) for one in found]


def test_every_exchange_means_a_call_that_can_be_written() -> None:
    assert len(calls()) > 2000
    for _, call in calls():
        json.loads(dumps(call.answer))
        json.loads(dumps(call.request))
        json.loads(dumps(dict(call.params)))


def test_no_known_field_of_a_model_request_is_unknown_to_its_profile() -> None:
    warned = {warning for _, call in calls() if call.dialect != "generic" for warning in call.warnings}
    assert {warning for warning in warned if "not classified" in warning} == set()


def test_every_recorded_stream_of_a_known_dialect_is_complete_and_says_so() -> None:
    cut = [(one.request.url, call.text) for one, call in calls() if call.streamed and not call.complete]
    assert cut == []


def test_a_successful_model_call_says_what_it_is() -> None:
    for one, call in calls():
        assert one.response is not None
        if call.dialect == "generic" or one.response.status != 200 or not one.response.body.data:
            continue
        if call.operation == "chat" and "error" not in (call.answer or {}):  # type: ignore[operator] # an object
            silent = call.dialect.startswith(("bedrock", "cohere"))  # their answers do not name the model
            assert call.model_returned or silent or not call.finish_reason, one.request.url
            assert call.text is not None or call.tool_calls or call.finish_reason, one.request.url


def test_tokens_are_counted_wherever_the_provider_reported_them() -> None:
    for one, call in calls():
        usage = call.answer.get("usage") if isinstance(call.answer, dict) else None
        if call.kind == "model" and call.dialect != "generic" and isinstance(usage, dict):
            # OpenAI leaves out what is none: an embedding's output, an empty completion's.
            counted = "output_tokens" if usage.keys() & {"completion_tokens", "output_tokens"} else "input_tokens"
            assert getattr(call.usage, counted) is not None, one.request.url


def test_an_exchange_is_the_fold_of_its_events_and_means_the_same() -> None:
    for one, call in calls()[::25]:
        fold = ExchangeBuilder()
        for event in exchange_events(one):
            fold.feed(event)
        assert fold.build() == one
        assert derive_call(fold.build(), PROFILES) == call


def test_an_exchange_cut_at_its_half_means_a_call_that_is_not_complete() -> None:
    for one, call in calls()[::10]:
        if not call.streamed:
            continue
        fold = ExchangeBuilder()
        for event in exchange_events(one):
            if not isinstance(event, ExchangeClosed):
                fold.feed(event)
        unfinished = fold.build()
        assert unfinished.outcome == "server_closed"
        assert derive_call(unfinished, PROFILES).answer == call.answer


def test_every_key_can_be_explained_and_equal_raw_requests_have_equal_keys() -> None:
    by_raw: dict[str, str] = {}
    for one, call in calls():
        explained = explain_key(make_key(one.request, PROFILES))
        assert explained.key == call.key
        dumps(explained.as_json())
        assert by_raw.setdefault(raw_digest(one.request), call.key) == call.key
