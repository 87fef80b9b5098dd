"""Ollama's own API: chat, generate and embed, as lines of JSON unless the request has `stream: false`.

Every line is an answer in which only the text is a piece; tool calls are whole, and the last line (`done`) has the counts.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import ndjson_line
from calls.dialects.parts.unclaimed_kinds import is_near
from calls.framing import Framing, ndjson
from calls.model import Headers, Json, ToolCall, Usage, header

_PATH: Final = re.compile(r"(?:.*/)?api/(chat|generate|embed|embeddings)")
_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "generate": "text_completion",
    "embed": "embeddings",
    "embeddings": "embeddings",
}
_FRAMINGS: Final[tuple[Framing, ...]] = (ndjson,)
_TEXTS: Final = frozenset(("content", "thinking", "response"))


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim requests to a local machine, or by Ollama's SDK."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    # `/api/chat` is also a common path of web back ends.
    if match is None or not (is_near(host) or (header(headers, "user-agent") or "").startswith("ollama")):
        return None
    return Claim(operation=_OPERATIONS[match[1]], kind="model", provider="ollama")


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the tool messages after the last message of the assistant."""
    request = as_object(body)
    results: list[Json] = []
    for message in map(as_object, reversed(as_array(request.get("messages")))):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "tool":
            name = message.get("tool_name") or message.get("name")
            results.insert(0, {"id": message.get("tool_call_id"), "name": name, "content": message.get("content")})
    return RequestSummary(model=as_text_or_none(request.get("model")), tool_results=tuple(results))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, tool calls and usage of an answer."""
    fields = as_object(answer)
    message = as_object(fields.get("message"))
    return AnswerSummary(
        model=as_text_or_none(fields.get("model")),
        text=as_text_or_none(message.get("content")) or as_text_or_none(fields.get("response")),
        tool_calls=tuple(map(_tool_call, map(as_object, as_array(message.get("tool_calls"))))),
        finish_reason=as_text_or_none(fields.get("done_reason")),
        usage=Usage(
            input_tokens=as_count(fields.get("prompt_eval_count")), output_tokens=as_count(fields.get("eval_count"))
        ),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, OllamaStream(), _FRAMINGS)


class OllamaStream:
    """The lines of one streamed answer."""

    def __init__(self) -> None:
        self._answer = _PiecedAnswer()

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # a line has no name
        """Add one line."""
        self._answer.add(parse_payload(data))

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return self._answer.build() or None

    @property
    def is_complete(self) -> bool:
        """Whether the last line arrived, and no error."""
        return self._answer.state.get("done") is True and "error" not in self._answer.state


class _PiecedAnswer:
    """An object whose texts and lists continue from line to line."""

    def __init__(self) -> None:
        self.state: dict[str, Json] = {}
        self._texts: dict[str, list[str]] = {}
        self._lists: dict[str, list[Json]] = {}
        self._message: _PiecedAnswer | None = None

    def add(self, line: Mapping[str, Json]) -> None:
        """Add one line."""
        for name, value in line.items():
            match name, value:
                case "message", Mapping():
                    self._message = self._message or _PiecedAnswer()
                    self._message.add(value)
                case _, str() if name in _TEXTS:
                    self._texts.setdefault(name, []).append(value)
                case (("tool_calls" | "logprobs" | "images"), list()):
                    self._lists.setdefault(name, []).extend(value)
                case _:
                    self.state[name] = value

    def build(self) -> dict[str, Json]:
        """The object so far."""
        texts: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._texts.items()}
        message: dict[str, Json] = {"message": self._message.build()} if self._message else {}
        return {**self.state, **message, **texts, **self._lists}


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = as_object(call.get("function"))
    arguments = parse_arguments(function.get("arguments"))
    return ToolCall(id=as_text_or_none(call.get("id")), name=as_text(function.get("name")), arguments=arguments)


def _requested_form(criteria: FormCriteria) -> AnswerForm:
    """Stream unless the request has `"stream": false`."""
    is_whole = as_object(criteria.body).get("stream") is False or criteria.operation == "embeddings"
    return "whole" if is_whole else "ndjson"


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make an answer of `chat`, or one of `generate`, which has no tool calls."""
    calls: list[Json] = [{"function": {"name": call.name, "arguments": call.arguments}} for call in parts.tool_calls]
    answer: dict[str, Json]
    match parts.operation:
        case "chat":
            message: dict[str, Json] = {"role": "assistant", "content": parts.text or ""}
            answer = {"message": message | ({"tool_calls": calls} if calls else {})}
        case "text_completion" if parts.text is not None and not calls:
            answer = {"response": parts.text}
        case _:
            return None
    return {
        "model": parts.model,
        "created_at": parts.created_at,
        **answer,
        "done": True,
        "done_reason": parts.finish_word("stop", "stop"),
        **dict.fromkeys(("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"), 1_000_000),
        "prompt_eval_count": parts.input_tokens,
        "eval_count": parts.output_tokens,
    }


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write one line: the last line can be the only one."""
    yield ndjson_line(answer)


def _error_body(_status: int, message: str) -> Json:
    return {"error": message}


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make the vectors of `embed`, or the one of the older `embeddings`."""
    vectors = parts.vectors if parts.operation == "embeddings" else None
    if vectors is None:
        return None
    if parts.path.endswith("/embeddings"):
        return {"embedding": vectors[0]}
    durations = dict.fromkeys(("total_duration", "load_duration"), 1_000_000)
    return {"model": parts.model, "embeddings": vectors, **durations, "prompt_eval_count": parts.input_tokens}


DIALECT: Final = Dialect(
    name="ollama",
    claim=claim,
    headers=("user-agent",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=_requested_form,
    stream_writers={"ndjson": _write_stream},
    compose_answer=_compose_answer,
    answer_paths=AnswerPaths(
        texts=("message/content", "response"), calls=("message/tool_calls/*/function",), arguments=("arguments",)
    ),
    error_body=_error_body,
    compose_results=_compose_results,
)
