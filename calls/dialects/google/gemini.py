"""Google's `generateContent` and related methods, on Gemini and on Vertex.

Every chunk of a stream is a whole response; the parts of its candidates follow one another. Text continues the part before it,
unless only one of the two is a thought, or either has a signature: a signature belongs to its part,
even to an empty one, and has to be sent back with it. Google reads names in camelCase and in snake_case.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qs

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import ErrorClass, error_class
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.placed_pieces import PlacedObject
from calls.framing import Framing, json_array, sse
from calls.model import Headers, Json, ToolCall, Usage

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
    # PaLM's, which old recordings still have, and answers from documents
    "generateAnswer": ("generateAnswer", "generate_content"),
    "generateMessage": ("generateMessage", "chat"),
    "generateText": ("generateText", "text_completion"),
    "embedText": ("embedText", "embeddings"),
    "batchEmbedText": ("batchEmbedText", "embeddings"),
    "countMessageTokens": ("countMessageTokens", "count_tokens"),
    "countTextTokens": ("countTextTokens", "count_tokens"),
}
"""The verb that counts in a key, and its operation. Streaming does not count."""

_GEMINI: Final = "generativelanguage.googleapis.com"
_OPERATION: Final = re.compile(r"(?:.*/)?v\d+(?:beta|alpha)?\d*/((?:(?:models|tunedModels)/[^/:]+/)?operations/[^/:]+)")
"""Long-running operations: videos."""

_PARTNERS: Final = re.compile(r"(.*/publishers/(?!google/|anthropic/)[^/]+/models/)([^/:]+):(r|streamR)awPredict")
"""Models of partners on Vertex (Mistral, AI21, …), nearly all of which have OpenAI's shape."""

_GROUNDED: Final = re.compile(r"(.*/locations/[^/:]+:)(g|streamG)enerateGroundedContent")
"""The same from documents, by Google's Discovery Engine."""

