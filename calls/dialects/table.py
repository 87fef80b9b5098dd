"""The dialects, in the order in which they are asked whether a request is theirs."""

from typing import Final

from calls.dialects import (
    Claim,
    Dialect,
    a2a,
    anthropic,
    bedrock_converse,
    bedrock_invoke,
    cohere_v1,
    cohere_v2,
    gemini,
    generic,
    graphql,
    mcp,
    ollama,
    openai_assistants,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
    openai_rest,
    vectors,
)

DIALECTS: Final[tuple[Dialect, ...]] = (
    openai_chat,
    openai_responses,
    openai_embeddings,
    openai_completions,
    openai_assistants,
    openai_rest,
    anthropic,
    gemini,
    bedrock_converse,
    bedrock_invoke,
    cohere_v1,
    cohere_v2,
    ollama,
    mcp,
    a2a,
    graphql,
    vectors,
    generic,
)

GENERIC: Final = Claim(dialect=generic.NAME, operation=generic.OPERATION, kind=None)

BY_NAME: Final = {dialect.NAME: dialect for dialect in DIALECTS}
