"""A run as the rules see it: its steps, the tool calls that were requested, and their results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Final

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.model import Call, Json, Outcome

MOST_VALUES: Final = 100_000
"""Values of one document that are visited. A document with more is searched up to there."""

_MODEL_INPUT: Final = ("input", "inputs", "prompt", "inputText", "question", "query")
"""Members of a request in which APIs without messages have what the user wrote."""

# Not a set: a member of a body may be a value that has no hash.
_RESULT_TYPES: Final = ("tool_result", "function_call_output", "tool", "custom_tool_call_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """One call of a run."""

    number: int
    """The step of its first exchange, from 1."""

    call: Call
    host: str
    method: str
    path: str
    """The path of the URL, without the query."""

    status: int | None
    outcome: Outcome
    attempts: int
    started_at: int
    """Nanoseconds of wall time."""

    ended_at: int | None
    is_unsafe: bool
    """Whether the request may change something in the outside world (`calls.side_effects`)."""

    can_cost: bool
    """Whether the call is one of those that have a price."""

    usd: Decimal | None
    """What the call cost; None if that is unknown."""

    @property
    def target(self) -> str:
        """Where the request went: method, host and path."""
        return f"{self.method} {self.host}{self.path}"

    @property
    def model(self) -> str | None:
        """The requested model, or the one that answered if the request names none; None if the call is not to a model."""
        return (self.call.model_requested or self.call.model_returned) if self.call.kind == "model" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTool:
    """A tool call that a model or, where no model did, the agent itself requested."""

    step: int
    name: str
    arguments: Json
    id: str | None


class CheckedRun:
    """The steps of a run in order."""

    def __init__(self, name: str, steps: tuple[CheckedStep, ...]) -> None:
        self.name = name
        self.steps = steps

    @cached_property
    def tools(self) -> tuple[RequestedTool, ...]:
        """The requested tool calls in order. One that a model requests and the agent then makes (MCP) counts once."""
        found: list[RequestedTool] = []
        open_requests: list[tuple[str, Json]] = []
        for step in self.steps:
            for tool in step.call.tool_calls:
                request = (tool.name, tool.arguments)
                if step.call.kind == "model":
                    open_requests.append(request)
                elif request in open_requests:
                    open_requests.remove(request)
                    continue
                found.append(RequestedTool(step=step.number, name=tool.name, arguments=tool.arguments, id=tool.id))
        return tuple(found)

    def tool_result(self, tool: RequestedTool) -> tuple[int, Json] | None:
        """Return the step that has the result of a tool call, and the result; None if no later step has one."""
        for step in self.steps:
            if step.number < tool.step:
                continue
            if step.call.kind != "model" and any(
                one.id == tool.id and one.name == tool.name for one in step.call.tool_calls
            ):
                return step.number, parse_if_json(step.call.answer)
            if tool.id is None:
                continue
            for result in step.call.tool_results:
                if isinstance(result, Mapping) and result.get("id") == tool.id:
                    return step.number, parse_if_json(result.get("content"))
        return None

    @cached_property
    def user_texts(self) -> tuple[str, ...]:
        """What people wrote: the texts of the messages of the role `user` in the first request to a model."""
        first = next((step for step in self.steps if step.call.kind == "model"), None)
        return () if first is None else tuple(_user_texts(first.call.request))


def parse_if_json(value: Json) -> Json:
    """Return the JSON in a text, also in the text of a list of content blocks; any other value as it is."""
    if isinstance(value, str):
        if value.lstrip()[:1] not in ("{", "["):
            return value
        try:
            return parse_json_leniently(value.encode("utf-8", "surrogatepass"))
        except InvalidJson:
            return value
    if isinstance(value, list | tuple):
        return [
            {**block, "text": parse_if_json(block["text"])}
            if isinstance(block, Mapping) and isinstance(block.get("text"), str)
            else block
            for block in value
        ]
    return value


def walk_values(document: Json) -> Iterator[tuple[str, Json]]:
    """Yield every value of a document with its JSON pointer, the whole first, in order; at most `MOST_VALUES`."""
    waiting: list[tuple[str, Json]] = [("", document)]
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        pointer, value = waiting.pop()
        yield pointer, value
        if isinstance(value, Mapping):
            waiting += [(f"{pointer}/{_escape(name)}", member) for name, member in reversed(list(value.items()))]
        elif isinstance(value, list | tuple):
            waiting += [(f"{pointer}/{place}", value[place]) for place in reversed(range(len(value)))]


def _escape(name: str) -> str:
    """Escape a name for a JSON pointer (RFC 6901 section 3)."""
    return name.replace("~", "~0").replace("/", "~1")


def _user_texts(request: Json) -> Iterator[str]:
    if not isinstance(request, Mapping):
        return
    has_messages = False
    for member in ("messages", "input", "contents", "prompt", "chat_history"):
        items = request.get(member)
        for message in items if isinstance(items, list | tuple) else ():
            if isinstance(message, Mapping) and message.get("role") in ("user", "USER", "User"):
                has_messages = True
                yield from _texts_of(message)
    if not has_messages:
        for member in (*_MODEL_INPUT, "message"):
            if isinstance(text := request.get(member), str):
                yield text


def _texts_of(message: Mapping[str, Json]) -> Iterator[str]:
    """Yield the texts of a message, without the results of tools that some APIs send in messages of the user."""
    content = next((message[name] for name in ("content", "parts", "message", "text") if name in message), None)
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list | tuple) else ():
        if isinstance(block, str):
            yield block
        elif (
            isinstance(block, Mapping) and block.get("type") not in _RESULT_TYPES and isinstance(block.get("text"), str)
        ):
            yield str(block["text"])
