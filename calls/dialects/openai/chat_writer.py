"""Write a chat completion as OpenAI does: made of its parts, or a whole one as a stream."""

from collections.abc import Iterator, Mapping

from calls.codec.lenient_json import as_array, as_object
from calls.dialects.parts.answer_composition import AnswerParts, arguments_text
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Json


def compose_chat_answer(parts: AnswerParts) -> Json:
    """Make a completion with one choice."""
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
        for call in parts.tool_calls
    ]
    message: dict[str, Json] = {"role": "assistant", "content": parts.text, "refusal": None}
    choice: dict[str, Json] = {
        "index": 0,
        "message": message | ({"tool_calls": calls} if calls else {}),
        "logprobs": None,
        "finish_reason": parts.finish_word("stop", "tool_calls"),
    }
    return {
        "id": f"chatcmpl-{parts.id}",
        "object": "chat.completion",
        "created": parts.created,
        "model": parts.model,
        "choices": [choice],
        "usage": parts.openai_usage,
    }


def write_chat_stream(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the chunks and the end marker."""
    for chunk in chat_chunks(answer, request):
        yield sse_message("", chunk)
    yield sse_message("", "[DONE]")


def chat_chunks(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """The chunks: for each choice one with the message, one with its end; then the usage, if requested."""
    common = {name: value for name, value in answer.items() if name not in ("choices", "usage", "object")}
    common = {"object": "chat.completion.chunk", **common}
    has_usage = as_object(request.get("stream_options")).get("include_usage") is True
    usage: dict[str, Json] = {"usage": None} if has_usage else {}
    choices = [as_object(choice) for choice in as_array(answer.get("choices"))]
    for choice in choices:
        first = {
            "index": choice.get("index", 0),
            "delta": _whole_delta(as_object(choice.get("message"))),
            "finish_reason": None,
        }
        yield common | {"choices": [{**first, "logprobs": choice.get("logprobs")}]} | usage
    for choice in choices:
        rest = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
        yield common | {"choices": [{"index": 0, "delta": {}, **rest}]} | usage
    if has_usage:
        yield common | {"choices": [], "usage": answer.get("usage")}


def _whole_delta(message: Mapping[str, Json]) -> dict[str, Json]:
    """A message in one delta: its tool calls are numbered, as in a stream."""
    calls = [{"index": number, **as_object(call)} for number, call in enumerate(as_array(message.get("tool_calls")))]
    return {**message, "tool_calls": calls} if calls else dict(message)
