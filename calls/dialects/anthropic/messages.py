"""Anthropic Messages: `/v1/messages`, its token count, the older `/v1/complete`, and the same on Vertex.

A stream is a message in parts: `message_start` brings its frame, blocks follow by index, `message_delta` corrects the frame
(usage is a running total there), `message_stop` ends it. Payloads are padded with blanks at random, so their exact bytes
mean nothing. Unknown events and deltas are ignored, as Anthropic's versioning policy requires.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.anthropic.messages_writer import compose_message, write_message_stream
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import error_class
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.unclaimed_kinds import model_below_v1_or_other
from calls.model import Headers, Json, ToolCall, Usage, header

_OPERATIONS: Final = (
    (re.compile(r"(.*/)?messages"), "chat"),
    (re.compile(r"(.*/)?messages/count_tokens"), "count_tokens"),
    (re.compile(r"(.*/)?v1/complete"), "text_completion"),
)


_MEANT: Final = re.compile(r"(.*/)?anthropic/v1/.*")
_SERVERS: Final = re.compile(
    r"openrouter\.ai|ai-gateway\.vercel\.sh|claude\.googleapis\.com|.+\.api\.aws|(.+\.)?ollama\.com"
)
"""Other hosts where `/v1/messages` is this API."""
_VERTEX: Final = re.compile(r"(.*/publishers/anthropic/models/)([^/:]+):(rawPredict|streamRawPredict)")
_PROJECT: Final = re.compile(r"/projects/[^/]+/")


def claim(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Claim requests to Anthropic's host, to a gateway's path for it, or by its SDK: other APIs have messages too."""
    if method == "POST" and (match := _VERTEX.fullmatch(path)):
        return _claim_on_vertex(match)
    is_anthropic = (
        host.endswith("anthropic.com")
        or _SERVERS.fullmatch(host)
        or _MEANT.fullmatch(path)
        or _is_anthropic_client(headers)
    )
    if method != "POST" or not is_anthropic:
        return None
    operation = next((name for shape, name in _OPERATIONS if shape.fullmatch(path)), None)
    return Claim(operation=operation, kind="model") if operation else None


def _is_anthropic_client(headers: Headers) -> bool:
    agent = header(headers, "user-agent") or ""
    return header(headers, "anthropic-version") is not None or agent.startswith("Anthropic/")


def _claim_on_vertex(match: re.Match[str]) -> Claim:
    """Claim a path of Vertex, which names the model; tokens are counted by a model `count-tokens`."""
    counts = match[2].startswith("count-tokens")
    return Claim(
        operation="count_tokens" if counts else "chat",
        kind="model",
        path=_PROJECT.sub("/projects/*/", f"{match[1]}{match[2]}:rawPredict"),
        model=None if counts else match[2],
        streams=match[3].startswith("stream"),
    )


def summarize_request(body: Json) -> RequestSummary:
    """Find the model, and the tool results after the last message of the assistant."""
    request = as_object(body)
    results: list[Json] = []
    for message in reversed(as_array(request.get("messages"))):
        if as_object(message).get("role") == "assistant":
            break
        results[:0] = [
            _tool_result(block)
            for block in map(as_object, as_array(as_object(message).get("content")))
            if _is_tool_result(block)
        ]
    return RequestSummary(model=as_text_or_none(request.get("model")), tool_results=tuple(results))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, tool calls and usage of a message."""
    message = as_object(answer)
    blocks = [as_object(block) for block in as_array(message.get("content"))]
    texts = [as_text(block.get("text")) for block in blocks if block.get("type") == "text"]
    return AnswerSummary(
        model=as_text_or_none(message.get("model")),
        text="".join(texts) if texts else as_text_or_none(message.get("completion")),
        tool_calls=tuple(_tool_call(block) for block in blocks if as_text(block.get("type")).endswith("tool_use")),
        finish_reason=as_text_or_none(message.get("stop_reason")),
        usage=_usage(message),
        # Results of Anthropic's own tools, and of MCP servers that it called.
        results=tuple(_tool_result(block) for block in blocks if _is_tool_result(block)),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a message, streamed or not."""
    return AccumulatorAssembly(content_type, AnthropicMessagesStream())


