"""Vercel's AI gateway in the AI SDK's own protocol: the options of a call as they are, parts of its answer.

A header names the model, and the path the operation. A stream has pieces of texts, reasoning and tool inputs, whole tool
calls, and `finish` with the finish reason and usage. The versions of the protocol differ: finish reasons and counts are plain
values in the second and objects in the third, and the first has `textDelta` and `args`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts, arguments_text
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage, header

_PATH: Final = re.compile(r"(?:.*/)?ai/(language|embedding|image|reranking|video|speech|transcription)-model")
_OPERATIONS: Final[Mapping[str, str]] = {
    "language": "chat",
    "embedding": "embeddings",
    "image": "image_generation",
    "reranking": "rerank",
    "video": "video_generation",
    "speech": "speech",
    "transcription": "transcription",
}
_HOST: Final = "ai-gateway.vercel.sh"
MODEL: Final = ("ai-language-model-id", "ai-model-id")
"""Headers that name the model."""

_PROTOCOL: Final = "ai-gateway-protocol-version"
_STREAMING: Final = "ai-language-model-streaming"
_VERSION: Final = "ai-language-model-specification-version"
_OPENED: Final[Mapping[str, str]] = {"text": "text", "reasoning": "reasoning", "tool-input": "tool-call"}


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim requests to the gateway, or to any host in its protocol."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    model = next((value for name in MODEL if (value := header(headers, name))), None)
    if match is None or (host != _HOST and model is None and header(headers, _PROTOCOL) is None):
        return None
    streams = header(headers, _STREAMING)
    return Claim(
        operation=_OPERATIONS[match[1]],
        kind="model",
        model=model,
        provider="vercel",
        # A video takes minutes, and is the only event of a stream.
        streams=streams == "true" if streams else match[1] == "video",
    )


def summarize_request(body: Json) -> RequestSummary:
    """Find the tool results after the last message of the assistant. A header names the model."""
    results: list[Json] = []
    for message in map(as_object, reversed(as_array(as_object(body).get("prompt")))):
        if message.get("role") == "assistant":
            break
        for part in map(as_object, reversed(as_array(message.get("content")))):
            if part.get("type") == "tool-result":
                results.insert(0, {"id": part.get("toolCallId"), "content": part.get("output", part.get("result"))})
    return RequestSummary(tool_results=tuple(results))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Summarize an answer of any version."""
    fields = as_object(answer)
    content = fields.get("content")  # a list of parts; a single part in the gateway's own tests
    parts = [as_object(part) for part in (as_array(content) or [content])]
    texts = [as_text(part.get("text")) for part in parts if part.get("type") == "text"]
    reason = fields.get("finishReason")
    return AnswerSummary(
        model=as_text_or_none(as_object(fields.get("response")).get("modelId")),
        text="".join(texts) if texts else as_text_or_none(fields.get("text")),
        tool_calls=tuple(_tool_call(part) for part in parts if part.get("type") == "tool-call"),
        finish_reason=as_text_or_none(reason) or as_text_or_none(as_object(reason).get("unified")),
        usage=_usage(as_object(fields.get("usage"))),
        results=tuple(as_array(fields.get("ranking"))),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, AiGatewayStream())


class AiGatewayStream:
    """The parts of one streamed answer."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._pieces: list[list[str]] = []
        self._open: dict[tuple[str, str], int] = {}
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # parts carry their type
        """Add one part."""
        fields = parse_payload(data)
        kind = as_text(fields.get("type"))
        part_type = kind.rpartition("-")[0]
        match kind:
            case "text-delta" | "reasoning-delta" | "tool-input-delta":
                piece = as_text(fields.get("delta")) or as_text(fields.get("textDelta"))
                self._pieces[self._open_part(part_type, fields)].append(piece)
            case "text-start" | "reasoning-start" | "tool-input-start":
                self._open_part(part_type, fields)
            case "text-end" | "reasoning-end" | "tool-input-end":
                self._set_metadata(self._open_part(part_type, fields), fields)
            case "tool-call":
                self._add_tool_call(fields)
            case "tool-result" | "tool-approval-request" | "file" | "source" | "custom" | "reasoning-file":
                self._add_part(fields)
            case "reasoning" if "textDelta" in fields:  # as the protocol's first version has it
                self._pieces[self._open_part("reasoning", fields)].append(as_text(fields["textDelta"]))
            case "response-metadata":
                self._state["response"] = {name: value for name, value in fields.items() if name != "type"}
            case "stream-start" | "finish" | "error" | "result":
                self._state |= {name: value for name, value in fields.items() if name != "type"}
                self._has_ended = self._has_ended or kind in ("finish", "result")
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The answer so far."""
        if not self._state and not self._parts:
            return None
        content = [self._build_part(part, pieces) for part, pieces in zip(self._parts, self._pieces, strict=True)]
        return {**({"content": content} if content else {}), **self._state}

    @property
    def is_complete(self) -> bool:
        """Whether `finish` arrived, without an error."""
        return self._has_ended and self._state.get("error") is None

    def _open_part(self, part_type: str, fields: Mapping[str, Json]) -> int:
        """Find the index of the part with this id; append a new one if there is none."""
        place = part_type, as_text(fields.get("id"))
        if place not in self._open:
            kind = _OPENED[part_type]
            call = {"toolCallId": fields.get("id"), "toolName": fields.get("toolName")} if kind == "tool-call" else {}
            self._open[place] = self._add_part({"type": kind, **call})
        self._set_metadata(self._open[place], fields)
        return self._open[place]

    def _set_metadata(self, place: int, fields: Mapping[str, Json]) -> None:
        if fields.get("providerMetadata") is not None:  # signatures of reasoning, at its start or its end
            self._parts[place]["providerMetadata"] = fields["providerMetadata"]

    def _add_tool_call(self, fields: Mapping[str, Json]) -> None:
        place = self._open.get(("tool-input", as_text(fields.get("toolCallId"))))
        if place is None:
            self._add_part(fields)
        else:
            self._parts[place], self._pieces[place] = dict(fields), []

    def _add_part(self, part: Mapping[str, Json]) -> int:
        self._parts.append(dict(part))
        self._pieces.append([])
        return len(self._parts) - 1

    def _build_part(self, part: Mapping[str, Json], pieces: list[str]) -> Json:
        if part["type"] == "tool-call":
            return {**part, "input": "".join(pieces)} if pieces else part
        return {**part, "text": "".join(pieces)} if part["type"] in ("text", "reasoning") else part


