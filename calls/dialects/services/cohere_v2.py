"""Cohere's second API: chat as events, embed, rerank.

A message arrives in parts: content by index, the plan for its tools, tool calls by index with their arguments in pieces, citations
by index, and `message-end` with the finish reason and usage.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts, arguments_text
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import message_error
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.dialects.parts.token_counts import cohere_usage
from calls.model import Headers, Json, ToolCall, header

_HOSTS: Final = re.compile(r"(.+\.)?cohere\.(com|ai)")
_OPERATIONS: Final[Mapping[str, str]] = {"chat": "chat", "embed": "embeddings", "rerank": "rerank"}
_PATH: Final = re.compile(r"(?:.*/)?v2/(\w+)")


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim requests to Cohere's hosts, or by Cohere's SDK."""
    is_cohere = _HOSTS.fullmatch(host) is not None or header(headers, "x-fern-sdk-name") == "cohere"
    match = _PATH.fullmatch(path) if method == "POST" and is_cohere else None
    operation = _OPERATIONS.get(match[1]) if match else None
    return Claim(operation=operation, kind="model") if operation else None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the tool messages after the last message of the assistant."""
    request = as_object(body)
    results: list[Json] = []
    for message in map(as_object, reversed(as_array(request.get("messages")))):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "tool":
            results.insert(0, {"id": message.get("tool_call_id"), "content": message.get("content")})
    return RequestSummary(model=as_text_or_none(request.get("model")), tool_results=tuple(results))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, tool calls and usage of a message."""
    fields = as_object(answer)
    message = as_object(fields.get("message"))
    parts = [as_object(part) for part in as_array(message.get("content"))]
    texts = [as_text(part.get("text")) for part in parts if part.get("type") == "text"]
    return AnswerSummary(
        text="".join(texts) if texts else None,
        tool_calls=tuple(map(_tool_call, map(as_object, as_array(message.get("tool_calls"))))),
        finish_reason=as_text_or_none(fields.get("finish_reason")),
        usage=cohere_usage(as_object(fields.get("usage") or fields.get("meta"))),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a message, streamed or not."""
    return AccumulatorAssembly(content_type, CohereV2Stream())


class CohereV2Stream:
    """The events of one streamed message."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._message: dict[str, Json] = {}
        self._plan: list[str] = []
        self._parts: dict[str, dict[int, _Part]] = {"content": {}, "tool_calls": {}, "citations": {}}
        self._logprobs: list[Json] = []
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # the payload says it too
        """Add one event. Its type is in the payload; the event's name only repeats it."""
        fields = parse_payload(data)
        delta = as_object(fields.get("delta"))
        message = as_object(delta.get("message"))
        match fields.get("type"):
            case "message-start":
                self._state["id"] = fields.get("id")
                self._message = {name: value for name, value in message.items() if value not in ("", [], None)}
            case "message-end":
                self._state |= delta
                self._has_ended = True
            case "tool-plan-delta":
                self._plan.append(as_text(message.get("tool_plan")))
            case _:
                self._add_parts(as_count(fields.get("index")) or 0, message)
        self._logprobs.extend([fields["logprobs"]] if fields.get("logprobs") is not None else [])

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
                message[name] = [parts[index].build() for index in sorted(parts)]
        logprobs: dict[str, Json] = {"logprobs": list(self._logprobs)} if self._logprobs else {}
        return {**self._state, "message": message, **logprobs}

    @property
    def is_complete(self) -> bool:
        """Whether `message-end` arrived, without an error."""
        return self._has_ended and self._state.get("error") is None and self._state.get("finish_reason") != "ERROR"

    def _add_parts(self, index: int, message: Mapping[str, Json]) -> None:
        for name, parts in self._parts.items():
            if name in message:
                parts.setdefault(index, _Part()).add(as_object(message[name]))


class _Part:
    """A piece of content, a tool call or a citation while its deltas arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._function: _Part | None = None

    def add(self, part: Mapping[str, Json]) -> None:
        """Add its frame or one delta."""
        for name, value in part.items():
            match name, value:
                case "function", Mapping():
                    self._function = self._function or _Part()
                    self._function.add(value)
                # The text of a citation is whole, but is sent only once.
                case (("text" | "thinking" | "arguments"), str()):
                    self._pieces.setdefault(name, []).append(value)
                case _:
                    self._state[name] = value

    def build(self) -> dict[str, Json]:
        """The part so far."""
        joined: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        function: dict[str, Json] = {"function": self._function.build()} if self._function else {}
        return {**self._state, **joined, **function}


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = as_object(call.get("function"))
    arguments = parse_arguments(function.get("arguments"))
    return ToolCall(id=as_text_or_none(call.get("id")), name=as_text(function.get("name")), arguments=arguments)


def _part_events(kind: str, name: str, index: int, part: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """Write a part: what it begins as, the text that fills it (a citation has none), its end."""
    empty, filling = _split_part(part) if kind != "citation" else (part, None)
    yield {"type": f"{kind}-start", "index": index, "delta": {"message": {name: empty}}}
    if filling:
        yield {"type": f"{kind}-delta", "index": index, "delta": {"message": {name: filling}}}
    yield {"type": f"{kind}-end", "index": index}


def _split_part(part: Mapping[str, Json]) -> tuple[Mapping[str, Json], Mapping[str, Json] | None]:
    if isinstance(function := part.get("function"), Mapping):
        arguments = {"arguments": function.get("arguments")}
        return {**part, "function": {**function, "arguments": ""}}, {"function": arguments}
    member = next((name for name in ("text", "thinking") if name in part), None)
    return (part, None) if member is None else ({**part, member: ""}, {member: part[member]})


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a message with a text and tool calls."""
    if parts.operation != "chat":
        return None
    calls: list[Json] = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
        for call in parts.tool_calls
    ]
    content: list[Json] = [] if parts.text is None else [{"type": "text", "text": parts.text}]
    counts: Json = {"input_tokens": parts.input_tokens, "output_tokens": parts.output_tokens}
    filled = {name: value for name, value in (("content", content), ("tool_calls", calls)) if value}
    return {
        "id": parts.id,
        "finish_reason": parts.finish_word("COMPLETE", "TOOL_CALL"),
        "message": {"role": "assistant", **filled},
        "usage": {"billed_units": counts, "tokens": counts},
    }


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the start of a message, its parts, its tool calls and citations, and its end."""
    for event in _message_events(answer):
        yield sse_message(as_text(event.get("type")), event)
    yield sse_message("", "[DONE]")


def _message_events(answer: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    message = as_object(answer.get("message"))
    yield {"type": "message-start", "id": answer.get("id"), "delta": {"message": {"role": "assistant"}}}
    for index, part in enumerate(as_array(message.get("content"))):
        yield from _part_events("content", "content", index, as_object(part))
    if "tool_plan" in message:
        yield {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": message["tool_plan"]}}}
    for kind, name in (("tool-call", "tool_calls"), ("citation", "citations")):
        for index, part in enumerate(as_array(message.get(name))):
            yield from _part_events(kind, name, index, as_object(part))
    yield {
        "type": "message-end",
        "delta": {name: answer[name] for name in ("finish_reason", "usage") if name in answer},
    }


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make embeddings by their type, or a ranking."""
    meta: Json = {"api_version": {"version": "2"}, "billed_units": {"input_tokens": parts.input_tokens}}
    match parts.operation:
        case "embeddings" if vectors := parts.vectors:
            head: dict[str, Json] = {"id": parts.id, "texts": as_array(parts.request.get("texts")), "meta": meta}
            return {**head, "response_type": "embeddings_by_type", "embeddings": {"float": vectors}}
        case "rerank" if ranks := parts.ranks:
            results = [{"index": index, "relevance_score": score} for index, score in ranks]
            return {"id": parts.id, "results": results, "meta": meta}
        case _:
            return None


DIALECT: Final = Dialect(
    name="cohere_v2",
    claim=claim,
    headers=("x-fern-sdk-name",),
    services=(Service(provider="cohere", hosts=("api.cohere.com", "api.cohere.ai")),),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
    answer_paths=AnswerPaths(
        texts=("message/content/*/text",), calls=("message/tool_calls/*/function",), arguments=("arguments",)
    ),
    error_body=message_error,
    compose_results=_compose_results,
)
