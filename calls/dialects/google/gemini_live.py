"""Gemini's Live API (`BidiGenerateContent`), on Gemini's own host and on Vertex.

A session is a setup and then turns: the parts of the model's message, transcripts of what it said and heard, function calls,
and a marker that the turn is complete. Audio is replaced by its digest here: the bytes are in the exchange.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.token_counts import sum_usages
from calls.framing import websocket
from calls.model import Headers, Json, ToolCall, Usage
from calls.websocket_messages import digest_bytes, is_websocket_request

_PATH: Final = re.compile(r"/ws/google\.[\w.]+?[./]BidiGenerateContent(?:Constrained)?")

_TRANSCRIPTS: Final = ("inputTranscription", "outputTranscription")


def claim(method: str, _host: str, path: str, headers: Headers) -> Claim | None:
    """Claim `/ws/google.….BidiGenerateContent` at any host."""
    if not _PATH.fullmatch(path) or not is_websocket_request(method, headers):
        return None
    return Claim(operation="generate_content", kind="model")


def summarize_request(body: Json) -> RequestSummary:
    """Find the model of the setup, and all results of functions."""
    messages = [as_object(message) for message in as_array(body)]
    models = [as_text_or_none(as_object(message.get("setup")).get("model")) for message in messages]
    responses = [_member_in_either_case(message, "toolResponse", "tool_response") for message in messages]
    lists = [as_array(one.get("functionResponses", one.get("function_responses"))) for one in responses]
    results = [as_object(result) for responses_of_message in lists for result in responses_of_message]
    model = next(filter(None, models), None)
    return RequestSummary(
        model=model.removeprefix("models/") if model else None,
        tool_results=tuple(
            {"id": result.get("id"), "name": result.get("name"), "content": result.get("response")}
            for result in results
        ),
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Join the texts and calls of all turns."""
    turns = [as_object(turn) for turn in as_array(as_object(answer).get("turns"))]
    calls = [
        as_object(call) for turn in turns for call in as_array(as_object(turn.get("toolCall")).get("functionCalls"))
    ]
    return AnswerSummary(
        text="\n".join(filter(None, map(_turn_text, turns))) or None,
        tool_calls=tuple(
            ToolCall(id=as_text_or_none(call.get("id")), name=as_text(call.get("name")), arguments=call.get("args"))
            for call in calls
        ),
        finish_reason=_finish_reason(turns[-1]) if turns else None,
        usage=sum_usages(_usage(as_object(turn.get("usageMetadata"))) for turn in turns),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a session, or for a refused one."""
    return AccumulatorAssembly(content_type, GeminiLiveStream(), (websocket,))


class GeminiLiveStream:
    """The messages of one session."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._turns: list[_Turn] = []

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # Google sends its JSON as binary too
        """Add one message."""
        for name, value in parse_payload(data).items():
            if name in ("serverContent", "toolCall", "toolCallCancellation", "usageMetadata"):
                self._find_turn(name).add(name, as_object(value))
            else:
                self._state[name] = value

    @property
    def answer(self) -> Json:
        """The session so far."""
        turns: dict[str, Json] = {"turns": [turn.build() for turn in self._turns]} if self._turns else {}
        return {**self._state, **turns} or None

    @property
    def is_complete(self) -> bool | None:
        """Whether the last turn is complete; None for a session without turns, which ends with its WebSocket."""
        return self._turns[-1].has_ended if self._turns else None

    def _find_turn(self, name: str) -> "_Turn":
        """Find the current turn. Counts that follow its end still belong to it."""
        if not self._turns or (self._turns[-1].has_ended and name != "usageMetadata"):
            self._turns.append(_Turn())
        return self._turns[-1]


class _Turn:
    """One turn of the model while its messages arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._texts: list[list[str]] = []
        self._sounds: dict[int, list[bytes]] = {}
        self._transcripts: dict[str, list[str]] = {}
        self._calls: list[Json] = []

    @property
    def has_ended(self) -> bool:
        """Whether the turn is marked as complete."""
        return self._state.get("turnComplete") is True

    def add(self, name: str, value: Mapping[str, Json]) -> None:
        """Add one message."""
        match name:
            case "serverContent":
                self._add_content(value)
            case "toolCall":
                self._calls.extend(as_array(value.get("functionCalls")))
            case _:
                self._state[name] = value

    def build(self) -> Json:
        """The turn so far, with its pieces joined."""
        turn: dict[str, Json] = {}
        if self._parts:
            turn["modelTurn"] = {
                "role": "model",
                "parts": [self._build_part(place) for place in range(len(self._parts))],
            }
        for name, pieces in self._transcripts.items():
            turn[name] = {"text": "".join(pieces)}
        if self._calls:
            turn["toolCall"] = {"functionCalls": list(self._calls)}
        return {**turn, **self._state}

    def _add_content(self, content: Mapping[str, Json]) -> None:
        for name, value in content.items():
            if name == "modelTurn":
                for part in map(as_object, as_array(as_object(value).get("parts"))):
                    self._add_part(part)
            elif name in _TRANSCRIPTS:
                self._transcripts.setdefault(name, []).append(as_text(as_object(value).get("text")))
            else:
                self._state[name] = value

    def _add_part(self, part: Mapping[str, Json]) -> None:
        """Add a part: text continues text, and audio continues audio of the same type."""
        sound = _split_audio(part)
        frame = {name: value for name, value in part.items() if name != "text"} if sound is None else sound[0]
        if not self._parts or self._parts[-1] != frame or not ("text" in part or sound):
            self._parts.append(frame)
            self._texts.append([])
        place = len(self._parts) - 1
        if sound is not None:
            self._sounds.setdefault(place, []).append(sound[1])
        elif isinstance(part.get("text"), str):
            self._texts[place].append(as_text(part["text"]))

    def _build_part(self, place: int) -> Json:
        part = self._parts[place]
        if place in self._sounds:
            return {
                "inlineData": {**as_object(part.get("inlineData")), "data": digest_bytes(b"".join(self._sounds[place]))}
            }
        return {**part, **({"text": "".join(self._texts[place])} if self._texts[place] else {})}


def _split_audio(part: Mapping[str, Json]) -> tuple[dict[str, Json], bytes] | None:
    """Split a part that is audio into its frame and its bytes."""
    blob = as_object(part.get("inlineData"))
    if len(part) != 1 or not as_text(blob.get("mimeType")).startswith("audio/"):
        return None
    try:
        data = base64.b64decode(as_text(blob.get("data")), validate=True)
    except (binascii.Error, ValueError):
        return None
    return {"inlineData": {name: value for name, value in blob.items() if name != "data"}}, data


def _turn_text(turn: Mapping[str, Json]) -> str:
    """The model's text, or else its transcript."""
    parts = [as_object(part) for part in as_array(as_object(turn.get("modelTurn")).get("parts"))]
    written = "".join(as_text(part.get("text")) for part in parts if part.get("thought") is not True)
    return written or as_text(as_object(turn.get("outputTranscription")).get("text"))


def _finish_reason(turn: Mapping[str, Json]) -> str | None:
    if turn.get("interrupted") is True:
        return "interrupted"
    return as_text_or_none(turn.get("turnCompleteReason")) or (
        "turn_complete" if turn.get("turnComplete") is True else None
    )


def _member_in_either_case(message: Mapping[str, Json], camel: str, snake: str) -> Mapping[str, Json]:
    return as_object(message.get(camel)) or as_object(message.get(snake))


def _usage(usage: Mapping[str, Json]) -> Usage:
    """Google counts thoughts apart from the answer and the prompts of tools apart from the prompt; other APIs report the sums."""
    thoughts = as_count(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=_sum_counts(usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount")),
        output_tokens=_sum_counts(usage.get("responseTokenCount"), thoughts),
        cached_tokens=as_count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )


def _sum_counts(*counts: Json) -> int | None:
    known = [number for number in map(as_count, counts) if number is not None]
    return sum(known) if known else None


DIALECT: Final = Dialect(
    name="gemini_live",
    claim=claim,
    headers=("upgrade",),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    why_no_answer="it is a conversation over a WebSocket, which only a recording can answer",
)
