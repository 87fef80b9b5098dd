"""The attributes of a call under OpenInference, which Phoenix and others read."""

from collections.abc import Iterator, Sequence
from typing import Final

from calls.codec.json import dumps
from store.otlp.spans.attributes import Attributes, Value
from store.otlp.spans.call_facts import (
    SpannedCall,
    call_documents,
    call_embeddings,
    call_query,
    is_number,
)
from store.otlp.spans.conversation import Message, Part
from store.otlp.spans.genai import tool_input_output
from store.otlp.spans.limits import cut_text, json_text

TEXT: Final = "text/plain"
JSON: Final = "application/json"

_PROVIDERS: Final = {
    "gcp.gemini": "google",
    "gcp.vertex_ai": "google",
    "aws.bedrock": "aws",
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "mistral_ai": "mistralai",
    "x_ai": "xai",
}


def put_openinference(attributes: Attributes, call: SpannedCall, *, run: str, content: bool) -> None:
    """Add the attributes of a call."""
    put, shape = attributes.put, call.shape
    put("openinference.span.kind", call.kind)
    put("session.id", run)
    put("metadata", _json_text(_metadata(call)))
    put("tool.name", call.tool_name)
    put("tool.id", call.tool.id if call.tool else None)
    if shape["kind"] == "model":
        _put_model(attributes, call)
    if content:
        _put_content(attributes, call)


def _metadata(call: SpannedCall) -> dict[str, Value]:
    shape = call.shape
    members = (
        "step",
        "actor",
        "dialect",
        "operation",
        "attempts",
        "outcome",
        "complete",
        "streamed",
        "key",
        "cost_usd",
    )
    return {name: shape[name] for name in members if shape.get(name) is not None} | {"call": shape["id"]}


def _put_model(attributes: Attributes, call: SpannedCall) -> None:
    put, shape, tokens = attributes.put, call.shape, call.tokens
    put(
        {"EMBEDDING": "embedding.model_name", "RERANKER": "reranker.model_name"}.get(call.kind, "llm.model_name"),
        shape["model_returned"] or call.model,
    )
    put("llm.provider", _PROVIDERS.get(shape["provider"], shape["provider"]))
    put("llm.finish_reason", shape["finish_reason"])
    numbers = {name: value for name, value in (shape["params"] or {}).items() if is_number(value)}
    put("llm.invocation_parameters", _json_text(numbers) if numbers else None)
    put("llm.token_count.prompt", tokens.input)
    put("llm.token_count.completion", tokens.output)
    known = [count for count in (tokens.input, tokens.output) if count is not None]
    put("llm.token_count.total", sum(known) if known else None)
    put("llm.token_count.prompt_details.cache_read", tokens.cached)
    put("llm.token_count.prompt_details.cache_write", tokens.cache_written)
    put("llm.token_count.completion_details.reasoning", tokens.reasoning)
    put("llm.cost.total", shape["cost_usd"])
    if call.cost_parts:
        put("llm.cost.prompt", call.cost_parts.input)
        put("llm.cost.completion", call.cost_parts.output)


def _put_content(attributes: Attributes, call: SpannedCall) -> None:
    match call.kind:
        case "LLM" | "AGENT":
            _put_conversation(attributes, call)
        case "EMBEDDING":
            for number, text in enumerate(call_embeddings(call)):
                attributes.put(f"embedding.embeddings.{number}.embedding.text", cut_text(text))
        case "RETRIEVER" | "RERANKER":
            _put_documents(attributes, call)
        case _:
            tool_input, tool_output = tool_input_output(call)
            _put_value(attributes, "input", tool_input)
            _put_value(attributes, "output", tool_output)


def _put_conversation(attributes: Attributes, call: SpannedCall) -> None:
    content = call.content
    system = tuple(part for part in content.conversation.system if part.text)
    messages = [Message("system", system), *content.messages] if system else content.messages
    for number, message in enumerate(messages):
        _put_message(attributes, f"llm.input_messages.{number}.message", message)
    if content.answer.parts:
        _put_message(attributes, "llm.output_messages.0.message", content.answer)
    for number, tool in enumerate(content.conversation.tools):
        attributes.put(f"llm.tools.{number}.tool.json_schema", json_text(tool))
    _put_value(attributes, "input", last_text(messages) or json_text(call.shape.get("request")))
    _put_value(attributes, "output", call.shape["text"] or json_text(call.shape.get("answer")))
    attributes.put("playhead.content_cut", True if content.is_cut else None)


def _put_message(attributes: Attributes, prefix: str, message: Message) -> None:
    put = attributes.put
    put(f"{prefix}.role", message.role)
    put(f"{prefix}.content", "\n".join(_texts(message)) or None)
    number = 0
    for part in message.parts:
        if part.kind == "tool_call":
            _put_tool_call(attributes, f"{prefix}.tool_calls.{number}.tool_call", part)
            number += 1
        elif part.kind == "tool_call_response":
            put(f"{prefix}.tool_call_id", part.id)
            put(f"{prefix}.name", part.name or None)


def _put_tool_call(attributes: Attributes, prefix: str, part: Part) -> None:
    attributes.put(f"{prefix}.id", part.id)
    attributes.put(f"{prefix}.function.name", part.name)
    attributes.put(f"{prefix}.function.arguments", None if part.value is None else json_text(part.value))


def _texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        if part.kind == "text":
            yield part.text
        elif part.kind == "tool_call_response" and part.value is not None:
            yield json_text(part.value)
        elif part.kind == "media":
            yield f"[{part.name}] {part.text}".rstrip()


def last_text(messages: Sequence[Message]) -> str | None:
    """Return the text of the last message."""
    return ("\n".join(_texts(messages[-1])) or None) if messages else None


def _put_documents(attributes: Attributes, call: SpannedCall) -> None:
    put = attributes.put
    prefix = "reranker.output_documents" if call.kind == "RERANKER" else "retrieval.documents"
    query = call_query(call)
    put("reranker.query", query if call.kind == "RERANKER" else None)
    for number, document in enumerate(call_documents(call)):
        put(f"{prefix}.{number}.document.id", document.id)
        put(f"{prefix}.{number}.document.content", document.text and cut_text(document.text))
        put(f"{prefix}.{number}.document.score", document.score)
        put(f"{prefix}.{number}.document.metadata", json_text(document.metadata) if document.metadata else None)
    _put_value(attributes, "input", query or json_text(call.shape.get("request")))
    _put_value(attributes, "output", json_text(call.shape.get("answer")))


def _put_value(attributes: Attributes, name: str, text: str | None) -> None:
    if text is not None and text != "null":
        attributes.put(f"{name}.value", cut_text(text))
        attributes.put(f"{name}.mime_type", JSON if text[:1] in "{[" else TEXT)


def _json_text(value: dict[str, Value]) -> str:
    return dumps(value).decode()
