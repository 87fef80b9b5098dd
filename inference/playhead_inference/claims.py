"""What may be said of one request: `true` only where everything it uses was checked. Pure."""

from collections.abc import Mapping
from typing import Any, Final

TRUE: Final = "true"

PATHS: Final = ("/v1/completions", "/v1/chat/completions")
"""Where requests are answered that the self-check stands for."""

CHECKED: Final = frozenset(
    """
    model prompt messages max_tokens max_completion_tokens min_tokens ignore_eos temperature seed top_p top_k min_p
    presence_penalty frequency_penalty repetition_penalty logprobs top_logprobs n stream stream_options stop stop_token_ids
    cache_salt
    """.split()  # noqa: SIM905 # a list of words
)
"""Fields that the self-check uses, or that only say what is done with tokens once they are chosen."""

HARMLESS: Final = frozenset(
    """
    user request_id session_id return_token_ids return_tokens_as_token_ids return_token_offsets skip_special_tokens
    spaces_between_special_tokens include_stop_str_in_output add_special_tokens add_generation_prompt
    continue_final_message chat_template chat_template_kwargs stream_interval metadata store service_tier parallel_tool_calls
    include_reasoning reasoning_effort documents
    """.split()  # noqa: SIM905 # likewise
)
"""Fields that make the prompt or shape the answer's JSON; tokens depend on them through the prompt alone."""

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
"""Values with which a field that was not checked does nothing."""

MOST_LOGPROBS: Final = 20
"""The most logprobs that a neighbour or the needle asks for in the self-check."""

ALL_ANSWERS: Final = 2
"""The largest `n` that the self-check asks for."""


def claim(path: str, request: Any, defaults: Mapping[str, Any]) -> str:
    """`true`, or `not-claimed; reason=…`. `defaults`: what the server sets where a request does not."""
    reason = _unchecked(path, request, defaults)
    return TRUE if reason is None else not_claimed(reason)


def not_claimed(reason: str) -> str:
    """The header's value where nothing is claimed."""
    return f"not-claimed; reason={reason}"


def _unchecked(path: str, request: Any, defaults: Mapping[str, Any]) -> str | None:
    """The first thing about a request that was not checked."""
    if path not in PATHS:
        return "path"
    if not isinstance(request, Mapping):
        return "body"
    for name, value in request.items():
        if name not in CHECKED and name not in HARMLESS and value is not None and value not in NEUTRAL.get(name, ()):
            # A name from the wire goes into a header: only what a header may hold.
            return name if name.isidentifier() and name.isascii() and len(name) <= 40 else "unknown-field"
    if _number(request.get("n"), 1) > ALL_ANSWERS:
        return "n"
    if max(_number(request.get("logprobs"), 0), _number(request.get("top_logprobs"), 0)) > MOST_LOGPROBS:
        return "logprobs"
    return _unrepeatable(request, defaults)


def _unrepeatable(request: Mapping[str, Any], defaults: Mapping[str, Any]) -> str | None:
    given = request.get("temperature")
    temperature = defaults.get("temperature", 1.0) if given is None else given
    greedy = isinstance(temperature, (int, float)) and temperature == 0
    return None if greedy or request.get("seed") is not None else "unseeded"


def _number(value: Any, default: int) -> float:
    """A count; true and false are 1 and 0. What is no count is too many: -1 logprobs are those of the whole vocabulary."""
    if value is None:
        return default
    return float(value) if isinstance(value, (int, float)) and value >= 0 else float("inf")
