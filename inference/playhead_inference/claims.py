"""Decide what may be claimed for one request: `true` only if everything it uses was checked. Pure."""

from collections.abc import Mapping
from typing import Any, Final

TRUE: Final = "true"

PATHS: Final = ("/v1/completions", "/v1/chat/completions")
"""The endpoints that the self-check covers."""

CHECKED: Final = frozenset(
    """
    model prompt messages max_tokens max_completion_tokens min_tokens ignore_eos temperature seed top_p top_k min_p
    presence_penalty frequency_penalty repetition_penalty logprobs top_logprobs n stream stream_options stop stop_token_ids
    cache_salt
    """.split()  # noqa: SIM905 # a list of words
)
"""Fields that the self-check uses, or that only affect what happens to tokens after they are chosen."""

HARMLESS: Final = frozenset(
    """
    user request_id session_id return_token_ids return_tokens_as_token_ids return_token_offsets skip_special_tokens
    spaces_between_special_tokens include_stop_str_in_output add_special_tokens add_generation_prompt
    continue_final_message chat_template chat_template_kwargs stream_interval metadata store service_tier parallel_tool_calls
    include_reasoning reasoning_effort documents
    """.split()  # noqa: SIM905 # likewise
)
"""Fields that form the prompt or the answer's JSON. Tokens depend on them only through the prompt."""

NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "echo": (False,),
    "use_beam_search": (False,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none",),
    "tools": ([],),
    "logit_bias": ({},),
    "bad_words": ([],),
    "best_of": (1,),
    "suffix": ("",),
    "priority": (0,),
    "length_penalty": (1.0,),
}
"""Values with which an unchecked field has no effect."""

MOST_LOGPROBS: Final = 20
"""Maximum logprobs that a request of the self-check asks for."""

ALL_ANSWERS: Final = 2
"""The largest `n` of a request of the self-check."""


def claim_for(path: str, request: Any, defaults: Mapping[str, Any]) -> str:
    """The claim for a request: `true`, or `not-claimed; reason=…`. `defaults` apply to parameters that it does not set."""
    reason = _first_unchecked(path, request, defaults)
    return TRUE if reason is None else not_claimed_value(reason)


def not_claimed_value(reason: str) -> str:
    """The header's value if nothing is claimed."""
    return f"not-claimed; reason={reason}"


def _first_unchecked(path: str, request: Any, defaults: Mapping[str, Any]) -> str | None:
    """The reason why a request is not covered; None if it is."""
    if path not in PATHS:
        return "path"
    if not isinstance(request, Mapping):
        return "body"
    for name, value in request.items():
        if name not in CHECKED and name not in HARMLESS and value is not None and value not in NEUTRAL.get(name, ()):
            # The name comes from the wire and goes into a header, so only safe characters may pass.
            return name if name.isidentifier() and name.isascii() and len(name) <= 40 else "unknown-field"
    if _number(request.get("n"), 1) > ALL_ANSWERS:
        return "n"
    if max(_number(request.get("logprobs"), 0), _number(request.get("top_logprobs"), 0)) > MOST_LOGPROBS:
        return "logprobs"
    return _unrepeatable_reason(request, defaults)


def _unrepeatable_reason(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> str | None:
    given = request.get("temperature")
    temperature = defaults.get("temperature", 1.0) if given is None else given
    greedy = isinstance(temperature, (int, float)) and temperature == 0
    return None if greedy or request.get("seed") is not None else "unseeded"


def _number(value: Any, default: int) -> float:
    """A count; true and false are 1 and 0. Any other value is infinite: -1 logprobs means the whole vocabulary."""
    if value is None:
        return default
    return float(value) if isinstance(value, (int, float)) and value >= 0 else float("inf")
