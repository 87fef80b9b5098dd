"""The dialects, in the order in which they are asked whether a request is theirs."""

from typing import Final

from calls.dialects import (
    Claim,
    Dialect,
    a2a,
    anthropic,
    bedrock_agent,
    bedrock_converse,
    bedrock_invoke,
    cohere_v1,
    cohere_v2,
    gemini,
    gemini_interactions,
    gemini_live,
    generic,
    graphql,
    mcp,
    ollama,
    openai_assistants,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_realtime,
    openai_responses,
    openai_responses_socket,
    openai_rest,
    replicate,
    rerank,
    text_generation,
    vectors,
    watsonx,
)

DIALECTS: Final[tuple[Dialect, ...]] = (
    openai_chat,
    openai_responses,
    openai_embeddings,
    openai_completions,
    openai_assistants,
    openai_realtime,
    openai_responses_socket,
    openai_rest,
    anthropic,
    gemini,
    gemini_interactions,
    gemini_live,
    bedrock_converse,
    bedrock_invoke,
    bedrock_agent,
    cohere_v1,
    cohere_v2,
    ollama,
    replicate,
    watsonx,
    text_generation,
    rerank,
    mcp,
    a2a,
    graphql,
    vectors,
    generic,
)

GENERIC: Final = Claim(dialect=generic.NAME, operation=generic.OPERATION, kind=None)

BY_NAME: Final = {dialect.NAME: dialect for dialect in DIALECTS}
