"""The attribute names of each version of OpenTelemetry's GenAI semantic conventions.

Every `gen_ai.*` name has the status Development, and names still change. So spans are made with our own keys, and this table
says what each key is called in a version; a key that a version lacks is left out.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_STEADY: Final = {
    "operation": "gen_ai.operation.name",
    "conversation": "gen_ai.conversation.id",
    "agent_name": "gen_ai.agent.name",
    "request_model": "gen_ai.request.model",
    "response_model": "gen_ai.response.model",
    "response_id": "gen_ai.response.id",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "stop": "gen_ai.request.stop_sequences",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "choices": "gen_ai.request.choice.count",
    "tool_name": "gen_ai.tool.name",
    "tool_call_id": "gen_ai.tool.call.id",
    "data_source": "gen_ai.data_source.id",
    "error": "error.type",
    "server": "server.address",
    "port": "server.port",
    "method": "http.request.method",
    "status": "http.response.status_code",
}
"""Names that all versions in the table have."""

_MESSAGES: Final = {
    "provider": "gen_ai.provider.name",
    "system": "gen_ai.system_instructions",
    "input": "gen_ai.input.messages",
    "output": "gen_ai.output.messages",
    "tool_definitions": "gen_ai.tool.definitions",
    "tool_arguments": "gen_ai.tool.call.arguments",
    "tool_result": "gen_ai.tool.call.result",
}
"""Names that 1.37 brought: content as attributes, and the provider instead of the system."""

_CACHE_READ: Final = {
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "query": "gen_ai.retrieval.query.text",
    "documents": "gen_ai.retrieval.documents",
}

VERSIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "1.36": MappingProxyType({**_STEADY, "provider": "gen_ai.system"}),
        "1.37": MappingProxyType({**_STEADY, **_MESSAGES}),
        "1.40": MappingProxyType(
            {**_STEADY, **_MESSAGES, **_CACHE_READ, "cache_written_tokens": "gen_ai.usage.cache_creation.input_tokens"}
        ),
        # The repository semantic-conventions-genai, which has no release yet, as of 2026-11.
        "2026-11": MappingProxyType(
            {
                **_STEADY,
                **_MESSAGES,
                **_CACHE_READ,
                "cache_written_tokens": "gen_ai.usage.cache_write.input_tokens",
                "reasoning_tokens": "gen_ai.usage.reasoning.output_tokens",
                "reasoning_level": "gen_ai.request.reasoning.level",
                "first_chunk": "gen_ai.response.time_to_first_chunk",
                "stream": "gen_ai.request.stream",
            }
        ),
    }
)
"""By version, what our keys are called. The oldest has no content in attributes."""

DEFAULT_VERSION: Final = "2026-11"
