"""AWS Bedrock's Converse and ConverseStream, for every model behind it.

A stream is a turn in parts: `messageStart`, blocks by index, `messageStop`, and `metadata` last. Only blocks of tools have a start;
text and reasoning begin with their first delta. Every payload is padded at random (`p`).
"""

import re
from collections.abc import Mapping
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import arguments_of, payload
from calls.framing import Framing, eventstream
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "bedrock_converse"

_ACCOUNT: Final = re.compile(r"(?<=arn:)([\w-]+:[\w-]+:[\w-]*:)\d+(?=:)")
_SLASH: Final = re.compile(r"%2F", re.IGNORECASE)

FRAMINGS: Final[tuple[Framing, ...]] = (eventstream,)


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Any host's `…/model/ID/converse`."""
    way, model, verb = parts_of(path)
    if method != "POST" or not model or verb not in ("converse", "converse-stream"):
        return None
    place, streams = f"{way}/model/{model}/converse", verb == "converse-stream"
    return Claim(
        dialect=NAME,
        operation="chat",
        kind="model",
        path=without_account(place),
        model=in_plain_letters(model),
        streams=streams,
    )


def parts_of(path: str) -> tuple[str, str, str]:
    """What comes before `/model/`, the model, and the verb; no model where the path has none."""
    rest, _, verb = path.rpartition("/")
    way, _, model = rest.partition("/model/")
    return way, model, verb


def without_account(path: str) -> str:
    """A path that names a resource (ARN), without whose it is."""
    return _ACCOUNT.sub(r"\1*", path)


def in_plain_letters(model: str) -> str:
    """A model's id as it stands in a path (whose other escapes are undone already)."""
    return _SLASH.sub("/", model)


def asked(body: Json) -> RequestSummary:
    """The tool results that follow the last word of the assistant. The path names the model."""
    results: list[Json] = []
    for message in map(members, reversed(elements(members(body).get("messages")))):
        if message.get("role") == "assistant":
            break
        blocks = [members(members(block).get("toolResult")) for block in elements(message.get("content"))]
        results[:0] = [_result(block) for block in blocks if block]
    return RequestSummary(tool_results=tuple(results))


def told(answer: Json) -> AnswerSummary:
    """What a turn says."""
    turn = members(answer)
    blocks = [members(block) for block in elements(members(members(turn.get("output")).get("message")).get("content"))]
    uses = [members(block.get("toolUse")) for block in blocks if "toolUse" in block]
    texts = [said for block in blocks if (said := _said(block)) is not None]
    return AnswerSummary(
        text="".join(texts) if texts else None,
        tool_calls=tuple(map(_tool_call, uses)),
        finish_reason=some(turn.get("stopReason")),
        usage=usage(members(turn.get("usage"))),
        # What tools found that Bedrock ran itself
        results=tuple(_result(members(block["toolResult"])) for block in blocks if "toolResult" in block),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for a turn, streamed or not."""
    return AccumulatorAssembly(content_type, BedrockConverseStream(), FRAMINGS)


class BedrockConverseStream:
    """The events of one streamed turn."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._error: Json = None

    def take(self, event: str, data: str) -> None:
        """Take one event, or an exception under HTTP 200."""
        said = {name: value for name, value in payload(data).items() if name != "p"}
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **said}
        else:
            self._turn.take(event, said)

    @property
    def answer(self) -> Json:
        """The turn so far; where there is only an error, the error's own body."""
        turn = self._turn.whole()
        if self._error is None:
            return turn
        return {**turn, "error": self._error} if turn else self._error

    @property
    def complete(self) -> bool:
        """Whether the turn ended, its metadata came, and no error."""
        return self._error is None and self._turn.ended and self._turn.counted


