"""The profiles in force: the user's own, then the built-in ones in the order of the dialects."""

from functools import lru_cache
from pathlib import Path

import calls.profiles
from calls.keys.profile import Profile, Profiles
from calls.keys.profile_toml import parse

SHIPPED = (
    *("openai_chat", "openai_responses", "openai_embeddings", "openai_completions", "openai_assistants"),
    *("openai_agents", "openai_rest"),
    *("openai_realtime", "openai_responses_socket", "gemini_live"),
    *("anthropic", "anthropic_sessions", "gemini", "gemini_code", "gemini_interactions"),
    *("bedrock_converse", "bedrock_invoke", "bedrock_agent", "bedrock_others"),
    *("cohere_v1", "cohere_v2", "dashscope", "discovery", "mistral_conversations", "ollama"),
    *("replicate", "watsonx", "sagemaker", "text_generation", "rerank", "services", "ai_gateway"),
    *("mcp", "a2a", "graphql", "searches", "vectors", "reports", "rest"),
)
"""The last one matches everything."""


def shipped(extra_toml: str | None = None) -> Profiles:
    """All profiles, the `[[profile]]` tables of the user's TOML first. Raises `BadProfile` with the line of a mistake."""
    own = parse(extra_toml, _ours()) if extra_toml else ()
    return Profiles((*own, *_ours()))


@lru_cache(maxsize=1)
def _ours() -> tuple[Profile, ...]:
    return tuple(profile for name in SHIPPED for profile in parse(text_of(name), trusted=True))


def text_of(name: str) -> str:
    """One of ours as it is written. A test checks its paths, so that no start of a process has to."""
    return Path(calls.profiles.__path__[0], f"{name}.toml").read_text("utf-8")
