"""Gemini's Live API (`BidiGenerateContent`), on Gemini's own host and on Vertex.

A session is a setup and then turns: what the model says in parts, what it was understood to say and to hear, calls of functions,
and the mark that the turn is complete. Sound counts by its digest here: the bytes are in the exchange.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.dialects.parts.token_counts import added
from calls.framing import websocket
from calls.model import Headers, Json, ToolCall, Usage
from calls.websocket_messages import digested, opens

NAME: Final = "gemini_live"

_PATH: Final = re.compile(r"/ws/google\.[\w.]+?[./]BidiGenerateContent(?:Constrained)?")

_TRANSCRIPTS: Final = ("inputTranscription", "outputTranscription")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `/ws/google.….BidiGenerateContent`."""
    if not _PATH.fullmatch(path) or not opens(method, headers):
        return None
    return Claim(dialect=NAME, operation="generate_content", kind="model")


def asked(body: Json) -> RequestSummary:
    """The model of the setup, and everything that functions answered."""
    said = [members(message) for message in elements(body)]
    models = [some(members(message.get("setup")).get("model")) for message in said]
    responses = [_either(message, "toolResponse", "tool_response") for message in said]
    lists = [elements(one.get("functionResponses", one.get("function_responses"))) for one in responses]
    results = [members(result) for listed in lists for result in listed]
    model = next(filter(None, models), None)
    return RequestSummary(
        model=model.removeprefix("models/") if model else None,
        tool_results=tuple(
            {"id": result.get("id"), "name": result.get("name"), "content": result.get("response")}
            for result in results
        ),
    )


def told(answer: Json) -> AnswerSummary:
    """What all turns say, one after another."""
    turns = [members(turn) for turn in elements(members(answer).get("turns"))]
    calls = [members(call) for turn in turns for call in elements(members(turn.get("toolCall")).get("functionCalls"))]
    return AnswerSummary(
        text="\n".join(filter(None, map(_text, turns))) or None,
        tool_calls=tuple(
            ToolCall(id=some(call.get("id")), name=text(call.get("name")), arguments=call.get("args")) for call in calls
        ),
        finish_reason=_reason(turns[-1]) if turns else None,
        usage=added(_usage(members(turn.get("usageMetadata"))) for turn in turns),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a session, or for the refusal of one."""
    return AccumulatorAssembly(content_type, GeminiLiveStream(), (websocket,))


class GeminiLiveStream:
    """The messages of one session."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._turns: list[_Turn] = []

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # Google sends its JSON as binary too
        """Take one message."""
        for name, value in payload(data).items():
            if name in ("serverContent", "toolCall", "toolCallCancellation", "usageMetadata"):
                self._turn(name).take(name, members(value))
            else:
                self._state[name] = value

    @property
    def answer(self) -> Json:
        """The session so far."""
        turns: dict[str, Json] = {"turns": [turn.whole() for turn in self._turns]} if self._turns else {}
        return {**self._state, **turns} or None

    @property
    def complete(self) -> bool | None:
        """Whether the last turn came to its end; a session of none is over when its WebSocket is."""
        return self._turns[-1].ended if self._turns else None

    def _turn(self, name: str) -> "_Turn":
        """The turn under way. Counts may come behind its end, and belong to it all the same."""
        if not self._turns or (self._turns[-1].ended and name != "usageMetadata"):
            self._turns.append(_Turn())
        return self._turns[-1]


class _Turn:
    """One turn of the model while it comes."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._parts: list[dict[str, Json]] = []
        self._texts: list[list[str]] = []
        self._sounds: dict[int, list[bytes]] = {}
        self._transcripts: dict[str, list[str]] = {}
        self._calls: list[Json] = []

    @property
    def ended(self) -> bool:
        """Whether the model said that this is all."""
        return self._state.get("turnComplete") is True

    def take(self, name: str, value: Mapping[str, Json]) -> None:
        """Take what one message says of it."""
        match name:
            case "serverContent":
                self._take_content(value)
            case "toolCall":
                self._calls.extend(elements(value.get("functionCalls")))
            case _:
                self._state[name] = value

    def whole(self) -> Json:
        """The turn, with what came in pieces in one."""
        turn: dict[str, Json] = {}
        if self._parts:
            turn["modelTurn"] = {"role": "model", "parts": [self._part(place) for place in range(len(self._parts))]}
        for name, pieces in self._transcripts.items():
            turn[name] = {"text": "".join(pieces)}
        if self._calls:
            turn["toolCall"] = {"functionCalls": list(self._calls)}
        return {**turn, **self._state}

    def _take_content(self, content: Mapping[str, Json]) -> None:
        for name, value in content.items():
            if name == "modelTurn":
                for part in map(members, elements(members(value).get("parts"))):
                    self._take_part(part)
            elif name in _TRANSCRIPTS:
                self._transcripts.setdefault(name, []).append(text(members(value).get("text")))
            else:
                self._state[name] = value

    def _take_part(self, part: Mapping[str, Json]) -> None:
        """Text goes on in text, and sound in sound of the same kind."""
        sound = _sound(part)
        frame = {name: value for name, value in part.items() if name != "text"} if sound is None else sound[0]
        if not self._parts or self._parts[-1] != frame or not ("text" in part or sound):
            self._parts.append(frame)
            self._texts.append([])
        place = len(self._parts) - 1
        if sound is not None:
            self._sounds.setdefault(place, []).append(sound[1])
        elif isinstance(part.get("text"), str):
            self._texts[place].append(text(part["text"]))

    def _part(self, place: int) -> Json:
        part = self._parts[place]
        if place in self._sounds:
            return {"inlineData": {**members(part.get("inlineData")), "data": digested(b"".join(self._sounds[place]))}}
        return {**part, **({"text": "".join(self._texts[place])} if self._texts[place] else {})}


def _sound(part: Mapping[str, Json]) -> tuple[dict[str, Json], bytes] | None:
    """A part that is sound: its frame, and its bytes."""
    blob = members(part.get("inlineData"))
    if len(part) != 1 or not text(blob.get("mimeType")).startswith("audio/"):
        return None
    try:
        data = base64.b64decode(text(blob.get("data")), validate=True)
    except (binascii.Error, ValueError):
        return None
    return {"inlineData": {name: value for name, value in blob.items() if name != "data"}}, data


def _text(turn: Mapping[str, Json]) -> str:
    """What the model said: as text, or else as it was understood."""
    parts = [members(part) for part in elements(members(turn.get("modelTurn")).get("parts"))]
    written = "".join(text(part.get("text")) for part in parts if part.get("thought") is not True)
    return written or text(members(turn.get("outputTranscription")).get("text"))


def _reason(turn: Mapping[str, Json]) -> str | None:
    if turn.get("interrupted") is True:
        return "interrupted"
    return some(turn.get("turnCompleteReason")) or ("turn_complete" if turn.get("turnComplete") is True else None)


def _either(message: Mapping[str, Json], camel: str, snake: str) -> Mapping[str, Json]:
    return members(message.get(camel)) or members(message.get(snake))


def _usage(usage: Mapping[str, Json]) -> Usage:
    """Google counts thoughts beside the answer and tools' prompts beside the prompt; everybody pays for the sums."""
    thoughts = count(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=_sum(usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount")),
        output_tokens=_sum(usage.get("responseTokenCount"), thoughts),
        cached_tokens=count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )


def _sum(*counts: Json) -> int | None:
    known = [number for number in map(count, counts) if number is not None]
    return sum(known) if known else None
