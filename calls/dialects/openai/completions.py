"""OpenAI's older Completions: `POST …/completions`, by OpenAI, Azure, Together, vLLM, llama.cpp and others.

A stream is like a chat's, with `text` in place of a delta. Writer sends `{"value": "…"}` and no end mark at all: there only HTTP
tells where it ends.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json, Usage

NAME: Final = "openai_completions"

_PATH: Final = re.compile(
    r"(?:.*/)?(?:v1|api/v[03]|beta|openai|(?:deployments|engines)/(?P<model>[^/]+))/+completions/?|/completions/?"
)

_FIRST: Final = frozenset(("id", "created", "model", "object"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/completions` that are no chat's."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    return Claim(dialect=NAME, operation="text_completion", kind="model", model=match["model"]) if match else None


def asked(body: Json) -> RequestSummary:
    """The model."""
    return RequestSummary(model=some(members(body).get("model")))


def told(answer: Json) -> AnswerSummary:
    """What the first choice says."""
    completion = members(answer)
    choices = elements(completion.get("choices"))
    choice = members(choices[0]) if choices else {}
    return AnswerSummary(
        model=some(completion.get("model")),
        fingerprint=some(completion.get("system_fingerprint")),
        text=text(choice["text"]) if "text" in choice else None,
        finish_reason=some(choice.get("finish_reason")),
        usage=_usage(completion),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a completion, streamed or not."""
    return AccumulatorAssembly(content_type, CompletionsStream())


class CompletionsStream:
    """The chunks of one streamed completion."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._choices: dict[int, _Choice] = {}
        self._error: Json = None
        self._done = False
        self._marked = True

    def take(self, event: str, data: str) -> None:
        """Take one chunk, an error, or `[DONE]`."""
        if data.strip() == "[DONE]":
            self._done = True
            return
        chunk = payload(data)
        if event == "error" or chunk.get("error") is not None:
            self._error = chunk.get("error") or dict(chunk)
        elif "choices" not in chunk and "value" in chunk:
            self._marked = False
            self._choices.setdefault(0, _Choice()).take({"text": chunk["value"]})
        else:
            self._merge(chunk)

    @property
    def answer(self) -> Json:
        """The completion so far; where there is only an error, the error's own body."""
        if not self._state and not self._choices:
            return None if self._error is None else {"error": self._error}
        answer = {**self._state, "choices": [self._choices[index].whole() for index in sorted(self._choices)]}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def complete(self) -> bool | None:
        """Whether `[DONE]` came, and no error before it; None where it may be left out: every choice said why it ended."""
        if self._error is not None:
            return False
        ended = bool(self._choices) and all(choice.ended for choice in self._choices.values())
        return True if self._done else None if ended or not self._marked else False

    def _merge(self, chunk: Mapping[str, Json]) -> None:
        for name, value in chunk.items():
            if name == "choices":
                for choice in map(members, elements(value)):
                    self._choices.setdefault(count(choice.get("index")) or 0, _Choice()).take(choice)
            elif name in _FIRST:
                self._state[name] = self._state.get(name) or value
            elif value is not None or name not in self._state:
                self._state[name] = value


class _Choice:
    """One choice while its pieces come."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._text: list[str] = []
        self._logprobs: dict[str, list[Json] | None] = {}

    def take(self, choice: Mapping[str, Json]) -> None:
        """Take one entry of a chunk's `choices`. A test server's last one has an empty chat delta in place of a text."""
        for name, value in choice.items():
            match name:
                case "text":
                    self._text.append(text(value))
                case "logprobs" if value is not None:
                    self._take_logprobs(members(value))
                case "delta":
                    pass
                # Gateways say `""` for why a choice ended until they know.
                case _ if value not in (None, "") or name not in self._state:
                    self._state[name] = value
                case _:
                    pass

    @property
    def ended(self) -> bool:
        """Whether it was said why it ended."""
        return bool(self._state.get("finish_reason"))

    def whole(self) -> Json:
        """The choice as a completion has it."""
        choice: dict[str, Json] = {"text": "".join(self._text), **self._state}
        return {**choice, "logprobs": dict(self._logprobs)} if self._logprobs else choice

    def _take_logprobs(self, logprobs: Mapping[str, Json]) -> None:
        """Tokens, their probabilities, their alternatives and their places: lists side by side."""
        for name, entries in logprobs.items():
            kept = self._logprobs.setdefault(name, None)
            if entries is not None:
                self._logprobs[name] = kept = kept if kept is not None else []
                kept.extend(elements(entries))


def _usage(completion: Mapping[str, Json]) -> Usage:
    usage = members(completion.get("usage"))
    return Usage(
        input_tokens=count(usage.get("prompt_tokens")),
        output_tokens=count(usage.get("completion_tokens")),
        cached_tokens=count(members(usage.get("prompt_tokens_details")).get("cached_tokens")),
        reasoning_tokens=count(members(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
