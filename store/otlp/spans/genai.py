"""The attributes of a call under OpenTelemetry's GenAI semantic conventions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from calls.codec.json import dumps
from calls.model import Json
from store.otlp.spans.attributes import Attributes
from store.otlp.spans.call_facts import SpannedCall, call_documents, call_query, is_number
from store.otlp.spans.conversation import Message, Part
from store.otlp.spans.limits import MAX_MESSAGES, json_text

_PARAMETERS: Final = {
    "temperature": ("temperature",),
    "top_p": ("top_p", "topP"),
    "top_k": ("top_k", "topK"),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "maxTokens"),
    "frequency_penalty": ("frequency_penalty", "frequencyPenalty"),
    "presence_penalty": ("presence_penalty", "presencePenalty"),
    "seed": ("seed",),
}
"""By our key, the names of a parameter in requests. Only numbers are exported: a text might be content."""

_LEVELS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def put_genai(attributes: Attributes, names: Mapping[str, str], call: SpannedCall, *, run: str, content: bool) -> None:
    """Add the attributes of a call. `names` is a version of the conventions."""

    def put(key: str, value: Any) -> None:
        attributes.put(names.get(key), value)

    shape = call.shape
    put("operation", call.operation)
    put("conversation", run)
    put("agent_name", shape["actor"])
    put("server", shape["host"])
    put("method", shape["method"])
    put("status", shape["status"])
    put("error", call.error)
    put("tool_name", call.tool_name)
    put("tool_call_id", call.tool.id if call.tool else None)
    if shape["kind"] == "model":
        _put_model(put, call)
    if content:
        _put_content(put, names, call)


def _put_model(put: Any, call: SpannedCall) -> None:
    shape, tokens = call.shape, call.tokens
    put("provider", shape["provider"])
    put("request_model", call.model)
    put("response_model", shape["model_returned"])
    put("response_id", call.response_id)
    put("finish_reasons", [shape["finish_reason"]] if shape["finish_reason"] else None)
    put("input_tokens", tokens.input)
    put("output_tokens", tokens.output)
    put("cached_tokens", tokens.cached)
    put("cache_written_tokens", tokens.cache_written)
    put("reasoning_tokens", tokens.reasoning)
    put("stream", True if shape["streamed"] else None)
    if shape["streamed"] and shape["first_byte_ms"] is not None:
        put("first_chunk", shape["first_byte_ms"] / 1000)
    parameters = shape["params"] or {}
    for key, spellings in _PARAMETERS.items():
        put(key, next((found for name in spellings if is_number(found := parameters.get(name))), None))
    level = parameters.get("reasoning_effort")
    put("reasoning_level", level if level in _LEVELS else None)


def _put_content(put: Any, names: Mapping[str, str], call: SpannedCall) -> None:
    shape = call.shape
    if shape["kind"] == "model" and "input" in names:
        content = call.content
        system = content.conversation.system
        put("system", _json([_part(part) for part in system]) if system else None)
        put("input", _json(messages_json(content.messages)) if content.messages else None)
        if content.answer.parts:
            finish = shape["finish_reason"] or ("error" if call.error else "stop")
            put("output", _json([_message(content.answer) | {"finish_reason": finish}]))
        definitions = dumps(list(content.conversation.tools))
        put(
            "tool_definitions",
            definitions.decode() if content.conversation.tools and len(definitions) < MAX_MESSAGES else None,
        )
    elif shape["kind"] == "tool":
        arguments, result = tool_input_output(call)
        put("tool_arguments", arguments)
        put("tool_result", result)
    elif shape["kind"] == "retrieval":
        put("query", call_query(call))
        documents = [{"id": one.id, "score": one.score} for one in call_documents(call)]
        put("documents", _json(documents) if documents else None)


def tool_input_output(call: SpannedCall) -> tuple[str | None, str | None]:
    """Return the arguments and the result of a tool as texts: of MCP those of the tool, else the request and the answer."""
    shape = call.shape
    arguments = shape["tool_calls"][0]["arguments"] if shape["tool_calls"] else shape.get("request")
    result = shape["text"] if shape["text"] is not None else shape.get("answer")
    return (*(None if value is None else json_text(value) for value in (arguments, result)),)  # type: ignore[return-value] # two


def messages_json(messages: Sequence[Message]) -> list[Json]:
    """Return messages in the form of the published JSON schema."""
    return [_message(message) for message in messages]


def _message(message: Message) -> dict[str, Json]:
    return {"role": message.role, "parts": [_part(part) for part in message.parts]}


def _part(part: Part) -> dict[str, Json]:
    match part.kind:
        case "text" | "reasoning":
            return {"type": part.kind, "content": part.text}
        case "tool_call":
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.value}
        case "tool_call_response":
            return {"type": "tool_call_response", "id": part.id, "response": part.value}
        case _ if part.text:
            return {"type": "uri", "modality": part.name, "uri": part.text}
        case _:
            # Bytes of media stay in the recording.
            return {"type": "media", "modality": part.name}


def _json(value: Json) -> str:
    return dumps(value).decode("utf-8", "replace")
