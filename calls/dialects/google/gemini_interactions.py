"""Gemini's Interactions: a turn in steps (thoughts, function calls, text), also in the background.

A stream tells of steps by index: `step.start` brings a frame, `step.delta` a piece, `interaction.completed` the interaction without
its steps, and `[DONE]` ends it. Until the spring of 2026 an interaction had outputs in place of steps: contents, bare.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "gemini_interactions"

_PATH: Final = re.compile(r"(?:.*/)?v1(?:alpha|beta)\d*/interactions(?:/([^/:]+))?")
_GOING_ON: Final = frozenset(("in_progress", "queued"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Google's hosts: a new interaction, or whoever asks after one."""
    match = _PATH.fullmatch(path) if host.endswith("googleapis.com") else None
    match method, match:
        case "POST", re.Match() as found if found[1] is None:
            return Claim(dialect=NAME, operation="generate_content", kind="model")
        case "GET", re.Match() as found if found[1]:
            return Claim(dialect=NAME, operation="poll", kind="model", polls=found[1])
        case _:
            return None


def asked(body: Json) -> RequestSummary:
    """The model or agent, and what functions answered."""
    request = members(body)
    steps = [members(step) for step in elements(request.get("input"))]
    results = [_result(step) for step in steps if step.get("type") == "function_result"]
    return RequestSummary(model=some(request.get("model")) or some(request.get("agent")), tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What an interaction says."""
    said = members(answer)
    steps = [members(step) for step in elements(said.get("steps") or said.get("outputs"))]
    spoken = [part for step in steps if step.get("type") == "model_output" for part in elements(step.get("content"))]
    texts = [text(members(part).get("text")) for part in (*spoken, *steps) if members(part).get("type") == "text"]
    status = some(said.get("status"))
    return AnswerSummary(
        model=some(said.get("model")),
        text="".join(texts) or None,
        tool_calls=tuple(_tool_call(step) for step in steps if step.get("type") == "function_call"),
        finish_reason=status,
        usage=_usage(members(said.get("usage"))),
        pending=some(said.get("id")) if status in _GOING_ON else None,
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an interaction, streamed or not."""
    return AccumulatorAssembly(content_type, GeminiInteractionsStream())


class GeminiInteractionsStream:
    """The events of one streamed interaction."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._steps: dict[int, _Step] = {}
        self._outputs: dict[int, _Output] = {}
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # the payload says it too
        """Take one event. Its type is in the payload."""
        if data.strip() == "[DONE]":
            self._done = True
        said = payload(data)
        match text(said.get("event_type")):
            case "interaction.created" | "interaction.start" | "interaction.completed" | "interaction.complete":
                self._take_state(members(said.get("interaction")))
            case "interaction.status_update":
                self._state["status"] = said.get("status")
            case "step.start" | "step.delta":
                step = self._steps.setdefault(count(said.get("index")) or 0, _Step())
                step.take(members(said.get("step")), members(said.get("delta")))
            case "content.start" | "content.delta":
                output = self._outputs.setdefault(count(said.get("index")) or 0, _Output())
                output.take(members(said.get("content")), members(said.get("delta")))
            case "error":
                self._error = said.get("error")
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The interaction so far."""
        answer = dict(self._state)
        if self._steps:
            answer["steps"] = [self._steps[index].whole() for index in sorted(self._steps)]
        if self._outputs:
            answer["outputs"] = [self._outputs[index].whole() for index in sorted(self._outputs)]
        return {**answer, "error": self._error} if self._error is not None else answer or None

    @property
    def complete(self) -> bool:
        """Whether `[DONE]` came, and no error."""
        return self._done and self._error is None

    def _take_state(self, interaction: Mapping[str, Json]) -> None:
        self._state |= {
            name: value for name, value in interaction.items() if name not in ("steps", "outputs", "object")
        }


class _Step:
    """One step while its deltas come."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._texts: list[str] = []
        self._arguments: list[str] = []
        self._summary: list[Json] = []

    def take(self, frame: Mapping[str, Json], delta: Mapping[str, Json]) -> None:
        """Take its frame, or one delta."""
        self._state |= frame
        match delta.get("type"):
            case None:
                pass
            case "text":
                self._texts.append(text(delta.get("text")))
            case "arguments_delta":
                self._arguments.append(text(delta.get("arguments")))
            case "thought_signature":
                self._state["signature"] = delta.get("signature")
            case "thought_summary":
                self._summary.append(delta.get("content"))
            case "text_annotation" | "text_annotation_delta":
                self._state["annotations"] = [
                    *elements(self._state.get("annotations")),
                    *elements(delta.get("annotations")),
                ]
            case "image" | "audio" | "video" | "document":
                self._parts.append(dict(delta))
            case _:
                self._state |= {name: value for name, value in delta.items() if name != "type"}

    def whole(self) -> Json:
        """The step as an interaction has it."""
        step = dict(self._state)
        if self._arguments:
            step["arguments"] = arguments_of("".join(self._arguments))
        if self._summary:
            step["summary"] = [*elements(step.get("summary")), *self._summary]
        return self._with_content(step)

    def _with_content(self, step: dict[str, Json]) -> Json:
        annotations = step.pop("annotations", None)
        if self._texts or self._parts:
            said: dict[str, Json] = {"type": "text", "text": "".join(self._texts)}
            said |= {"annotations": annotations} if annotations else {}
            step["content"] = [*elements(step.get("content")), *([said] if self._texts else []), *self._parts]
        return step


class _Output(_Step):
    """One output while its deltas come: it is the content that a step has."""

    def _with_content(self, step: dict[str, Json]) -> Json:
        if self._texts:
            step["text"] = text(step.get("text")) + "".join(self._texts)
        return step | {name: value for part in self._parts for name, value in part.items()}


def _result(step: Mapping[str, Json]) -> Json:
    result = {"id": step.get("call_id"), "name": step.get("name"), "content": step.get("result")}
    return {**result, "is_error": True} if step.get("is_error") is True else result


def _tool_call(step: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=some(step.get("id")), name=text(step.get("name")), arguments=step.get("arguments"))


def _usage(usage: Mapping[str, Json]) -> Usage:
    """Thoughts are counted beside the answer; everybody pays for the sum."""
    thoughts, output = count(usage.get("total_thought_tokens")), count(usage.get("total_output_tokens"))
    return Usage(
        input_tokens=count(usage.get("total_input_tokens")),
        output_tokens=None if output is None else output + (thoughts or 0),
        cached_tokens=count(usage.get("total_cached_tokens")),
        reasoning_tokens=thoughts,
    )
