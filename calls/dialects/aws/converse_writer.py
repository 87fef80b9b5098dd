"""Write a turn as Bedrock's Converse does: made of its parts, or a whole one as a stream.

What a stream has and a whole answer does not (latencies, padding) is left out.
"""

from collections.abc import Iterator, Mapping

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_object
from calls.dialects.parts.answer_composition import AnswerParts
from calls.framing.eventstream import encode_frame
from calls.model import Json


def compose_turn(parts: AnswerParts) -> Json | None:
    """Make a turn with a block for the text and for each tool call."""
    if parts.operation != "chat":
        return None
    text: list[Json] = [] if parts.text is None else [{"text": parts.text}]
    calls: list[Json] = [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}} for call in parts.tool_calls
    ]
    return {
        "output": {"message": {"role": "assistant", "content": [*text, *calls]}},
        "stopReason": parts.finish_word("end_turn", "tool_use"),
        "usage": {
            "inputTokens": parts.input_tokens,
            "outputTokens": parts.output_tokens,
            "totalTokens": parts.input_tokens + parts.output_tokens,
        },
        "metrics": {"latencyMs": 1},
    }


def write_converse_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the events of a turn as frames."""
    return (event_frame(name, event) for name, event in turn_events(answer))


def turn_events(answer: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """The events of a turn. Blocks of tools have a start; all others begin with their delta."""
    message = as_object(as_object(answer.get("output")).get("message"))
    yield "messageStart", {"role": message.get("role")}
    for index, block in enumerate(map(as_object, as_array(message.get("content")))):
        for name, event in _block_events(block):
            yield name, {**event, "contentBlockIndex": index}
        yield "contentBlockStop", {"contentBlockIndex": index}
    ending = ("stopReason", "additionalModelResponseFields")
    yield "messageStop", {name: answer[name] for name in ending if name in answer}
    yield "metadata", {name: value for name, value in answer.items() if name not in ("output", *ending)}


def event_frame(event: str, payload: Json) -> bytes:
    """A frame of an AWS event stream."""
    headers = {":event-type": event, ":content-type": "application/json", ":message-type": "event"}
    return encode_frame(headers, dumps(payload))


def _block_events(block: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    match block:
        case {"toolUse": use}:
            frame = {name: value for name, value in as_object(use).items() if name != "input"}
            yield "contentBlockStart", {"start": {"toolUse": frame}}
            yield _delta_event({"toolUse": {"input": dumps(as_object(use).get("input")).decode()}})
        case {"reasoningContent": {"reasoningText": thought}}:
            for name, value in as_object(thought).items():
                yield _delta_event({"reasoningContent": {name: value}})
        case {"citationsContent": cited}:
            for part in map(as_object, as_array(as_object(cited).get("content"))):
                yield _delta_event(part)
            for citation in as_array(as_object(cited).get("citations")):
                yield _delta_event({"citation": citation})
        case _:
            yield _delta_event(block)


def _delta_event(delta: Mapping[str, Json]) -> tuple[str, Mapping[str, Json]]:
    return "contentBlockDelta", {"delta": delta}