class Turn:
    """One turn while its events come; Amazon's own models (Nova) send the same ones inside of others."""

    def __init__(self) -> None:
        self._role: Json = None
        self._state: dict[str, Json] = {}
        self._blocks: dict[int, _Block] = {}
        self.ended = False
        self.counted = False

    def take(self, event: str, said: Mapping[str, Json]) -> None:
        """Take one event. What is not known passes."""
        match event:
            case "messageStart":
                self._role = said.get("role")
            case "contentBlockStart":
                self._block(said).start(members(said.get("start")))
            case "contentBlockDelta":
                self._block(said).take(members(said.get("delta")))
            case "messageStop":
                self.ended = True
                self._state |= said
            case "metadata":
                self.counted = True
                self._state |= said
            case _:
                pass

    def whole(self) -> dict[str, Json]:
        """The turn as Converse answers it; nothing where nothing came."""
        if self._role is None and not self._blocks:
            return dict(self._state)
        content = [self._blocks[index].whole() for index in sorted(self._blocks)]
        message: Json = {"role": self._role or "assistant", "content": content}
        return {"output": {"message": message}, **self._state}

    def _block(self, said: Mapping[str, Json]) -> "_Block":
        return self._blocks.setdefault(count(said.get("contentBlockIndex")) or 0, _Block())


class _Block:
    """One content block while its deltas come."""

    def __init__(self) -> None:
        self._start: dict[str, Json] = {}
        self._texts: list[str] = []
        self._inputs: list[str] = []
        self._thought: dict[str, list[str]] = {}
        self._citations: list[Json] = []
        self._results: list[Json] = []

    def start(self, start: Mapping[str, Json]) -> None:
        """Take the block's frame."""
        self._start |= start

    def take(self, delta: Mapping[str, Json]) -> None:
        """Take one delta."""
        for name, value in delta.items():
            match name:
                case "text":
                    self._texts.append(text(value))
                case "toolUse":
                    self._inputs.append(text(members(value).get("input")))
                case "reasoningContent":
                    for part, piece in members(value).items():
                        self._thought.setdefault(part, []).append(text(piece))
                case "citation":
                    self._citations.append(value)
                case "toolResult":
                    self._results.extend(elements(value))
                case "image":
                    self._start[name] = {**members(self._start.get(name)), **members(value)}
                case _:
                    self._start[name] = value

    def whole(self) -> Json:
        """The block as Converse answers it."""
        said = "".join(self._texts)
        if self._inputs or "toolUse" in self._start:
            return {"toolUse": {**members(self._start.get("toolUse")), "input": self._input()}}
        if self._thought:
            return {"reasoningContent": self._reasoning()}
        if self._citations:
            # A text that is cited; or the citations alone, of the text before (Nova's grounding).
            cited: dict[str, Json] = {"content": [{"text": said}]} if self._texts else {}
            return {"citationsContent": {**cited, "citations": self._citations}}
        if self._results:
            return {"toolResult": {**members(self._start.get("toolResult")), "content": self._results}}
        return {"text": said} if self._texts or not self._start else dict(self._start)

    def _input(self) -> Json:
        """A tool's input; the text as it came where the stream was cut within it. No text at all is no input."""
        joined = "".join(self._inputs)
        return arguments_of(joined) if joined.strip() else {}

    def _reasoning(self) -> Json:
        parts = {name: "".join(pieces) for name, pieces in self._thought.items()}
        redacted = parts.pop("redactedContent", None)
        return {"redactedContent": redacted} if redacted is not None else {"reasoningText": parts}


def usage(said: Mapping[str, Json]) -> Usage:
    """Counts as Converse reports them."""
    return Usage(
        input_tokens=count(said.get("inputTokens")),
        output_tokens=count(said.get("outputTokens")),
        cached_tokens=count(said.get("cacheReadInputTokens")),
    )


def _said(block: Mapping[str, Json]) -> str | None:
    if "citationsContent" in block:
        parts = elements(members(block.get("citationsContent")).get("content"))
        return "".join(text(members(part).get("text")) for part in parts)
    said = block.get("text")
    return said if isinstance(said, str) else None


def _result(block: Mapping[str, Json]) -> Json:
    result = {"id": block.get("toolUseId"), "content": block.get("content")}
    return {**result, "is_error": True} if block.get("status") == "error" else result


def _tool_call(use: Mapping[str, Json]) -> ToolCall:
    return ToolCall(id=some(use.get("toolUseId")), name=text(use.get("name")), arguments=use.get("input"))
