"""Gemini's Interactions: a turn in steps (thoughts, function calls, text), also in the background.

A stream has steps by index: `step.start` has the frame, `step.delta` a piece, `interaction.completed` the interaction without
its steps, and `[DONE]` ends it. Until the spring of 2026 an interaction had `outputs` in place of steps: only their contents.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage

_PATH: Final = re.compile(r"(?:.*/)?v1(?:alpha|beta)\d*/interactions(?:/([^/:]+))?")
_GOING_ON: Final = frozenset(("in_progress", "queued"))


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim a new interaction, or a poll for one, at Google's hosts."""
    match = _PATH.fullmatch(path) if host.endswith("googleapis.com") else None
    match method, match:
        case "POST", re.Match() as found if found[1] is None:
            return Claim(operation="generate_content", kind="model")
        case "GET", re.Match() as found if found[1]:
            return Claim(operation="poll", kind="model", polls=found[1])
        case _:
            return None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model or agent, and the results of functions."""
    request = as_object(body)
    steps = [as_object(step) for step in as_array(request.get("input"))]
    results = [_function_result(step) for step in steps if step.get("type") == "function_result"]
    return RequestSummary(
        model=as_text_or_none(request.get("model")) or as_text_or_none(request.get("agent")),
        tool_results=tuple(results),
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, function calls and usage of an interaction."""
    interaction = as_object(answer)
    steps = [as_object(step) for step in as_array(interaction.get("steps") or interaction.get("outputs"))]
    parts = [part for step in steps if step.get("type") == "model_output" for part in as_array(step.get("content"))]
    texts = [as_text(as_object(part).get("text")) for part in (*parts, *steps) if as_object(part).get("type") == "text"]
    status = as_text_or_none(interaction.get("status"))
    return AnswerSummary(
        model=as_text_or_none(interaction.get("model")),
        text="".join(texts) or None,
        tool_calls=tuple(_tool_call(step) for step in steps if step.get("type") == "function_call"),
        finish_reason=status,
        usage=_usage(as_object(interaction.get("usage"))),
        pending=as_text_or_none(interaction.get("id")) if status in _GOING_ON else None,
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an interaction, streamed or not."""
    return AccumulatorAssembly(content_type, GeminiInteractionsStream())


class GeminiInteractionsStream:
    """The events of one streamed interaction."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._steps: dict[int, _Step] = {}
        self._outputs: dict[int, _Output] = {}
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # the payload says it too
        """Add one event. Its type is in the payload."""
        if data.strip() == "[DONE]":
            self._has_ended = True
        fields = parse_payload(data)
        match as_text(fields.get("event_type")):
            case "interaction.created" | "interaction.start" | "interaction.completed" | "interaction.complete":
                self._update_state(as_object(fields.get("interaction")))
            case "interaction.status_update":
                self._state["status"] = fields.get("status")
            case "step.start" | "step.delta":
                step = self._steps.setdefault(as_count(fields.get("index")) or 0, _Step())
                step.add(as_object(fields.get("step")), as_object(fields.get("delta")))
            case "content.start" | "content.delta":
                output = self._outputs.setdefault(as_count(fields.get("index")) or 0, _Output())
                output.add(as_object(fields.get("content")), as_object(fields.get("delta")))
            case "error":
                self._error = fields.get("error")
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The interaction so far."""
        answer = dict(self._state)
        if self._steps:
            answer["steps"] = [self._steps[index].build() for index in sorted(self._steps)]
        if self._outputs:
            answer["outputs"] = [self._outputs[index].build() for index in sorted(self._outputs)]
        return {**answer, "error": self._error} if self._error is not None else answer or None

    @property
    def is_complete(self) -> bool:
        """Whether `[DONE]` arrived, and no error."""
        return self._has_ended and self._error is None

    def _update_state(self, interaction: Mapping[str, Json]) -> None:
        self._state |= {
            name: value for name, value in interaction.items() if name not in ("steps", "outputs", "object")
        }


class _Step:
    """One step while its deltas arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._texts: list[str] = []
        self._arguments: list[str] = []
        self._summary: list[Json] = []

    def add(self, frame: Mapping[str, Json], delta: Mapping[str, Json]) -> None:
        """Add its frame, or one delta."""
        self._state |= frame
        match delta.get("type"):
            case None:
                pass
            case "text":
                self._texts.append(as_text(delta.get("text")))
            case "arguments_delta":
                self._arguments.append(as_text(delta.get("arguments")))
            case "thought_signature":
                self._state["signature"] = delta.get("signature")
            case "thought_summary":
                self._summary.append(delta.get("content"))
            case "text_annotation" | "text_annotation_delta":
                self._state["annotations"] = [
                    *as_array(self._state.get("annotations")),
                    *as_array(delta.get("annotations")),
                ]
            case "image" | "audio" | "video" | "document":
                self._parts.append(dict(delta))
            case _:
                self._state |= {name: value for name, value in delta.items() if name != "type"}

    def build(self) -> Json:
        """The step as an interaction has it."""
        step = dict(self._state)
        if self._arguments:
            step["arguments"] = parse_arguments("".join(self._arguments))
        if self._summary:
            step["summary"] = [*as_array(step.get("summary")), *self._summary]
        return self._with_content(step)

    def _with_content(self, step: dict[str, Json]) -> Json:
        annotations = step.pop("annotations", None)
        if self._texts or self._parts:
            text_part: dict[str, Json] = {"type": "text", "text": "".join(self._texts)}
            text_part |= {"annotations": annotations} if annotations else {}
            step["content"] = [*as_array(step.get("content")), *([text_part] if self._texts else []), *self._parts]
        return step


class _Output(_Step):
    """One output while its deltas arrive: an output is the content of a step."""

    def _with_content(self, step: dict[str, Json]) -> Json:
        if self._texts:
            step["text"] = as_text(step.get("text")) + "".join(self._texts)
        return step | {name: value for part in self._parts for name, value in part.items()}


def _function_result(step: Mapping[str, Json]) -> Json:
    result = {"id": step.get("call_id"), "name": step.get("name"), "content": step.get("result")}
    return {**result, "is_error": True} if step.get("is_error") is True else result


def _tool_call(step: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=as_text_or_none(step.get("id")), name=as_text(step.get("name")), arguments=step.get("arguments"))


def _usage(usage: Mapping[str, Json]) -> Usage:
    """Google counts thoughts apart from the answer; other APIs report the sum."""
    thoughts, output = as_count(usage.get("total_thought_tokens")), as_count(usage.get("total_output_tokens"))
    return Usage(
        input_tokens=as_count(usage.get("total_input_tokens")),
        output_tokens=None if output is None else output + (thoughts or 0),
        cached_tokens=as_count(usage.get("total_cached_tokens")),
        reasoning_tokens=thoughts,
    )


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make an interaction with a step for the text and for each function call."""
    if parts.operation != "generate_content":
        return None
    content: Json = [{"type": "text", "text": parts.text}]
    texts: list[Json] = [] if parts.text is None else [{"type": "model_output", "content": content}]
    calls: list[Json] = [
        {"type": "function_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in parts.tool_calls
    ]
    usage: Json = {
        "total_input_tokens": parts.input_tokens,
        "total_output_tokens": parts.output_tokens,
        "total_tokens": parts.input_tokens + parts.output_tokens,
    }
    head: dict[str, Json] = {"id": f"v1_{parts.id}", "object": "interaction", "model": parts.model}
    times = dict.fromkeys(("created", "updated"), parts.created_at)
    status = parts.finish_word("completed", "requires_action")
    return {**head, "status": status, **times, "role": "model", "steps": [*texts, *calls], "usage": usage}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the interaction as it begins, each step in pieces, the interaction without its steps, and the end marker."""
    for kind, event in _interaction_events(answer):
        yield sse_message(kind, {"event_type": kind, **event})
    yield sse_message("done", "[DONE]")


def _interaction_events(answer: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    whole = {name: value for name, value in answer.items() if name not in ("steps", "outputs")}
    new_interaction = {name: value for name, value in whole.items() if name != "usage"}
    yield "interaction.created", {"interaction": {**new_interaction, "status": "in_progress"}}
    yield "interaction.status_update", {"interaction_id": answer.get("id"), "status": "in_progress"}
    for index, step in enumerate(map(as_object, as_array(answer.get("steps")))):
        for kind, event in _step_events(step):
            yield kind, {"index": index, **event}
    yield "interaction.completed", {"interaction": whole}


def _step_events(step: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    match step.get("type"):
        case "model_output":
            rest = {name: value for name, value in step.items() if name != "content"}
            yield "step.start", {"step": rest}
            for part in map(as_object, as_array(step.get("content"))):
                yield "step.delta", {"delta": part}
        case "function_call":
            yield "step.start", {"step": {**step, "arguments": {}}}
            pieces = {"type": "arguments_delta", "arguments": dumps(step.get("arguments")).decode()}
            yield "step.delta", {"delta": pieces}
        case _:
            yield "step.start", {"step": step}
    yield "step.stop", {}


DIALECT: Final = Dialect(
    name="gemini_interactions",
    claim=claim,
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
)
