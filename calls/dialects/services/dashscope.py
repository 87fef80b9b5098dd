"""Alibaba's DashScope in its own shape (Qwen and others): chat, text, embeddings, rerankers.

Each event of a stream holds all that was said so far, or only what is new (`incremental_output`); the answer does not say which. It is
what its texts are: as long as each begins with the one before, they are taken for all so far.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import PiecedObject, arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "dashscope"

_PATH: Final = re.compile(
    r"/api/v1/services/(?:aigc/(?:text|multimodal)-generation/generation|(embeddings/[\w/-]+)|(rerank/[\w/-]+))"
    r"|/api/v1/apps/[^/]+/(completion)"
)
_JOINED: Final = frozenset(("content", "reasoning_content", "text", "arguments"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """The services for text, wherever they are reached."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    operation = "embeddings" if match[1] else "rerank" if match[2] else "invoke_agent" if match[3] else "chat"
    return Claim(dialect=NAME, operation=operation, kind="model", provider="alibaba")


def asked(body: Json) -> RequestSummary:
    """The model, and the tool messages that follow the last word of the assistant."""
    results: list[Json] = []
    for message in reversed(elements(members(members(body).get("input")).get("messages"))):
        said = members(message)
        if said.get("role") == "tool":
            results.append({"id": said.get("tool_call_id"), "name": said.get("name"), "content": said.get("content")})
        elif said.get("role") == "assistant":
            break
    return RequestSummary(model=some(members(body).get("model")), tool_results=tuple(reversed(results)))


def told(answer: Json) -> AnswerSummary:
    """What the first choice says, or the text; of a reranker, what it found."""
    said = members(answer)
    output, usage = members(said.get("output")), members(said.get("usage"))
    choice = _choice(output)
    message = members(choice.get("message"))
    reason = some(choice.get("finish_reason")) or some(output.get("finish_reason"))
    return AnswerSummary(
        model=some(said.get("model")),
        text=_text(message.get("content")) or some(output.get("text")),
        tool_calls=tuple(map(_tool_call, map(members, elements(message.get("tool_calls"))))),
        finish_reason=None if reason == "null" else reason,
        usage=Usage(
            input_tokens=count(usage.get("input_tokens")),
            output_tokens=count(usage.get("output_tokens")),
            cached_tokens=count(members(usage.get("prompt_tokens_details")).get("cached_tokens")),
            reasoning_tokens=count(members(usage.get("output_tokens_details")).get("reasoning_tokens")),
        ),
        results=tuple(elements(output.get("results"))),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, DashscopeStream())


class DashscopeStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._joined = PiecedObject(_JOINED)
        self._output: Mapping[str, Json] = {}
        self._before = ""
        self._whole = True
        """Whether every event so far held all that was said."""

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # an error has a code, whatever its event is called
        """Take one event."""
        said = payload(data)
        self._state |= {name: value for name, value in said.items() if name != "output"}
        if "output" not in said:
            return
        self._output = members(said["output"])
        choice = _choice(self._output)
        written = _written(self._output, members(choice.get("message")))
        self._whole = self._whole and written.startswith(self._before)
        self._before = written
        others = {name: value for name, value in self._output.items() if name != "choices"}
        self._joined.take({**others, "choice": _saying(choice)} if choice else others)

    @property
    def answer(self) -> Json:
        """The answer so far."""
        output = dict(self._output)
        if not self._whole:
            output = self._joined.whole()
            if choice := output.pop("choice", None):
                output["choices"] = [choice]
        return {**self._state, **({"output": output} if output else {})} or None

    @property
    def complete(self) -> bool:
        """Whether it was said why it ended."""
        reason = _choice(self._output).get("finish_reason") or self._output.get("finish_reason")
        return reason not in (None, "", "null") and "code" not in self._state


def _choice(output: Mapping[str, Json]) -> Mapping[str, Json]:
    choices = elements(output.get("choices"))
    return members(choices[0]) if choices else {}


def _saying(choice: Mapping[str, Json]) -> Mapping[str, Json]:
    """A choice whose tool calls go on: an id is told once, and empty after that."""
    message = members(choice.get("message"))
    calls = [
        {name: value for name, value in members(call).items() if value != ""}
        for call in elements(message.get("tool_calls"))
    ]
    return {**choice, "message": {**message, **({"tool_calls": calls} if calls else {})}}


def _written(output: Mapping[str, Json], message: Mapping[str, Json]) -> str:
    """All that an event says in words, to be compared with the event before."""
    calls = [members(members(call).get("function")) for call in elements(message.get("tool_calls"))]
    words = [text(output.get("text")), text(message.get("reasoning_content")), _text(message.get("content"))]
    return "".join([*words, *(text(call.get("arguments")) for call in calls)])


def _text(content: Json) -> str:
    """A text, or the texts of its parts."""
    return text(content) or "".join(text(members(part).get("text")) for part in elements(content))


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = members(call.get("function"))
    return ToolCall(
        id=some(call.get("id")), name=text(function.get("name")), arguments=arguments_of(function.get("arguments"))
    )
