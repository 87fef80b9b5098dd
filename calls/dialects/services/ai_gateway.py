"""Vercel's AI gateway in the AI SDK's own protocol: the options of a call as they are, parts of its answer.

The model stands in a header, and the paths tell what it is asked for. Streamed parts are texts, reasoning and inputs of tools in
pieces, whole tool calls, and `finish` with why it ended and what it cost. Its versions spell some of that differently: finish reasons and
counts are plain in the second and objects in the third, and the first calls pieces `textDelta` and inputs `args`.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage, header

NAME: Final = "ai_gateway"

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
_OPENED: Final[Mapping[str, str]] = {"text": "text", "reasoning": "reasoning", "tool-input": "tool-call"}


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """The gateway, or any host that is spoken to in its protocol."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    model = next((value for name in MODEL if (value := header(headers, name))), None)
    if match is None or (host != _HOST and model is None and header(headers, _PROTOCOL) is None):
        return None
    streams = header(headers, _STREAMING)
    return Claim(
        dialect=NAME,
        operation=_OPERATIONS[match[1]],
        kind="model",
        model=model,
        provider="vercel",
        # A video is awaited for minutes, and comes as the one event of a stream.
        streams=streams == "true" if streams else match[1] == "video",
    )


def asked(body: Json) -> RequestSummary:
    """What tools answered since the assistant spoke last. The model stands in a header."""
    results: list[Json] = []
    for message in map(members, reversed(elements(members(body).get("prompt")))):
        if message.get("role") == "assistant":
            break
        for part in map(members, reversed(elements(message.get("content")))):
            if part.get("type") == "tool-result":
                results.insert(0, {"id": part.get("toolCallId"), "content": part.get("output", part.get("result"))})
    return RequestSummary(tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What an answer says, in whichever version of its words."""
    said = members(answer)
    content = said.get("content")  # a list of parts, and in tests of the gateway's own one part
    parts = [members(part) for part in (elements(content) or [content])]
    texts = [text(part.get("text")) for part in parts if part.get("type") == "text"]
    reason = said.get("finishReason")
    return AnswerSummary(
        model=some(members(said.get("response")).get("modelId")),
        text="".join(texts) if texts else some(said.get("text")),
        tool_calls=tuple(_tool_call(part) for part in parts if part.get("type") == "tool-call"),
        finish_reason=some(reason) or some(members(reason).get("unified")),
        usage=_usage(members(said.get("usage"))),
        results=tuple(elements(said.get("ranking"))),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, AiGatewayStream())


class AiGatewayStream:
    """The parts of one streamed answer."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._pieces: list[list[str]] = []
        self._open: dict[tuple[str, str], int] = {}
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # parts carry their type
        """Take one part."""
        said = payload(data)
        kind = text(said.get("type"))
        opened = kind.rpartition("-")[0]
        match kind:
            case "text-delta" | "reasoning-delta" | "tool-input-delta":
                piece = text(said.get("delta")) or text(said.get("textDelta"))
                self._pieces[self._begun(opened, said)].append(piece)
            case "text-start" | "reasoning-start" | "tool-input-start":
                self._begun(opened, said)
            case "text-end" | "reasoning-end" | "tool-input-end":
                self._note(self._begun(opened, said), said)
            case "tool-call":
                self._whole_call(said)
            case "tool-result" | "tool-approval-request" | "file" | "source" | "custom" | "reasoning-file":
                self._add(said)
            case "reasoning" if "textDelta" in said:  # as the protocol's first version has it
                self._pieces[self._begun("reasoning", said)].append(text(said["textDelta"]))
            case "response-metadata":
                self._state["response"] = {name: value for name, value in said.items() if name != "type"}
            case "stream-start" | "finish" | "error" | "result":
                self._state |= {name: value for name, value in said.items() if name != "type"}
                self._done = self._done or kind in ("finish", "result")
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The answer so far."""
        if not self._state and not self._parts:
            return None
        content = [self._part(part, pieces) for part, pieces in zip(self._parts, self._pieces, strict=True)]
        return {**({"content": content} if content else {}), **self._state}

    @property
    def complete(self) -> bool:
        """Whether `finish` came, without an error."""
        return self._done and self._state.get("error") is None

    def _begun(self, opened: str, said: Mapping[str, Json]) -> int:
        """Where the part with this id stands; a new one behind all others."""
        place = opened, text(said.get("id"))
        if place not in self._open:
            kind = _OPENED[opened]
            named = {"toolCallId": said.get("id"), "toolName": said.get("toolName")} if kind == "tool-call" else {}
            self._open[place] = self._add({"type": kind, **named})
        self._note(self._open[place], said)
        return self._open[place]

    def _note(self, place: int, said: Mapping[str, Json]) -> None:
        if said.get("providerMetadata") is not None:  # signatures of reasoning, at its start or its end
            self._parts[place]["providerMetadata"] = said["providerMetadata"]

    def _whole_call(self, said: Mapping[str, Json]) -> None:
        place = self._open.get(("tool-input", text(said.get("toolCallId"))))
        if place is None:
            self._add(said)
        else:
            self._parts[place], self._pieces[place] = dict(said), []

    def _add(self, part: Mapping[str, Json]) -> int:
        self._parts.append(dict(part))
        self._pieces.append([])
        return len(self._parts) - 1

    def _part(self, part: Mapping[str, Json], pieces: list[str]) -> Json:
        if part["type"] == "tool-call":
            return {**part, "input": "".join(pieces)} if pieces else part
        return {**part, "text": "".join(pieces)} if part["type"] in ("text", "reasoning") else part


def _tool_call(part: Mapping[str, Json]) -> ToolCall:
    written = part.get("input", part.get("args"))
    called = some(part.get("toolCallId"))
    return ToolCall(id=called, name=text(part.get("toolName")), arguments=arguments_of(written))


def _usage(usage: Mapping[str, Json]) -> Usage:
    asked, answered = usage.get("inputTokens"), usage.get("outputTokens")
    inputs, outputs = members(asked), members(answered)
    return Usage(
        input_tokens=_first(asked, inputs.get("total"), usage.get("promptTokens"), usage.get("tokens")),
        output_tokens=_first(answered, outputs.get("total"), usage.get("completionTokens")),
        cached_tokens=_first(inputs.get("cacheRead"), usage.get("cachedInputTokens")),
        reasoning_tokens=_first(outputs.get("reasoning"), usage.get("reasoningTokens")),
    )


def _first(*told: Json) -> int | None:
    return next((number for number in map(count, told) if number is not None), None)
