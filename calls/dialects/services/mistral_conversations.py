"""Mistral's Conversations: agents whose turns Mistral keeps; they are started, continued or restarted from an entry.

A turn has outputs: what the model says, runs of Mistral's own tools, handoffs, and calls of functions that somebody else answers. A stream
tells of them by index, in pieces whose frame is said again with each, and ends with `conversation.response.done`.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "mistral_conversations"

_PATH: Final = re.compile(r"(?:.*/)?v1/conversations(?:/[^/]+(/restart)?)?")

_TYPES: Final = frozenset(("message.output", "function.call", "tool.execution", "agent.handoff"))
"""The kinds of outputs, and what their events begin with."""

_JOINED: Final = frozenset(("content", "arguments"))
_FRAME: Final = frozenset(("type", "output_index", "content_index"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Mistral's own host: OpenAI has conversations too, and those answer nothing."""
    match = _PATH.fullmatch(path) if method == "POST" and host.endswith("mistral.ai") else None
    return Claim(dialect=NAME, operation="invoke_agent", kind="model") if match else None


def asked(body: Json) -> RequestSummary:
    """The model, or the agent that has one, and what functions answered."""
    request = members(body)
    entries = [members(entry) for entry in elements(request.get("inputs"))]
    results = [_result(entry) for entry in entries if entry.get("type") == "function.result"]
    return RequestSummary(
        model=some(request.get("model")) or some(request.get("agent_id")), tool_results=tuple(results)
    )


def told(answer: Json) -> AnswerSummary:
    """What the outputs say. A turn that ends with calls waits for their results."""
    said = members(answer)
    outputs = [members(output) for output in elements(said.get("outputs"))]
    texts = [_text(output.get("content")) for output in outputs if output.get("type") == "message.output"]
    calls = [output for output in outputs if output.get("type") in ("function.call", "tool.execution")]
    waits = any(output.get("type") == "function.call" for output in outputs[-1:])
    return AnswerSummary(
        model=next((name for name in (some(output.get("model")) for output in reversed(outputs)) if name), None),
        text="".join(texts) if texts else None,
        tool_calls=tuple(map(_tool_call, calls)),
        finish_reason="tool_calls" if waits else "stop" if outputs else None,
        usage=_usage(members(said.get("usage"))),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a turn, streamed or not."""
    return AccumulatorAssembly(content_type, MistralConversationsStream())


class MistralConversationsStream:
    """The events of one streamed turn."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._outputs: dict[tuple[int, str], _Output] = {}
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # the payload says it too
        """Take one event. Its type is in the payload."""
        said = payload(data)
        kind = text(said.get("type"))
        what, _, how = kind.rpartition(".")
        rest = {name: said[name] for name in said if name not in ("type", "created_at")}
        if kind == "conversation.response.error":
            self._error = rest
        elif what == "conversation.response":
            self._state |= rest
            self._done = self._done or how == "done"
        elif what in _TYPES and (place := count(said.get("output_index"))) is not None:
            # Calls that are made at once share an index: their own ids part them.
            self._outputs.setdefault((place, text(said.get("tool_call_id"))), _Output(what)).take(said)
        elif said.get("error") is not None or said.get("object") == "error":
            self._error = said.get("error") or dict(said)

    @property
    def answer(self) -> Json:
        """The turn so far; where there is only an error, the error's own body."""
        if not self._state and not self._outputs:
            return None if self._error is None else {"error": self._error}
        outputs: list[Json] = [self._outputs[at].whole() for at in sorted(self._outputs, key=lambda at: at[0])]
        answer: dict[str, Json] = {"object": "conversation.response", **self._state, "outputs": outputs}
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def complete(self) -> bool:
        """Whether the turn came to its end, and no error."""
        return self._done and self._error is None


class _Output:
    """One output while its events come: texts are joined, parts follow one another, everything else is said anew."""

    def __init__(self, kind: str) -> None:
        self._state: dict[str, Json] = {"object": "entry", "type": kind}
        self._pieces: dict[str, list[str]] = {}
        self._parts: list[Json] = []

    def take(self, said: Mapping[str, Json]) -> None:
        """Take what one event says of it."""
        for name, value in said.items():
            match name, value:
                case _ if name in _FRAME:
                    pass
                case "created_at", _:
                    self._state.setdefault(name, value)
                case _, str() if name in _JOINED:
                    self._pieces.setdefault(name, []).append(value)
                case "content", Mapping():
                    self._parts.append(value)
                case _:
                    self._state[name] = value

    def whole(self) -> Json:
        """The output as a turn has it."""
        joined: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._pieces.items()}
        if self._parts:
            said: list[Json] = [{"type": "text", "text": joined["content"]}] if joined.get("content") else []
            joined["content"] = [*said, *self._parts]
        return {**self._state, **joined}


def _text(content: Json) -> str:
    """A text, or the texts among parts."""
    return (
        content if isinstance(content, str) else "".join(text(members(part).get("text")) for part in elements(content))
    )


def _tool_call(output: Mapping[str, Json]) -> ToolCall:
    name = text(output.get("name")) or text(output.get("function"))
    id_ = some(output.get("tool_call_id")) or some(output.get("id"))
    return ToolCall(id=id_, name=name, arguments=arguments_of(output.get("arguments")))


def _result(entry: Mapping[str, Json]) -> Json:
    return {"id": entry.get("tool_call_id"), "content": entry.get("result")}


def _usage(usage: Mapping[str, Json]) -> Usage:
    return Usage(
        input_tokens=count(usage.get("prompt_tokens")),
        output_tokens=count(usage.get("completion_tokens")),
    )
