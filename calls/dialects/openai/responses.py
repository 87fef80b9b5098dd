"""OpenAI's Responses: `POST …/responses`, and `GET …/responses/ID` for one in the background.

A stream tells the response again and again (created, in progress, …) and, between, its items in pieces. The last telling is the
answer: the pieces only stand in for it where a stream was cut, or where the server leaves the items out of it. OpenAI names each event and
has no `[DONE]`; OpenRouter names none and has one. Numbers and padding (`sequence_number`, `obfuscation`) are nothing of the answer.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "openai_responses"

# OpenAI and compatibles, LiteLLM, Azure, Codex by a ChatGPT account, Databricks, OpenRouter's betas and presets, Ark, Braintrust. A form
# has responses as well, but not under these.
_PATH: Final = re.compile(
    r"(?:.*/(?:v1(?:/beta|/proxy|/presets/[^/]+)?|api/alpha|api/v3|openai|codex|serving-endpoints))?/responses(?:/(?P<id>[^/]+))?(?:/(?P<verb>\w+))?/?"
)

_OPERATIONS: Final = {"compact": "compact", "input_tokens": "count_tokens"}
"""What is asked of no response in particular."""

_ENDS: Final = frozenset(f"response.{status}" for status in ("completed", "failed", "incomplete", "cancelled", "done"))
_UNDONE: Final = frozenset(("queued", "in_progress"))

_SAID_MEANWHILE: Final = ("response.steer", "response.inject")
"""What became of something that was said to a response while it was made: nothing of the response itself, an error neither."""

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
"""What comes in pieces: the type of its item, the list and the index in it of its part (where it has parts), and its member."""

_WITHIN: Final = {
    "shell_call_command": ("shell_call", "action", "commands", "command"),
    "apply_patch_call_operation_diff": ("apply_patch_call", "operation", "diff", "diff"),
}
"""What comes in pieces within what is asked for: the type of its item, the member, the texts in it, and the whole at the end."""

_PARTS: Final = {"content_part": ("content", "content_index"), "reasoning_summary_part": ("summary", "summary_index")}


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's responses."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    match method, match["id"], match["verb"]:
        case "POST", None, None:
            return Claim(dialect=NAME, operation="chat", kind="model")
        case "POST", name, None if name in _OPERATIONS:
            return Claim(dialect=NAME, operation=_OPERATIONS[name], kind="model")
        case "GET", str() as name, None:
            return Claim(dialect=NAME, operation="poll", kind="model", polls=name)
        case _, str(), verb:
            return Claim(dialect=NAME, operation=verb or method.lower(), kind="other")
        case _:
            return None


def asked(body: Json) -> RequestSummary:
    """The model, and the outputs of tools that follow what the model said last."""
    request = members(body)
    results: list[Json] = []
    for item in map(members, reversed(elements(request.get("input")))):
        kind = text(item.get("type"))
        if kind.endswith("_call_output"):
            # A local shell's output has the id of the call for its own.
            results.append({"id": item.get("call_id", item.get("id")), "content": item.get("output")})
        elif kind == "tool_search_output" and item.get("execution") == "client":
            results.append({"id": item.get("call_id"), "content": item.get("tools")})
        elif kind == "reasoning" or kind.endswith("_call") or item.get("role") == "assistant":
            break
    return RequestSummary(model=some(request.get("model")), tool_results=tuple(reversed(results)))


def told(answer: Json) -> AnswerSummary:
    """What a response says; one that is still at work says whom to ask for the rest."""
    response = members(answer)
    items = [members(item) for item in elements(response.get("output"))]
    texts = [text(part.get("text")) for part in map(members, _parts(items)) if part.get("type") == "output_text"]
    status = some(response.get("status"))
    done = status not in _UNDONE
    return AnswerSummary(
        model=some(response.get("model")),
        text="".join(texts) if texts else None,
        tool_calls=tuple(_tool_call(item) for item in items if _is_call(item)),
        finish_reason=some(members(response.get("incomplete_details")).get("reason")) or (status if done else None),
        usage=_usage(response),
        pending=None if done or response.get("background") is not True else some(response.get("id")),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a response, streamed or not."""
    return AccumulatorAssembly(content_type, ResponsesStream())


