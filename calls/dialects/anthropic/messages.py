"""Anthropic Messages: `/v1/messages`, its token count, the older `/v1/complete`, and the same on Vertex.

A stream is a message in parts: `message_start` brings its frame, blocks follow by index, `message_delta` corrects the frame
(usage is a running total there), `message_stop` ends it. Payloads are padded with blanks at random, so that nothing may
hang on their bytes. Unknown events and deltas pass, as Anthropic's versioning policy asks.
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.model import Headers, Json, ToolCall, Usage, header

NAME: Final = "anthropic"

_OPERATIONS: Final = (
    (re.compile(r"(.*/)?messages"), "chat"),
    (re.compile(r"(.*/)?messages/count_tokens"), "count_tokens"),
    (re.compile(r"(.*/)?v1/complete"), "text_completion"),
)


_MEANT: Final = re.compile(r"(.*/)?anthropic/v1/.*")
_SERVERS: Final = re.compile(
    r"openrouter\.ai|ai-gateway\.vercel\.sh|claude\.googleapis\.com|.+\.api\.aws|(.+\.)?ollama\.com"
)
"""Others that serve `/v1/messages`, and nothing else by that name."""
_VERTEX: Final = re.compile(r"(.*/publishers/anthropic/models/)([^/:]+):(rawPredict|streamRawPredict)")
_PROJECT: Final = re.compile(r"/projects/[^/]+/")


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:
    """Anthropic's own host, a gateway's folder for it, or who is asked by its SDK: other APIs have messages too."""
    if method == "POST" and (match := _VERTEX.fullmatch(path)):
        return _on_vertex(match)
    ours = host.endswith("anthropic.com") or _SERVERS.fullmatch(host) or _MEANT.fullmatch(path) or _is_meant(headers)
    if method != "POST" or not ours:
        return None
    operation = next((name for shape, name in _OPERATIONS if shape.fullmatch(path)), None)
    return Claim(dialect=NAME, operation=operation, kind="model") if operation else None


def _is_meant(headers: Headers) -> bool:
    agent = header(headers, "user-agent") or ""
    return header(headers, "anthropic-version") is not None or agent.startswith("Anthropic/")


def _on_vertex(match: re.Match[str]) -> Claim:
    """Vertex names the model in the path, and counts tokens by a model of that name."""
    counts = match[2].startswith("count-tokens")
    return Claim(
        dialect=NAME,
        operation="count_tokens" if counts else "chat",
        kind="model",
        path=_PROJECT.sub("/projects/*/", f"{match[1]}{match[2]}:rawPredict"),
        model=None if counts else match[2],
        streams=match[3].startswith("stream"),
    )


def asked(body: Json) -> RequestSummary:
    """The model, and the tool results that follow the last word of the assistant."""
    request = members(body)
    results: list[Json] = []
    for message in reversed(elements(request.get("messages"))):
        if members(message).get("role") == "assistant":
            break
        results[:0] = [
            _result(block) for block in map(members, elements(members(message).get("content"))) if _is_result(block)
        ]
    return RequestSummary(model=some(request.get("model")), tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What a message says."""
    message = members(answer)
    blocks = [members(block) for block in elements(message.get("content"))]
    texts = [text(block.get("text")) for block in blocks if block.get("type") == "text"]
    return AnswerSummary(
        model=some(message.get("model")),
        text="".join(texts) if texts else some(message.get("completion")),
        tool_calls=tuple(_tool_call(block) for block in blocks if text(block.get("type")).endswith("tool_use")),
        finish_reason=some(message.get("stop_reason")),
        usage=_usage(message),
        # What Anthropic's own tools found, and servers of MCP that it asked.
        results=tuple(_result(block) for block in blocks if _is_result(block)),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a message, streamed or not."""
    return AccumulatorAssembly(content_type, AnthropicMessagesStream())


class AnthropicMessagesStream:
    """The events of one streamed message."""

    def __init__(self) -> None:
        self._message: dict[str, Json] = {}
        self._usage: dict[str, Json] = {}
        self._blocks: dict[int, _Block] = {}
        self._completion: list[str] = []
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:
        """Take one event. Its type is in the payload; the event's name only repeats it."""
        said = payload(data)
        match said.get("type"):
            case "message_start":
                self._start(members(said.get("message")))
            case "content_block_start":
                self._begin(said, members(said.get("content_block")))
            case "content_block_delta":
                self._block(said).take(members(said.get("delta")))
            case "message_delta":
                self._correct(said)
            case "message_stop":
                self._done = True
            case "error":
                self._error = said.get("error")
            case "completion":
                self._complete_text(said)
            case None if "completion" in said:  # the same on Bedrock, in its first year
                self._complete_text(said)
            case _:
                self._odd(event, said)

    @property
    def answer(self) -> Json:
        """The message so far; where there is only an error, the error's own body."""
        if not self._message and not self._blocks:
            return None if self._error is None else {"type": "error", "error": self._error}
        answer = dict(self._message)
        if self._completion:
            answer["completion"] = "".join(self._completion)
        else:
            answer["content"] = [self._blocks[index].whole() for index in sorted(self._blocks)]
        if self._usage:
            answer["usage"] = dict(self._usage)
        if self._error is not None:
            answer["error"] = self._error
        return answer

    @property
    def complete(self) -> bool:
        """Whether `message_stop` came, and no error."""
        return self._done and self._error is None

    def _start(self, message: Mapping[str, Json]) -> None:
        self._message.update(message)
        self._usage.update(members(message.get("usage")))
        for index, block in enumerate(elements(message.get("content"))):
            self._blocks.setdefault(index, _Block()).start(members(block))

    def _begin(self, payload: Mapping[str, Json], block: Mapping[str, Json]) -> None:
        self._block(payload).start(block)
        # Another model took over in mid-stream: the whole answer would have named that one.
        successor = members(block.get("to")).get("model") if block.get("type") == "fallback" else None
        if successor is not None:
            self._message["model"] = successor

    def _block(self, payload: Mapping[str, Json]) -> "_Block":
        return self._blocks.setdefault(count(payload.get("index")) or 0, _Block())

    def _correct(self, payload: Mapping[str, Json]) -> None:
        for name, value in members(payload.get("delta")).items():
            if value is not None or name not in self._message:
                self._message[name] = value
        # Totals so far, not differences; newer servers repeat the input's counts here, older ones leave them out.
        for name, value in members(payload.get("usage")).items():
            if value is not None or name not in self._usage:
                self._usage[name] = value
        others = {name: value for name, value in payload.items() if name not in ("type", "delta", "usage")}
        self._message.update(others)

    def _complete_text(self, payload: Mapping[str, Json]) -> None:
        """One event of the older `/v1/complete`; the last one has a stop reason."""
        self._completion.append(text(payload.get("completion")))
        self._message.update({name: value for name, value in payload.items() if name != "completion"})
        self._done = some(payload.get("stop_reason")) is not None

    def _odd(self, event: str, payload: Mapping[str, Json]) -> None:
        """A gateway's error under HTTP 200 may lack the type that Anthropic's has."""
        if event == "error" or "error" in payload:
            self._error = payload.get("error") or dict(payload)


class _Block:
    """One content block while its deltas come."""

    def __init__(self) -> None:
        self._state: dict[str, Json] = {}
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[Json] = []

    def start(self, block: Mapping[str, Json]) -> None:
        """Take the block's frame. Blocks of server tools come whole in it."""
        self._state.update(block)

    def take(self, delta: Mapping[str, Json]) -> None:
        """Take one delta."""
        match delta.get("type"):
            case "text_delta":
                self._piece("text", delta.get("text"))
            case "thinking_delta":
                self._piece("thinking", delta.get("thinking"))
            case "input_json_delta":
                self._piece("input", delta.get("partial_json"))
            case "signature_delta":
                self._state["signature"] = delta.get("signature")
            case "citations_delta":
                self._citations.append(delta.get("citation"))
            case "compaction_delta":
                self._state.update({name: value for name, value in delta.items() if name != "type"})
            case _:
                pass

    def whole(self) -> Json:
        """The block as a message has it."""
        block = dict(self._state)
        for name, pieces in self._pieces.items():
            joined = "".join(pieces)
            block[name] = _input(joined, block) if name == "input" else text(block.get(name)) + joined
        if self._citations:
            block["citations"] = [*elements(block.get("citations")), *self._citations]
        return block

    def _piece(self, name: str, value: Json) -> None:
        self._state.setdefault("type", "tool_use" if name == "input" else name)
        self._pieces.setdefault(name, []).append(text(value))


def _input(joined: str, block: Mapping[str, Json]) -> Json:
    """A tool's input; the text as it came where the stream was cut within it. No text at all is no input."""
    if not joined.strip():
        return block.get("input", {})
    return arguments_of(joined)


def _is_result(block: Mapping[str, Json]) -> bool:
    return text(block.get("type")).endswith("tool_result")


def _result(block: Mapping[str, Json]) -> Json:
    result = {"id": block.get("tool_use_id"), "content": block.get("content")}
    return {**result, "is_error": True} if block.get("is_error") is True else result


def _tool_call(block: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=some(block.get("id")), name=text(block.get("name")), arguments=block.get("input"))


def _usage(message: Mapping[str, Json]) -> Usage:
    usage = members(message.get("usage"))
    details = members(usage.get("output_tokens_details"))
    counted = usage.get("input_tokens") if "input_tokens" in usage else message.get("input_tokens")
    return Usage(
        input_tokens=count(counted),
        output_tokens=count(usage.get("output_tokens")),
        cached_tokens=count(usage.get("cache_read_input_tokens")),
        reasoning_tokens=count(details.get("thinking_tokens")),
    )