_FRAMINGS: Final[tuple[Framing, ...]] = (sse, json_array)


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/models/NAME:VERB` at any host. The project is not part of the key."""
    if method == "GET" and host == _GEMINI and (poll := _OPERATION.fullmatch(path)):
        return Claim(operation="poll", kind="model", polls=poll[1])
    if method != "POST" or ":" not in path:
        return None
    if partner := _PARTNERS.fullmatch(path):
        return _claim_partner_model(partner)
    if grounded := _GROUNDED.fullmatch(path):
        return _claim_grounded(grounded)
    match = _PATH.fullmatch(path)
    if match is None or match[4] not in _VERBS:
        return None
    verb, operation = _VERBS[match[4]]
    return Claim(
        operation=_prediction_operation(match[3]) if operation == "predict" else operation,
        kind="model",
        path=_PROJECT.sub("/projects/*/", path[: match.start(4)] + verb),
        model=match[3],
        streams=match[4] == "streamGenerateContent",
    )


def _claim_partner_model(match: re.Match[str]) -> Claim:
    return Claim(
        dialect="openai_chat",
        operation="chat",
        kind="model",
        path=_PROJECT.sub("/projects/*/", f"{match[1]}{match[2]}:rawPredict"),
        model=match[2],
        streams=match[3] != "r",
    )


def _claim_grounded(match: re.Match[str]) -> Claim:
    path = _PROJECT.sub("/projects/*/", f"{match[1]}generateGroundedContent")
    streams = match[2] != "g"
    return Claim(operation="generate_content", kind="model", path=path, provider="gcp.gen_ai", streams=streams)


def _prediction_operation(model: str) -> str:
    """The operation of `predict`, which depends on the model."""
    if "embedding" in model or "gecko" in model:
        return "embeddings"
    return "image_generation" if "image" in model else "predict"


def summarize_request(body: Json) -> RequestSummary:
    """Find the function results after the last message of the model. The path names the model."""
    results: list[Json] = []
    for content in map(as_object, reversed(as_array(as_object(body).get("contents")))):
        if content.get("role") == "model":
            break
        parts = map(as_object, as_array(content.get("parts")))
        found = [_member_in_either_case(part, "functionResponse", "function_response") for part in parts]
        results[:0] = [_function_result(response) for response in found if response]
    return RequestSummary(tool_results=tuple(results))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text and function calls of the first candidate, or the reason why the prompt was blocked."""
    response = as_object(answer)
    candidates = as_array(response.get("candidates"))
    candidate = as_object(candidates[0]) if candidates else {}
    parts = [as_object(part) for part in as_array(as_object(candidate.get("content")).get("parts"))]
    texts = [as_text(part.get("text")) for part in parts if "text" in part and part.get("thought") is not True]
    # PaLM's candidates are texts.
    text = "".join(texts) or as_text_or_none(candidate.get("output")) or as_text_or_none(candidate.get("content"))
    calls = [as_object(part.get("functionCall")) for part in parts if "functionCall" in part]
    refused = as_object(response.get("promptFeedback")).get("blockReason")
    return AnswerSummary(
        model=as_text_or_none(response.get("modelVersion")),
        text=text,
        tool_calls=tuple(map(_tool_call, calls)),
        finish_reason=_finish_reason(candidate.get("finishReason")) or as_text_or_none(refused),
        usage=_usage(response),
        pending=_pending_operation(response),
    )


def _pending_operation(response: Mapping[str, Json]) -> str | None:
    """The name of a long-running operation that is not done."""
    name = as_text(response.get("name"))
    return name if "operations/" in name and response.get("done") is not True else None


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a response, streamed as events or as an array, or whole."""
    return AccumulatorAssembly(content_type, GeminiStream(), _FRAMINGS)


class GeminiStream:
    """The chunks of one streamed response."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._candidates: dict[int, _Candidate] = {}
        self._error: Json = None

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # chunks have no names
        """Add one chunk, or an error under HTTP 200."""
        for name, value in parse_payload(data).items():
            if name == "error":
                self._error = value
            elif name == "candidates":
                self._add_candidates(as_array(value))
            else:
                self._state[name] = value  # counts are running totals

    @property
    def answer(self) -> Json:
        """The response so far; where there is only an error, the error's own body."""
        if not self._state and not self._candidates:
            return None if self._error is None else {"error": self._error}
        answer: dict[str, Json] = {}
        if self._candidates:
            answer["candidates"] = [self._candidates[index].build() for index in sorted(self._candidates)]
        answer |= self._state
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def is_complete(self) -> bool:
        """Whether every candidate has a finish reason, or the prompt was blocked. There is no other end marker."""
        refused = "blockReason" in as_object(self._state.get("promptFeedback"))
        is_every_candidate_finished = all(candidate.has_ended for candidate in self._candidates.values())
        return self._error is None and (refused or (bool(self._candidates) and is_every_candidate_finished))

    def _add_candidates(self, candidates: Sequence[Json]) -> None:
        for candidate in map(as_object, candidates):
            index = as_count(candidate.get("index")) or 0
            self._candidates.setdefault(index, _Candidate()).add(candidate)


class _Candidate:
    """One candidate while its parts arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._content: dict[str, Json] = {}
        self._parts: list[_Part] = []
        self._logprobs: dict[str, list[Json]] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the candidate has a finish reason."""
        return _finish_reason(self._state.get("finishReason")) is not None

    def add(self, candidate: Mapping[str, Json]) -> None:
        """Add the entry of one chunk."""
        for name, value in candidate.items():
            match name:
                case "content":
                    self._add_content(as_object(value))
                case "logprobsResult":
                    self._add_logprobs(as_object(value))
                case _:
                    self._state[name] = value

    def build(self) -> Json:
        """The candidate as a response has it."""
        content = dict(self._content)
        if self._parts:
            content["parts"] = [part.build() for part in self._parts]
        logprobs: dict[str, Json] = {"logprobsResult": dict(self._logprobs)} if self._logprobs else {}
        return {"content": content, **self._state, **logprobs}

    def _add_content(self, content: Mapping[str, Json]) -> None:
        self._content |= {name: value for name, value in content.items() if name != "parts"}
        for part in map(as_object, as_array(content.get("parts"))):
            if not (self._parts and self._parts[-1].try_append(part)):
                self._parts.append(_Part(part))

    def _add_logprobs(self, logprobs: Mapping[str, Json]) -> None:
        for name, entries in logprobs.items():
            self._logprobs.setdefault(name, []).extend(as_array(entries))


class _Part:
    """One part, which more text or more arguments of its function call can continue."""

    def __init__(self, part: Mapping[str, Json]) -> None:
        self._state = dict(part)
        self._texts = [as_text(part.get("text"))]
        self._call = _StreamedCall(part) if _STREAMED & as_object(part.get("functionCall")).keys() else None

    def try_append(self, part: Mapping[str, Json]) -> bool:
        """Append a part that only continues this one; return whether it did."""
        if self._call:
            return self._call.try_append(part)
        same = self._state.get("thought") == part.get("thought")
        try_append = same and _is_plain_text(self._state) and _is_plain_text(part)
        if try_append:
            self._texts.append(as_text(part.get("text")))
        return try_append

    def build(self) -> Json:
        """The part so far."""
        if self._call:
            return {**self._state, "functionCall": self._call.build()}
        return {**self._state, "text": "".join(self._texts)} if len(self._texts) > 1 else self._state


_STREAMED: Final = frozenset(("partialArgs", "willContinue"))


class _StreamedCall:
    """A function call whose arguments arrive in pieces (`streamFunctionCallArguments`); an empty call ends it."""

    def __init__(self, part: Mapping[str, Json]) -> None:
        self._state: dict[str, Json] = {}
        self._arguments = PlacedObject()
        self._open = True
        self._add_call(as_object(part.get("functionCall")))

    def try_append(self, part: Mapping[str, Json]) -> bool:
        """Append a part that continues the call; return whether it did."""
        call = part.get("functionCall")
        try_append = self._open and isinstance(call, Mapping) and "name" not in call
        if try_append:
            self._add_call(as_object(call))
        return try_append

    def build(self) -> Json:
        """The call so far."""
        return {**self._state, "args": self._arguments.build()}

    def _add_call(self, call: Mapping[str, Json]) -> None:
        self._state |= {name: value for name, value in call.items() if name not in _STREAMED}
        for piece in map(as_object, as_array(call.get("partialArgs"))):
            self._arguments.put_piece(as_text(piece.get("jsonPath")), _piece_value(piece))
        self._open = call.get("willContinue") is True


def _piece_value(piece: Mapping[str, Json]) -> Json:
    return next((piece[name] for name in ("stringValue", "numberValue", "boolValue") if name in piece), None)


def _is_plain_text(part: Mapping[str, Json]) -> bool:
    return isinstance(part.get("text"), str) and not part.keys() - {"text", "thought"}


# Vertex's older SDK requests enums as numbers (`$alt=json;enum-encoding=int`). Beyond these the two hosts have different numbers.
_REASONS: Final = ("FINISH_REASON_UNSPECIFIED", "STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER")


def _finish_reason(value: Json) -> str | None:
    """The name of a finish reason."""
    number = as_count(value)
    if number:
        return _REASONS[number] if 0 < number < len(_REASONS) else str(number)
    return as_text_or_none(value)


def _member_in_either_case(part: Mapping[str, Json], camel: str, snake: str) -> Mapping[str, Json]:
    return as_object(part.get(camel)) or as_object(part.get(snake))


def _function_result(response: Mapping[str, Json]) -> Json:
    return {"id": response.get("id"), "name": response.get("name"), "content": response.get("response")}


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=as_text_or_none(call.get("id")), name=as_text(call.get("name")), arguments=call.get("args"))


def _usage(response: Mapping[str, Json]) -> Usage:
    """Google counts thoughts apart from the answer and the prompts of tools apart from the prompt; other APIs report the sums."""
    usage = as_object(response.get("usageMetadata"))
    thoughts = as_count(usage.get("thoughtsTokenCount"))
    return Usage(
        input_tokens=_sum_counts(usage.get("promptTokenCount"), usage.get("toolUsePromptTokenCount"))
        if usage
        else _prediction_tokens(response),
        output_tokens=_sum_counts(usage.get("candidatesTokenCount"), thoughts),
        cached_tokens=as_count(usage.get("cachedContentTokenCount")),
        reasoning_tokens=thoughts,
    )


def _prediction_tokens(response: Mapping[str, Json]) -> int | None:
    """The result of a token count, or the sum over the vectors of `predict`."""
    vectors = [as_object(as_object(one).get("embeddings")) for one in as_array(response.get("predictions"))]
    return _sum_counts(
        response.get("totalTokens"), *(as_object(one.get("statistics")).get("token_count") for one in vectors)
    )


def _sum_counts(*counts: Json) -> int | None:
    known = [number for number in map(as_count, counts) if number is not None]
    return sum(known) if known else None


def requested_form(criteria: FormCriteria) -> AnswerForm:
    """Determine the form from the path and the query: a stream is an array unless `alt=sse`."""
    if not criteria.streams:
        return "whole"
    return "sse" if parse_qs(criteria.query).get("alt") == ["sse"] else "array"


def compose_answer(parts: AnswerParts) -> Json | None:
    """Make a response with one candidate."""
    if parts.operation != "generate_content":
        return None
    text: list[Json] = [] if parts.text is None else [{"text": parts.text}]
    calls: list[Json] = [
        {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}} for call in parts.tool_calls
    ]
    candidate: Json = {
        "content": {"parts": [*text, *calls], "role": "model"},
        "finishReason": parts.finish_word("STOP", "STOP"),
        "index": 0,
    }
    usage: Json = {
        "promptTokenCount": parts.input_tokens,
        "candidatesTokenCount": parts.output_tokens,
        "totalTokenCount": parts.input_tokens + parts.output_tokens,
    }
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": parts.model, "responseId": parts.id}


def write_events(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write one chunk: a chunk is a whole response, so it can contain all of it."""
    yield b"data: " + dumps(answer) + b"\r\n\r\n"


def write_array(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    yield b"[" + dumps(answer) + b"\n]"


def error_body(status: int, message: str) -> Json:
    """An error of Google's APIs."""
    names: Mapping[ErrorClass, str] = {
        "invalid": "INVALID_ARGUMENT",
        "authentication": "UNAUTHENTICATED",
        "permission": "PERMISSION_DENIED",
        "not_found": "NOT_FOUND",
        "rate_limit": "RESOURCE_EXHAUSTED",
        "overloaded": "UNAVAILABLE",
        "server": "INTERNAL",
    }
    return {"error": {"code": status, "message": message, "status": names[error_class(status)]}}


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make the vectors of `batchEmbedContents`, or the one of `embedContent`."""
    vectors = parts.vectors if parts.operation == "embeddings" else None
    if vectors is None:
        return None
    if parts.path.endswith("batchEmbedContents"):
        return {"embeddings": [{"values": one} for one in vectors]}
    if parts.path.endswith(":predict"):
        return {"predictions": [{"embeddings": {"values": one}} for one in vectors]}
    return {"embedding": {"values": vectors[0]}}


DIALECT: Final = Dialect(
    name="gemini",
    claim=claim,
    services=(
        Service(provider="gcp.gemini", hosts=("generativelanguage.googleapis.com",)),
        Service(
            provider="gcp.vertex_ai",
            host_pattern=r"(.+-)?aiplatform(\.\w+\.rep)?\.googleapis\.com",
            only_models=False,
        ),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=requested_form,
    stream_writers={"sse": write_events, "array": write_array},
    compose_answer=compose_answer,
    answer_paths=AnswerPaths(
        texts=("candidates/0/content/parts/*/text",),
        calls=("candidates/0/content/parts/*/functionCall",),
        arguments=("args",),
    ),
    error_body=error_body,
    compose_results=_compose_results,
)
