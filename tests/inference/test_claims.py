"""`true` is claimed only for what the self-check uses."""

from typing import Any

import pytest
from playhead_inference.claims import CHECKED, HARMLESS, NEUTRAL, claim_for

GREEDY = {"model": "m", "prompt": "who", "temperature": 0}
COMPLETIONS = "/v1/completions"


def claim_text(request: Any, **defaults: Any) -> str:
    return claim_for(COMPLETIONS, request, defaults)


@pytest.mark.parametrize(
    "request_",
    [
        GREEDY,
        {**GREEDY, "temperature": 0.0, "seed": None, "logit_bias": None},
        {**GREEDY, "temperature": 0.8, "seed": 0},
        {**GREEDY, "n": 2, "stream": True, "logprobs": 20, "presence_penalty": 1.0, "top_p": 0.5},
        {**GREEDY, "response_format": {"type": "text"}, "echo": False, "tools": [], "logit_bias": {}},
    ],
)
def test_what_was_checked_is_claimed(request_: dict[str, Any]) -> None:
    assert claim_text(request_) == "true"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"temperature": 1}, "unseeded"),
        ({"temperature": None}, "unseeded"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"guided_json": {}}, "guided_json"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True}, "echo"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"n": 3}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"top_logprobs": -1}, "logprobs"),
        ({"a field of tomorrow": 1}, "unknown-field"),
    ],
)
def test_what_was_not_is_not_and_says_what_it_is(more: dict[str, Any], reason: str) -> None:
    assert claim_text({**GREEDY, **more}) == f"not-claimed; reason={reason}"


def test_the_server_s_own_temperature_counts_where_a_request_names_none() -> None:
    assert claim_text({"prompt": "who"}, temperature=0) == "true"
    assert claim_text({"prompt": "who"}, temperature=0.6) == "not-claimed; reason=unseeded"
    assert claim_text({"prompt": "who"}) == "not-claimed; reason=unseeded"


@pytest.mark.parametrize("request_", [None, [], "who", 3])
def test_a_request_that_is_no_object_is_not_claimed(request_: Any) -> None:
    assert claim_text(request_) == "not-claimed; reason=body"


def test_other_paths_are_not_claimed() -> None:
    assert claim_for("/v1/responses", GREEDY, {}) == "not-claimed; reason=path"


def test_a_field_is_of_one_kind_only() -> None:
    assert not CHECKED & HARMLESS
    assert not (CHECKED | HARMLESS) & set(NEUTRAL)
