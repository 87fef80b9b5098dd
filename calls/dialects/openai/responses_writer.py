"""Stream a whole response as OpenAI's Responses API does.

A stream repeats whole what it sent in pieces, so one piece for each text is enough. What only a stream has (padding) is left out.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text
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
