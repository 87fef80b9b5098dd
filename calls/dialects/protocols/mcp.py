"""The Model Context Protocol over streamable HTTP: a message is answered as JSON or at the end of a stream.

A stream has notifications and requests of the server (progress, logs), and the answer once. Request ids and progress tokens are
counters of the client, and a session identifies the client: none of them is part of what is requested.
"""

from collections.abc import Mapping
from typing import Final

from calls.codec.json import InvalidJson, dumps, parse_json_leniently
from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.protocols.jsonrpc import is_answer, jsonrpc_error, split_messages, state_of_answers
from calls.model import CallKind, Headers, Json, ToolCall, header

_HEADERS: Final = ("mcp-session-id", "mcp-protocol-version", "mcp-method")

_FAMILIES: Final = frozenset(
    (
        *("initialize", "ping", "tools", "resources", "prompts", "completion", "logging", "sampling", "elicitation"),
        *("roots", "notifications", "subscriptions", "server", "tasks"),
    )
)
"""The parts of MCP's method names before the slash."""

_SURE: Final = frozenset(("tools", "resources", "prompts", "sampling", "elicitation", "roots"))
"""Those that no other protocol over JSON-RPC has."""

_OPERATIONS: Final[Mapping[str, tuple[str, CallKind]]] = {
    "tools/call": ("execute_tool", "tool"),
    "resources/read": ("resources/read", "retrieval"),
    "prompts/get": ("prompts/get", "retrieval"),
}
_METHOD_NOT_FOUND: Final = -32601
_WITHOUT_MESSAGE: Final[Mapping[str, str]] = {"GET": "listen", "DELETE": "close", "POST": "answer"}


def claim(method: str, _host: str, _path: str, headers: Headers) -> Claim | None:
    """Claim requests with a header of MCP. A first message has none, and is recognised by its body (`claim_json_rpc`)."""
    if not _has_mcp_header(headers):
        return None
    called = as_text_or_none(header(headers, "mcp-method"))
    return _claim_method(called) if called else _claim_other(_WITHOUT_MESSAGE.get(method, method.lower()))


def claim_json_rpc(headers: Headers, methods: tuple[str, ...]) -> Claim | None:
    """Claim calls of MCP's methods."""
    families = {name.partition("/")[0] for name in methods}
    known = _has_mcp_header(headers) or bool(families & _SURE) or (bool(families) and _accepts_both(headers))
    if not known or not families <= _FAMILIES:
        return None
    match methods:
        case []:
            return _claim_other("answer")
        case [method]:
            return _claim_method(method)
        case _:
            return Claim(operation="batch", kind="tool" if "tools/call" in methods else "other")


def summarize_request(body: Json) -> RequestSummary:
    """Find the tools that are called."""
    calls = [message for message in split_messages(body) if message.get("method") == "tools/call"]
    return RequestSummary(tool_calls=tuple(map(_tool_call, calls)))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the texts and results of tools, resources or prompts."""
    results = [as_object(one.get("result")) for one in split_messages(answer)]
    texts = [text for result in results for text in _result_texts(result)]
    found = tuple(
        _tool_result(as_object(one.get("result")), one.get("id"))
        for one in split_messages(answer)
        if _is_tool_result(one)
    )
    answers = [one for one in split_messages(answer) if is_answer(one) and not _is_unknown_method(one)]
    state = state_of_answers(answers, lambda one: as_object(one.get("result")).get("isError") is True)
    return AnswerSummary(text="\n".join(texts) if texts else None, results=found, state=state)


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, at the end of a stream or alone."""
    return AccumulatorAssembly(content_type, McpStream())


class McpStream:
    """The messages of one stream."""

    def __init__(self) -> None:
        self._answers: list[Mapping[str, Json]] = []
        self._others: list[Json] = []

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # every event is a message
        """Add one message, or a batch. An event without data only has an id to resume from."""
        try:
            messages = split_messages(parse_json_leniently(data.encode("utf-8", "replace")))
        except InvalidJson:
            return
        for message in messages:
            if is_answer(message):
                self._answers.append(message)
            elif message:
                self._others.append(dict(message))

    @property
    def answer(self) -> Json:
        """The answer, with the notifications before it."""
        if len(self._answers) > 1:
            return [dict(answer) for answer in self._answers]
        answer = dict(self._answers[0]) if self._answers else {}
        if self._others:
            answer["notifications"] = list(self._others)
        return answer or None

    @property
    def is_complete(self) -> bool:
        """Whether the answer arrived."""
        return bool(self._answers)


