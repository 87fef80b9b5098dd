"""OpenAI's Realtime and Live APIs over a WebSocket, and those of Azure, Azure Voice Live and xAI.

A session has many responses. Each is told whole by `response.done`; the pieces before it only stand in where the session was
cut. Their sound is left out: `response.done` has none either. Names differ: `response.output_text.delta` was `response.text.delta`
before general availability, and still is at Azure Voice Live. Live sessions and translations have no responses: what is said and heard
comes as two transcripts.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.dialects.parts.token_counts import added
from calls.framing import websocket
from calls.model import Headers, Json, ToolCall, Usage
from calls.websocket_messages import opens

NAME: Final = "openai_realtime"

_PATH: Final = re.compile(r"(?:.*/)?(?:realtime(?:/translations)?|live/sessions(?:/[^/]+/(?:attach|fork))?)")

_PIECES: Final[Mapping[str, tuple[str, str]]] = {
    "output_text": ("output_text", "text"),
    "text": ("text", "text"),
    "output_audio_transcript": ("output_audio", "transcript"),
    "audio_transcript": ("audio", "transcript"),
}
"""What comes in pieces: the type of its part, and its member in it."""

_TRANSCRIPTS: Final[Mapping[str, str]] = {
    "session.output_transcript.delta": "output_transcript",
    "session.input_transcript.delta": "input_transcript",
}
"""What a session without responses says, and what it hears."""

_CALLS: Final = ("function_call_arguments", "mcp_call_arguments")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/realtime` and `…/live/sessions`, where a WebSocket is asked for."""
    if not _PATH.fullmatch(path) or not opens(method, headers):
        return None
    return Claim(dialect=NAME, operation="realtime", kind="model")


def asked(body: Json) -> RequestSummary:
    """The model, where the session names it, and everything that tools answered."""
    said = [members(message) for message in elements(body)]
    models = [some(members(message.get("session")).get("model")) for message in said]
    items = [members(message.get("item")) for message in said]
    outputs = [item for item in items if text(item.get("type")).endswith("_call_output")]
    return RequestSummary(
        model=next((model for model in reversed(models) if model), None),
        tool_results=tuple({"id": item.get("call_id"), "content": item.get("output")} for item in outputs),
    )


