"""OpenAI's Responses: `POST …/responses`, and `GET …/responses/ID` for one in the background.

A stream repeats the response (created, in progress, …) and, between, has its items in pieces. The last repetition is the answer; the
pieces count only where the stream was cut, or where the server leaves the items out of it. OpenAI names each event and sends
no `[DONE]`; OpenRouter names none and sends it. Numbers and padding (`sequence_number`, `obfuscation`) are not part of the answer.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.openai.responses_writer import compose_response, write_response_stream
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.model import Headers, Json, ToolCall, Usage

# OpenAI and compatibles, LiteLLM, Azure, Codex with a ChatGPT account, Databricks, OpenRouter's betas and presets, Ark, Braintrust.
# APIs of forms have responses too, but at other paths.
_PATH: Final = re.compile(
    r"(?:.*/(?:v1(?:/beta|/proxy|/presets/[^/]+)?|api/alpha|api/v3|openai|codex|serving-endpoints))?/responses(?:/(?P<id>[^/]+))?(?:/(?P<verb>\w+))?/?"
)

_OPERATIONS: Final = {"compact": "compact", "input_tokens": "count_tokens"}
"""Operations without the id of a response."""

_ENDS: Final = frozenset(f"response.{status}" for status in ("completed", "failed", "incomplete", "cancelled", "done"))
_UNDONE: Final = frozenset(("queued", "in_progress"))

_STEERING_EVENTS: Final = ("response.steer", "response.inject")
"""Events about input that was sent to a running response. They are no part of the response, not even as errors."""

_PIECES: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "output_text": ("message", "content", "content_index", "text"),
    "refusal": ("message", "content", "content_index", "refusal"),
    "reasoning_text": ("reasoning", "content", "content_index", "text"),
    "reasoning_summary_text": ("reasoning", "summary", "summary_index", "text"),
    "function_call_arguments": ("function_call", "", "", "arguments"),
    "mcp_call_arguments": ("mcp_call", "", "", "arguments"),
    "custom_tool_call_input": ("custom_tool_call", "", "", "input"),
    "code_interpreter_call_code": ("code_interpreter_call", "", "", "code"),
}
"""What arrives in pieces: the type of its item, the list and the index of its part (if it has parts), and its member."""

_NESTED_PIECES: Final = {
    "shell_call_command": ("shell_call", "action", "commands", "command"),
    "apply_patch_call_operation_diff": ("apply_patch_call", "operation", "diff", "diff"),
}
"""What arrives in pieces inside a member: the type of its item, the member, the texts in it, and the whole at the end."""

_PARTS: Final = {"content_part": ("content", "content_index"), "reasoning_summary_part": ("summary", "summary_index")}


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/responses` at any host."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    match method, match["id"], match["verb"]:
        case "POST", None, None:
            return Claim(operation="chat", kind="model")
        case "POST", name, None if name in _OPERATIONS:
            return Claim(operation=_OPERATIONS[name], kind="model")
        case "GET", str() as name, None:
            return Claim(operation="poll", kind="model", polls=name)
        case _, str(), verb:
            return Claim(operation=verb or method.lower(), kind="other")
        case _:
            return None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the outputs of tools after the model's last item."""
    request = as_object(body)
    results: list[Json] = []
    for item in map(as_object, reversed(as_array(request.get("input")))):
        kind = as_text(item.get("type"))
        if kind.endswith("_call_output"):
            # The output of a local shell has the id of its call.
            results.append({"id": item.get("call_id", item.get("id")), "content": item.get("output")})
        elif kind == "tool_search_output" and item.get("execution") == "client":
            results.append({"id": item.get("call_id"), "content": item.get("tools")})
        elif kind == "reasoning" or kind.endswith("_call") or item.get("role") == "assistant":
            break
    return RequestSummary(model=as_text_or_none(request.get("model")), tool_results=tuple(reversed(results)))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text and tool calls of a response; one in the background is pending under its id."""
    response = as_object(answer)
    items = [as_object(item) for item in as_array(response.get("output"))]
    texts = [
        as_text(part.get("text")) for part in map(as_object, _message_parts(items)) if part.get("type") == "output_text"
    ]
    status = as_text_or_none(response.get("status"))
    done = status not in _UNDONE
    return AnswerSummary(
        model=as_text_or_none(response.get("model")),
        text="".join(texts) if texts else None,
        tool_calls=tuple(_tool_call(item) for item in items if _is_call(item)),
        finish_reason=as_text_or_none(as_object(response.get("incomplete_details")).get("reason"))
        or (status if done else None),
        usage=_usage(response),
        pending=None if done or response.get("background") is not True else as_text_or_none(response.get("id")),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a response, streamed or not."""
    return AccumulatorAssembly(content_type, ResponsesStream())


