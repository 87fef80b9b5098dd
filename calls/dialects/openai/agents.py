"""OpenAI's Agents (beta): sessions of agents that OpenAI runs, `POST …/agents/sessions`.

A session is told again and again while its turns go on; between, a stream tells the turns and their items, each whole at its begin and at its
end, texts in pieces between. A session does not hold what was said in it, so its answer is the session with what came beside it, as `turns` and
`items`. What it is told later (`POST …/events`) is answered on the stream of its events.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "openai_agents"

_PATH: Final = re.compile(r"(?:.*/)?v1/agents/sessions(?P<events>/[^/]+/events)?")

_ENDS: Final = frozenset(("idle", "failed", "requires_action", "budget_reached"))
"""What a session comes to when its turns are over: no more is told until it is asked again."""

_UNDONE: Final = frozenset(("queued", "in_progress"))

_PARTS: Final = {
    "content_part": ("content", "content_index", "output_text"),
    "output_text": ("content", "content_index", "output_text"),
    "reasoning_summary_part": ("summary", "summary_index", "summary_text"),
    "reasoning_summary_text": ("summary", "summary_index", "summary_text"),
}
"""What comes in pieces: the list and the index in it of its part, and the part's type."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """OpenAI's own; what only manages sessions is of its other services."""
    match = _PATH.fullmatch(path) if host.endswith("api.openai.com") else None
    match method, match and match["events"]:
        case "POST", _ if match:
            return Claim(dialect=NAME, operation="invoke_agent", kind="model")
        case "GET", str():
            return Claim(dialect=NAME, operation="listen", kind="model")
        case _:
            return None


def asked(body: Json) -> RequestSummary:
    """The model, where it is not a saved agent's own, and what tools answered."""
    request = members(body)
    events = (members(event) for event in elements(request.get("events")))
    results = tuple(
        {"id": event.get("call_id"), "content": event.get("output", event.get("error"))}
        for event in events
        if text(event.get("type")).endswith(".tool_result")
    )
    return RequestSummary(model=some(members(request.get("agent")).get("model")), tool_results=results)


def told(answer: Json) -> AnswerSummary:
    """What the session's last turn says."""
    session = members(answer)
    turns, items = elements(session.get("turns")), [members(item) for item in elements(session.get("items"))]
    turn = members(turns[-1]) if turns else {}
    said = [item for item in items if item.get("type") == "message" and item.get("role") == "assistant"]
    usage = members(turn.get("usage") or session.get("usage"))
    status = some(turn.get("status"))
    calls = (item for item in items if text(item.get("type")).endswith(("_call", "_execution")))
    return AnswerSummary(
        model=some(members(session.get("agent")).get("model")),
        text=_text(said[-1]) if said else None,
        tool_calls=tuple(map(_tool_call, calls)),
        finish_reason=None if status in _UNDONE else status,
        usage=Usage(
            input_tokens=count(usage.get("input_tokens")),
            output_tokens=count(usage.get("output_tokens")),
            cached_tokens=count(members(usage.get("input_tokens_details")).get("cached_tokens")),
            reasoning_tokens=count(members(usage.get("output_tokens_details")).get("reasoning_tokens")),
        ),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a session, streamed or not."""
    return AccumulatorAssembly(content_type, OpenaiAgentsStream())


class OpenaiAgentsStream:
    """The events of a session. Each names what it is about."""

    def __init__(self) -> None:
        self._session: dict[str, Json] = {}
        self._turns: dict[str, dict[str, Json]] = {}
        self._items: dict[str, _Item] = {}
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:
        """Take one event. Its type is in the payload; the event's name only repeats it."""
        said = payload(data)
        kind = (text(said.get("type")) or event).removeprefix("agent.session.")
        if kind == "error" or said.get("error") is not None:
            self._error = said.get("error") or dict(said)
        if "session" in said:
            self._session.update(members(said["session"]))
            self._done = kind in _ENDS
        elif "turn" in said:
            turn = members(said["turn"])
            self._turns.setdefault(text(turn.get("id")), {}).update(turn)
            if said.get("usage") is not None:
                self._turns[text(turn.get("id"))]["usage"] = said["usage"]
        elif "item" in said:
            self._item(members(said["item"]).get("id")).take_whole(members(said["item"]))
        elif "item_id" in said:
            self._item(said["item_id"]).take(kind.removeprefix("turn."), said)

    def _item(self, name: Json) -> "_Item":
        return self._items.setdefault(text(name), _Item())

    @property
    def answer(self) -> Json:
        """The session so far, with what it brought; where there is only an error, the error's own body."""
        beside: dict[str, Json] = {}
        if self._turns:
            beside["turns"] = list(self._turns.values())
        if self._items:
            beside["items"] = [item.whole() for item in self._items.values()]
        if not self._session and not beside:
            return None if self._error is None else {"error": self._error}
        answer = {**self._session, **beside}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def complete(self) -> bool:
        """Whether the session came to rest, and no error."""
        return self._done and self._error is None


class _Item:
    """One item of a turn while it comes."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: dict[tuple[str, int], dict[str, Json]] = {}
        self._pieces: dict[tuple[str, int], list[str]] = {}

    def take_whole(self, item: Mapping[str, Json]) -> None:
        """Take the item as it begins, or as it is at its end: all that came in pieces is in it then."""
        self._state.update(item)
        self._parts.clear()
        self._pieces.clear()

    def take(self, kind: str, said: Mapping[str, Json]) -> None:
        """Take a piece of a text, or a part of the item whole."""
        what, _, how = kind.rpartition(".")
        if what not in _PARTS:
            return
        field, index, part_type = _PARTS[what]
        at = field, count(said.get(index)) or 0
        part = self._parts.setdefault(at, {"type": part_type, "text": ""})
        if how == "delta":
            self._pieces.setdefault(at, []).append(text(said.get("delta")))
            return
        part.update(members(said.get("part")) or {"text": said.get("text")})
        self._pieces.pop(at, None)

    def whole(self) -> Json:
        """The item so far."""
        lists: dict[str, list[Json]] = {}
        for at in sorted(self._parts):
            part = self._parts[at]
            lists.setdefault(at[0], []).append(
                {**part, "text": "".join(self._pieces[at])} if at in self._pieces else dict(part)
            )
        return {**self._state, **lists}


def _text(message: Mapping[str, Json]) -> str:
    return "".join(text(members(part).get("text")) for part in elements(message.get("content")))


_ASKED_FOR: Final = ("arguments", "command", "action", "content")


def _tool_call(item: Mapping[str, Json]) -> ToolCall:
    """A call of a function, or of a tool of OpenAI's own, which is called by its type."""
    kind = text(item.get("type"))
    name = text(item.get("name")) or kind.removesuffix("_call")
    member = next((name for name in _ASKED_FOR if name in item), "")
    return ToolCall(id=some(item.get("call_id")) or some(item.get("id")), name=name, arguments=item.get(member))
