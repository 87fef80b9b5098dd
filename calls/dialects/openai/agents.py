"""OpenAI's Agents (beta): sessions of agents that OpenAI runs, `POST …/agents/sessions`.

A stream repeats the session as its turns proceed; between, it has the turns and their items, each whole at its start and its end, with
pieces of texts between. A session does not contain its turns, so the answer made here is the session with `turns` and `items`
added. Later input (`POST …/events`) is answered on the stream of the session's events.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage

_PATH: Final = re.compile(r"(?:.*/)?v1/agents/sessions(?P<events>/[^/]+/events)?")

_ENDS: Final = frozenset(("idle", "failed", "requires_action", "budget_reached"))
"""Events after which a session is idle until its next input."""

_UNDONE: Final = frozenset(("queued", "in_progress"))

_PARTS: Final = {
    "content_part": ("content", "content_index", "output_text"),
    "output_text": ("content", "content_index", "output_text"),
    "reasoning_summary_part": ("summary", "summary_index", "summary_text"),
    "reasoning_summary_text": ("summary", "summary_index", "summary_text"),
}
"""What arrives in pieces: the list of its part, the member with the index in that list, and the part's type."""


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim OpenAI's sessions; requests that manage them belong to `openai_rest`."""
    match = _PATH.fullmatch(path) if host.endswith("api.openai.com") else None
    match method, match and match["events"]:
        case "POST", _ if match:
            return Claim(operation="invoke_agent", kind="model")
        case "GET", str():
            return Claim(operation="listen", kind="model")
        case _:
            return None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, unless a saved agent determines it, and the results of tools."""
    request = as_object(body)
    events = (as_object(event) for event in as_array(request.get("events")))
    results = tuple(
        {"id": event.get("call_id"), "content": event.get("output", event.get("error"))}
        for event in events
        if as_text(event.get("type")).endswith(".tool_result")
    )
    return RequestSummary(model=as_text_or_none(as_object(request.get("agent")).get("model")), tool_results=results)


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, tool calls and usage of the session's last turn."""
    session = as_object(answer)
    turns, items = as_array(session.get("turns")), [as_object(item) for item in as_array(session.get("items"))]
    turn = as_object(turns[-1]) if turns else {}
    messages = [item for item in items if item.get("type") == "message" and item.get("role") == "assistant"]
    usage = as_object(turn.get("usage") or session.get("usage"))
    status = as_text_or_none(turn.get("status"))
    calls = (item for item in items if as_text(item.get("type")).endswith(("_call", "_execution")))
    return AnswerSummary(
        model=as_text_or_none(as_object(session.get("agent")).get("model")),
        text=_message_text(messages[-1]) if messages else None,
        tool_calls=tuple(map(_tool_call, calls)),
        finish_reason=None if status in _UNDONE else status,
        usage=Usage(
            input_tokens=as_count(usage.get("input_tokens")),
            output_tokens=as_count(usage.get("output_tokens")),
            cached_tokens=as_count(as_object(usage.get("input_tokens_details")).get("cached_tokens")),
            reasoning_tokens=as_count(as_object(usage.get("output_tokens_details")).get("reasoning_tokens")),
        ),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a session, streamed or not."""
    return AccumulatorAssembly(content_type, OpenaiAgentsStream())


class OpenaiAgentsStream:
    """The events of a session. Each names its subject."""

    def __init__(self) -> None:
        self._session: dict[str, Json] = {}
        self._turns: dict[str, dict[str, Json]] = {}
        self._items: dict[str, _Item] = {}
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:
        """Add one event. Its type is in the payload; the event's name only repeats it."""
        fields = parse_payload(data)
        kind = (as_text(fields.get("type")) or event).removeprefix("agent.session.")
        if kind == "error" or fields.get("error") is not None:
            self._error = fields.get("error") or dict(fields)
        if "session" in fields:
            self._session.update(as_object(fields["session"]))
            self._has_ended = kind in _ENDS
        elif "turn" in fields:
            turn = as_object(fields["turn"])
            self._turns.setdefault(as_text(turn.get("id")), {}).update(turn)
            if fields.get("usage") is not None:
                self._turns[as_text(turn.get("id"))]["usage"] = fields["usage"]
        elif "item" in fields:
            self._find_item(as_object(fields["item"]).get("id")).replace(as_object(fields["item"]))
        elif "item_id" in fields:
            self._find_item(fields["item_id"]).add(kind.removeprefix("turn."), fields)

    def _find_item(self, name: Json) -> "_Item":
        return self._items.setdefault(as_text(name), _Item())

    @property
    def answer(self) -> Json:
        """The session so far, with its turns and items; where there is only an error, the error's own body."""
        beside: dict[str, Json] = {}
        if self._turns:
            beside["turns"] = list(self._turns.values())
        if self._items:
            beside["items"] = [item.build() for item in self._items.values()]
        if not self._session and not beside:
            return None if self._error is None else {"error": self._error}
        answer = {**self._session, **beside}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def is_complete(self) -> bool:
        """Whether the session became idle, and no error."""
        return self._has_ended and self._error is None


class _Item:
    """One item of a turn while it arrives."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: dict[tuple[str, int], dict[str, Json]] = {}
        self._pieces: dict[tuple[str, int], list[str]] = {}

    def replace(self, item: Mapping[str, Json]) -> None:
        """Take the whole item, at its start or at its end, when it contains all pieces."""
        self._state.update(item)
        self._parts.clear()
        self._pieces.clear()

    def add(self, kind: str, fields: Mapping[str, Json]) -> None:
        """Add a piece of a text, or a whole part of the item."""
        subject, _, phase = kind.rpartition(".")
        if subject not in _PARTS:
            return
        field, index, part_type = _PARTS[subject]
        at = field, as_count(fields.get(index)) or 0
        part = self._parts.setdefault(at, {"type": part_type, "text": ""})
        if phase == "delta":
            self._pieces.setdefault(at, []).append(as_text(fields.get("delta")))
            return
        part.update(as_object(fields.get("part")) or {"text": fields.get("text")})
        self._pieces.pop(at, None)

    def build(self) -> Json:
        """The item so far."""
        lists: dict[str, list[Json]] = {}
        for at in sorted(self._parts):
            part = self._parts[at]
            lists.setdefault(at[0], []).append(
                {**part, "text": "".join(self._pieces[at])} if at in self._pieces else dict(part)
            )
        return {**self._state, **lists}


def _message_text(message: Mapping[str, Json]) -> str:
    return "".join(as_text(as_object(part).get("text")) for part in as_array(message.get("content")))


_ASKED_FOR: Final = ("arguments", "command", "action", "content")


def _tool_call(item: Mapping[str, Json]) -> ToolCall:
    """A call of a function, or of OpenAI's own tool, which is named by its type."""
    kind = as_text(item.get("type"))
    name = as_text(item.get("name")) or kind.removesuffix("_call")
    member = next((name for name in _ASKED_FOR if name in item), "")
    return ToolCall(
        id=as_text_or_none(item.get("call_id")) or as_text_or_none(item.get("id")),
        name=name,
        arguments=item.get(member),
    )


def _requested_form(criteria: FormCriteria) -> AnswerForm:
    """The stream of a session's events is one, whatever the request says."""
    streams = criteria.operation == "listen" or as_object(criteria.body).get("stream") is True
    return "sse" if streams else "whole"


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a session with one turn, as its stream has it: alone it has neither text nor calls."""
    turn, session = f"turn_{parts.id}", f"sess_{parts.id}"
    content: Json = [{"type": "output_text", "text": parts.text}]
    about: dict[str, Json] = {"turn_id": turn, "status": "completed"}
    message: dict[str, Json] = {"type": "message", "id": f"msg_{parts.id}", "role": "assistant", "content": content}
    texts: list[Json] = [] if parts.text is None else [{**message, **about, "phase": "final_answer"}]
    calls: list[Json] = [
        {"type": "function_call", "id": f"fc_{parts.id}{number}", "call_id": call.id, "name": call.name}
        | {"arguments": call.arguments, **about}
        for number, call in enumerate(parts.tool_calls)
    ]
    usage: Json = {
        "input_tokens": parts.input_tokens,
        "output_tokens": parts.output_tokens,
        "total_tokens": parts.input_tokens + parts.output_tokens,
    }
    head: dict[str, Json] = {"id": session, "object": "agent.session", "created_at": parts.created, "status": "idle"}
    agent: Json = {"id": f"agent_{parts.id}", "name": None, "model": parts.model, "tools": []}
    done: dict[str, Json] = {"id": turn, "object": "agent.session.turn", "session_id": session, "error": None}
    turns: Json = [{**done, "status": parts.finish_word("completed", "completed"), "usage": usage}]
    rest: dict[str, Json] = {"required_actions": [], "error": None, "agent": agent, "usage": None}
    return {**head, **rest, "turns": turns, "items": [*texts, *calls]}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the session, its turns with their items, and the session as it is idle. Every event has an id."""
    for number, (kind, event) in enumerate(_session_events(answer), 1):
        name = f"agent.session.{kind}"
        yield sse_message(name, {"type": name, "event_id": f"evt_{number}", **event})


def _session_events(answer: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    session = {name: value for name, value in answer.items() if name not in ("turns", "items")}
    turns = [as_object(turn) for turn in as_array(answer.get("turns"))]
    yield "created", {"session": session}
    for turn in turns:
        yield "turn.created", {"turn": {**turn, "status": "queued", "usage": None}}
    for index, item in enumerate(map(as_object, as_array(answer.get("items")))):
        for phase in ("added", "done"):
            yield f"turn.item.{phase}", {"turn_id": item.get("turn_id"), "output_index": index, "item": item}
    for turn in turns:
        status = as_text(turn.get("status")) or "completed"
        yield f"turn.{status}", {"turn": {**turn, "usage": None}, "usage": turn.get("usage")}
    status = as_text(session.get("status"))
    yield status if status in _ENDS else "idle", {"session": session}


DIALECT: Final = Dialect(
    name="openai_agents",
    claim=claim,
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    error_body=openai_error,
    answer_form=_requested_form,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
)
