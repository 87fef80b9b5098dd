"""OpenAI's older Completions: `POST …/completions`, by OpenAI, Azure, Together, vLLM, llama.cpp and others.

A stream is like a chat's, with `text` in place of a delta. Writer sends `{"value": "…"}` and no end marker: only HTTP
tells where it ends.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import openai_error
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, Usage

_PATH: Final = re.compile(
    r"(?:.*/)?(?:v1|api/v[03]|beta|openai|(?:deployments|engines)/(?P<model>[^/]+))/+completions/?|/completions/?"
)

_FIRST: Final = frozenset(("id", "created", "model", "object"))


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/completions` at any host, except those of chats."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    return Claim(operation="text_completion", kind="model", model=match["model"]) if match else None


def summarize_request(body: Json) -> RequestSummary:
    """Find the model."""
    return RequestSummary(model=as_text_or_none(as_object(body).get("model")))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text of the first choice."""
    completion = as_object(answer)
    choices = as_array(completion.get("choices"))
    choice = as_object(choices[0]) if choices else {}
    return AnswerSummary(
        model=as_text_or_none(completion.get("model")),
        fingerprint=as_text_or_none(completion.get("system_fingerprint")),
        text=as_text(choice["text"]) if "text" in choice else None,
        finish_reason=as_text_or_none(choice.get("finish_reason")),
        usage=_usage(completion),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a completion, streamed or not."""
    return AccumulatorAssembly(content_type, CompletionsStream())


class CompletionsStream:
    """The chunks of one streamed completion."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._choices: dict[int, _Choice] = {}
        self._error: Json = None
        self._has_ended = False
        self._has_end_marker = True

    def add_message(self, event: str, data: str) -> None:
        """Add one chunk, an error, or `[DONE]`."""
        if data.strip() == "[DONE]":
            self._has_ended = True
            return
        chunk = parse_payload(data)
        if event == "error" or chunk.get("error") is not None:
            self._error = chunk.get("error") or dict(chunk)
        elif "choices" not in chunk and "value" in chunk:
            self._has_end_marker = False
            self._choices.setdefault(0, _Choice()).add({"text": chunk["value"]})
        else:
            self._merge_chunk(chunk)

    @property
    def answer(self) -> Json:
        """The completion so far; where there is only an error, the error's own body."""
        if not self._state and not self._choices:
            return None if self._error is None else {"error": self._error}
        answer = {**self._state, "choices": [self._choices[index].build() for index in sorted(self._choices)]}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def is_complete(self) -> bool | None:
        """Whether `[DONE]` arrived, and no error before it; None where it can be left out because every choice has a finish reason."""
        if self._error is not None:
            return False
        is_every_choice_finished = bool(self._choices) and all(choice.has_ended for choice in self._choices.values())
        return True if self._has_ended else None if is_every_choice_finished or not self._has_end_marker else False

    def _merge_chunk(self, chunk: Mapping[str, Json]) -> None:
        for name, value in chunk.items():
            if name == "choices":
                for choice in map(as_object, as_array(value)):
                    self._choices.setdefault(as_count(choice.get("index")) or 0, _Choice()).add(choice)
            elif name in _FIRST:
                self._state[name] = self._state.get(name) or value
            elif value is not None or name not in self._state:
                self._state[name] = value


class _Choice:
    """One choice while its pieces arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._text: list[str] = []
        self._logprobs: dict[str, list[Json] | None] = {}

    def add(self, choice: Mapping[str, Json]) -> None:
        """Add one entry of a chunk's `choices`. The last one of a test server has an empty chat delta in place of a text."""
        for name, value in choice.items():
            match name:
                case "text":
                    self._text.append(as_text(value))
                case "logprobs" if value is not None:
                    self._add_logprobs(as_object(value))
                case "delta":
                    pass
                # Gateways send an empty finish reason until there is one.
                case _ if value not in (None, "") or name not in self._state:
                    self._state[name] = value
                case _:
                    pass

    @property
    def has_ended(self) -> bool:
        """Whether the answer has a finish reason."""
        return bool(self._state.get("finish_reason"))

    def build(self) -> Json:
        """The choice as a completion has it."""
        choice: dict[str, Json] = {"text": "".join(self._text), **self._state}
        return {**choice, "logprobs": dict(self._logprobs)} if self._logprobs else choice

    def _add_logprobs(self, logprobs: Mapping[str, Json]) -> None:
        """Add tokens, their probabilities, alternatives and offsets, which are parallel lists."""
        for name, entries in logprobs.items():
            earlier = self._logprobs.setdefault(name, None)
            if entries is not None:
                self._logprobs[name] = earlier = earlier if earlier is not None else []
                earlier.extend(as_array(entries))


def _usage(completion: Mapping[str, Json]) -> Usage:
    usage = as_object(completion.get("usage"))
    return Usage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=as_count(as_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
        reasoning_tokens=as_count(as_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a completion. It can only have a text."""
    if parts.tool_calls or parts.text is None:
        return None
    choice: Json = {
        "text": parts.text,
        "index": 0,
        "logprobs": None,
        "finish_reason": parts.finish_word("stop", "stop"),
    }
    head: dict[str, Json] = {"id": f"cmpl-{parts.id}", "object": "text_completion", "created": parts.created}
    return {**head, "model": parts.model, "choices": [choice], "usage": parts.openai_usage}


def _write_stream(answer: Mapping[str, Json], request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write a chunk for each choice, and the usage if requested. Writer, whose answers have no `object`, sends only values."""
    if "object" not in answer:
        for choice in as_array(answer.get("choices")):
            yield sse_message("", {"value": as_object(choice).get("text")})
        return
    common = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    for choice in as_array(answer.get("choices")):
        yield sse_message("", {**common, "choices": [choice]})
    if "usage" in answer and as_object(request.get("stream_options")).get("include_usage") is True:
        yield sse_message("", {**common, "choices": [], "usage": answer.get("usage")})
    yield sse_message("", "[DONE]")


DIALECT: Final = Dialect(
    name="openai_completions",
    claim=claim,
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
    answer_paths=AnswerPaths(texts=("choices/0/text",)),
    error_body=openai_error,
)