def told(answer: Json) -> AnswerSummary:
    """What all responses of the session say, one after another."""
    session = members(answer)
    responses = [members(response) for response in elements(session.get("responses"))]
    items = [members(item) for response in responses for item in elements(response.get("output"))]
    parts = [[members(part) for part in elements(item.get("content"))] for item in items]
    texts = ["".join(some(part.get("text")) or text(part.get("transcript")) for part in of_item) for of_item in parts]
    return AnswerSummary(
        model=some(members(session.get("session")).get("model")),
        text="\n".join(filter(None, (*texts, some(session.get("output_transcript"))))) or None,
        tool_calls=tuple(_tool_call(item) for item in items if text(item.get("type")).endswith("_call")),
        finish_reason=_reason(responses[-1]) if responses else some(session.get("reason")),
        usage=added(_usage(members(response.get("usage"))) for response in responses),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a session, or for the refusal of one."""
    return AccumulatorAssembly(content_type, RealtimeStream(), (websocket,))


class RealtimeStream:
    """The events of one session."""

    def __init__(self) -> None:
        self._session: Json = None
        self._responses: dict[str, _Response] = {}
        self._heard: dict[tuple[str, int], list[str]] = {}
        self._errors: list[Json] = []
        self._transcripts: dict[str, list[str]] = {}
        self._end: dict[str, Json] = {}

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # messages have no names, and say it themselves
        """Take one event."""
        said = payload(data)
        kind = text(said.get("type"))
        name = some(said.get("response_id")) or some(members(said.get("response")).get("id"))
        if kind == "error":
            self._errors.append(said.get("error"))
        elif kind in _TRANSCRIPTS:
            self._transcripts.setdefault(_TRANSCRIPTS[kind], []).append(text(said.get("delta")))
        elif kind.startswith(("session.", "transcription_session.")) and "session" in said:
            self._session = said["session"]
            self._end = {name: said[name] for name in ("reason", "usage") if kind == "session.closed" and name in said}
        elif kind.startswith("conversation.item.input_audio_transcription."):
            self._hear(kind.rpartition(".")[2], said)
        elif kind.startswith("response.") and name:
            self._responses.setdefault(name, _Response()).take(kind.removeprefix("response."), said)

    @property
    def answer(self) -> Json:
        """The session so far, with its responses in the shape that the API gives them."""
        answer: dict[str, Json] = {}
        if self._session is not None:
            answer["session"] = self._session
        if self._heard:
            answer["transcripts"] = [
                {"item_id": item, "content_index": index, "transcript": "".join(pieces)}
                for (item, index), pieces in self._heard.items()
            ]
        answer |= {name: "".join(pieces) for name, pieces in self._transcripts.items()} | self._end
        if self._responses:
            answer["responses"] = [response.whole() for response in self._responses.values()]
        return answer | ({"errors": list(self._errors)} if self._errors else {}) or None

    @property
    def complete(self) -> bool | None:
        """Whether every response that was begun is done; a session of none is over when its WebSocket is."""
        return all(response.done for response in self._responses.values()) if self._responses else None

    def _hear(self, how: str, said: Mapping[str, Json]) -> None:
        """What the user was understood to have said."""
        place = text(said.get("item_id")), count(said.get("content_index")) or 0
        if how == "delta":
            self._heard.setdefault(place, []).append(text(said.get("delta")))
        elif how == "completed":
            self._heard[place] = [text(said.get("transcript"))]


class _Response:
    """One response while it comes."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._items: dict[int, _Item] = {}
        self.done = False

    def take(self, kind: str, said: Mapping[str, Json]) -> None:
        """Take one event about it."""
        if "response" in said:
            self._state = {**members(said["response"])}
            self.done = self.done or kind == "done"
        else:
            self._items.setdefault(count(said.get("output_index")) or 0, _Item()).take(kind, said)

    def whole(self) -> Json:
        """The response as `response.done` has it."""
        if self.done or not self._items:
            return self._state
        return {**self._state, "output": [self._items[place].whole() for place in sorted(self._items)]}


class _Item:
    """One item of a response's output while it comes."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._arguments: list[str] = []
        self._parts: dict[int, dict[str, Json]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    def take(self, kind: str, said: Mapping[str, Json]) -> None:
        """Take one event about it."""
        what, _, how = kind.rpartition(".")
        place = count(said.get("content_index")) or 0
        if what == "output_item":
            self._state.update(members(said.get("item")))
            if how == "done":
                for pieces in (self._arguments, self._parts, self._pieces):
                    pieces.clear()
        elif what == "content_part":
            self._parts.setdefault(place, {}).update(members(said.get("part")))
        elif what in _CALLS:
            if how != "delta":
                self._arguments.clear()
            self._arguments.append(text(said.get("delta" if how == "delta" else "arguments")))
        elif what in _PIECES:
            self._take_piece(*_PIECES[what], how, place, said)

    def whole(self) -> Json:
        """The item as a response has it."""
        item = dict(self._state)
        if self._arguments:
            item["arguments"] = "".join(self._arguments)
        if self._parts:
            item["content"] = [self._part(place) for place in sorted(self._parts)]
        return item

    def _take_piece(self, kind: str, member: str, how: str, place: int, said: Mapping[str, Json]) -> None:
        self._parts.setdefault(place, {"type": kind})
        if how == "delta":
            self._pieces.setdefault((place, member), []).append(text(said.get("delta")))
        elif isinstance(said.get(member), str):
            self._pieces[place, member] = [text(said.get(member))]

    def _part(self, place: int) -> Json:
        joined = {member: "".join(pieces) for (at, member), pieces in self._pieces.items() if at == place}
        return {**self._parts[place], **joined}


def _reason(response: Mapping[str, Json]) -> str | None:
    details = members(response.get("status_details"))
    status = some(response.get("status"))
    return some(details.get("reason")) or (status if status != "in_progress" else None)


def _tool_call(item: Mapping[str, Json]) -> ToolCall:
    name = some(item.get("call_id")) or some(item.get("id"))
    return ToolCall(id=name, name=text(item.get("name")), arguments=arguments_of(item.get("arguments")))


def _usage(usage: Mapping[str, Json]) -> Usage:
    asked_for = members(usage.get("input_token_details") or usage.get("input_tokens_details"))
    answered = members(usage.get("output_token_details") or usage.get("output_tokens_details"))
    return Usage(
        input_tokens=count(usage.get("input_tokens")),
        output_tokens=count(usage.get("output_tokens")),
        cached_tokens=count(asked_for.get("cached_tokens")),
        reasoning_tokens=count(answered.get("reasoning_tokens")),
    )
