"""Google's `generateContent` and related methods, on Gemini and on Vertex.

Every chunk of a stream is a whole response; the parts of its candidates follow one another. Text goes on in the part before it,
unless one of the two is a thought and the other is not, or either carries a signature: a signature belongs to its part,
even to an empty one, and has to be sent back with it. Google reads names in camelCase and in snake_case.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.dialects.parts.placed_pieces import PlacedObject
from calls.framing import Framing, json_array, sse
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "gemini"

_PATH: Final = re.compile(r"(.*/)?(models|tunedModels|endpoints)/([^/:]+):(\w+)")
_PROJECT: Final = re.compile(r"/projects/[^/]+/")

_VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "generateContent": ("generateContent", "generate_content"),
    "streamGenerateContent": ("generateContent", "generate_content"),
    "countTokens": ("countTokens", "count_tokens"),
    "computeTokens": ("computeTokens", "count_tokens"),
    "embedContent": ("embedContent", "embeddings"),
    "batchEmbedContents": ("batchEmbedContents", "embeddings"),
    "predict": ("predict", "predict"),
    "predictLongRunning": ("predictLongRunning", "video_generation"),
    "fetchPredictOperation": ("fetchPredictOperation", "poll"),
    # PaLM's, as old recordings still have them, and answers out of documents
    "generateAnswer": ("generateAnswer", "generate_content"),
    "generateMessage": ("generateMessage", "chat"),
    "generateText": ("generateText", "text_completion"),
    "embedText": ("embedText", "embeddings"),
    "batchEmbedText": ("batchEmbedText", "embeddings"),
    "countMessageTokens": ("countMessageTokens", "count_tokens"),
    "countTextTokens": ("countTextTokens", "count_tokens"),
}
"""A verb as it counts in a key, and what it asks for. Whether the answer is a stream is not what is asked."""

_GEMINI: Final = "generativelanguage.googleapis.com"
_OPERATION: Final = re.compile(r"(?:.*/)?v\d+(?:beta|alpha)?\d*/((?:(?:models|tunedModels)/[^/:]+/)?operations/[^/:]+)")
"""Work that goes on after its answer: videos."""

_PARTNERS: Final = re.compile(r"(.*/publishers/(?!google/|anthropic/)[^/]+/models/)([^/:]+):(r|streamR)awPredict")
"""Models of others on Vertex (Mistral, AI21, …), in the shape that nearly all of them have."""

_GROUNDED: Final = re.compile(r"(.*/locations/[^/:]+:)(g|streamG)enerateGroundedContent")
"""The same out of documents, by Google's Discovery Engine."""

