"""AWS Bedrock's Converse and ConverseStream, for every model behind it.

A stream is a turn in parts: `messageStart`, blocks by index, `messageStop`, and `metadata` last. Only blocks of tools have a start;
text and reasoning begin with their first delta. Every payload is padded at random (`p`).
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.aws.converse_writer import compose_turn, write_converse_stream
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_forms import streamed_by_path
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import ErrorClass, error_class, message_error
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.framing import Framing, eventstream
from calls.model import Headers, Json, ToolCall, Usage

_ACCOUNT: Final = re.compile(r"(?<=arn:)([\w-]+:[\w-]+:[\w-]*:)\d+(?=:)")
_SLASH: Final = re.compile(r"%2F", re.IGNORECASE)

FRAMINGS: Final[tuple[Framing, ...]] = (eventstream,)


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim `…/model/ID/converse` at any host."""
    prefix, model, verb = split_model_path(path)
    if method != "POST" or not model or verb not in ("converse", "converse-stream"):
        return None
    key_path, streams = f"{prefix}/model/{model}/converse", verb == "converse-stream"
    return Claim(
        operation="chat",
        kind="model",
        path=remove_account(key_path),
        model=unescape_model(model),
        streams=streams,
    )


def split_model_path(path: str) -> tuple[str, str, str]:
    """Split a path into the part before `/model/`, the model, and the verb. The model is empty where there is none."""
    rest, _, verb = path.rpartition("/")
    prefix, _, model = rest.partition("/model/")
    return prefix, model, verb


def remove_account(path: str) -> str:
    """Replace the account in a path that names a resource (ARN)."""
    return _ACCOUNT.sub(r"\1*", path)


def unescape_model(model: str) -> str:
    """Decode the slashes in a model's id. The path's other escapes are decoded already."""
    return _SLASH.sub("/", model)


def summarize_request(body: Json) -> RequestSummary:
    """Find the tool results after the last message of the assistant. The path names the model."""
    results: list[Json] = []
    for message in map(as_object, reversed(as_array(as_object(body).get("messages")))):
        if message.get("role") == "assistant":
            break
        blocks = [as_object(as_object(block).get("toolResult")) for block in as_array(message.get("content"))]
        results[:0] = [_tool_result(block) for block in blocks if block]
    return RequestSummary(tool_results=tuple(results))


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, tool calls and usage of a turn."""
    turn = as_object(answer)
    blocks = [
        as_object(block) for block in as_array(as_object(as_object(turn.get("output")).get("message")).get("content"))
    ]
    uses = [as_object(block.get("toolUse")) for block in blocks if "toolUse" in block]
    texts = [text for block in blocks if (text := _block_text(block)) is not None]
    return AnswerSummary(
        text="".join(texts) if texts else None,
        tool_calls=tuple(map(_tool_call, uses)),
        finish_reason=as_text_or_none(turn.get("stopReason")),
        usage=converse_usage(as_object(turn.get("usage"))),
        # Results of tools that Bedrock ran itself
        results=tuple(_tool_result(as_object(block["toolResult"])) for block in blocks if "toolResult" in block),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for a turn, streamed or not."""
    return AccumulatorAssembly(content_type, BedrockConverseStream(), FRAMINGS)


class BedrockConverseStream:
    """The events of one streamed turn."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._error: Json = None

    def add_message(self, event: str, data: str) -> None:
        """Add one event, or an exception under HTTP 200."""
        fields = {name: value for name, value in parse_payload(data).items() if name != "p"}
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **fields}
        else:
            self._turn.add(event, fields)

    @property
    def answer(self) -> Json:
        """The turn so far; where there is only an error, the error's own body."""
        turn = self._turn.build()
        if self._error is None:
            return turn
        return {**turn, "error": self._error} if turn else self._error

    @property
    def is_complete(self) -> bool:
        """Whether the turn ended, its metadata arrived, and no error."""
        return self._error is None and self._turn.has_ended and self._turn.has_usage


class Turn:
    """One turn while its events arrive; Amazon's own models (Nova) send the same ones inside InvokeModel's chunks."""

    def __init__(self) -> None:
        self._role: Json = None
        self._state: dict[str, Json] = {}
        self._blocks: dict[int, _Block] = {}
        self.has_ended = False
        self.has_usage = False

    def add(self, event: str, fields: Mapping[str, Json]) -> None:
        """Add one event; ignore unknown ones."""
        match event:
            case "messageStart":
                self._role = fields.get("role")
            case "contentBlockStart":
                self._find_block(fields).start(as_object(fields.get("start")))
            case "contentBlockDelta":
                self._find_block(fields).add(as_object(fields.get("delta")))
            case "messageStop":
                self.has_ended = True
                self._state |= fields
            case "metadata":
                self.has_usage = True
                self._state |= fields
            case _:
                pass

    def build(self) -> dict[str, Json]:
        """The turn as Converse returns it; empty where nothing arrived."""
        if self._role is None and not self._blocks:
            return dict(self._state)
        content = [self._blocks[index].build() for index in sorted(self._blocks)]
        message: Json = {"role": self._role or "assistant", "content": content}
        return {"output": {"message": message}, **self._state}

    def _find_block(self, fields: Mapping[str, Json]) -> "_Block":
        return self._blocks.setdefault(as_count(fields.get("contentBlockIndex")) or 0, _Block())