def _has_mcp_header(headers: Headers) -> bool:
    return any(header(headers, name) is not None for name in _HEADERS)


def _accepts_both(headers: Headers) -> bool:
    """Whether the client accepts both JSON and a stream, as MCP requires."""
    accepted = (header(headers, "accept") or "").lower()
    return "application/json" in accepted and "text/event-stream" in accepted


def _claim_method(method: str) -> Claim:
    operation, kind = _OPERATIONS.get(method, (method, "other"))
    return Claim(operation=operation, kind=kind)


def _claim_other(operation: str) -> Claim:
    return Claim(operation=operation, kind="other")


def _tool_call(message: Mapping[str, Json]) -> ToolCall:
    params = as_object(message.get("params"))
    return ToolCall(id=_id_text(message.get("id")), name=as_text(params.get("name")), arguments=params.get("arguments"))


def _is_tool_result(message: Mapping[str, Json]) -> bool:
    result = as_object(message.get("result"))
    return "content" in result or "structuredContent" in result


def _tool_result(result: Mapping[str, Json], id_: Json) -> Json:
    found: dict[str, Json] = {"id": _id_text(id_), "content": result.get("content")}
    if "structuredContent" in result:
        found["structured"] = result["structuredContent"]
    return {**found, "is_error": True} if result.get("isError") is True else found


def _is_unknown_method(message: Mapping[str, Json]) -> bool:
    """Whether a server does not have a method: clients call those of MCP to find out, and go on."""
    return as_object(message.get("error")).get("code") == _METHOD_NOT_FOUND


def _result_texts(result: Mapping[str, Json]) -> list[str]:
    blocks = [as_object(block) for name in ("content", "contents") for block in as_array(result.get(name))]
    prompts = [as_object(as_object(one).get("content")) for one in as_array(result.get("messages"))]
    return [as_text(block.get("text")) for block in (*blocks, *prompts) if "text" in block]


def _id_text(value: Json) -> str | None:
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) else None


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make the answer of a tool, a resource or a prompt, which has this text."""
    if parts.tool_calls or parts.text is None:
        return None
    content: Json = {"type": "text", "text": parts.text}
    match parts.operation:
        case "execute_tool":
            return _composed_result(parts, {"content": [content], "isError": False})
        case "resources/read":
            uri = as_object(parts.request.get("params")).get("uri")
            return _composed_result(parts, {"contents": [{"uri": uri, "mimeType": "text/plain", "text": parts.text}]})
        case "prompts/get":
            return _composed_result(parts, {"messages": [{"role": "user", "content": content}]})
        case _:
            return None


def _compose_results(parts: AnswerParts) -> Json | None:
    """Make an answer of its result, such as the list of tools; of what a tool returns, in the form of a tool's result."""
    if len(parts.results) != 1 or not isinstance(result := parts.results[0], Mapping):
        return None
    if parts.operation == "execute_tool" and "content" not in result:
        content: Json = {"type": "text", "text": dumps(result).decode()}
        result = {"content": [content], "structuredContent": result, "isError": False}
    return _composed_result(parts, result)


def _composed_result(parts: AnswerParts, result: Json) -> Json | None:
    """An answer to the request of this id; None for a notification or a batch."""
    return {"jsonrpc": "2.0", "id": parts.request["id"], "result": result} if "id" in parts.request else None


DIALECT: Final = Dialect(
    name="mcp",
    claim=claim,
    headers=("accept", *_HEADERS),
    claim_json_rpc=claim_json_rpc,
    precedence=4,  # claims any path that is requested with its headers
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    error_body=jsonrpc_error,
    compose_answer=_compose_answer,
    compose_results=_compose_results,
)
