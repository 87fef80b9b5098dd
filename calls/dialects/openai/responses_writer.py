"""Write a response as OpenAI's Responses API does: made of its parts, or a whole one as a stream.

A stream repeats whole what it sent in pieces, so one piece for each text is enough. What only a stream has (padding) is left out.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text
from calls.dialects.parts.answer_composition import AnswerParts, arguments_text
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Json

type Event = tuple[str, Mapping[str, Json]]
"""The type of an event, and its other members."""

_STREAMED_MEMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "function_call": ("function_call_arguments", "arguments"),
    "mcp_call": ("mcp_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
    "code_interpreter_call": ("code_interpreter_call_code", "code"),
}
"""The member of an item that is streamed in pieces, and its name in the types of events, by the type of the item."""

_STREAMED_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "output_text": ("output_text", "text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("reasoning_text", "text"),
}
"""The same for the parts of a message."""


_ECHOED: Final[Mapping[str, Json]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}
"""What a response repeats of its request, and what it has where the request does not say it."""


def compose_response(parts: AnswerParts) -> Json | None:
    """Make a response with one message and an item for each tool call. A finish reason is that of an incomplete response."""
    if parts.operation != "chat":
        return None
    reason = parts.finish_reason
    complete = reason in (None, "completed")
    return {
        "id": f"resp_{parts.id}",
        "object": "response",
        "created_at": parts.created,
        "status": "completed" if complete else "incomplete",
        "error": None,
        "incomplete_details": None if complete else {"reason": reason},
        "model": parts.model,
        "output": list(_composed_items(parts)),
        **{name: parts.request.get(name, default) for name, default in _ECHOED.items()},
        "usage": {
            "input_tokens": parts.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": parts.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": parts.input_tokens + parts.output_tokens,
        },
    }


def _composed_items(parts: AnswerParts) -> Iterator[Json]:
    if parts.text is not None:
        content: Json = {"type": "output_text", "text": parts.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{parts.id}", "status": "completed", "role": "assistant"}
        yield {**message, "content": [content]}
    for number, call in enumerate(parts.tool_calls):
        item = {"type": "function_call", "id": f"fc_{parts.id}{number}", "call_id": call.id, "name": call.name}
        yield {**item, "arguments": arguments_text(call), "status": "completed"}


def write_response_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the response as it begins, its items, and the response as it ends. Every event is numbered."""
    for number, (kind, event) in enumerate(_response_events(answer)):
        yield sse_message(kind, {"type": kind, **event, "sequence_number": number})


def _response_events(answer: Mapping[str, Json]) -> Iterator[Event]:
    initial = {
        **answer,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
        "error": None,
    }
    for kind in ("response.created", "response.in_progress"):
        yield kind, {"response": initial}
    for index, item in enumerate(as_array(answer.get("output"))):
        for kind, event in _item_events(as_object(item)):
            yield kind, {"output_index": index, **event}
    yield f"response.{as_text(answer.get('status')) or 'completed'}", {"response": answer}


def _item_events(item: Mapping[str, Json]) -> Iterator[Event]:
    word, member = _STREAMED_MEMBERS.get(as_text(item.get("type")), ("", ""))
    # Only the content of a message starts empty: the arguments of the provider's own tools are whole from the start.
    empty: dict[str, Json] = {member: ""} if member else {"content": []} if item.get("type") == "message" else {}
    yield "response.output_item.added", {"item": {**item, **empty}}
    about = {"item_id": item.get("id")}
    if member:
        yield f"response.{word}.delta", {**about, "delta": as_text(item.get(member))}
        yield f"response.{word}.done", {**about, member: as_text(item.get(member))}
    if item.get("type") == "message":
        for index, part in enumerate(as_array(item.get("content"))):
            for kind, event in _part_events(as_object(part)):
                yield kind, {**about, "content_index": index, **event}
    yield "response.output_item.done", {"item": item}


def _part_events(part: Mapping[str, Json]) -> Iterator[Event]:
    word, member = _STREAMED_PARTS.get(as_text(part.get("type")), ("", ""))
    yield "response.content_part.added", {"part": {**part, **({member: ""} if member else {})}}
    if member:
        more = {"logprobs": part.get("logprobs") or []} if word == "output_text" else {}
        yield f"response.{word}.delta", {"delta": as_text(part.get(member)), **more}
        yield f"response.{word}.done", {member: as_text(part.get(member)), **more}
    yield "response.content_part.done", {"part": part}