class _Block:
    """One content block while its deltas arrive."""

    def __init__(self) -> None:
        self._start: dict[str, Json] = {}
        self._texts: list[str] = []
        self._inputs: list[str] = []
        self._thought: dict[str, list[str]] = {}
        self._citations: list[Json] = []
        self._results: list[Json] = []

    def start(self, start: Mapping[str, Json]) -> None:
        """Take the frame of the block."""
        self._start |= start

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add one delta."""
        for name, value in delta.items():
            match name:
                case "text":
                    self._texts.append(as_text(value))
                case "toolUse":
                    self._inputs.append(as_text(as_object(value).get("input")))
                case "reasoningContent":
                    for part, piece in as_object(value).items():
                        self._thought.setdefault(part, []).append(as_text(piece))
                case "citation":
                    self._citations.append(value)
                case "toolResult":
                    self._results.extend(as_array(value))
                case "image":
                    self._start[name] = {**as_object(self._start.get(name)), **as_object(value)}
                case _:
                    self._start[name] = value

    def build(self) -> Json:
        """The block as Converse returns it."""
        text = "".join(self._texts)
        if self._inputs or "toolUse" in self._start:
            return {"toolUse": {**as_object(self._start.get("toolUse")), "input": self._tool_input()}}
        if self._thought:
            return {"reasoningContent": self._reasoning_content()}
        if self._citations:
            # A text with citations; or only the citations of the text before (Nova's grounding).
            cited: dict[str, Json] = {"content": [{"text": text}]} if self._texts else {}
            return {"citationsContent": {**cited, "citations": self._citations}}
        if self._results:
            return {"toolResult": {**as_object(self._start.get("toolResult")), "content": self._results}}
        return {"text": text} if self._texts or not self._start else dict(self._start)

    def _tool_input(self) -> Json:
        """Parse a tool's input; keep the text if the stream was cut within it. No text means no input."""
        joined = "".join(self._inputs)
        return parse_arguments(joined) if joined.strip() else {}

    def _reasoning_content(self) -> Json:
        parts = {name: "".join(pieces) for name, pieces in self._thought.items()}
        redacted = parts.pop("redactedContent", None)
        return {"redactedContent": redacted} if redacted is not None else {"reasoningText": parts}


def converse_usage(fields: Mapping[str, Json]) -> Usage:
    """The token counts of Converse."""
    return Usage(
        input_tokens=as_count(fields.get("inputTokens")),
        output_tokens=as_count(fields.get("outputTokens")),
        cached_tokens=as_count(fields.get("cacheReadInputTokens")),
    )


def _block_text(block: Mapping[str, Json]) -> str | None:
    if "citationsContent" in block:
        parts = as_array(as_object(block.get("citationsContent")).get("content"))
        return "".join(as_text(as_object(part).get("text")) for part in parts)
    text = block.get("text")
    return text if isinstance(text, str) else None


def _tool_result(block: Mapping[str, Json]) -> Json:
    result = {"id": block.get("toolUseId"), "content": block.get("content")}
    return {**result, "is_error": True} if block.get("status") == "error" else result


def _tool_call(use: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=as_text_or_none(use.get("toolUseId")), name=as_text(use.get("name")), arguments=use.get("input"))


def error_headers(status: int) -> Headers:
    """The header in which AWS names the exception."""
    return (("x-amzn-ErrorType", _EXCEPTIONS[error_class(status)]),)


_EXCEPTIONS: Final[Mapping[ErrorClass, str]] = {
    "invalid": "ValidationException",
    "authentication": "AccessDeniedException",
    "permission": "AccessDeniedException",
    "not_found": "ResourceNotFoundException",
    "rate_limit": "ThrottlingException",
    "overloaded": "ServiceUnavailableException",
    "server": "InternalServerException",
}


DIALECT: Final = Dialect(
    name="bedrock_converse",
    claim=claim,
    services=(
        Service(
            provider="aws.bedrock",
            host_pattern=r"bedrock(?!-agent(core|-runtime)?\.)[\w-]*\..+\.amazonaws\.com(\.cn)?|bedrock-mantle\..+\.api\.aws",
            only_models=False,
        ),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=streamed_by_path("eventstream"),
    stream_writers={"eventstream": write_converse_stream},
    compose_answer=compose_turn,
    answer_paths=AnswerPaths(
        texts=("output/message/content/*/text",), calls=("output/message/content/*/toolUse",), arguments=("input",)
    ),
    error_body=message_error,
    error_headers=error_headers,
)