_FRAMINGS: Final[tuple[Framing, ...]] = (sse, json_array)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/models/NAME:VERB`; whose project pays is not what is asked."""
    if method == "GET" and host == _GEMINI and (looked := _OPERATION.fullmatch(path)):
        return Claim(dialect=NAME, operation="poll", kind="model", polls=looked[1])
    if method != "POST" or ":" not in path:
        return None
    if partner := _PARTNERS.fullmatch(path):
        return _of_a_partner(partner)
    if grounded := _GROUNDED.fullmatch(path):
        return _grounded(grounded)
    match = _PATH.fullmatch(path)
    if match is None or match[4] not in _VERBS:
        return None
    verb, operation = _VERBS[match[4]]
    return Claim(
        dialect=NAME,
        operation=_predicted(match[3]) if operation == "predict" else operation,
        kind="model",
        path=_PROJECT.sub("/projects/*/", path[: match.start(4)] + verb),
        model=match[3],
        streams=match[4] == "streamGenerateContent",
    )


def _of_a_partner(match: re.Match[str]) -> Claim:
    return Claim(
        dialect="openai_chat",
        operation="chat",
        kind="model",
        path=_PROJECT.sub("/projects/*/", f"{match[1]}{match[2]}:rawPredict"),
        model=match[2],
        streams=match[3] != "r",
    )


def _grounded(match: re.Match[str]) -> Claim:
    path = _PROJECT.sub("/projects/*/", f"{match[1]}generateGroundedContent")
    streams = match[2] != "g"
    return Claim(
        dialect=NAME, operation="generate_content", kind="model", path=path, provider="gcp.gen_ai", streams=streams
    )


def _predicted(model: str) -> str:
    """What `predict` asks for: whatever the model makes."""
    if "embedding" in model or "gecko" in model:
        return "embeddings"
    return "image_generation" if "image" in model else "predict"


def asked(body: Json) -> RequestSummary:
    """The answers of functions that follow the last word of the model. The path names the model."""
    results: list[Json] = []
    for content in map(members, reversed(elements(members(body).get("contents")))):
        if content.get("role") == "model":
            break
        parts = map(members, elements(content.get("parts")))
        found = [_either(part, "functionResponse", "function_response") for part in parts]
        results[:0] = [_result(response) for response in found if response]
    return RequestSummary(tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What the first candidate says; why there is none, where the prompt was refused."""
    response = members(answer)
    candidates = elements(response.get("candidates"))
    candidate = members(candidates[0]) if candidates else {}
    parts = [members(part) for part in elements(members(candidate.get("content")).get("parts"))]
    texts = [text(part.get("text")) for part in parts if "text" in part and part.get("thought") is not True]
    # PaLM's candidates are texts.
    said = "".join(texts) or some(candidate.get("output")) or some(candidate.get("content"))
    calls = [members(part.get("functionCall")) for part in parts if "functionCall" in part]
    refused = members(response.get("promptFeedback")).get("blockReason")
    return AnswerSummary(
        model=some(response.get("modelVersion")),
        text=said,
        tool_calls=tuple(map(_tool_call, calls)),
        finish_reason=_reason(candidate.get("finishReason")) or some(refused),
        usage=_usage(response),
        pending=_going_on(response),
    )


def _going_on(response: Mapping[str, Json]) -> str | None:
    """The name of work that is not done."""
    name = text(response.get("name"))
    return name if "operations/" in name and response.get("done") is not True else None


def assemble(content_type: str) -> Assembly:
    """An assembly for a response, streamed as events or as an array, or whole."""
    return AccumulatorAssembly(content_type, GeminiStream(), _FRAMINGS)


class GeminiStream:
    """The chunks of one streamed response."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._candidates: dict[int, _Candidate] = {}
        self._error: Json = None

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # chunks have no names
        """Take one chunk, or an error under HTTP 200."""
        for name, value in payload(data).items():
            if name == "error":
                self._error = value
            elif name == "candidates":
                self._take_candidates(elements(value))
            else:
                self._state[name] = value  # counts are totals so far

    @property
    def answer(self) -> Json:
        """The response so far; where there is only an error, the error's own body."""
        if not self._state and not self._candidates:
            return None if self._error is None else {"error": self._error}
        answer: dict[str, Json] = {}
        if self._candidates:
            answer["candidates"] = [self._candidates[index].whole() for index in sorted(self._candidates)]
        answer |= self._state
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def complete(self) -> bool:
        """Whether every candidate said why it ends, or the prompt was refused. There is no other mark."""
        refused = "blockReason" in members(self._state.get("promptFeedback"))
        ended = all(candidate.ended for candidate in self._candidates.values())
        return self._error is None and (refused or (bool(self._candidates) and ended))

    def _take_candidates(self, candidates: Sequence[Json]) -> None:
        for candidate in map(members, candidates):
            index = count(candidate.get("index")) or 0
            self._candidates.setdefault(index, _Candidate()).take(candidate)


class _Candidate:
    """One candidate while its parts come."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._content: dict[str, Json] = {}
        self._parts: list[_Part] = []
        self._logprobs: dict[str, list[Json]] = {}

    @property
    def ended(self) -> bool:
        """Whether it said why it ends."""
        return _reason(self._state.get("finishReason")) is not None

    def take(self, candidate: Mapping[str, Json]) -> None:
        """Take what one chunk says of it."""
        for name, value in candidate.items():
            match name:
                case "content":
                    self._take_content(members(value))
                case "logprobsResult":
                    self._take_logprobs(members(value))
                case _:
                    self._state[name] = value

    def whole(self) -> Json:
        """The candidate as a response has it."""
        content = dict(self._content)
        if self._parts:
            content["parts"] = [part.whole() for part in self._parts]
        logprobs: dict[str, Json] = {"logprobsResult": dict(self._logprobs)} if self._logprobs else {}
        return {"content": content, **self._state, **logprobs}

    def _take_content(self, content: Mapping[str, Json]) -> None:
        self._content |= {name: value for name, value in content.items() if name != "parts"}
        for part in map(members, elements(content.get("parts"))):
            if not (self._parts and self._parts[-1].goes_on(part)):
                self._parts.append(_Part(part))

    def _take_logprobs(self, logprobs: Mapping[str, Json]) -> None:
        for name, entries in logprobs.items():
            self._logprobs.setdefault(name, []).extend(elements(entries))


class _Part:
    """One part, which further text may go on, or further arguments of the function that it calls."""

    def __init__(self, part: Mapping[str, Json]) -> None:
        self._state = dict(part)
        self._texts = [text(part.get("text"))]
        self._call = _StreamedCall(part) if _STREAMED & members(part.get("functionCall")).keys() else None

    def goes_on(self, part: Mapping[str, Json]) -> bool:
        """Take the text of a part that says nothing else than more of the same."""
        if self._call:
            return self._call.goes_on(part)
        same = self._state.get("thought") == part.get("thought")
        goes_on = same and _is_text(self._state) and _is_text(part)
        if goes_on:
            self._texts.append(text(part.get("text")))
        return goes_on

    def whole(self) -> Json:
        """The part."""
        if self._call:
            return {**self._state, "functionCall": self._call.whole()}
        return {**self._state, "text": "".join(self._texts)} if len(self._texts) > 1 else self._state


_STREAMED: Final = frozenset(("partialArgs", "willContinue"))


class _StreamedCall:
    """A call of a function whose arguments come in pieces (`streamFunctionCallArguments`); an empty call says that it is whole."""

    def __init__(self, part: Mapping[str, Json]) -> None:
        self._state: dict[str, Json] = {}
        self._arguments = PlacedObject()
        self._open = True
        self._take(members(part.get("functionCall")))

    def goes_on(self, part: Mapping[str, Json]) -> bool:
        """Take what a part says of the same call."""
        call = part.get("functionCall")
        goes_on = self._open and isinstance(call, Mapping) and "name" not in call
        if goes_on:
            self._take(members(call))
        return goes_on

    def whole(self) -> Json:
        """The call."""
        return {**self._state, "args": self._arguments.whole()}

    def _take(self, call: Mapping[str, Json]) -> None:
        self._state |= {name: value for name, value in call.items() if name not in _STREAMED}
        for piece in map(members, elements(call.get("partialArgs"))):
            self._arguments.put(text(piece.get("jsonPath")), _value(piece))
        self._open = call.get("willContinue") is True


def _value(piece: Mapping[str, Json]) -> Json:
    return next((piece[name] for name in ("stringValue", "numberValue", "boolValue") if name in piece), None)


def _is_text(part: Mapping[str, Json]) -> bool:
    return isinstance(part.get("text"), str) and not part.keys() - {"text", "thought"}


# Vertex's older SDK asks for enums as numbers (`$alt=json;enum-encoding=int`). Beyond these the two hosts number differently.
_REASONS: Final = ("FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER")


def _reason(value: Json) -> str | None:
    """Why a candidate ended, by name."""
    number = count(value)
    if number:
        return _REASONS[number] if 0 < number < len(_REASONS) else str(number)
    return some(value)


def _either(part: Mapping[str, Json], camel: str, snake: str) -> Mapping[str, Json]:
    return members(part.get(camel)) or members(part.get(snake))


def _result(response: Mapping[str, Json]) -> Json:
    return {"id": response.get("id"), "name": response.get("name"), "content": response.get("response")}


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=some(call.get("id")), name=text(call.get("name")), arguments=call.get("args"))


def _usage(response: Mapping[str, Json]) -> Usage:
    """Google counts thoughts beside the answer and tools' prompts beside the prompt; everybody pays for the sums."""
    usage = members(response.get("usageMetadata"))
    thoughts = count(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=_sum(usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount"))
        if usage
        else _predicted_of(response),
        output_tokens=_sum(usage.get("candidatesTokenCount"), thoughts),
        cached_tokens=count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )


def _predicted_of(response: Mapping[str, Json]) -> int | None:
    """What a count of tokens says, or what each of the vectors cost that `predict` made."""
    vectors = [members(members(one).get("embeddings")) for one in elements(response.get("predictions"))]
    return _sum(response.get("totalTokens"), *(members(one.get("statistics")).get("token_count") for one in vectors))


def _sum(*counts: Json) -> int | None:
    known = [number for number in map(count, counts) if number is not None]
    return sum(known) if known else None
