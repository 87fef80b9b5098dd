"""Write a message as Anthropic does: made of its parts, or a whole one as a stream."""

from collections.abc import Iterator, Mapping, Sequence

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_object, as_text
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Json

type Event = tuple[str, Mapping[str, Json]]
"""The name and the data of an event."""


def compose_message(parts: AnswerParts) -> Json | None:
    """Make a message with a block for the text and for each tool call."""
    if parts.operation != "chat":
        return None
    text: list[Json] = [] if parts.text is None else [{"type": "text", "text": parts.text}]
    calls: list[Json] = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in parts.tool_calls
    ]
    return {
        "id": f"msg_{parts.id}",
        "type": "message",
        "role": "assistant",
        "model": parts.model,
        "content": [*text, *calls],
        "stop_reason": parts.finish_word("end_turn", "tool_use"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": parts.input_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": parts.output_tokens,
        },
    }


def write_message_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the events of a message as server-sent events."""
    return (sse_message(name, event) for name, event in message_events(answer))


def message_events(answer: Mapping[str, Json]) -> Iterator[Event]:
    """The events of a message: message_start, each content block with its deltas, message_delta, message_stop."""
    if answer.get("type") == "completion":
        # The older /v1/complete: pieces of the text, of which the last has the reason why it ended.
        yield "completion", {**answer, "stop_reason": None, "stop": None}
        yield "completion", {**answer, "completion": ""}
        return
    ending = {name: answer.get(name) for name in ("stop_reason", "stop_sequence")}
    start = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(as_array(answer.get("content"))):
        yield from _block_events(index, as_object(block))
    yield "message_delta", {"type": "message_delta", "delta": ending, "usage": answer.get("usage") or {}}
    yield "message_stop", {"type": "message_stop"}


def _block_events(index: int, block: Mapping[str, Json]) -> Iterator[Event]:
    empty, deltas = _split_block(block)
    yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}
    for delta in deltas:
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": index}


def _split_block(block: Mapping[str, Json]) -> tuple[Mapping[str, Json], Sequence[Json]]:
    """Split a content block into what it begins as and the deltas that fill it. Kinds that arrive whole have none."""
    match block.get("type"):
        case "text":
            citations = [{"type": "citations_delta", "citation": one} for one in as_array(block.get("citations"))]
            empty = {**block, "text": ""} | ({"citations": []} if citations else {})
            return empty, [*citations, {"type": "text_delta", "text": as_text(block.get("text"))}]
        case "thinking":
            thought: Json = {"type": "thinking_delta", "thinking": as_text(block.get("thinking"))}
            signature: Json = {"type": "signature_delta", "signature": as_text(block.get("signature"))}
            return {**block, "thinking": "", "signature": ""}, [thought, signature]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            partial = dumps(block.get("input") or {}).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": partial}]
        case _:
            return block, []
