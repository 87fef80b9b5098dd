"""Anthropic's managed agents (beta): events are sent to a session, and whole events come back on a stream.

The answer has the shape of the list of a session's events. A client can request messages in pieces as well, before the
whole ones: `event_start` and `event_delta` are previews, and count only if no whole event follows.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage, header

_TELLS: Final = re.compile(r"(.*/)?v1/sessions/[^/]+/events")
_LISTENS: Final = re.compile(r"(.*/)?v1/sessions/[^/]+/(events/stream|threads/[^/]+/stream)")

_RUNS: Final = "session.status_running"
_ENDS: Final = frozenset(("session.status_idle", "session.status_terminated", "session.deleted"))
_THREAD_ENDS: Final = frozenset(("session.thread_status_idle", "session.thread_status_terminated"))


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim events sent to a session, and the streams of a session or thread. Requests that manage sessions are not claimed."""
    if not host.endswith("anthropic.com") and header(headers, "anthropic-version") is None:
        return None
    if method == "POST" and _TELLS.fullmatch(path):
        return Claim(operation="invoke_agent", kind="model")
    if method == "GET" and _LISTENS.fullmatch(path):
        return Claim(operation="listen", kind="model")
    return None


def summarize_request(body: Json) -> RequestSummary:
    """Find the results of tools."""
    return RequestSummary(tool_results=tuple(_tool_results(_events(body, "events"), "user.")))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the agent's last message, its tool calls, and the usage of all of its models."""
    events = _events(answer, "data")
    messages = [event for event in events if event.get("type") == "agent.message"]
    counts = [as_object(event.get("model_usage")) for event in events if event.get("type") == "span.model_request_end"]
    ends = [event for event in events if as_text(event.get("type")) in _ENDS | _THREAD_ENDS]
    return AnswerSummary(
        text=_event_text(messages[-1]) if messages else None,
        tool_calls=tuple(_tool_call(event) for event in events if as_text(event.get("type")).endswith("tool_use")),
        finish_reason=as_text_or_none(as_object(ends[-1].get("stop_reason")).get("type")) if ends else None,
        usage=Usage(
            input_tokens=_sum_counts(counts, "input_tokens"),
            output_tokens=_sum_counts(counts, "output_tokens"),
            cached_tokens=_sum_counts(counts, "cache_read_input_tokens"),
        ),
        results=tuple(_tool_results(events, "agent.")),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for the stream of a session, or for the receipt of events that were sent to it."""
    return AccumulatorAssembly(content_type, AnthropicSessionsStream())


class AnthropicSessionsStream:
    """The events of a session, or of one of its threads."""

    def __init__(self) -> None:
        self._events: dict[str, Mapping[str, Json]] = {}
        self._previews: dict[str, _Preview] = {}
        self._error: Json = None
        self._is_session = False
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:
        """Add one event. Its type is in the payload; all are named `message`."""
        fields = parse_payload(data)
        kind = as_text(fields.get("type"))
        match kind:
            case "event_start":
                started = as_object(fields.get("event"))
                self._previews[as_text(started.get("id"))] = _Preview(started)
            case "event_delta":
                if preview := self._previews.get(as_text(fields.get("event_id"))):
                    preview.add(as_object(fields.get("delta")))
            case _ if "id" in fields:
                self._add_event(kind, fields)
            case _ if "error" in fields or event == "error":
                self._error = fields.get("error") or dict(fields)
            case _:
                pass

    def _add_event(self, kind: str, fields: Mapping[str, Json]) -> None:
        """Add a whole event. A queued one is sent again when it is processed."""
        name = as_text(fields.get("id"))
        self._previews.pop(name, None)
        self._events[name] = fields
        self._is_session = self._is_session or kind == _RUNS or kind in _ENDS
        # A thread becomes idle before its session does.
        if kind in _ENDS or (kind in _THREAD_ENDS and not self._is_session):
            self._has_ended = True
        elif kind.endswith("status_running"):
            self._has_ended = False

    @property
    def answer(self) -> Json:
        """The events so far; where there is only an error, the error's own body."""
        events = [*map(dict, self._events.values()), *(preview.build() for preview in self._previews.values())]
        if not events:
            return None if self._error is None else {"type": "error", "error": self._error}
        return {"data": events} if self._error is None else {"data": events, "error": self._error}

    @property
    def is_complete(self) -> bool:
        """Whether the session became idle, and the stream had no error. An error of the agent is an event."""
        return self._has_ended and self._error is None


class _Preview:
    """A message that arrives in pieces."""

    def __init__(self, started: Mapping[str, Json]) -> None:
        self._state = dict(started)
        self._parts: dict[int, dict[str, Json]] = {}
        self._texts: dict[int, list[str]] = {}

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add a piece of one part."""
        index, piece = as_count(delta.get("index")) or 0, as_object(delta.get("content"))
        self._parts.setdefault(index, {}).update(piece)
        self._texts.setdefault(index, []).append(as_text(piece.get("text")))

    def build(self) -> dict[str, Json]:
        """The message so far."""
        parts = [{**self._parts[index], "text": "".join(self._texts[index])} for index in sorted(self._parts)]
        return {**self._state, "content": parts} if parts else self._state


def _events(body: Json, name: str) -> list[Mapping[str, Json]]:
    return [as_object(event) for event in as_array(as_object(body).get(name))]


def _event_text(event: Mapping[str, Json]) -> str:
    return "".join(as_text(as_object(part).get("text")) for part in as_array(event.get("content")))


def _tool_call(event: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=as_text_or_none(event.get("id")), name=as_text(event.get("name")), arguments=event.get("input"))


_CALLED: Final = ("tool_use_id", "custom_tool_use_id", "mcp_tool_use_id")


def _tool_results(events: Iterable[Mapping[str, Json]], whose: str) -> Iterable[Json]:
    for event in events:
        kind = as_text(event.get("type"))
        if kind.startswith(whose) and kind.endswith("tool_result"):
            name = next((event[name] for name in _CALLED if name in event), None)
            result = {"id": name, "content": event.get("content")}
            yield {**result, "is_error": True} if event.get("is_error") is True else result


def _sum_counts(counts: Iterable[Mapping[str, Json]], name: str) -> int | None:
    known = [number for number in (as_count(one.get(name)) for one in counts) if number is not None]
    return sum(known) if known else None


def _requested_form(criteria: FormCriteria) -> AnswerForm:
    return "sse" if criteria.operation == "listen" else "whole"


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make the events of one turn for the stream of a session; what is sent to it is only acknowledged, with its events."""
    if parts.operation != "listen":
        return None
    counts: Json = {"input_tokens": parts.input_tokens, "output_tokens": parts.output_tokens}
    content: Json = [{"type": "text", "text": parts.text}]
    texts: list[Mapping[str, Json]] = [] if parts.text is None else [{"type": "agent.message", "content": content}]
    calls: list[Mapping[str, Json]] = [
        {"type": "agent.custom_tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in parts.tool_calls
    ]
    word: Json = {"type": parts.finish_word("end_turn", "requires_action")}
    events: list[Mapping[str, Json]] = [
        {"type": _RUNS},
        *texts,
        *calls,
        {"type": "span.model_request_end", "model_usage": counts},
        {"type": "session.status_idle", "stop_reason": word},
    ]
    stamped = [
        {"id": f"sevt_{parts.id}{number}", "processed_at": parts.created_at, **event}
        for number, event in enumerate(events)
    ]
    return {"data": stamped}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the events, all under one name."""
    return (sse_message("message", event) for event in as_array(answer.get("data")))


DIALECT: Final = Dialect(
    name="anthropic_sessions",
    claim=claim,
    headers=("anthropic-version",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=_requested_form,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
)