def _tool_call(part: Mapping[str, Json]) -> ToolCall:
    arguments = part.get("input", part.get("args"))
    called = as_text_or_none(part.get("toolCallId"))
    return ToolCall(id=called, name=as_text(part.get("toolName")), arguments=parse_arguments(arguments))


def _usage(usage: Mapping[str, Json]) -> Usage:
    input_count, output_count = usage.get("inputTokens"), usage.get("outputTokens")
    inputs, outputs = as_object(input_count), as_object(output_count)
    return Usage(
        input_tokens=_first_count(input_count, inputs.get("total"), usage.get("promptTokens"), usage.get("tokens")),
        output_tokens=_first_count(output_count, outputs.get("total"), usage.get("completionTokens")),
        cached_tokens=_first_count(inputs.get("cacheRead"), usage.get("cachedInputTokens")),
        reasoning_tokens=_first_count(outputs.get("reasoning"), usage.get("reasoningTokens")),
    )


def _first_count(*values: Json) -> int | None:
    return next((number for number in map(as_count, values) if number is not None), None)


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write stream-start, response-metadata, each part (texts and reasoning with start and end), and finish."""
    return (sse_message("", event) for event in _answer_events(answer))


def _answer_events(answer: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    yield {"type": "stream-start", "warnings": answer.get("warnings") or []}
    if "response" in answer:
        yield {"type": "response-metadata", **as_object(answer["response"])}
    for number, part in enumerate(map(as_object, as_array(answer.get("content")))):
        kind = as_text(part.get("type"))
        if kind not in ("text", "reasoning"):
            yield part
            continue
        about = {"id": str(number)} | {name: part[name] for name in ("providerMetadata",) if name in part}
        yield {"type": f"{kind}-start", **about}
        yield {"type": f"{kind}-delta", "id": str(number), "delta": as_text(part.get("text"))}
        yield {"type": f"{kind}-end", **about}
    ending = {name: answer[name] for name in ("finishReason", "usage", "providerMetadata") if name in answer}
    yield {"type": "finish", **ending}


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make an answer of a model for texts, in the version of the protocol that the request names; or a transcript."""
    if parts.operation == "transcription" and parts.text is not None and not parts.tool_calls:
        return {"text": parts.text, "segments": [], "warnings": []}
    if parts.operation != "chat":
        return None
    texts: list[Json] = [] if parts.text is None else [{"type": "text", "text": parts.text}]
    calls: list[Json] = [
        {"type": "tool-call", "toolCallId": call.id, "toolName": call.name, "input": arguments_text(call)}
        for call in parts.tool_calls
    ]
    word: Json = parts.finish_word("stop", "tool-calls")
    counts: Json = {
        "inputTokens": parts.input_tokens,
        "outputTokens": parts.output_tokens,
        "totalTokens": parts.input_tokens + parts.output_tokens,
    }
    if (header(parts.headers, _VERSION) or "2") not in ("1", "2"):
        word = {"unified": word, "raw": word}
        counts = {"inputTokens": {"total": parts.input_tokens}, "outputTokens": {"total": parts.output_tokens}}
    response = {"id": parts.id, "modelId": parts.model, "timestamp": parts.created_at}
    answer = {"content": [*texts, *calls], "finishReason": word, "usage": counts, "response": response}
    return {**answer, "warnings": []}


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make an answer with embeddings, a ranking or images."""
    match parts.operation:
        case "embeddings" if vectors := parts.vectors:
            return {"embeddings": vectors, "usage": {"tokens": parts.input_tokens}}
        case "rerank" if ranks := parts.ranks:
            return {"ranking": [{"index": index, "relevanceScore": score} for index, score in ranks]}
        case "image_generation" if pictures := parts.pictures:
            return {"images": pictures, "warnings": []}
        case _:
            return None


DIALECT: Final = Dialect(
    name="ai_gateway",
    claim=claim,
    headers=(_PROTOCOL, _STREAMING, *MODEL),
    services=(Service(provider="vercel", hosts=(_HOST,)),),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
    compose_results=_compose_results,
)