class ResponsesStream:
    """The events of one streamed response."""

    def __init__(self) -> None:
        self._response: dict[str, Json] = {}
        self._items: dict[int, _Item] = {}
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:
        """Take one event. Its type is in the payload; the event's name only repeats it."""
        if data.strip() == "[DONE]":
            self._done = True
            return
        said = payload(data)
        kind = text(said.get("type")) or event
        if kind.startswith(_SAID_MEANWHILE):
            return
        if kind == "error" or (said.get("error") is not None and "response" not in said):
            self._error = said.get("error") or {name: said[name] for name in said if name != "sequence_number"}
        elif "response" in said:
            self._response = {**members(said["response"])} or self._response
            self._done = self._done or kind in _ENDS
        elif (place := count(said.get("output_index"))) is not None:
            self._items.setdefault(place, _Item()).take(kind.removeprefix("response."), said)

    @property
    def answer(self) -> Json:
        """The response so far; where there is only an error, the error's own body."""
        if not self._response and not self._items:
            return None if self._error is None else {"error": self._error}
        answer = dict(self._response)
        if not answer.get("output"):
            answer["output"] = [self._items[place].whole() for place in sorted(self._items)]
        if self._error is not None:
            answer["error"] = self._error
        return answer

    @property
    def complete(self) -> bool:
        """Whether the response came to its end, a bad one too; an error beside it is none."""
        return self._done and self._error is None


class _Item:
    """One item of the output while it comes."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._parts: dict[str, dict[int, _Part]] = {}
        self._within: dict[tuple[str, str], dict[int | None, list[str]]] = {}
        self._outputs: dict[int, _ShellOutput] = {}

    def take(self, kind: str, said: Mapping[str, Json]) -> None:
        """Take one event about the item."""
        what, _, how = kind.rpartition(".")
        if what == "output_item":
            self._take_whole(members(said.get("item")), done=how == "done")
        elif what in _PARTS:
            field, index = _PARTS[what]
            self._part(field, said.get(index)).begin(members(said.get("part")))
        elif what == "output_text.annotation":
            self._part("content", said.get("content_index")).annotate(said.get("annotation"))
        elif what in _PIECES:
            self._take_piece(what, how, said)
        elif what in _WITHIN:
            self._take_within(what, how, said)
        elif what == "shell_call_output_content":
            self._outputs.setdefault(count(said.get("command_index")) or 0, _ShellOutput()).take(said)
        elif what.endswith(("_call", "_tools")):
            # `response.web_search_call.searching`: how far it is.
            self._state["status"] = how

    def whole(self) -> Json:
        """The item as a response has it."""
        item = dict(self._state)
        for name, pieces in self._pieces.items():
            item[name] = "".join(pieces)
        for name, parts in self._parts.items():
            item[name] = [parts[place].whole() for place in sorted(parts)]
        for (member, field), texts in self._within.items():
            joined: list[Json] = ["".join(texts[place]) for place in sorted(texts, key=lambda place: place or 0)]
            item[member] = {**members(item.get(member)), field: joined[0] if None in texts else joined}
        if self._outputs:
            item["output"] = [output for place in sorted(self._outputs) for output in self._outputs[place].whole()]
        return item

    def _take_whole(self, item: Mapping[str, Json], *, done: bool) -> None:
        self._state.update(item)
        if done:
            # It is said whole, and counts before its pieces.
            self._pieces.clear()
            self._parts.clear()
            self._within.clear()
            self._outputs.clear()

    def _take_within(self, what: str, how: str, said: Mapping[str, Json]) -> None:
        kind, member, field, whole = _WITHIN[what]
        self._state.setdefault("type", kind)
        texts = self._within.setdefault((member, field), {})
        pieces = texts.setdefault(count(said.get("command_index")), [])
        if how == "delta":
            pieces.append(text(said.get("delta")))
        else:
            pieces[:] = [text(said.get(whole))]

    def _take_piece(self, what: str, how: str, said: Mapping[str, Json]) -> None:
        kind, field, index, member = _PIECES[what]
        self._state.setdefault("type", kind)
        if field:
            part = self._part(field, said.get(index))
            part.begin({"type": "summary_text" if field == "summary" else what} if not part else {})
            part.take(member, how, said)
        elif how == "delta":
            self._pieces.setdefault(member, []).append(text(said.get("delta")))
        elif isinstance(said.get(member), str):
            self._pieces[member] = [text(said.get(member))]

    def _part(self, field: str, place: Json) -> "_Part":
        return self._parts.setdefault(field, {}).setdefault(count(place) or 0, _Part())


class _ShellOutput:
    """What one command of a shell printed, while it comes."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._whole: list[Json] | None = None

    def take(self, said: Mapping[str, Json]) -> None:
        """Take a piece, or the whole that the pieces made."""
        if "output" in said:
            self._whole = list(elements(said["output"]))
        for name, pieces in self._pieces.items():
            pieces.append(text(members(said.get("delta")).get(name)))

    def whole(self) -> list[Json]:
        """What it printed so far."""
        if self._whole is not None:
            return self._whole
        return [{name: "".join(pieces) for name, pieces in self._pieces.items()}]