class ResponsesStream:
    """The events of one streamed response."""

    def __init__(self) -> None:
        self._response: dict[str, Json] = {}
        self._items: dict[int, _Item] = {}
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:
        """Add one event. Its type is in the payload; the event's name only repeats it."""
        if data.strip() == "[DONE]":
            self._has_ended = True
            return
        fields = parse_payload(data)
        kind = as_text(fields.get("type")) or event
        if kind.startswith(_STEERING_EVENTS):
            return
        if kind == "error" or (fields.get("error") is not None and "response" not in fields):
            self._error = fields.get("error") or {name: fields[name] for name in fields if name != "sequence_number"}
        elif "response" in fields:
            self._response = {**as_object(fields["response"])} or self._response
            self._has_ended = self._has_ended or kind in _ENDS
        elif (place := as_count(fields.get("output_index"))) is not None:
            self._items.setdefault(place, _Item()).add(kind.removeprefix("response."), fields)

    @property
    def answer(self) -> Json:
        """The response so far; where there is only an error, the error's own body."""
        if not self._response and not self._items:
            return None if self._error is None else {"error": self._error}
        answer = dict(self._response)
        if not answer.get("output"):
            answer["output"] = [self._items[place].build() for place in sorted(self._items)]
        if self._error is not None:
            answer["error"] = self._error
        return answer

    @property
    def is_complete(self) -> bool:
        """Whether the response ended, even unsuccessfully, without an error event."""
        return self._has_ended and self._error is None


class _Item:
    """One item of the output while its events arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._message_parts: dict[str, dict[int, _Part]] = {}
        self._nested: dict[tuple[str, str], dict[int | None, list[str]]] = {}
        self._outputs: dict[int, _ShellOutput] = {}

    def add(self, kind: str, fields: Mapping[str, Json]) -> None:
        """Add one event about the item."""
        subject, _, phase = kind.rpartition(".")
        if subject == "output_item":
            self._replace(as_object(fields.get("item")), done=phase == "done")
        elif subject in _PARTS:
            field, index = _PARTS[subject]
            self._find_part(field, fields.get(index)).start(as_object(fields.get("part")))
        elif subject == "output_text.annotation":
            self._find_part("content", fields.get("content_index")).annotate(fields.get("annotation"))
        elif subject in _PIECES:
            self._add_piece(subject, phase, fields)
        elif subject in _NESTED_PIECES:
            self._add_nested_piece(subject, phase, fields)
        elif subject == "shell_call_output_content":
            self._outputs.setdefault(as_count(fields.get("command_index")) or 0, _ShellOutput()).add(fields)
        elif subject.endswith(("_call", "_tools")):
            # `response.web_search_call.searching`: its progress.
            self._state["status"] = phase

    def build(self) -> Json:
        """The item as a response has it."""
        item = dict(self._state)
        for name, pieces in self._pieces.items():
            item[name] = "".join(pieces)
        for name, parts in self._message_parts.items():
            item[name] = [parts[place].build() for place in sorted(parts)]
        for (member, field), texts in self._nested.items():
            joined: list[Json] = ["".join(texts[place]) for place in sorted(texts, key=lambda place: place or 0)]
            item[member] = {**as_object(item.get(member)), field: joined[0] if None in texts else joined}
        if self._outputs:
            item["output"] = [output for place in sorted(self._outputs) for output in self._outputs[place].build()]
        return item

    def _replace(self, item: Mapping[str, Json], *, done: bool) -> None:
        self._state.update(item)
        if done:
            # The whole item replaces its pieces.
            self._pieces.clear()
            self._message_parts.clear()
            self._nested.clear()
            self._outputs.clear()

    def _add_nested_piece(self, subject: str, phase: str, fields: Mapping[str, Json]) -> None:
        kind, member, field, whole = _NESTED_PIECES[subject]
        self._state.setdefault("type", kind)
        texts = self._nested.setdefault((member, field), {})
        pieces = texts.setdefault(as_count(fields.get("command_index")), [])
        if phase == "delta":
            pieces.append(as_text(fields.get("delta")))
        else:
            pieces[:] = [as_text(fields.get(whole))]

    def _add_piece(self, subject: str, phase: str, fields: Mapping[str, Json]) -> None:
        kind, field, index, member = _PIECES[subject]
        self._state.setdefault("type", kind)
        if field:
            part = self._find_part(field, fields.get(index))
            part.start({"type": "summary_text" if field == "summary" else subject} if not part else {})
            part.add(member, phase, fields)
        elif phase == "delta":
            self._pieces.setdefault(member, []).append(as_text(fields.get("delta")))
        elif isinstance(fields.get(member), str):
            self._pieces[member] = [as_text(fields.get(member))]

    def _find_part(self, field: str, place: Json) -> "_Part":
        return self._message_parts.setdefault(field, {}).setdefault(as_count(place) or 0, _Part())


class _ShellOutput:
    """The output of one shell command while it arrives."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._whole: list[Json] | None = None

    def add(self, fields: Mapping[str, Json]) -> None:
        """Add a piece, or the whole that replaces the pieces."""
        if "output" in fields:
            self._whole = list(as_array(fields["output"]))
        for name, pieces in self._pieces.items():
            pieces.append(as_text(as_object(fields.get("delta")).get(name)))

    def build(self) -> list[Json]:
        """The output so far."""
        if self._whole is not None:
            return self._whole
        return [{name: "".join(pieces) for name, pieces in self._pieces.items()}]


