"""Read the messages of a model's request and answer, whatever the dialect: by the members that carry messages.

Instructions, messages and tools stand under few names: `messages` (OpenAI, Anthropic, Bedrock, Cohere, Ollama), `contents` (Gemini),
`input` (Responses), `prompt` (completions), `chat_history` and `message` (Cohere v1). What is not recognised is left out here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.model import Json

type PartKind = Literal["text", "reasoning", "tool_call", "tool_call_response", "media"]
type Fields = Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a message."""

    kind: PartKind
    text: str = ""
    """The text; of a medium its URL, if it has one."""

    id: str | None = None
    """The id of the tool call."""

    name: str = ""
    """The name of the tool; the modality of a medium."""

    value: Json = None
    """The arguments or the result of the tool call."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message: who says it, and its parts."""

    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMessages:
    """What a request says to a model."""

    system: tuple[Part, ...] = ()
    """The instructions that are given apart from the messages."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Json, ...] = ()
    """The definitions of tools, as they were sent."""


_ROLES: Final = {
    "model": "assistant",
    "chatbot": "assistant",
    "developer": "system",
    "function": "tool",
    "human": "user",
}
_INSTRUCTIONS: Final = ("system", "systemInstruction", "system_instruction", "instructions", "preamble")
_TEXT_TYPES: Final = ("text", "input_text", "output_text", "refusal")
_REASONING_TYPES: Final = ("thinking", "thought", "reasoning", "reasoning_content", "reasoning_text", "summary_text")
_REASONING_MEMBERS: Final = ("reasoning_content", "reasoning", "thinking")
"""Members of a message with the reasoning before it (DeepSeek and vLLM; OpenRouter and Groq; Ollama)."""

_MEDIA: Final = ("image", "audio", "video", "document", "file")


def request_conversation(request: Json) -> RequestMessages:
    """Read a request."""
    body = _request_body(as_object(request))
    instructions = next((body[name] for name in _INSTRUCTIONS if body.get(name)), None)
    return RequestMessages(
        system=tuple(_parts(as_object(instructions).get("parts") or instructions)),
        messages=tuple(_split_tool_results(_messages(body))),
        tools=tuple(as_array(body.get("tools")) or as_array(as_object(body.get("toolConfig")).get("tools"))),
    )


def embedded_texts(request: Json) -> list[str]:
    """Return the texts of which a request wants embeddings."""
    body = as_object(request)
    found = next(
        (body[name] for name in ("input", "inputs", "texts", "prompt", "content", "requests") if name in body), None
    )
    items = [found] if isinstance(found, str | Mapping) else as_array(found)
    return [text for item in items if (text := _embedded_text(item))]


def _embedded_text(item: Json) -> str:
    if isinstance(item, str):
        return item
    fields = as_object(item)
    return as_text(fields.get("text")) or "".join(
        part.text for part in _parts(as_object(fields.get("content") or item).get("parts"))
    )


def _request_body(body: Fields) -> Fields:
    """Return the body that has the messages: some APIs wrap it."""
    for name in ("request", "body", "input"):
        inner = as_object(body.get(name))
        if any(member in inner for member in ("messages", "contents", "prompt")):
            return inner
    return body


def _messages(body: Fields) -> Iterator[Message]:
    for name in ("messages", "contents", "chat_history", "input", "inputs"):
        if not (found := body.get(name)):
            continue
        if isinstance(found, str):
            yield Message("user", (Part(kind="text", text=found),))
        else:
            for item in [found] if isinstance(found, Mapping) else as_array(found):
                yield from _message(item)
    for name in ("message", "prompt"):
        if isinstance(body.get(name), str):
            yield Message("user", (Part(kind="text", text=as_text(body[name])),))


def _message(item: Json) -> Iterator[Message]:
    if isinstance(item, str):
        yield Message("user", (Part(kind="text", text=item),))
        return
    fields = as_object(item)
    role = as_text(fields.get("role")).lower()
    if not role and "type" in fields and "content" not in fields:
        role = "tool" if as_text(fields["type"]).endswith("_output") else "assistant"
    parts = tuple(_message_parts(fields, role))
    if parts:
        yield Message(_ROLES.get(role, role or "user"), parts)


def _message_parts(fields: Fields, role: str) -> Iterator[Part]:
    content = next((fields[name] for name in ("content", "parts", "message") if fields.get(name)), None)
    if role in ("tool", "function") and ("tool_call_id" in fields or role == "function" or "tool_name" in fields):
        name = as_text(fields.get("name") or fields.get("tool_name"))
        yield Part(kind="tool_call_response", id=as_text_or_none(fields.get("tool_call_id")), name=name, value=content)
        return
    if reasoning := next(filter(None, (as_text(fields.get(name)) for name in _REASONING_MEMBERS)), None):
        yield Part(kind="reasoning", text=reasoning)
    yield from _parts(content)
    for call in as_array(fields.get("tool_calls")):
        function = as_object(as_object(call).get("function")) or as_object(call)
        yield _tool_call(
            as_object(call).get("id"), function.get("name"), function.get("arguments", function.get("parameters"))
        )
    if content is None and "type" in fields:
        yield from _parts([fields])


def _parts(content: Json) -> Iterator[Part]:
    """Read a content: a text, a part, or a list of them."""
    for block in [content] if isinstance(content, str | Mapping) else as_array(content):
        if isinstance(block, str):
            yield Part(kind="text", text=block)
        elif part := _part(as_object(block)):
            yield part


def _part(block: Fields) -> Part | None:
    kind = as_text(block.get("type"))
    for name, read in _READERS.items():
        if isinstance(block.get(name), Mapping):
            return read(as_object(block[name]))
    if kind in ("tool_use", "server_tool_use", "function_call", "mcp_call", "custom_tool_call"):
        arguments = next((block[name] for name in ("input", "arguments") if name in block), None)
        return _tool_call(block.get("call_id", block.get("id")), block.get("name"), arguments)
    if kind.endswith(("tool_result", "_call_output")):
        id_ = as_text_or_none(block.get("tool_use_id", block.get("call_id")))
        return Part(kind="tool_call_response", id=id_, value=block.get("content", block.get("output")))
    if kind in _REASONING_TYPES or block.get("thought") is True:
        reasoning = as_text(block.get("thinking") or block.get("text")) or _joined_texts(block)
        return Part(kind="reasoning", text=reasoning) if reasoning else None
    if isinstance(text := block.get("text", block.get("refusal")), str) and (not kind or kind in _TEXT_TYPES):
        return Part(kind="text", text=text)
    modality = next((one for one in _MEDIA if one in kind or one in block), None)
    return _medium(block, modality) if modality else None


def _medium(block: Fields, modality: str) -> Part:
    url = block.get(f"{modality}_url", as_object(block.get("source")).get("url"))
    text = url if isinstance(url, str) else as_text(as_object(url).get("url"))
    return Part(kind="media", name=modality, text="" if text.startswith("data:") else text)


def _joined_texts(block: Fields) -> str:
    """Join a summary (OpenAI, Gemini), or thoughts in pieces (Mistral)."""
    pieces = as_array(block.get("summary")) or as_array(block.get("thinking"))
    return "\n".join(as_text(as_object(one).get("text")) for one in pieces)


def _tool_call(id_: Json, name: Json, arguments: Json) -> Part:
    return Part(kind="tool_call", id=as_text_or_none(id_), name=as_text(name), value=arguments)


def _read_result(result: Fields) -> Part:
    id_ = as_text_or_none(result.get("toolUseId", result.get("id")))
    value = result.get("content", result.get("response"))
    return Part(kind="tool_call_response", id=id_, name=as_text(result.get("name")), value=value)


def _read_inline_data(data: Fields) -> Part:
    mime = as_text(data.get("mimeType") or data.get("mime_type"))
    return Part(kind="media", name=mime.partition("/")[0] or "file", text=as_text(data.get("fileUri")))


_READERS: Final = {
    "toolUse": lambda use: _tool_call(use.get("toolUseId"), use.get("name"), use.get("input")),
    "toolResult": _read_result,
    "functionCall": lambda call: _tool_call(call.get("id"), call.get("name"), call.get("args")),
    "functionResponse": _read_result,
    "reasoningContent": lambda block: Part(
        kind="reasoning", text=as_text(as_object(block.get("reasoningText")).get("text"))
    ),
    "inlineData": _read_inline_data,
    "inline_data": _read_inline_data,
    "fileData": _read_inline_data,
}
"""Parts that are named by their member (Bedrock, Gemini)."""


def _split_tool_results(messages: Iterator[Message]) -> Iterator[Message]:
    """Give each result of a tool a message of its own, with the role `tool`: Anthropic and others send several in one."""
    for message in messages:
        results = [part for part in message.parts if part.kind == "tool_call_response"]
        others = tuple(part for part in message.parts if part.kind != "tool_call_response")
        yield from (Message("tool", (part,)) for part in results)
        if others:
            yield replace(message, parts=others)


def answer_reasoning(answer: Json) -> str | None:
    """Return the reasoning in an answer, or the provider's summary of it; of several choices, that of the first."""
    body = as_object(answer)
    choices = as_array(body.get("choices")) or as_array(body.get("candidates"))
    choice = as_object(choices[0] if choices else None)
    output = body.get("output")
    places = (choice.get("message"), choice.get("content"), body.get("message"), as_object(output).get("message"))
    items = [
        *(place for place in places if isinstance(place, Mapping)),
        *as_array(output),
        *as_array(body.get("steps")),
    ]
    if as_array(body.get("content")):
        items.append(body)
    parts = (part for item in items for message in _message(item) for part in message.parts)
    return "\n\n".join(part.text for part in parts if part.kind == "reasoning" and part.text) or None


def answer_message(text: str | None, tool_calls: Sequence[Fields], reasoning: str | None = None) -> Message:
    """Make the message of an answer, from a call's text and tool calls and the reasoning before them."""
    parts = [Part(kind="reasoning", text=reasoning)] if reasoning else []
    parts += [Part(kind="text", text=text)] if text else []
    parts += [_tool_call(tool.get("id"), tool.get("name"), tool.get("arguments")) for tool in tool_calls]
    return Message("assistant", tuple(parts))
