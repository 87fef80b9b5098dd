"""Anthropic's managed agents (beta): events are sent to a session, and whole events come back on a stream.

The answer has the shape of the list of a session's events. A client that asks for it sees messages in pieces as well, before the
whole ones: `event_start` and `event_delta` are previews, and stand only where nothing whole came after them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json, ToolCall, Usage, header

NAME: Final = "anthropic_sessions"

_TELLS: Final = re.compile(r"(.*/)?v1/sessions/[^/]+/events")
_LISTENS: Final = re.compile(r"(.*/)?v1/sessions/[^/]+/(events/stream|threads/[^/]+/stream)")

_RUNS: Final = "session.status_running"
_ENDS: Final = frozenset(("session.status_idle", "session.status_terminated", "session.deleted"))
_THREAD_ENDS: Final = frozenset(("session.thread_status_idle", "session.thread_status_terminated"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """What a session is told, and who listens to it, or to one of its threads. What only manages sessions is nobody's."""
    if not host.endswith("anthropic.com") and header(headers, "anthropic-version") is None:
        return None
    if method == "POST" and _TELLS.fullmatch(path):
        return Claim(dialect=NAME, operation="invoke_agent", kind="model")
    if method == "GET" and _LISTENS.fullmatch(path):
        return Claim(dialect=NAME, operation="listen", kind="model")
    return None


def asked(body: Json) -> RequestSummary:
    """What tools answered."""
    return RequestSummary(tool_results=tuple(_results(_events(body, "events"), "user.")))


def told(answer: Json) -> AnswerSummary:
    """What the agent said last, what it called, and what all of its models took."""
    events = _events(answer, "data")
    said = [event for event in events if event.get("type") == "agent.message"]
    counts = [members(event.get("model_usage")) for event in events if event.get("type") == "span.model_request_end"]
    ends = [event for event in events if text(event.get("type")) in _ENDS | _THREAD_ENDS]
    return AnswerSummary(
        text=_text(said[-1]) if said else None,
        tool_calls=tuple(_tool_call(event) for event in events if text(event.get("type")).endswith("tool_use")),
        finish_reason=some(members(ends[-1].get("stop_reason")).get("type")) if ends else None,
        usage=Usage(
            input_tokens=_sum(counts, "input_tokens"),
            output_tokens=_sum(counts, "output_tokens"),
            cached_tokens=_sum(counts, "cache_read_input_tokens"),
        ),
        results=tuple(_results(events, "agent.")),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for what a session tells, or for the receipt of what it was told."""
    return AccumulatorAssembly(content_type, AnthropicSessionsStream())


class AnthropicSessionsStream:
    """The events of a session, or of one of its threads."""

    def __init__(self) -> None:
        self._events: dict[str, Mapping[str, Json]] = {}
        self._previews: dict[str, _Preview] = {}
        self._error: Json = None
        self._is_session = False
        self._done = False

    def take(self, event: str, data: str) -> None:
        """Take one event. Its type is in the payload; they are all called `message`."""
        said = payload(data)
        kind = text(said.get("type"))
        match kind:
            case "event_start":
                started = members(said.get("event"))
                self._previews[text(started.get("id"))] = _Preview(started)
            case "event_delta":
                if preview := self._previews.get(text(said.get("event_id"))):
                    preview.take(members(said.get("delta")))
            case _ if "id" in said:
                self._take(kind, said)
            case _ if "error" in said or event == "error":
                self._error = said.get("error") or dict(said)
            case _:
                pass

    def _take(self, kind: str, said: Mapping[str, Json]) -> None:
        """Take a whole event. One that waited is told again when its turn comes."""
        name = text(said.get("id"))
        self._previews.pop(name, None)
        self._events[name] = said
        self._is_session = self._is_session or kind == _RUNS or kind in _ENDS
        # A thread comes to rest before its session does.
        if kind in _ENDS or (kind in _THREAD_ENDS and not self._is_session):
            self._done = True
        elif kind.endswith("status_running"):
            self._done = False

    @property
    def answer(self) -> Json:
        """The events so far; where there is only an error, the error's own body."""
        events = [*map(dict, self._events.values()), *(preview.whole() for preview in self._previews.values())]
        if not events:
            return None if self._error is None else {"type": "error", "error": self._error}
        return {"data": events} if self._error is None else {"data": events, "error": self._error}

    @property
    def complete(self) -> bool:
        """Whether the session came to rest, and the stream had no error. One that the agent met is an event."""
        return self._done and self._error is None


class _Preview:
    """A message in pieces."""

    def __init__(self, started: Mapping[str, Json]) -> None:
        self._state = dict(started)
        self._parts: dict[int, dict[str, Json]] = {}
        self._texts: dict[int, list[str]] = {}

    def take(self, delta: Mapping[str, Json]) -> None:
        """Take a piece of one part."""
        index, piece = count(delta.get("index")) or 0, members(delta.get("content"))
        self._parts.setdefault(index, {}).update(piece)
        self._texts.setdefault(index, []).append(text(piece.get("text")))

    def whole(self) -> dict[str, Json]:
        """The message so far."""
        parts = [{**self._parts[index], "text": "".join(self._texts[index])} for index in sorted(self._parts)]
        return {**self._state, "content": parts} if parts else self._state


def _events(body: Json, name: str) -> list[Mapping[str, Json]]:
    return [members(event) for event in elements(members(body).get(name))]


def _text(event: Mapping[str, Json]) -> str:
    return "".join(text(members(part).get("text")) for part in elements(event.get("content")))


def _tool_call(event: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=some(event.get("id")), name=text(event.get("name")), arguments=event.get("input"))


_CALLED: Final = ("tool_use_id", "custom_tool_use_id", "mcp_tool_use_id")


def _results(events: Iterable[Mapping[str, Json]], whose: str) -> Iterable[Json]:
    for event in events:
        kind = text(event.get("type"))
        if kind.startswith(whose) and kind.endswith("tool_result"):
            name = next((event[name] for name in _CALLED if name in event), None)
            result = {"id": name, "content": event.get("content")}
            yield {**result, "is_error": True} if event.get("is_error") is True else result


def _sum(counts: Iterable[Mapping[str, Json]], name: str) -> int | None:
    known = [number for number in (count(one.get(name)) for one in counts) if number is not None]
    return sum(known) if known else None
