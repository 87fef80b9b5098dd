"""Cohere's second API: chat as events, embed, rerank.

A message comes in parts: content by index, the plan for its tools, tool calls by index with their arguments in pieces, citations
by index, and `message-end` with why it ended and what it cost.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage, header

NAME: Final = "cohere_v2"

_HOSTS: Final = re.compile(r"(.+\.)?cohere\.(com|ai)")
_OPERATIONS: Final[Mapping[str, str]] = {"chat": "chat", "embed": "embeddings", "rerank": "rerank"}
_PATH: Final = re.compile(r"(?:.*/)?v2/(\w+)")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Cohere's hosts, or any that is asked by Cohere's SDK."""
    ours = _HOSTS.fullmatch(host) is not None or header(headers, "x-fern-sdk-name") == "cohere"
    match = _PATH.fullmatch(path) if method == "POST" and ours else None
    operation = _OPERATIONS.get(match[1]) if match else None
    return Claim(dialect=NAME, operation=operation, kind="model") if operation else None


def asked(body: Json) -> RequestSummary:
    """The model, and the tool messages that follow the last word of the assistant."""
    request = members(body)
    results: list[Json] = []
    for message in map(members, reversed(elements(request.get("messages")))):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "tool":
            results.insert(0, {"id": message.get("tool_call_id"), "content": message.get("content")})
    return RequestSummary(model=some(request.get("model")), tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What a message says."""
    said = members(answer)
    message = members(said.get("message"))
    parts = [members(part) for part in elements(message.get("content"))]
    texts = [text(part.get("text")) for part in parts if part.get("type") == "text"]
    return AnswerSummary(
        text="".join(texts) if texts else None,
        tool_calls=tuple(map(_tool_call, map(members, elements(message.get("tool_calls"))))),
        finish_reason=some(said.get("finish_reason")),
        usage=_usage(members(said.get("usage") or said.get("meta"))),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a message, streamed or not."""
    return AccumulatorAssembly(content_type, CohereV2Stream())


class CohereV2Stream:
    """The events of one streamed message."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._message: dict[str, Json] = {}
        self._plan: list[str] = []
        self._parts: dict[str, dict[int, _Part]] = {"content": {}, "tool_calls": {}, "citations": {}}
        self._logprobs: list[Json] = []
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # the payload says it too
        """Take one event. Its type is in the payload; the event's name only repeats it."""
        said = payload(data)
        delta = members(said.get("delta"))
        message = members(delta.get("message"))
        match said.get("type"):
            case "message-start":
                self._state["id"] = said.get("id")
                self._message = {name: value for name, value in message.items() if value not in ("", [], None)}
            case "message-end":
                self._state |= delta
                self._done = True
            case "tool-plan-delta":
                self._plan.append(text(message.get("tool_plan")))
            case _:
                self._take_parts(count(said.get("index")) or 0, message)
        self._logprobs.extend([said["logprobs"]] if said.get("logprobs") is not None else [])

    @property
    def answer(self) -> Json:
        """The message so far."""
        if not self._state and not self._message and not any(self._parts.values()):
            return None
        message = dict(self._message)
        if self._plan:
            message["tool_plan"] = "".join(self._plan)
        for name, parts in self._parts.items():
            if parts:
                message[name] = [parts[index].whole() for index in sorted(parts)]
        logprobs: dict[str, Json] = {"logprobs": list(self._logprobs)} if self._logprobs else {}
        return {**self._state, "message": message, **logprobs}

    @property
    def complete(self) -> bool:
        """Whether `message-end` came, without an error."""
        return self._done and self._state.get("error") is None and self._state.get("finish_reason") != "ERROR"

    def _take_parts(self, index: int, message: Mapping[str, Json]) -> None:
        for name, parts in self._parts.items():
            if name in message:
                parts.setdefault(index, _Part()).take(members(message[name]))


class _Part:
    """A piece of content, a tool call or a citation while its deltas come."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._function: _Part | None = None

    def take(self, part: Mapping[str, Json]) -> None:
        """Take its frame or one delta."""
        for name, value in part.items():
            match name, value:
                case "function", Mapping():
                    self._function = self._function or _Part()
                    self._function.take(value)
                # A citation's text comes whole, but so does it only once.
                case (("text" | "thinking" | "arguments"), str()):
                    self._pieces.setdefault(name, []).append(value)
                case _:
                    self._state[name] = value

    def whole(self) -> dict[str, Json]:
        """The part."""
        joined: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        function: dict[str, Json] = {"function": self._function.whole()} if self._function else {}
        return {**self._state, **joined, **function}


def _usage(usage: Mapping[str, Json]) -> Usage:
    """Counts as they are billed; as they are where the bill does not say: searches are billed in other units."""
    billed, counted = members(usage.get("billed_units")), members(usage.get("tokens"))
    return Usage(
        input_tokens=count((billed if "input_tokens" in billed else counted).get("input_tokens")),
        output_tokens=count((billed if "output_tokens" in billed else counted).get("output_tokens")),
        cached_tokens=count(usage.get("cached_tokens")),
    )


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = members(call.get("function"))
    arguments = arguments_of(function.get("arguments"))
    return ToolCall(id=some(call.get("id")), name=text(function.get("name")), arguments=arguments)