class _Part:
    """One part of an item (a text, a refusal, a thought) while it arrives."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._lists: dict[str, list[Json]] = {}

    def __bool__(self) -> bool:
        return bool(self._state)

    def start(self, part: Mapping[str, Json]) -> None:
        """Take the frame of the part at its start, or the whole part at its end."""
        self._state.update(part)
        for name in part:
            self._pieces.pop(name, None)
            self._lists.pop(name, None)

    def add(self, member: str, phase: str, fields: Mapping[str, Json]) -> None:
        """Add a piece, or the whole that replaces the pieces."""
        if phase == "delta":
            self._pieces.setdefault(member, []).append(as_text(fields.get("delta")))
            self._lists.setdefault("logprobs", []).extend(as_array(fields.get("logprobs")))
        elif isinstance(fields.get(member), str):
            self._pieces[member] = [as_text(fields.get(member))]

    def annotate(self, annotation: Json) -> None:
        """Add an annotation."""
        self._lists.setdefault("annotations", []).append(annotation)

    def build(self) -> Json:
        """The part as a response has it."""
        joined: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        return {**self._state, **joined, **{name: list(entries) for name, entries in self._lists.items() if entries}}


def _message_parts(items: list[Mapping[str, Json]]) -> list[Json]:
    return [part for item in items if item.get("type") == "message" for part in as_array(item.get("content"))]


def _is_call(item: Mapping[str, Json]) -> bool:
    """Whether an item is a tool call. A program calls several tools."""
    kind = as_text(item.get("type"))
    return kind.endswith("_call") or kind == "program"


_NAMED_CALLS: Final = frozenset(("function_call", "custom_tool_call", "mcp_call"))

# The members that have the arguments of a tool: the first that the item has.
_ARGUMENT_MEMBERS: Final = ("arguments", "input", "action", "actions", "code", "queries", "operation")


def _tool_call(item: Mapping[str, Json]) -> ToolCall:
    """A call of a function, or of the provider's own tool, which is named by its type without `_call`."""
    kind = as_text(item.get("type"))
    name = as_text(item.get("name")) if kind in _NAMED_CALLS else kind.removesuffix("_call")
    member = next((name for name in _ARGUMENT_MEMBERS if name in item), "")
    arguments = parse_arguments(item.get(member)) if member == "arguments" else item.get(member)
    return ToolCall(
        id=as_text_or_none(item.get("call_id")) or as_text_or_none(item.get("id")), name=name, arguments=arguments
    )


def _usage(response: Mapping[str, Json]) -> Usage:
    usage = as_object(response.get("usage"))
    # `/responses/input_tokens` answers with only the number.
    input_tokens = usage.get("input_tokens") if "input_tokens" in usage else response.get("input_tokens")
    return Usage(
        input_tokens=as_count(input_tokens),
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=as_count(as_object(usage.get("input_tokens_details")).get("cached_tokens")),
        reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )


DIALECT: Final = Dialect(
    name="openai_responses",
    claim=claim,
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": write_response_stream},
    compose_answer=compose_response,
    answer_paths=AnswerPaths(texts=("output/*/content/*/text",), calls=("output/*",), arguments=("arguments", "input")),
    error_body=openai_error,
)
