"""Turn a whole answer into the stream that its API would have sent, and a stream into the whole answer.

Whether a client asks for a stream is not part of a request's key: the answer is the same. So a recording of one serves the
other, marked as reframed. The bytes are then ours and not the recorded ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from calls.answer_form import Form
from calls.codec.json import dumps
from calls.codec.lenient_json import elements, members, text
from calls.model import Body, Chunk, Json, Response, header
from replay.reframing import cloud as clouds
from replay.reframing import openai as openais

type Messages = Iterator[tuple[str, Json | str]]
"""The name ("" for none) and the data of each message of a stream."""

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"

# They tell the size or form of the body that was recorded.
_OF_THE_BODY: Final = frozenset(("content-encoding", "content-length", "content-type", "etag", "content-md5"))


def is_stream(response: Response) -> bool:
    """Whether a response is a stream of server-sent events."""
    return (header(response.headers, "content-type") or "").lower().startswith("text/event-stream")


def as_stream(dialect: str, form: Form, response: Response, answer: Json, request: Json) -> Response | None:
    """A whole answer as a stream of this form, one piece for each message; None where we do not know how it would be."""
    pieces = _pieces(dialect, form, members(answer), members(request))
    return _with(response, list(pieces), ("Content-Type", _MEDIA.get(form, EVENT_STREAM))) if pieces else None


def _pieces(
    dialect: str, form: Form, answer: Mapping[str, Json], request: Mapping[str, Json]
) -> Iterator[bytes] | None:
    if (dialect, form) in clouds.STREAMS:
        return clouds.STREAMS[dialect, form](answer)
    if form == "sse" and dialect in _STREAMS:
        return (_sse(name, data) for name, data in _STREAMS[dialect](answer, request))
    match dialect, answer:
        case "bedrock_invoke", {"type": "message"}:
            return (clouds.chunk(event) for _, event in _anthropic(answer, request) if not isinstance(event, str))
        case "bedrock_invoke", {"output": {"message": _}}:
            return clouds.nova(answer)
        case _:
            return None


_MEDIA: Final = {**clouds.MEDIA, "sse": EVENT_STREAM}


def as_whole(response: Response, answer: Json) -> Response:
    """The answer of a stream in one body."""
    data = dumps(answer)
    length = ("Content-Length", str(len(data)))
    return _with(response, [data], ("Content-Type", "application/json"), length)


def _with(response: Response, pieces: Sequence[bytes], *described: tuple[str, str]) -> Response:
    """The response with another body, and the headers that describe it."""
    kept = tuple(pair for pair in response.headers if pair[0].lower() not in _OF_THE_BODY)
    at = response.body.chunks[-1].at if response.body.chunks else 0
    ends = accumulate(map(len, pieces))
    chunks = tuple(Chunk(at, end - len(piece), len(piece)) for piece, end in zip(pieces, ends, strict=True))
    data = b"".join(pieces)
    return replace(response, headers=(*kept, *described), body=Body(data=data, chunks=chunks, size=len(data)))


def _openai_chat(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Messages:
    """Chunks: for each choice one with the message, one with its end; then the usage where it was asked for."""
    common = {name: value for name, value in answer.items() if name not in ("choices", "usage", "object")}
    common = {"object": "chat.completion.chunk", **common}
    asked = members(request.get("stream_options")).get("include_usage") is True
    usage: dict[str, Json] = {"usage": None} if asked else {}
    choices = [members(choice) for choice in elements(answer.get("choices"))]
    for choice in choices:
        first = {
            "index": choice.get("index", 0),
            "delta": _delta(members(choice.get("message"))),
            "finish_reason": None,
        }
        yield "", common | {"choices": [{**first, "logprobs": choice.get("logprobs")}]} | usage
    for choice in choices:
        rest = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
        yield "", common | {"choices": [{"index": 0, "delta": {}, **rest}]} | usage
    if asked:
        yield "", common | {"choices": [], "usage": answer.get("usage")}
    yield "", "[DONE]"


def _delta(message: Mapping[str, Json]) -> dict[str, Json]:
    """A message in one delta: its tool calls are numbered, as in a stream."""
    calls = [{"index": number, **members(call)} for number, call in enumerate(elements(message.get("tool_calls")))]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _anthropic(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Messages:
    """message_start, each content block with its deltas, message_delta, message_stop."""
    if answer.get("type") == "completion":
        # The older /v1/complete: pieces of the text, the last of which says why it ended.
        yield "completion", {**answer, "stop_reason": None, "stop": None}
        yield "completion", {**answer, "completion": ""}
        return
    ending = {name: answer.get(name) for name in ("stop_reason", "stop_sequence")}
    start = {**answer, "content": [], "stop_reason": None, "stop_sequence": None}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(elements(answer.get("content"))):
        yield from _block(index, members(block))
    yield "message_delta", {"type": "message_delta", "delta": ending, "usage": answer.get("usage") or {}}
    yield "message_stop", {"type": "message_stop"}


def _block(index: int, block: Mapping[str, Json]) -> Messages:
    empty, deltas = _opened(block)
    yield "content_block_start", {"type": "content_block_start", "index": index, "content_block": empty}
    for delta in deltas:
        yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": index}


def _opened(block: Mapping[str, Json]) -> tuple[Mapping[str, Json], Sequence[Json]]:
    """A content block as it begins, and the deltas that fill it. Kinds that arrive whole have none."""
    match block.get("type"):
        case "text":
            citations = [{"type": "citations_delta", "citation": one} for one in elements(block.get("citations"))]
            empty = {**block, "text": ""} | ({"citations": []} if citations else {})
            return empty, [*citations, {"type": "text_delta", "text": text(block.get("text"))}]
        case "thinking":
            thought: Json = {"type": "thinking_delta", "thinking": text(block.get("thinking"))}
            signature: Json = {"type": "signature_delta", "signature": text(block.get("signature"))}
            return {**block, "thinking": "", "signature": ""}, [thought, signature]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            partial = dumps(block.get("input") or {}).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": partial}]
        case _:
            return block, []


def _ai_gateway(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Messages:
    """stream-start, response-metadata, each part (texts and reasoning with their begin and end), finish."""
    yield "", {"type": "stream-start", "warnings": answer.get("warnings") or []}
    if "response" in answer:
        yield "", {"type": "response-metadata", **members(answer["response"])}
    for number, part in enumerate(map(members, elements(answer.get("content")))):
        kind = text(part.get("type"))
        if kind not in ("text", "reasoning"):
            yield "", part
            continue
        about = {"id": str(number)} | {name: part[name] for name in ("providerMetadata",) if name in part}
        yield "", {"type": f"{kind}-start", **about}
        yield "", {"type": f"{kind}-delta", "id": str(number), "delta": text(part.get("text"))}
        yield "", {"type": f"{kind}-end", **about}
    ending = {name: answer[name] for name in ("finishReason", "usage", "providerMetadata") if name in answer}
    yield "", {"type": "finish", **ending}


_STREAMS: Final[Mapping[str, Callable[[Mapping[str, Json], Mapping[str, Json]], Messages]]] = {
    "openai_chat": _openai_chat,
    "anthropic": _anthropic,
    "ai_gateway": _ai_gateway,
    **openais.STREAMS,
}


def _sse(name: str, data: Json | str) -> bytes:
    """One message. OpenAI's `[DONE]` is the one datum that is no JSON."""
    line = data.encode() if isinstance(data, str) else dumps(data)
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + line + b"\n\n"
