"""OpenAI's Realtime and Live APIs over a WebSocket, and those of Azure, Azure Voice Live and xAI.

A session has many responses. Each is whole in `response.done`; the pieces before it count only where the session was
cut. Their audio is left out: `response.done` has none either. Names differ: `response.output_text.delta` was `response.text.delta`
before general availability, and still is at Azure Voice Live. Live sessions and translations have no responses, but a
transcript of the output and one of the input.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.token_counts import sum_usages
from calls.framing import websocket
from calls.model import Headers, Json, ToolCall, Usage
from calls.websocket_messages import is_websocket_request

_PATH: Final = re.compile(r"(?:.*/)?(?:realtime(?:/translations)?|live/sessions(?:/[^/]+/(?:attach|fork))?)")

_PIECES: Final[Mapping[str, tuple[str, str]]] = {
    "output_text": ("output_text", "text"),
    "text": ("text", "text"),
    "output_audio_transcript": ("output_audio", "transcript"),
    "audio_transcript": ("audio", "transcript"),
}
"""What arrives in pieces: the type of its part, and its member in it."""

_TRANSCRIPTS: Final[Mapping[str, str]] = {
    "session.output_transcript.delta": "output_transcript",
    "session.input_transcript.delta": "input_transcript",
}
"""The transcripts of a session without responses."""

_CALLS: Final = ("function_call_arguments", "mcp_call_arguments")


def claim(method: str, _host: str, path: str, headers: Headers) -> Claim | None:
    """Claim a WebSocket at `…/realtime` or `…/live/sessions` of any host."""
    if not _PATH.fullmatch(path) or not is_websocket_request(method, headers):
        return None
    return Claim(operation="realtime", kind="model")


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, where the session names it, and all results of tools."""
    messages = [as_object(message) for message in as_array(body)]
    models = [as_text_or_none(as_object(message.get("session")).get("model")) for message in messages]
    items = [as_object(message.get("item")) for message in messages]
    outputs = [item for item in items if as_text(item.get("type")).endswith("_call_output")]
    return RequestSummary(
        model=next((model for model in reversed(models) if model), None),
        tool_results=tuple({"id": item.get("call_id"), "content": item.get("output")} for item in outputs),
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Join the texts and tool calls of all responses."""
    session = as_object(answer)
    responses = [as_object(response) for response in as_array(session.get("responses"))]
    items = [as_object(item) for response in responses for item in as_array(response.get("output"))]
    parts = [[as_object(part) for part in as_array(item.get("content"))] for item in items]
    texts = [
        "".join(as_text_or_none(part.get("text")) or as_text(part.get("transcript")) for part in of_item)
        for of_item in parts
    ]
    return AnswerSummary(
        model=as_text_or_none(as_object(session.get("session")).get("model")),
        text="\n".join(filter(None, (*texts, as_text_or_none(session.get("output_transcript"))))) or None,
        tool_calls=tuple(_tool_call(item) for item in items if as_text(item.get("type")).endswith("_call")),
        finish_reason=_finish_reason(responses[-1]) if responses else as_text_or_none(session.get("reason")),
        usage=sum_usages(_usage(as_object(response.get("usage"))) for response in responses),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a session, or for a refused one."""
    return AccumulatorAssembly(content_type, RealtimeStream(), (websocket,))


class RealtimeStream:
    """The events of one session."""

    def __init__(self) -> None:
        self._session: Json = None
        self._responses: dict[str, _Response] = {}
        self._input_transcripts: dict[tuple[str, int], list[str]] = {}
        self._errors: list[Json] = []
        self._transcripts: dict[str, list[str]] = {}
        self._end: dict[str, Json] = {}

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # messages have no names, and say it themselves
        """Add one event."""
        fields = parse_payload(data)
        kind = as_text(fields.get("type"))
        name = as_text_or_none(fields.get("response_id")) or as_text_or_none(
            as_object(fields.get("response")).get("id")
        )
        if kind == "error":
            self._errors.append(fields.get("error"))
        elif kind in _TRANSCRIPTS:
            self._transcripts.setdefault(_TRANSCRIPTS[kind], []).append(as_text(fields.get("delta")))
        elif kind.startswith(("session.", "transcription_session.")) and "session" in fields:
            self._session = fields["session"]
            self._end = {
                name: fields[name] for name in ("reason", "usage") if kind == "session.closed" and name in fields
            }
        elif kind.startswith("conversation.item.input_audio_transcription."):
            self._add_input_transcript(kind.rpartition(".")[2], fields)
        elif kind.startswith("response.") and name:
            self._responses.setdefault(name, _Response()).add(kind.removeprefix("response."), fields)

    @property
    def answer(self) -> Json:
        """The session so far, with its responses in the shape that the API gives them."""
        answer: dict[str, Json] = {}
        if self._session is not None:
            answer["session"] = self._session
        if self._input_transcripts:
            answer["transcripts"] = [
                {"item_id": item, "content_index": index, "transcript": "".join(pieces)}
                for (item, index), pieces in self._input_transcripts.items()
            ]
        answer |= {name: "".join(pieces) for name, pieces in self._transcripts.items()} | self._end
        if self._responses:
            answer["responses"] = [response.build() for response in self._responses.values()]
        return answer | ({"errors": list(self._errors)} if self._errors else {}) or None

    @property
    def is_complete(self) -> bool | None:
        """Whether every response is done; None for a session without responses, which ends with its WebSocket."""
        return all(response.is_done for response in self._responses.values()) if self._responses else None

    def _add_input_transcript(self, phase: str, fields: Mapping[str, Json]) -> None:
        """Add to the transcript of the user's speech."""
        place = as_text(fields.get("item_id")), as_count(fields.get("content_index")) or 0
        if phase == "delta":
            self._input_transcripts.setdefault(place, []).append(as_text(fields.get("delta")))
        elif phase == "completed":
            self._input_transcripts[place] = [as_text(fields.get("transcript"))]


class _Response:
    """One response while its events arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._items: dict[int, _Item] = {}
        self.is_done = False

    def add(self, kind: str, fields: Mapping[str, Json]) -> None:
        """Add one event about it."""
        if "response" in fields:
            self._state = {**as_object(fields["response"])}
            self.is_done = self.is_done or kind == "done"
        else:
            self._items.setdefault(as_count(fields.get("output_index")) or 0, _Item()).add(kind, fields)

    def build(self) -> Json:
        """The response as `response.done` has it."""
        if self.is_done or not self._items:
            return self._state
        return {**self._state, "output": [self._items[place].build() for place in sorted(self._items)]}


class _Item:
    """One item of a response's output while its events arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._arguments: list[str] = []
        self._parts: dict[int, dict[str, Json]] = {}
        self._pieces: dict[tuple[int, str], list[str]] = {}

    def add(self, kind: str, fields: Mapping[str, Json]) -> None:
        """Add one event about it."""
        subject, _, phase = kind.rpartition(".")
        place = as_count(fields.get("content_index")) or 0
        if subject == "output_item":
            self._state.update(as_object(fields.get("item")))
            if phase == "done":
                for pieces in (self._arguments, self._parts, self._pieces):
                    pieces.clear()
        elif subject == "content_part":
            self._parts.setdefault(place, {}).update(as_object(fields.get("part")))
        elif subject in _CALLS:
            if phase != "delta":
                self._arguments.clear()
            self._arguments.append(as_text(fields.get("delta" if phase == "delta" else "arguments")))
        elif subject in _PIECES:
            self._add_piece(*_PIECES[subject], phase, place, fields)

    def build(self) -> Json:
        """The item as a response has it."""
        item = dict(self._state)
        if self._arguments:
            item["arguments"] = "".join(self._arguments)
        if self._parts:
            item["content"] = [self._build_part(place) for place in sorted(self._parts)]
        return item

    def _add_piece(self, kind: str, member: str, phase: str, place: int, fields: Mapping[str, Json]) -> None:
        self._parts.setdefault(place, {"type": kind})
        if phase == "delta":
            self._pieces.setdefault((place, member), []).append(as_text(fields.get("delta")))
        elif isinstance(fields.get(member), str):
            self._pieces[place, member] = [as_text(fields.get(member))]

    def _build_part(self, place: int) -> Json:
        joined = {member: "".join(pieces) for (at, member), pieces in self._pieces.items() if at == place}
        return {**self._parts[place], **joined}


def _finish_reason(response: Mapping[str, Json]) -> str | None:
    details = as_object(response.get("status_details"))
    status = as_text_or_none(response.get("status"))
    return as_text_or_none(details.get("reason")) or (status if status != "in_progress" else None)


def _tool_call(item: Mapping[str, Json]) -> ToolCall:
    name = as_text_or_none(item.get("call_id")) or as_text_or_none(item.get("id"))
    return ToolCall(id=name, name=as_text(item.get("name")), arguments=parse_arguments(item.get("arguments")))


def _usage(usage: Mapping[str, Json]) -> Usage:
    input_details = as_object(usage.get("input_token_details") or usage.get("input_tokens_details"))
    output_details = as_object(usage.get("output_token_details") or usage.get("output_tokens_details"))
    return Usage(
        input_tokens=as_count(usage.get("input_tokens")),
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=as_count(input_details.get("cached_tokens")),
        reasoning_tokens=as_count(output_details.get("reasoning_tokens")),
    )


DIALECT: Final = Dialect(
    name="openai_realtime",
    claim=claim,
    headers=("upgrade",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    error_body=openai_error,
    why_no_answer="it is a conversation over a WebSocket, which only a recording can answer",
)
