"""Cohere's first API: chat as lines of JSON, generate, embed, rerank, classify.

A chat's last line, `stream-end`, has the whole answer as it would be without streaming. The lines before it are joined
only for an answer that was cut.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import streamed_if_requested
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import message_error
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import ndjson_line
from calls.dialects.parts.token_counts import cohere_usage
from calls.framing import Framing, ndjson, sse
from calls.model import Headers, Json, ToolCall, header

_HOSTS: Final = re.compile(r"(.+\.)?cohere\.(com|ai)")
_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "generate": "text_completion",
    "embed": "embeddings",
    "rerank": "rerank",
    "classify": "classify",
    "summarize": "summarize",
    "tokenize": "tokenize",
    "detokenize": "tokenize",
}

_PATH: Final = re.compile(r"(?:.*/)?v1/(\w+)")
_FRAMINGS: Final[tuple[Framing, ...]] = (ndjson, sse)


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim requests to Cohere's hosts, or by Cohere's SDK: other APIs have a `/v1/chat` too."""
    is_cohere = _HOSTS.fullmatch(host) is not None or header(headers, "x-fern-sdk-name") == "cohere"
    match = _PATH.fullmatch(path) if method == "POST" and is_cohere else None
    operation = _OPERATIONS.get(match[1]) if match else None
    return Claim(operation=operation, kind="model") if operation else None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the results of tools."""
    request = as_object(body)
    results = [as_object(result) for result in as_array(request.get("tool_results"))]
    return RequestSummary(model=as_text_or_none(request.get("model")), tool_results=tuple(map(_tool_result, results)))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, tool calls and usage of an answer."""
    fields = as_object(answer)
    generations = [as_object(one) for one in as_array(fields.get("generations"))]
    first = generations[0] if generations else fields
    return AnswerSummary(
        text=as_text_or_none(first.get("text")),
        tool_calls=tuple(map(_tool_call, map(as_object, as_array(fields.get("tool_calls"))))),
        finish_reason=as_text_or_none(first.get("finish_reason")),
        usage=cohere_usage(as_object(fields.get("meta"))),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, CohereV1Stream(), _FRAMINGS)


class CohereV1Stream:
    """The lines of one streamed answer."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._texts: list[str] = []
        self._lists: dict[str, list[Json]] = {}
        self._whole: Mapping[str, Json] = {}
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # a line has no name
        """Add one line. It names its type, but the older `generate` has only text and `is_finished`."""
        line = parse_payload(data)
        for name, value in line.items():
            match name:
                case "text" if line.get("event_type") in (None, "text-generation"):
                    self._texts.append(as_text(value))
                case "event_type" | "is_finished" | "text" | "tool_call_delta" | "index":
                    pass
                case "response":
                    self._whole = as_object(value)
                case _ if isinstance(value, list):
                    self._lists.setdefault(name, []).extend(value)
                case _:
                    self._state[name] = value
        self._has_ended = self._has_ended or line.get("is_finished") is True

    @property
    def answer(self) -> Json:
        """The answer that Cohere sent at the end, else the answer so far."""
        if self._whole:
            return dict(self._whole)
        joined: dict[str, Json] = {"text": "".join(self._texts)} if self._texts else {}
        return {**self._state, **joined, **self._lists} or None

    @property
    def is_complete(self) -> bool:
        """Whether the last line arrived, without an error."""
        reason = self._state.get("finish_reason")
        return self._has_ended and not as_text(reason).startswith("ERROR")


def _tool_result(result: Mapping[str, Json]) -> Json:
    call = as_object(result.get("call"))
    return {"id": call.get("generation_id"), "name": call.get("name"), "content": result.get("outputs")}


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=None, name=as_text(call.get("name")), arguments=call.get("parameters"))


def compose_answer(parts: AnswerParts) -> Json | None:
    """Make an answer of `chat`, or one of `generate`, which has no tool calls and is not streamed."""
    if parts.operation == "text_completion" and parts.text is not None and not parts.tool_calls:
        text: Json = {"id": f"{parts.id}g", "text": parts.text, "finish_reason": parts.finish_word("COMPLETE", "")}
        return {"id": parts.id, "prompt": as_text(parts.request.get("prompt")), "generations": [text]}
    if parts.operation != "chat":
        return None
    calls: list[Json] = [{"name": call.name, "parameters": call.arguments} for call in parts.tool_calls]
    counts: Json = {"input_tokens": parts.input_tokens, "output_tokens": parts.output_tokens}
    return {
        "response_id": parts.id,
        "generation_id": f"{parts.id}g",
        "text": parts.text or "",
        **({"tool_calls": calls} if calls else {}),
        "chat_history": [],
        "finish_reason": parts.finish_word("COMPLETE", "COMPLETE"),
        "meta": {"api_version": {"version": "1"}, "billed_units": counts, "tokens": counts},
    }


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    return map(ndjson_line, answer_events(answer))


def answer_events(answer: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """The text, the tool calls, and at the end the whole answer."""
    yield {"event_type": "stream-start", "generation_id": answer.get("generation_id"), "is_finished": False}
    if as_text(answer.get("text")):
        yield {"event_type": "text-generation", "text": answer["text"], "is_finished": False}
    if as_array(answer.get("tool_calls")):
        yield {"event_type": "tool-calls-generation", "tool_calls": answer["tool_calls"], "is_finished": False}
    end = {"event_type": "stream-end", "finish_reason": answer.get("finish_reason"), "response": answer}
    yield {**end, "is_finished": True}


def compose_results(parts: AnswerParts) -> Json | None:
    """Make embeddings or a ranking."""
    meta: Json = {"api_version": {"version": "1"}, "billed_units": {"input_tokens": parts.input_tokens}}
    texts = as_array(parts.request.get("texts"))
    match parts.operation:
        case "embeddings" if vectors := parts.vectors:
            head: dict[str, Json] = {"id": parts.id, "texts": texts, "meta": meta}
            if "embedding_types" in parts.request:
                return {**head, "response_type": "embeddings_by_type", "embeddings": {"float": vectors}}
            return {**head, "response_type": "embeddings_floats", "embeddings": vectors}
        case "rerank" if ranks := parts.ranks:
            results = [{"index": index, "relevance_score": score} for index, score in ranks]
            return {"id": parts.id, "results": results, "meta": meta}
        case _:
            return None


DIALECT: Final = Dialect(
    name="cohere_v1",
    claim=claim,
    headers=("x-fern-sdk-name",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=streamed_if_requested("ndjson"),
    stream_writers={"ndjson": _write_stream},
    compose_answer=compose_answer,
    answer_paths=AnswerPaths(texts=("text",), calls=("tool_calls/*",), arguments=("parameters",)),
    error_body=message_error,
    compose_results=compose_results,
)
