"""The dialects, in the order in which they are asked whether a request is theirs."""

from typing import Final

from calls.dialects import Claim, Dialect, generic
from calls.dialects.anthropic import messages as anthropic
from calls.dialects.anthropic import sessions as anthropic_sessions
from calls.dialects.aws import bedrock_agent, bedrock_converse, bedrock_invoke, sagemaker
from calls.dialects.aws import bedrock_operations as bedrock_others
from calls.dialects.google import discovery, gemini, gemini_code, gemini_interactions, gemini_live
from calls.dialects.openai import agents as openai_agents
from calls.dialects.openai import assistants as openai_assistants
from calls.dialects.openai import chat as openai_chat
from calls.dialects.openai import completions as openai_completions
from calls.dialects.openai import embeddings as openai_embeddings
from calls.dialects.openai import realtime as openai_realtime
from calls.dialects.openai import responses as openai_responses
from calls.dialects.openai import responses_websocket as openai_responses_socket
from calls.dialects.openai import rest as openai_rest
from calls.dialects.protocols import a2a, graphql, mcp
from calls.dialects.services import (
    ai_gateway,
    cohere_v1,
    cohere_v2,
    dashscope,
    mistral_conversations,
    ollama,
    replicate,
    rerank,
    text_generation,
    watsonx,
)
from calls.dialects.services import single_service as services
from calls.dialects.services import vector_databases as vectors
from calls.dialects.services import web_search as searches

DIALECTS: Final[tuple[Dialect, ...]] = (
    openai_chat,
    openai_responses,
    openai_embeddings,
    openai_completions,
    openai_assistants,
    openai_agents,
    openai_realtime,
    openai_responses_socket,
    openai_rest,
    anthropic,
    anthropic_sessions,
    gemini,
    gemini_code,
    gemini_interactions,
    gemini_live,
    bedrock_converse,
    bedrock_invoke,
    bedrock_agent,
    bedrock_others,
    cohere_v1,
    cohere_v2,
    dashscope,
    discovery,
    mistral_conversations,
    ollama,
    replicate,
    watsonx,
    sagemaker,
    text_generation,
    rerank,
    services,
    ai_gateway,
    mcp,
    a2a,
    graphql,
    searches,
    vectors,
    generic,
)

GENERIC: Final = Claim(dialect=generic.NAME, operation=generic.OPERATION, kind=None)

BY_NAME: Final = {dialect.NAME: dialect for dialect in DIALECTS}
