"""Alibaba's DashScope in its own shape (Qwen and others): chat, text, embeddings, rerankers.

Each event of a stream has the whole answer so far, or only what is new (`incremental_output`), and does not say which. As long as
each text begins with the one before, it is taken for the whole so far.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts, arguments_text
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import PiecedObject, parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage, header

_PATH: Final = re.compile(
    r"/api/v1/services/(?:aigc/(?:text|multimodal)-generation/generation|(embeddings/[\w/-]+)|(rerank/[\w/-]+))"
    r"|/api/v1/apps/[^/]+/(completion)"
)
_JOINED: Final = frozenset(("content", "reasoning_content", "text", "arguments"))
_STREAMING: Final = "x-dashscope-sse"


def claim(method: str, _host: str, path: str, headers: Headers) -> Claim | None:
    """Claim the services for text at any host. A header asks for a stream."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    operation = "embeddings" if match[1] else "rerank" if match[2] else "invoke_agent" if match[3] else "chat"
    streams = (header(headers, _STREAMING) or "").lower() == "enable"
    return Claim(operation=operation, kind="model", provider="alibaba", streams=streams)


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the tool messages after the last message of the assistant."""
    results: list[Json] = []
    for message in reversed(as_array(as_object(as_object(body).get("input")).get("messages"))):
        fields = as_object(message)
        if fields.get("role") == "tool":
            results.append(
                {"id": fields.get("tool_call_id"), "name": fields.get("name"), "content": fields.get("content")}
            )
        elif fields.get("role") == "assistant":
            break
    return RequestSummary(model=as_text_or_none(as_object(body).get("model")), tool_results=tuple(reversed(results)))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text and tool calls of the first choice, or the results of a reranker."""
    fields = as_object(answer)
    output, usage = as_object(fields.get("output")), as_object(fields.get("usage"))
    choice = _first_choice(output)
    message = as_object(choice.get("message"))
    reason = as_text_or_none(choice.get("finish_reason")) or as_text_or_none(output.get("finish_reason"))
    return AnswerSummary(
        model=as_text_or_none(fields.get("model")),
        text=_content_text(message.get("content")) or as_text_or_none(output.get("text")),
        tool_calls=tuple(map(_tool_call, map(as_object, as_array(message.get("tool_calls"))))),
        finish_reason=None if reason == "null" else reason,
        usage=Usage(
            input_tokens=as_count(usage.get("input_tokens")),
            output_tokens=as_count(usage.get("output_tokens")),
            cached_tokens=as_count(as_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
            reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
        ),
        results=tuple(as_array(output.get("results"))),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, DashscopeStream())


class DashscopeStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._joined = PiecedObject(_JOINED)
        self._output: Mapping[str, Json] = {}
        self._before = ""
        self._whole = True
        """Whether every event so far had the whole answer."""

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # an error has a code, whatever its event is called
        """Add one event."""
        fields = parse_payload(data)
        self._state |= {name: value for name, value in fields.items() if name != "output"}
        if "output" not in fields:
            return
        self._output = as_object(fields["output"])
        choice = _first_choice(self._output)
        text = _event_text(self._output, as_object(choice.get("message")))
        self._whole = self._whole and text.startswith(self._before)
        self._before = text
        others = {name: value for name, value in self._output.items() if name != "choices"}
        self._joined.add({**others, "choice": _choice_delta(choice)} if choice else others)

    @property
    def answer(self) -> Json:
        """The answer so far."""
        output = dict(self._output)
        if not self._whole:
            output = self._joined.build()
            if choice := output.pop("choice", None):
                output["choices"] = [choice]
        return {**self._state, **({"output": output} if output else {})} or None

    @property
    def is_complete(self) -> bool:
        """Whether the answer has a finish reason."""
        reason = _first_choice(self._output).get("finish_reason") or self._output.get("finish_reason")
        return reason not in (None, "", "null") and "code" not in self._state


def _first_choice(output: Mapping[str, Json]) -> Mapping[str, Json]:
    choices = as_array(output.get("choices"))
    return as_object(choices[0]) if choices else {}


def _choice_delta(choice: Mapping[str, Json]) -> Mapping[str, Json]:
    """Remove empty members of tool calls: an id is sent once, and empty after that."""
    message = as_object(choice.get("message"))
    calls = [
        {name: value for name, value in as_object(call).items() if value != ""}
        for call in as_array(message.get("tool_calls"))
    ]
    return {**choice, "message": {**message, **({"tool_calls": calls} if calls else {})}}


def _event_text(output: Mapping[str, Json], message: Mapping[str, Json]) -> str:
    """All texts of an event, to be compared with the event before."""
    calls = [as_object(as_object(call).get("function")) for call in as_array(message.get("tool_calls"))]
    texts = [
        as_text(output.get("text")),
        as_text(message.get("reasoning_content")),
        _content_text(message.get("content")),
    ]
    return "".join([*texts, *(as_text(call.get("arguments")) for call in calls)])


def _content_text(content: Json) -> str:
    """A text, or the joined texts of its parts."""
    return as_text(content) or "".join(as_text(as_object(part).get("text")) for part in as_array(content))


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = as_object(call.get("function"))
    return ToolCall(
        id=as_text_or_none(call.get("id")),
        name=as_text(function.get("name")),
        arguments=parse_arguments(function.get("arguments")),
    )


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a text, or a message where the request wants one, a model for pictures answers, or there are tool calls."""
    if parts.operation not in ("chat", "invoke_agent"):
        return None
    output: dict[str, Json]
    is_multimodal = "/multimodal-generation/" in parts.path
    wants_message = as_object(parts.request.get("parameters")).get("result_format") == "message"
    if parts.operation == "invoke_agent":
        if parts.tool_calls:
            return None
        output = {"text": parts.text, "finish_reason": parts.finish_word("stop", "stop"), "session_id": parts.id}
    elif wants_message or is_multimodal or parts.tool_calls:
        text = parts.text or ""
        message: dict[str, Json] = {"role": "assistant", "content": [{"text": text}] if is_multimodal else text}
        if parts.tool_calls:
            message["tool_calls"] = [
                {"index": number, "id": call.id, "type": "function"}
                | {"function": {"name": call.name, "arguments": arguments_text(call)}}
                for number, call in enumerate(parts.tool_calls)
            ]
        output = {"choices": [{"finish_reason": parts.finish_word("stop", "tool_calls"), "message": message}]}
    else:
        output = {"text": parts.text, "finish_reason": parts.finish_word("stop", "stop")}
    return {"output": output, "usage": _composed_usage(parts), "request_id": parts.id}


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make an answer with embeddings or a ranking."""
    output: dict[str, Json]
    if parts.operation == "embeddings" and (vectors := parts.vectors):
        output = {"embeddings": [{"text_index": place, "embedding": one} for place, one in enumerate(vectors)]}
    elif parts.operation == "rerank" and (ranks := parts.ranks):
        output = {"results": [{"index": index, "relevance_score": score} for index, score in ranks]}
    else:
        return None
    return {"output": output, "usage": {"total_tokens": parts.input_tokens}, "request_id": parts.id}


def _composed_usage(parts: AnswerParts) -> Json:
    total = parts.input_tokens + parts.output_tokens
    return {"input_tokens": parts.input_tokens, "output_tokens": parts.output_tokens, "total_tokens": total}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write one event: an event has the whole answer so far."""
    yield b"id:1\n" + sse_message("result", dict(answer)).replace(b"\ndata: ", b"\n:HTTP_STATUS/200\ndata: ", 1)


DIALECT: Final = Dialect(
    name="dashscope",
    claim=claim,
    headers=(_STREAMING,),
    services=(
        Service(
            provider="alibaba",
            hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "dashscope-us.aliyuncs.com"),
        ),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
    compose_results=_compose_results,
)
