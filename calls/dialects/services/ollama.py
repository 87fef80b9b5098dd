"""Ollama's own API: chat, generate and embed, as lines of JSON unless the request says `stream: false`.

Every line is a whole answer of which only text is a piece; tool calls come whole, and the last line (`done`) brings the counts.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.framing import Framing, ndjson
from calls.model import Headers, Json, ToolCall, Usage, header

NAME: Final = "ollama"

_PATH: Final = re.compile(r"(?:.*/)?api/(chat|generate|embed|embeddings)")
_OPERATIONS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "generate": "text_completion",
    "embed": "embeddings",
    "embeddings": "embeddings",
}
_LOCAL: Final = re.compile(
    r"[^.]+|\[.*\]|(127|10|192\.168|172\.(1[6-9]|2\d|3[01]))\..+|.*ollama.*|host\.docker\.internal|.+\.(local|internal|lan)"
)
"""Where an Ollama runs. `/api/chat` is also what many a web page calls its own back end."""

_FRAMINGS: Final[tuple[Framing, ...]] = (ndjson,)
_TEXTS: Final = frozenset(("content", "thinking", "response"))


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """A machine nearby, or any that is asked by Ollama's SDK."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    near = _LOCAL.fullmatch(host) or (header(headers, "user-agent") or "").startswith("ollama")
    if match is None or not near:
        return None
    return Claim(dialect=NAME, operation=_OPERATIONS[match[1]], kind="model", provider=NAME)


def asked(body: Json) -> RequestSummary:
    """The model, and the tool messages that follow the last word of the assistant."""
    request = members(body)
    results: list[Json] = []
    for message in map(members, reversed(elements(request.get("messages")))):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "tool":
            name = message.get("tool_name") or message.get("name")
            results.insert(0, {"id": message.get("tool_call_id"), "name": name, "content": message.get("content")})
    return RequestSummary(model=some(request.get("model")), tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What an answer says."""
    said = members(answer)
    message = members(said.get("message"))
    return AnswerSummary(
        model=some(said.get("model")),
        text=some(message.get("content")) or some(said.get("response")),
        tool_calls=tuple(map(_tool_call, map(members, elements(message.get("tool_calls"))))),
        finish_reason=some(said.get("done_reason")),
        usage=Usage(input_tokens=count(said.get("prompt_eval_count")), output_tokens=count(said.get("eval_count"))),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, OllamaStream(), _FRAMINGS)


class OllamaStream:
    """The lines of one streamed answer."""

    def __init__(self) -> None:
        self._answer = _Joined()

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # a line has no name
        """Take one line."""
        self._answer.take(payload(data))

    @property
    def answer(self) -> Json:
        """The answer so far."""
        return self._answer.whole() or None

    @property
    def complete(self) -> bool:
        """Whether the line came that is the last, and no error."""
        return self._answer.state.get("done") is True and "error" not in self._answer.state


class _Joined:
    """An object whose texts and lists go on from line to line."""

    def __init__(self) -> None:
        self.state: dict[str, Json] = {}
        self._texts: dict[str, list[str]] = {}
        self._lists: dict[str, list[Json]] = {}
        self._message: _Joined | None = None

    def take(self, line: Mapping[str, Json]) -> None:
        """Take what one line says of it."""
        for name, value in line.items():
            match name, value:
                case "message", Mapping():
                    self._message = self._message or _Joined()
                    self._message.take(value)
                case _, str() if name in _TEXTS:
                    self._texts.setdefault(name, []).append(value)
                case (("tool_calls" | "logprobs" | "images"), list()):
                    self._lists.setdefault(name, []).extend(value)
                case _:
                    self.state[name] = value

    def whole(self) -> dict[str, Json]:
        """The object."""
        texts: dict[str, Json] = {name: "".join(pieces) for name, pieces in self._texts.items()}
        message: dict[str, Json] = {"message": self._message.whole()} if self._message else {}
        return {**self.state, **message, **texts, **self._lists}


def _tool_call(call: Mapping[str, Json]) -> ToolCall:
    function = members(call.get("function"))
    arguments = arguments_of(function.get("arguments"))
    return ToolCall(id=some(call.get("id")), name=text(function.get("name")), arguments=arguments)
