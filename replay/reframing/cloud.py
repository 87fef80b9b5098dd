"""Stream whole answers as Gemini, Bedrock, Ollama and Cohere do.

Every function gives the pieces of a body. What a stream says of itself but a whole answer does not (latencies, paddings) is left out.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from calls.answer_form import Form
from calls.codec.json import dumps
from calls.codec.lenient_json import elements, members, text
from calls.framing.eventstream import framed
from calls.model import Json

type Answer = Mapping[str, Json]
type Pieces = Iterator[bytes]

MEDIA: Final[Mapping[Form, str]] = {
    "sse": "text/event-stream",
    "array": "application/json; charset=UTF-8",
    "ndjson": "application/x-ndjson",
    "eventstream": "application/vnd.amazon.eventstream",
}


def _google_events(answer: Answer) -> Pieces:
    """A chunk is a whole response, so one chunk may say it all."""
    yield b"data: " + dumps(answer) + b"\r\n\r\n"


def _google_array(answer: Answer) -> Pieces:
    yield b"[" + dumps(answer) + b"\n]"


def _lines(answer: Answer) -> Pieces:
    """Ollama's last line may be its only one."""
    yield dumps(answer) + b"\n"


def _cohere(answer: Answer) -> Pieces:
    """The text, and the whole answer at the end, as Cohere has it."""
    yield _line({"event_type": "stream-start", "generation_id": answer.get("generation_id"), "is_finished": False})
    if text(answer.get("text")):
        yield _line({"event_type": "text-generation", "text": answer["text"], "is_finished": False})
    if elements(answer.get("tool_calls")):
        calls = {"event_type": "tool-calls-generation", "tool_calls": answer["tool_calls"], "is_finished": False}
        yield _line(calls)
    end = {"event_type": "stream-end", "finish_reason": answer.get("finish_reason"), "response": answer}
    yield _line({**end, "is_finished": True})


def _line(value: Json) -> bytes:
    return dumps(value) + b"\n"


def _cohere_events(answer: Answer) -> Pieces:
    message = members(answer.get("message"))
    yield _event({"type": "message-start", "id": answer.get("id"), "delta": {"message": {"role": "assistant"}}})
    for index, part in enumerate(elements(message.get("content"))):
        yield _event({"type": "content-start", "index": index, "delta": {"message": {"content": part}}})
        yield _event({"type": "content-end", "index": index})
    if "tool_plan" in message:
        yield _event({"type": "tool-plan-delta", "delta": {"message": {"tool_plan": message["tool_plan"]}}})
    for kind, name in (("tool-call", "tool_calls"), ("citation", "citations")):
        for index, part in enumerate(elements(message.get(name))):
            yield _event({"type": f"{kind}-start", "index": index, "delta": {"message": {name: part}}})
            yield _event({"type": f"{kind}-end", "index": index})
    ending = {name: answer[name] for name in ("finish_reason", "usage") if name in answer}
    yield _event({"type": "message-end", "delta": ending})
    yield b"data: [DONE]\n\n"


def _event(value: Mapping[str, Json]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (text(value.get("type")).encode(), dumps(value))


def _converse(answer: Answer) -> Pieces:
    for name, value in _turn(answer):
        yield _frame(name, value)


def _turn(answer: Answer) -> Iterator[tuple[str, Json]]:
    """The events of a turn: blocks of tools have a start, all others begin with their delta."""
    message = members(members(answer.get("output")).get("message"))
    yield "messageStart", {"role": message.get("role")}
    for index, block in enumerate(map(members, elements(message.get("content")))):
        for name, value in _block(block):
            yield name, {**value, "contentBlockIndex": index}
        yield "contentBlockStop", {"contentBlockIndex": index}
    ending = ("stopReason", "additionalModelResponseFields")
    yield "messageStop", {name: answer[name] for name in ending if name in answer}
    yield "metadata", {name: value for name, value in answer.items() if name not in ("output", *ending)}


def _block(block: Answer) -> Iterator[tuple[str, Answer]]:
    match block:
        case {"toolUse": use}:
            frame = {name: value for name, value in members(use).items() if name != "input"}
            yield "contentBlockStart", {"start": {"toolUse": frame}}
            yield _delta({"toolUse": {"input": dumps(members(use).get("input")).decode()}})
        case {"reasoningContent": {"reasoningText": thought}}:
            for name, value in members(thought).items():
                yield _delta({"reasoningContent": {name: value}})
        case {"citationsContent": cited}:
            for part in map(members, elements(members(cited).get("content"))):
                yield _delta(part)
            for citation in elements(members(cited).get("citations")):
                yield _delta({"citation": citation})
        case _:
            yield _delta(block)


def _delta(delta: Answer) -> tuple[str, Answer]:
    return "contentBlockDelta", {"delta": delta}


def _frame(event: str, payload: Json) -> bytes:
    headers = {":event-type": event, ":content-type": "application/json", ":message-type": "event"}
    return framed(headers, dumps(payload))


def nova(answer: Answer) -> Pieces:
    """A turn of Amazon's own models, inside of an invocation."""
    for name, value in _turn(answer):
        yield chunk({name: value})


def chunk(carried: Json) -> bytes:
    """One chunk of an invocation."""
    return _frame("chunk", {"bytes": base64.b64encode(dumps(carried)).decode()})


STREAMS: Final[Mapping[tuple[str, Form], Callable[[Answer], Pieces]]] = {
    ("gemini", "sse"): _google_events,
    ("gemini", "array"): _google_array,
    ("ollama", "ndjson"): _lines,
    ("cohere_v1", "ndjson"): _cohere,
    ("cohere_v2", "sse"): _cohere_events,
    ("bedrock_converse", "eventstream"): _converse,
}
