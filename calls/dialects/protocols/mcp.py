"""The Model Context Protocol over streamable HTTP: a message is answered as JSON or at the end of a stream.

A stream brings what the server has to tell on the way (progress, logs, requests of its own) and the answer, once. Request ids and
progress tokens are counted by the client and say nothing. A session is who is talking, not what is asked.
"""

from collections.abc import Mapping
from typing import Final

from calls.codec.json import NotLossless, lenient
from calls.codec.lenient_json import elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.protocols.jsonrpc import is_answer, messages
from calls.model import Headers, Json, Kind, ToolCall, header

NAME: Final = "mcp"

_HEADERS: Final = ("mcp-session-id", "mcp-protocol-version", "mcp-method")

_FAMILIES: Final = frozenset(
    (
        *("initialize", "ping", "tools", "resources", "prompts", "completion", "logging", "sampling", "elicitation"),
        *("roots", "notifications", "subscriptions", "server", "tasks"),
    )
)
"""What the names of MCP's methods begin with, up to a slash."""

_SURE: Final = frozenset(("tools", "resources", "prompts", "sampling", "elicitation", "roots"))
"""Those that nothing else that speaks JSON-RPC has."""

_OPERATIONS: Final[Mapping[str, tuple[str, Kind]]] = {
    "tools/call": ("execute_tool", "tool"),
    "resources/read": ("resources/read", "retrieval"),
    "prompts/get": ("prompts/get", "retrieval"),
}
_WITHOUT_MESSAGE: Final[Mapping[str, str]] = {"GET": "listen", "DELETE": "close", "POST": "answer"}


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Whatever carries a header of MCP's; a first message has none, and is known by its body (`speaks`)."""
    if not _has_header(headers):
        return None
    called = some(header(headers, "mcp-method"))
    return _claim(called) if called else _other(_WITHOUT_MESSAGE.get(method, method.lower()))


def speaks(headers: Headers, methods: tuple[str, ...]) -> Claim | None:
    """A claim on these calls of JSON-RPC."""
    families = {name.partition("/")[0] for name in methods}
    known = _has_header(headers) or bool(families & _SURE) or (bool(families) and _accepts_both(headers))
    if not known or not families <= _FAMILIES:
        return None
    match methods:
        case []:
            return _other("answer")
        case [method]:
            return _claim(method)
        case _:
            return Claim(dialect=NAME, operation="batch", kind="tool" if "tools/call" in methods else "other")


def asked(body: Json) -> RequestSummary:
    """The tools that are called."""
    calls = [message for message in messages(body) if message.get("method") == "tools/call"]
    return RequestSummary(tool_calls=tuple(map(_tool_call, calls)))


def told(answer: Json) -> AnswerSummary:
    """What the tools, resources or prompts of an answer say."""
    results = [members(one.get("result")) for one in messages(answer)]
    texts = [said for result in results for said in _texts(result)]
    found = tuple(_result(members(one.get("result")), one.get("id")) for one in messages(answer) if _is_tool(one))
    return AnswerSummary(text="\n".join(texts) if texts else None, results=found)


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, at the end of a stream or alone."""
    return AccumulatorAssembly(content_type, McpStream())


class McpStream:
    """The messages of one stream."""

    def __init__(self) -> None:
        self._answers: list[Mapping[str, Json]] = []
        self._others: list[Json] = []

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # every event is a message
        """Take one message, or a batch. An event without data only gives a place to go on from."""
        try:
            said = messages(lenient(data.encode("utf-8", "replace")))
        except NotLossless:
            return
        for message in said:
            if is_answer(message):
                self._answers.append(message)
            elif message:
                self._others.append(dict(message))

    @property
    def answer(self) -> Json:
        """The answer, with what else was told on the way."""
        if len(self._answers) > 1:
            return [dict(answer) for answer in self._answers]
        answer = dict(self._answers[0]) if self._answers else {}
        if self._others:
            answer["notifications"] = list(self._others)
        return answer or None

    @property
    def complete(self) -> bool:
        """Whether the answer came."""
        return bool(self._answers)


def _has_header(headers: Headers) -> bool:
    return any(header(headers, name) is not None for name in _HEADERS)


def _accepts_both(headers: Headers) -> bool:
    """MCP has its clients take an answer either way."""
    accepted = (header(headers, "accept") or "").lower()
    return "application/json" in accepted and "text/event-stream" in accepted


def _claim(method: str) -> Claim:
    operation, kind = _OPERATIONS.get(method, (method, "other"))
    return Claim(dialect=NAME, operation=operation, kind=kind)


def _other(operation: str) -> Claim:
    return Claim(dialect=NAME, operation=operation, kind="other")


def _tool_call(message: Mapping[str, Json]) -> ToolCall:
    params = members(message.get("params"))
    return ToolCall(id=_id(message.get("id")), name=text(params.get("name")), arguments=params.get("arguments"))


def _is_tool(message: Mapping[str, Json]) -> bool:
    result = members(message.get("result"))
    return "content" in result or "structuredContent" in result


def _result(result: Mapping[str, Json], id_: Json) -> Json:
    found: dict[str, Json] = {"id": _id(id_), "content": result.get("content")}
    if "structuredContent" in result:
        found["structured"] = result["structuredContent"]
    return {**found, "is_error": True} if result.get("isError") is True else found


def _texts(result: Mapping[str, Json]) -> list[str]:
    blocks = [members(block) for name in ("content", "contents") for block in elements(result.get(name))]
    prompts = [members(members(one).get("content")) for one in elements(result.get("messages"))]
    return [text(block.get("text")) for block in (*blocks, *prompts) if "text" in block]


def _id(value: Json) -> str | None:
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
