"""Cohere's first API: chat as lines of JSON, generate, embed, rerank, classify.

A chat's last line, `stream-end`, brings the whole answer as it would have been without a stream. The lines before it are joined
for an answer that was cut.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.framing import Framing, ndjson, sse
from calls.model import Headers, Json, ToolCall, Usage, header

NAME: Final = "cohere_v1"

_HOSTS: Final = re.compile(r"(.+\.)?cohere\.(com|ai)")
_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "generate": "text_completion",
    "embed": "embeddings",
    "rerank": "rerank",
    "classify": "classify",
    "summarize": "summarize",
    "tokenize": "tokenize",
    "detokenize": "tokenize",
}

_PATH: Final = re.compile(r"(?:.*/)?v1/(\w+)")
_FRAMINGS: Final[tuple[Framing, ...]] = (ndjson, sse)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Cohere's hosts, or any that is asked by Cohere's SDK: other APIs have a `/v1/chat` too."""
    ours = _HOSTS.fullmatch(host) is not None or header(headers, "x-fern-sdk-name") == "cohere"
    match = _PATH.fullmatch(path) if method == "POST" and ours else None
    operation = _OPERATIONS.get(match[1]) if match else None
    return Claim(dialect=NAME, operation=operation, kind="model") if operation else None


def asked(body: Json) -> RequestSummary:
    """The model, and what tools answered."""
    request = members(body)
    results = [members(result) for result in elements(request.get("tool_results"))]
    return RequestSummary(model=some(request.get("model")), tool_results=tuple(map(_result, results)))


def told(answer: Json) -> AnswerSummary:
    """What an answer says."""
    said = members(answer)
    generations = [members(one) for one in elements(said.get("generations"))]
    first = generations[0] if generations else said
    return AnswerSummary(
        text=some(first.get("text")),
        tool_calls=tuple(map(_tool_call, map(members, elements(said.get("tool_calls"))))),
        finish_reason=some(first.get("finish_reason")),
        usage=_usage(members(said.get("meta"))),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, CohereV1Stream(), _FRAMINGS)


class CohereV1Stream:
    """The lines of one streamed answer."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._texts: list[str] = []
        self._lists: dict[str, list[Json]] = {}
        self._whole: Mapping[str, Json] = {}
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # a line has no name
        """Take one line. Its kind is in it, but older `generate` has only text and `is_finished`."""
        line = payload(data)
        for name, value in line.items():
            match name:
                case "text" if line.get("event_type") in (None, "text-generation"):
                    self._texts.append(text(value))
                case "event_type" | "is_finished" | "text" | "tool_call_delta" | "index":
                    pass
                case "response":
                    self._whole = members(value)
                case _ if isinstance(value, list):
                    self._lists.setdefault(name, []).extend(value)
                case _:
                    self._state[name] = value
        self._done = self._done or line.get("is_finished") is True

    @property
    def answer(self) -> Json:
        """The answer as Cohere itself gave it at the end, else the answer so far."""
        if self._whole:
            return dict(self._whole)
        joined: dict[str, Json] = {"text": "".join(self._texts)} if self._texts else {}
        return {**self._state, **joined, **self._lists} or None

    @property
    def complete(self) -> bool:
        """Whether the line came that says so, and no error with it."""
        ended = self._state.get("finish_reason")
        return self._done and not text(ended).startswith("ERROR")


def _usage(meta: Mapping[str, Json]) -> Usage:
    """Counts as they are billed; as they are where the bill does not say: searches are billed in other units."""
    billed, counted = members(meta.get("billed_units")), members(meta.get("tokens"))
    return Usage(
        input_tokens=count((billed if "input_tokens" in billed else counted).get("input_tokens")),
        output_tokens=count((billed if "output_tokens" in billed else counted).get("output_tokens")),
        cached_tokens=count(meta.get("cached_tokens")),
    )


def _result(result: Mapping[str, Json]) -> Json:
    call = members(result.get("call"))
    return {"id": call.get("generation_id"), "name": call.get("name"), "content": result.get("outputs")}


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=None, name=text(call.get("name")), arguments=call.get("parameters"))
