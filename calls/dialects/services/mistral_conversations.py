"""Mistral's Conversations: agents whose turns Mistral stores; a conversation is started, continued or restarted from an entry.

A turn has outputs: messages of the model, runs of Mistral's own tools, handoffs, and function calls for the client. A stream has
them by index, in pieces that repeat their frame, and ends with `conversation.response.done`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts, arguments_text
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage

_PATH: Final = re.compile(r"(?:.*/)?v1/conversations(?:/[^/]+(/restart)?)?")

_TYPES: Final = frozenset(("message.output", "function.call", "tool.execution", "agent.handoff"))
"""The types of outputs, which are also the prefixes of their events."""

_JOINED: Final = frozenset(("content", "arguments"))
_FRAME: Final = frozenset(("type", "output_index", "content_index"))


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim conversations at Mistral's host: OpenAI has conversations too, which ask no model."""
    match = _PATH.fullmatch(path) if method == "POST" and host.endswith("mistral.ai") else None
    return Claim(operation="invoke_agent", kind="model") if match else None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, or the agent that has one, and the results of functions."""
    request = as_object(body)
    entries = [as_object(entry) for entry in as_array(request.get("inputs"))]
    results = [_function_result(entry) for entry in entries if entry.get("type") == "function.result"]
    return RequestSummary(
        model=as_text_or_none(request.get("model")) or as_text_or_none(request.get("agent_id")),
        tool_results=tuple(results),
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the texts and calls of the outputs. A turn that ends with function calls waits for their results."""
    fields = as_object(answer)
    outputs = [as_object(output) for output in as_array(fields.get("outputs"))]
    texts = [_content_text(output.get("content")) for output in outputs if output.get("type") == "message.output"]
    calls = [output for output in outputs if output.get("type") in ("function.call", "tool.execution")]
    waits = any(output.get("type") == "function.call" for output in outputs[-1:])
    return AnswerSummary(
        model=next(
            (name for name in (as_text_or_none(output.get("model")) for output in reversed(outputs)) if name), None
        ),
        text="".join(texts) if texts else None,
        tool_calls=tuple(map(_tool_call, calls)),
        finish_reason="tool_calls" if waits else "stop" if outputs else None,
        usage=_usage(as_object(fields.get("usage"))),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a turn, streamed or not."""
    return AccumulatorAssembly(content_type, MistralConversationsStream())


class MistralConversationsStream:
    """The events of one streamed turn."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._outputs: dict[tuple[int, str], _Output] = {}
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # the payload says it too
        """Add one event. Its type is in the payload."""
        fields = parse_payload(data)
        kind = as_text(fields.get("type"))
        subject, _, phase = kind.rpartition(".")
        rest = {name: fields[name] for name in fields if name not in ("type", "created_at")}
        if kind == "conversation.response.error":
            self._error = rest
        elif subject == "conversation.response":
            self._state |= rest
            self._has_ended = self._has_ended or phase == "done"
        elif subject in _TYPES and (index := as_count(fields.get("output_index"))) is not None:
            # Parallel calls share an index and differ in their ids.
            self._outputs.setdefault((index, as_text(fields.get("tool_call_id"))), _Output(subject)).add(fields)
        elif fields.get("error") is not None or fields.get("object") == "error":
            self._error = fields.get("error") or dict(fields)

    @property
    def answer(self) -> Json:
        """The turn so far; where there is only an error, the error's own body."""
        if not self._state and not self._outputs:
            return None if self._error is None else {"error": self._error}
        outputs: list[Json] = [self._outputs[at].build() for at in sorted(self._outputs, key=lambda at: at[0])]
        answer: dict[str, Json] = {"object": "conversation.response", **self._state, "outputs": outputs}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def is_complete(self) -> bool:
        """Whether the turn ended, and no error."""
        return self._has_ended and self._error is None


class _Output:
    """One output while its events arrive: texts are joined, parts are appended, and anything else is replaced."""

    def __init__(self, kind: str) -> None:
        self._state: dict[str, Json] = {"object": "entry", "type": kind}
        self._pieces: dict[str, list[str]] = {}
        self._parts: list[Json] = []

    def add(self, fields: Mapping[str, Json]) -> None:
        """Add one event."""
        for name, value in fields.items():
            match name, value:
                case _ if name in _FRAME:
                    pass
                case "created_at", _:
                    self._state.setdefault(name, value)
                case _, str() if name in _JOINED:
                    self._pieces.setdefault(name, []).append(value)
                case "content", Mapping():
                    self._parts.append(value)
                case _:
                    self._state[name] = value

    def build(self) -> Json:
        """The output as a turn has it."""
        joined: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        if self._parts:
            text_parts: list[Json] = [{"type": "text", "text": joined["content"]}] if joined.get("content") else []
            joined["content"] = [*text_parts, *self._parts]
        return {**self._state, **joined}


def _content_text(content: Json) -> str:
    """A text, or the joined texts of its parts."""
    return (
        content
        if isinstance(content, str)
        else "".join(as_text(as_object(part).get("text")) for part in as_array(content))
    )


def _tool_call(output: Mapping[str, Json]) -> ToolCall:
    name = as_text(output.get("name")) or as_text(output.get("function"))
    id_ = as_text_or_none(output.get("tool_call_id")) or as_text_or_none(output.get("id"))
    return ToolCall(id=id_, name=name, arguments=parse_arguments(output.get("arguments")))


def _function_result(entry: Mapping[str, Json]) -> Json:
    return {"id": entry.get("tool_call_id"), "content": entry.get("result")}


def _usage(usage: Mapping[str, Json]) -> Usage:
    return Usage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
    )


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a turn with an output for the text and for each function call."""
    entry: dict[str, Json] = {"object": "entry", "created_at": parts.created_at, "completed_at": parts.created_at}
    message: dict[str, Json] = {
        "id": f"msg_{parts.id}",
        "model": parts.model,
        "role": "assistant",
        "content": parts.text,
    }
    texts: list[Json] = [] if parts.text is None else [{**entry, "type": "message.output", **message}]
    calls: list[Json] = [
        {**entry, "type": "function.call", "id": f"fc_{parts.id}{number}", "tool_call_id": call.id}
        | {"name": call.name, "arguments": arguments_text(call)}
        for number, call in enumerate(parts.tool_calls)
    ]
    head: dict[str, Json] = {"object": "conversation.response", "conversation_id": f"conv_{parts.id}"}
    return {**head, "outputs": [*texts, *calls], "usage": parts.openai_usage}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the start, each output in one piece, and the end with the usage."""
    for kind, event in _turn_events(answer):
        yield sse_message(kind, {"type": kind, **event})


def _turn_events(answer: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    yield "conversation.response.started", {"conversation_id": answer.get("conversation_id")}
    for index, output in enumerate(map(as_object, as_array(answer.get("outputs")))):
        kind = as_text(output.get("type"))
        rest = {name: value for name, value in output.items() if name not in ("type", "object", "completed_at")}
        # A run of Mistral's own tool is not whole before its end, and messages and calls are.
        names = ("started", "done") if kind in ("tool.execution", "agent.handoff") else ("delta",)
        for name in names:
            yield f"{kind}.{name}", {"output_index": index, **rest} if name != "done" else {"output_index": index}
    others = {name: value for name, value in answer.items() if name not in ("outputs", "object", "conversation_id")}
    yield "conversation.response.done", others


DIALECT: Final = Dialect(
    name="mistral_conversations",
    claim=claim,
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
)