class _Part:
    """One part of an item (a text, a refusal, a thought) while it comes."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._lists: dict[str, list[Json]] = {}

    def __bool__(self) -> bool:
        return bool(self._state)

    def begin(self, part: Mapping[str, Json]) -> None:
        """Take the part's frame, at its begin or again, whole, at its end."""
        self._state.update(part)
        for name in part:
            self._pieces.pop(name, None)
            self._lists.pop(name, None)

    def take(self, member: str, how: str, said: Mapping[str, Json]) -> None:
        """Take a piece, or the whole that the pieces made."""
        if how == "delta":
            self._pieces.setdefault(member, []).append(text(said.get("delta")))
            self._lists.setdefault("logprobs", []).extend(elements(said.get("logprobs")))
        elif isinstance(said.get(member), str):
            self._pieces[member] = [text(said.get(member))]

    def annotate(self, annotation: Json) -> None:
        """Take an annotation."""
        self._lists.setdefault("annotations", []).append(annotation)

    def whole(self) -> Json:
        """The part as a response has it."""
        joined: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        return {**self._state, **joined, **{name: list(entries) for name, entries in self._lists.items() if entries}}


def _parts(items: list[Mapping[str, Json]]) -> list[Json]:
    return [part for item in items if item.get("type") == "message" for part in elements(item.get("content"))]


def _is_call(item: Mapping[str, Json]) -> bool:
    """A program is what the model wrote to call several tools by."""
    kind = text(item.get("type"))
    return kind.endswith("_call") or kind == "program"


_NAMED: Final = frozenset(("function_call", "custom_tool_call", "mcp_call"))

# What a tool was asked for, where it is no function; the first that the item has.
_ASKED_FOR: Final = ("arguments", "input", "action", "actions", "code", "queries", "operation")


def _tool_call(item: Mapping[str, Json]) -> ToolCall:
    """A call of a function, or of a tool of the provider's: the name of such a one is its type, without `_call`."""
    kind = text(item.get("type"))
    name = text(item.get("name")) if kind in _NAMED else kind.removesuffix("_call")
    member = next((name for name in _ASKED_FOR if name in item), "")
    asked_for = arguments_of(item.get(member)) if member == "arguments" else item.get(member)
    return ToolCall(id=some(item.get("call_id")) or some(item.get("id")), name=name, arguments=asked_for)


def _usage(response: Mapping[str, Json]) -> Usage:
    usage = members(response.get("usage"))
    # `/responses/input_tokens` answers with the number alone.
    counted = usage.get("input_tokens") if "input_tokens" in usage else response.get("input_tokens")
    return Usage(
        input_tokens=count(counted),
        output_tokens=count(usage.get("output_tokens")),
        cached_tokens=count(members(usage.get("input_tokens_details")).get("cached_tokens")),
        reasoning_tokens=count(members(usage.get("output_tokens_details")).get("reasoning_tokens")),
    )
