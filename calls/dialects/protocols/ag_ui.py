"""AG-UI: a front end runs an agent, which answers with a stream of events: texts and tool calls in pieces, states, the end.

The agent may be at any path, so requests are recognised by their bodies. The client draws the ids of threads, runs and its own
messages, and the answers repeat them. (Reference: `ag_ui.core` 1.0.)
"""

from collections.abc import Mapping
from typing import Final

from calls.codec.json import InvalidJson, parse_json_leniently
from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.model import Headers, Json, ToolCall

_NAMES: Final = ("threadId", "runId", "messages", "tools", "context")
"""The members that every request has."""


def claim(_method: str, _host: str, _path: str, _headers: Headers) -> Claim | None:
    """Claim nothing: requests are recognised by their bodies (`claim_body`)."""
    return None


def claim_body(body: bytes) -> Claim | None:
    """Claim an object that has the members of an agent's input."""
    try:
        members = as_object(parse_json_leniently(body))
    except InvalidJson:
        return None
    return Claim(operation="invoke_agent", kind="tool") if all(name in members for name in _NAMES) else None


def assemble(content_type: str) -> Assembly:
    """Make an assembly for the events of a run."""
    return AccumulatorAssembly(content_type, AgUiStream())


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the texts and tool calls of the agent, and whether its run failed."""
    whole = as_object(answer)
    messages = [as_object(one) for one in as_array(whole.get("messages"))]
    texts = [as_text(one.get("content")) for one in messages if one.get("role") == "assistant"]
    calls = [as_object(call) for one in messages for call in as_array(one.get("toolCalls"))]
    return AnswerSummary(
        text="\n".join(filter(None, texts)) or None,
        tool_calls=tuple(map(_tool_call, calls)),
        state="error" if whole.get("error") is not None else None,
    )


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = as_object(call.get("function"))
    arguments: Json = as_text(function.get("arguments"))
    try:
        arguments = parse_json_leniently(as_text(function.get("arguments")).encode("utf-8", "replace"))
    except InvalidJson:
        pass
    return ToolCall(id=as_text_or_none(call.get("id")), name=as_text(function.get("name")), arguments=arguments)


class AgUiStream:
    """The events of one run, joined into the messages that the agent added."""

    def __init__(self) -> None:
        self._ids: dict[str, Json] = {}
        self._messages: dict[str, dict[str, Json]] = {}
        self._pieces: dict[str, list[str]] = {}
        """The pieces of each message's text and of each call's arguments."""

        self._calls: dict[str, tuple[str, str]] = {}
        """The name of each call, and the message that it belongs to."""

        self._last_message = self._last_call = ""
        self._extras: dict[str, Json] = {}
        self._has_ended = False

    def add_message(self, _event: str, data: str) -> None:
        """Add one event; ignore unknown ones."""
        event = parse_payload(data)
        match event.get("type"):
            case "RUN_STARTED":
                self._ids = {name: event[name] for name in ("threadId", "runId") if name in event}
            case "TEXT_MESSAGE_START" | "TEXT_MESSAGE_CONTENT" | "TEXT_MESSAGE_CHUNK":
                self._add_text(event)
            case "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_CHUNK":
                self._add_call(event)
            case "TOOL_CALL_RESULT":
                name = as_text(event.get("messageId"))
                self._messages[name] = {"id": name, "role": "tool", "toolCallId": event.get("toolCallId")}
                self._pieces[name] = [as_text(event.get("content"))]
            case "STATE_SNAPSHOT":
                self._extras["state"] = event.get("snapshot")
            case "RUN_FINISHED":
                self._extras |= {name: event[name] for name in ("result", "outcome") if name in event}
                self._has_ended = True
            case "RUN_ERROR":
                self._extras["error"] = {name: event[name] for name in ("message", "code") if name in event}

    @property
    def answer(self) -> Json:
        """The messages so far, as a later request would repeat them."""
        if not (self._ids or self._messages or self._extras):
            return None
        calls = self._calls_by_message()
        messages: list[Json] = [
            {**message, "content": "".join(self._pieces[name]), **({"toolCalls": calls[name]} if name in calls else {})}
            for name, message in self._messages.items()
        ]
        return {**self._ids, "messages": messages, **self._extras}

    @property
    def is_complete(self) -> bool:
        """Whether the run finished."""
        return self._has_ended

    def _add_text(self, event: Mapping[str, Json]) -> None:
        name = as_text(event.get("messageId")) or self._last_message
        self._open_message(name, as_text(event.get("role")) or "assistant")
        self._pieces[name].append(as_text(event.get("delta")))

    def _add_call(self, event: Mapping[str, Json]) -> None:
        name = as_text(event.get("toolCallId")) or self._last_call
        if name not in self._calls:
            message = as_text(event.get("parentMessageId")) or name
            self._open_message(message, "assistant")
            self._calls[name] = as_text(event.get("toolCallName")), message
            self._pieces[f"call {name}"] = []
        self._last_call = name
        self._pieces[f"call {name}"].append(as_text(event.get("delta")))

    def _open_message(self, name: str, role: str) -> None:
        if name not in self._messages:
            self._messages[name] = {"id": name, "role": role}
            self._pieces[name] = []
        self._last_message = name

    def _calls_by_message(self) -> dict[str, list[Json]]:
        found: dict[str, list[Json]] = {}
        for name, (tool, message) in self._calls.items():
            function: Json = {"name": tool, "arguments": "".join(self._pieces[f"call {name}"])}
            found.setdefault(message, []).append({"id": name, "type": "function", "function": function})
        return found


DIALECT: Final = Dialect(
    name="ag_ui",
    claim=claim,
    claim_body=claim_body,
    body_start=b"{",
    body_mark=b'"threadId"',
    precedence=8,  # it claims what no dialect claims by the head
    assemble=assemble,
    summarize_answer=summarize_answer,
    why_no_answer="which messages and states a front end expects is known to its agent only",
)
