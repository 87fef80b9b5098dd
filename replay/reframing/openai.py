"""Stream whole answers of OpenAI's other APIs: responses, completions, pictures, transcripts; re-encode vectors.

A stream says in pieces what it says again whole, so one piece for each text is enough. What only a stream says of itself
(paddings, sketches of a picture) is left out.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import elements, members, text
from calls.dialects.openai.embeddings import as_base64, as_numbers
from calls.model import Json

type Messages = Iterator[tuple[str, Json | str]]
"""The name ("" for none) and the data of each message of a stream."""

_DELTAS: Final[Mapping[str, tuple[str, str]]] = {
    "function_call": ("function_call_arguments", "arguments"),
    "mcp_call": ("mcp_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
    "code_interpreter_call": ("code_interpreter_call_code", "code"),
}
"""What of an item comes in pieces: the events' word for it, and its member."""

_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "output_text": ("output_text", "text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("reasoning_text", "text"),
}


def responses(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Messages:
    """The response as it begins, its items, and the response as it is. Every event is numbered."""
    for number, (kind, said) in enumerate(_response(answer)):
        yield kind, {"type": kind, **said, "sequence_number": number}


def _response(answer: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None, "error": None}
    for kind in ("response.created", "response.in_progress"):
        yield kind, {"response": begun}
    for place, item in enumerate(elements(answer.get("output"))):
        for kind, said in _item(members(item)):
            yield kind, {"output_index": place, **said}
    yield f"response.{text(answer.get('status')) or 'completed'}", {"response": answer}


def _item(item: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    word, member = _DELTAS.get(text(item.get("type")), ("", ""))
    # Only a message's content begins empty: what a tool of the provider's was asked is said at once.
    empty: dict[str, Json] = {member: ""} if member else {"content": []} if item.get("type") == "message" else {}
    yield "response.output_item.added", {"item": {**item, **empty}}
    about = {"item_id": item.get("id")}
    if member:
        yield f"response.{word}.delta", {**about, "delta": text(item.get(member))}
        yield f"response.{word}.done", {**about, member: text(item.get(member))}
    if item.get("type") == "message":
        for place, part in enumerate(elements(item.get("content"))):
            for kind, said in _part(members(part)):
                yield kind, {**about, "content_index": place, **said}
    yield "response.output_item.done", {"item": item}


def _part(part: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    word, member = _PARTS.get(text(part.get("type")), ("", ""))
    yield "response.content_part.added", {"part": {**part, **({member: ""} if member else {})}}
    if member:
        more = {"logprobs": part.get("logprobs") or []} if word == "output_text" else {}
        yield f"response.{word}.delta", {"delta": text(part.get(member)), **more}
        yield f"response.{word}.done", {member: text(part.get(member)), **more}
    yield "response.content_part.done", {"part": part}


def completions(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Messages:
    """A chunk for each choice, and the usage where it was asked for. Writer, who says of no answer what it is, sends only values."""
    if "object" not in answer:
        yield from (("", {"value": members(choice).get("text")}) for choice in elements(answer.get("choices")))
        return
    common = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    for choice in elements(answer.get("choices")):
        yield "", {**common, "choices": [choice]}
    if "usage" in answer and members(request.get("stream_options")).get("include_usage") is True:
        yield "", {**common, "choices": [], "usage": answer.get("usage")}
    yield "", "[DONE]"


def media(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Messages:
    """Pictures, each with its end; or a transcript."""
    if "text" in answer:
        yield "transcript.text.delta", {"type": "transcript.text.delta", "delta": answer["text"]}
        yield "transcript.text.done", {"type": "transcript.text.done", **answer}
        return
    about = {name: value for name, value in answer.items() if name not in ("data", "created")}
    for picture in map(members, elements(answer.get("data"))):
        kind = "image_generation.completed"
        yield kind, {"type": kind, **picture, "created_at": answer.get("created"), **about}


STREAMS: Final[Mapping[str, Callable[[Mapping[str, Json], Mapping[str, Json]], Messages]]] = {
    "openai_responses": responses,
    "openai_completions": completions,
    "openai_rest": media,
}


def packed(request: Json) -> bool:
    """Whether a request wants its vectors as base64."""
    return members(request).get("encoding_format") == "base64"


def spelled(answer: Json, request: Json) -> Json:
    """Vectors as this request wants them: as base64, or as numbers."""
    return as_base64(answer) if packed(request) else as_numbers(answer)