class AnthropicMessagesStream:
    """The events of one streamed message."""

    def __init__(self) -> None:
        self._message: dict[str, Json] = {}
        self._usage: dict[str, Json] = {}
        self._blocks: dict[int, _Block] = {}
        self._completion: list[str] = []
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:
        """Add one event. Its type is in the payload; the event's name only repeats it."""
        fields = parse_payload(data)
        match fields.get("type"):
            case "message_start":
                self._start_message(as_object(fields.get("message")))
            case "content_block_start":
                self._start_block(fields, as_object(fields.get("content_block")))
            case "content_block_delta":
                self._find_block(fields).add(as_object(fields.get("delta")))
            case "message_delta":
                self._update_message(fields)
            case "message_stop":
                self._has_ended = True
            case "error":
                self._error = fields.get("error")
            case "completion":
                self._add_completion(fields)
            case None if "completion" in fields:  # the same on Bedrock, in its first year
                self._add_completion(fields)
            case _:
                self._take_untyped_error(event, fields)

    @property
    def answer(self) -> Json:
        """The message so far; where there is only an error, the error's own body."""
        if not self._message and not self._blocks:
            return None if self._error is None else {"type": "error", "error": self._error}
        answer = dict(self._message)
        if self._completion:
            answer["completion"] = "".join(self._completion)
        else:
            answer["content"] = [self._blocks[index].build() for index in sorted(self._blocks)]
        if self._usage:
            answer["usage"] = dict(self._usage)
        if self._error is not None:
            answer["error"] = self._error
        return answer

    @property
    def is_complete(self) -> bool:
        """Whether `message_stop` arrived, and no error."""
        return self._has_ended and self._error is None

    def _start_message(self, message: Mapping[str, Json]) -> None:
        self._message.update(message)
        self._usage.update(as_object(message.get("usage")))
        for index, block in enumerate(as_array(message.get("content"))):
            self._blocks.setdefault(index, _Block()).start(as_object(block))

    def _start_block(self, payload: Mapping[str, Json], block: Mapping[str, Json]) -> None:
        self._find_block(payload).start(block)
        # Another model took over in mid-stream: without streaming the answer would name that one.
        successor = as_object(block.get("to")).get("model") if block.get("type") == "fallback" else None
        if successor is not None:
            self._message["model"] = successor

    def _find_block(self, payload: Mapping[str, Json]) -> "_Block":
        return self._blocks.setdefault(as_count(payload.get("index")) or 0, _Block())

    def _update_message(self, payload: Mapping[str, Json]) -> None:
        for name, value in as_object(payload.get("delta")).items():
            if value is not None or name not in self._message:
                self._message[name] = value
        # Running totals. Newer servers repeat the input's counts here, older ones leave them out.
        for name, value in as_object(payload.get("usage")).items():
            if value is not None or name not in self._usage:
                self._usage[name] = value
        others = {name: value for name, value in payload.items() if name not in ("type", "delta", "usage")}
        self._message.update(others)

    def _add_completion(self, payload: Mapping[str, Json]) -> None:
        """Add one event of the older `/v1/complete`; the last one has a stop reason."""
        self._completion.append(as_text(payload.get("completion")))
        self._message.update({name: value for name, value in payload.items() if name != "completion"})
        self._has_ended = as_text_or_none(payload.get("stop_reason")) is not None

    def _take_untyped_error(self, event: str, payload: Mapping[str, Json]) -> None:
        """Take an error without a type, as some gateways send it under HTTP 200."""
        if event == "error" or "error" in payload:
            self._error = payload.get("error") or dict(payload)


class _Block:
    """One content block while its deltas arrive."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[Json] = []

    def start(self, block: Mapping[str, Json]) -> None:
        """Take the frame of the block. Blocks of server tools are whole in it."""
        self._state.update(block)

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add one delta."""
        match delta.get("type"):
            case "text_delta":
                self._add_piece("text", delta.get("text"))
            case "thinking_delta":
                self._add_piece("thinking", delta.get("thinking"))
            case "input_json_delta":
                self._add_piece("input", delta.get("partial_json"))
            case "signature_delta":
                self._state["signature"] = delta.get("signature")
            case "citations_delta":
                self._citations.append(delta.get("citation"))
            case "compaction_delta":
                self._state.update({name: value for name, value in delta.items() if name != "type"})
            case _:
                pass

    def build(self) -> Json:
        """The block as a message has it."""
        block = dict(self._state)
        for name, pieces in self._pieces.items():
            joined = "".join(pieces)
            block[name] = _tool_input(joined, block) if name == "input" else as_text(block.get(name)) + joined
        if self._citations:
            block["citations"] = [*as_array(block.get("citations")), *self._citations]
        return block

    def _add_piece(self, name: str, value: Json) -> None:
        self._state.setdefault("type", "tool_use" if name == "input" else name)
        self._pieces.setdefault(name, []).append(as_text(value))


def _tool_input(joined: str, block: Mapping[str, Json]) -> Json:
    """Parse a tool's input; keep the text if the stream was cut within it. No text means no input."""
    if not joined.strip():
        return block.get("input", {})
    return parse_arguments(joined)


def _is_tool_result(block: Mapping[str, Json]) -> bool:
    return as_text(block.get("type")).endswith("tool_result")


def _tool_result(block: Mapping[str, Json]) -> Json:
    result = {"id": block.get("tool_use_id"), "content": block.get("content")}
    return {**result, "is_error": True} if block.get("is_error") is True else result


def _tool_call(block: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=as_text_or_none(block.get("id")), name=as_text(block.get("name")), arguments=block.get("input"))


def _usage(message: Mapping[str, Json]) -> Usage:
    usage = as_object(message.get("usage"))
    details = as_object(usage.get("output_tokens_details"))
    input_tokens = usage.get("input_tokens") if "input_tokens" in usage else message.get("input_tokens")
    return Usage(
        input_tokens=as_count(input_tokens),
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=as_count(usage.get("cache_read_input_tokens")),
        reasoning_tokens=as_count(details.get("thinking_tokens")),
    )


def _error_body(status: int, message: str) -> Json:
    found = error_class(status)
    kind = {"invalid": "invalid_request", "server": "api"}.get(found, found)
    return {"type": "error", "error": {"type": f"{kind}_error", "message": message}}


DIALECT: Final = Dialect(
    name="anthropic",
    claim=claim,
    headers=("anthropic-version", "user-agent"),
    services=(
        Service(
            provider="anthropic",
            hosts=("api.anthropic.com",),
            host_pattern=r"aws-external-anthropic\..+\.api\.aws|claude\.googleapis\.com",
            only_models=False,
            unclaimed_kind=model_below_v1_or_other,
        ),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    stream_writers={"sse": write_message_stream},
    compose_answer=compose_message,
    answer_paths=AnswerPaths(texts=("content/*/text",), calls=("content/*",), arguments=("input",)),
    error_body=_error_body,
)
