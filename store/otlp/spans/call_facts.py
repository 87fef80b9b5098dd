"""What both vocabularies say of a call: its messages, counts, documents and error, read from the shape of the REST API."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Final, NamedTuple

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.model import Json
from store.otlp.spans.conversation import (
    Message,
    RequestMessages,
    answer_message,
    answer_reasoning,
    embedded_texts,
    request_conversation,
)
from store.otlp.spans.limits import cut_messages
from store.query.rest_shapes import Shape

MAX_DOCUMENTS: Final = 50

_APART: Final = (
    ("cache_read_input_tokens", "cache_creation_input_tokens"),
    ("cacheReadInputTokens", "cacheWriteInputTokens"),
)
"""Members of a usage that counts cached tokens apart from the input (Anthropic, Bedrock): those read, and those written."""

_TEXT_MEMBERS: Final = (
    "document",
    "text",
    "content",
    "page_content",
    "chunk_text",
    "snippet",
    "body",
    "description",
    "title",
)
_QUERY_MEMBERS: Final = ("query", "q", "queryText", "text", "search", "search_query", "input")


class TokenCounts(NamedTuple):
    """Tokens as both vocabularies count them: the input includes what was read from and written to a cache."""

    input: int | None
    output: int | None
    cached: int | None
    cache_written: int | None
    reasoning: int | None


class Document(NamedTuple):
    """A document that was found."""

    id: str | None
    score: float | None
    text: str | None
    metadata: Json


class ToolPlace(NamedTuple):
    """The tool call that a call executes: the call that requested it, its id and the name of the tool."""

    asker: str
    id: str | None
    name: str | None


class CostParts(NamedTuple):
    """What the input and the output of a call cost, in dollars."""

    input: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContent:
    """What a call says: what is exported only if content is."""

    conversation: RequestMessages
    messages: list[Message]
    answer: Message
    is_cut: bool
    """Whether something is missing because it is too long."""


@dataclass(frozen=True, kw_only=True)
class SpannedCall:
    """A call whose span is made."""

    shape: Shape
    started_at: int
    tool: ToolPlace | None = None
    cost_parts: CostParts | None = None

    @cached_property
    def content(self) -> CallContent:
        """What a model call says."""
        conversation = request_conversation(self.shape.get("request"))
        messages, is_cut = cut_messages(conversation.messages)
        reasoning = answer_reasoning(self.shape.get("answer"))
        answer = answer_message(self.shape["text"], self.shape["tool_calls"], reasoning)
        answers, is_answer_cut = cut_messages([answer])
        return CallContent(
            conversation=conversation,
            messages=messages,
            answer=answers[0],
            is_cut=is_cut or is_answer_cut or "request" not in self.shape,
        )

    @property
    def ended_at(self) -> int:
        """When it ended; an import without times has no duration."""
        milliseconds = self.shape["duration_ms"] or self.shape["first_byte_ms"] or 0
        return self.started_at + max(0, round(milliseconds * 1_000_000))

    @property
    def kind(self) -> str:
        """The kind of span in OpenInference."""
        match self.shape["kind"], self.shape["operation"]:
            case "model", "embeddings":
                return "EMBEDDING"
            case "model", "rerank":
                return "RERANKER"
            case "model", "invoke_agent" | "create_agent":
                return "AGENT"
            case "model", _:
                return "LLM"
            case "tool", _:
                return "TOOL"
            case "retrieval", _:
                return "RETRIEVER"
            case _:
                return "CHAIN"

    @property
    def operation(self) -> str | None:
        """`gen_ai.operation.name`; None for a call that is no operation of AI."""
        operations = {"tool": "execute_tool", "retrieval": "retrieval", "other": None}
        found: str | None = operations.get(self.shape["kind"], self.shape["operation"])
        return found

    @property
    def model(self) -> str | None:
        """The requested model, else the returned one."""
        found: str | None = self.shape["model_requested"] or self.shape["model_returned"]
        return found

    @property
    def tool_name(self) -> str | None:
        """The name of the tool that it executes."""
        if self.tool and self.tool.name:
            return self.tool.name
        requested = self.shape["tool_calls"]
        return as_text_or_none(requested[0]["name"]) if self.shape["kind"] == "tool" and requested else None

    @property
    def error(self) -> str | None:
        """The type of its error: a status, an outcome, `broken_answer`, `tool_error`, a code of JSON-RPC or `answer_error`."""
        status, outcome = self.shape["status"], self.shape["outcome"]
        if status is not None and status >= 400:
            return str(status)
        if outcome != "completed":
            return str(outcome)
        results = self.shape.get("tool_results") or ()
        if self.shape["kind"] == "tool" and any(as_object(one).get("is_error") is True for one in results):
            return "tool_error"
        if self.shape["kind"] != "model" and self.shape["answer_state"] == "error":
            code = as_object(as_object(self.shape.get("answer")).get("error")).get("code")
            return str(code) if isinstance(code, int) else "answer_error"
        return "broken_answer" if self.shape["failed"] else None

    @property
    def error_text(self) -> str | None:
        """The message of the error, which may quote the request."""
        answer = as_object(self.shape.get("answer"))
        error = answer.get("error")
        return (
            as_text_or_none(as_object(error).get("message"))
            or as_text_or_none(error)
            or as_text_or_none(answer.get("message"))
        )

    @property
    def is_cut(self) -> bool:
        """Whether the answer ended before its own end."""
        return not self.shape["complete"] and self.shape["status"] is not None and self.shape["status"] < 400

    @property
    def tokens(self) -> TokenCounts:
        """Its tokens."""
        usage = self.shape["usage"]
        stated = as_object(as_object(self.shape.get("answer")).get("usage"))
        read, written = next(((r, w) for r, w in _APART if r in stated or w in stated), (None, None))
        cached = usage["cached_tokens"]
        apart = ((cached or 0) + (as_count(stated.get(written)) or 0)) if read and written else 0
        count = usage["input_tokens"]
        return TokenCounts(
            input=None if count is None else count + apart,
            output=usage["output_tokens"],
            cached=cached,
            cache_written=as_count(stated.get(written)) if written else None,
            reasoning=usage["reasoning_tokens"],
        )

    @property
    def response_id(self) -> str | None:
        """The id of the response."""
        answer = as_object(self.shape.get("answer"))
        found = as_text_or_none(answer.get("id")) or as_text_or_none(answer.get("responseId"))
        return found if found and len(found) <= 200 and found.isascii() and " " not in found else None


def call_embeddings(call: SpannedCall) -> list[str]:
    """Return the texts of which a call wants embeddings."""
    return embedded_texts(call.shape.get("request"))[:MAX_DOCUMENTS]


def call_query(call: SpannedCall) -> str | None:
    """Return the words that a retrieval searches for."""
    body = as_object(call.shape.get("request"))
    fields = as_object(body.get("inputs")) or body
    return next((found for name in _QUERY_MEMBERS if (found := as_text_or_none(fields.get(name)))), None)


def call_documents(call: SpannedCall) -> list[Document]:
    """Return the documents that a retrieval found."""
    return [_document(as_object(one)) for one in (call.shape.get("tool_results") or ())[:MAX_DOCUMENTS]]


def is_number(value: Json) -> bool:
    """Whether a value of JSON is a number."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _score(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else None


def _document(fields: Mapping[str, Json]) -> Document:
    content = fields.get("content")
    score = _score(fields.get("score"))
    name = fields.get("id")
    id_ = name if isinstance(name, str) else None if name is None else str(name)
    if not isinstance(content, Mapping):
        text = (
            content
            if isinstance(content, str)
            else "\n".join(as_text(as_object(one).get("text")) for one in as_array(content))
        )
        return Document(id_, score, text or None, None)
    member = next((one for one in _TEXT_MEMBERS if as_text_or_none(content.get(one))), None)
    rest = {key: value for key, value in content.items() if key != member}
    return Document(id_, score, as_text(content[member]) if member else None, rest or None)
