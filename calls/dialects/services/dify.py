"""Dify's apps, in its cloud or self-hosted: `chat-messages` and `completion-messages`.

The text of a stream comes in pieces, each with the ids of its message; `message_replace` puts another text in their place, as content
moderation does. Agents send each thought again as it grows, with the call of a tool and then its result. `message_end` brings
the usage. (Reference: `template_chat.en.mdx` in langgenius/dify.)
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerPaths, AnswerSummary, Assembly, Claim, Dialect, Service
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import ErrorClass, error_class
from calls.dialects.parts.pieces import parse_arguments, parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.model import Headers, Json, ToolCall, Usage

_PATH: Final = re.compile(r"(?:.*/)?v1/(chat|completion)-messages")
_OPERATIONS: Final = {"chat": "chat", "completion": "text_completion"}
_OF_THE_EVENT: Final = frozenset(("event", "answer", "metadata"))


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim the two paths at any host: many installations are self-hosted."""
    match = _PATH.fullmatch(path) if method == "POST" else None
    return Claim(operation=_OPERATIONS[match[1]], kind="model", provider="dify") if match else None


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, DifyStream())


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, the tools that an agent called, and the documents that were retrieved for the answer."""
    message = as_object(answer)
    metadata = as_object(message.get("metadata"))
    usage = as_object(metadata.get("usage"))
    return AnswerSummary(
        text=as_text_or_none(message.get("answer")),
        tool_calls=tuple(_tool_calls(message)),
        usage=Usage(
            input_tokens=as_count(usage.get("prompt_tokens")), output_tokens=as_count(usage.get("completion_tokens"))
        ),
        results=tuple(map(_document, map(as_object, as_array(metadata.get("retriever_resources"))))),
    )


class DifyStream:
    """The events of one streamed answer."""

    def __init__(self) -> None:
        self._message: dict[str, Json] = {}
        self._texts: list[str] = []
        self._metadata: Json = None
        self._thoughts: dict[str, Json] = {}
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # the payload names the event
        """Add one event. Those of workflows and of speech are not part of the answer."""
        fields = parse_payload(data)
        match fields.get("event"):
            case "message" | "agent_message":
                self._add_text(fields)
            case "message_replace":
                self._texts.clear()
                self._add_text(fields)
            case "agent_thought":
                self._thoughts[as_text(fields.get("id"))] = {name: fields[name] for name in fields if name != "event"}
            case "message_end":
                self._metadata = fields.get("metadata")
                self._has_ended = True
            case "error":
                self._error = {name: fields[name] for name in fields if name != "event"}
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The message so far; where there is only an error, the error's own body."""
        if not self._message and not self._thoughts:
            return self._error
        answer: dict[str, Json] = {"event": "message", **self._message, "answer": "".join(self._texts)}
        if self._metadata is not None:
            answer["metadata"] = self._metadata
        if self._thoughts:
            answer["agent_thoughts"] = list(self._thoughts.values())
        return answer if self._error is None else {**answer, "error": self._error}

    @property
    def is_complete(self) -> bool:
        """Whether `message_end` came, and no error."""
        return self._has_ended and self._error is None

    def _add_text(self, fields: Mapping[str, Json]) -> None:
        self._texts.append(as_text(fields.get("answer")))
        self._message |= {name: value for name, value in fields.items() if name not in _OF_THE_EVENT}


def _tool_calls(message: Mapping[str, Json]) -> Iterator[ToolCall]:
    for thought in map(as_object, as_array(message.get("agent_thoughts"))):
        arguments = parse_arguments(thought.get("tool_input"))
        for name in filter(None, as_text(thought.get("tool")).split(";")):
            by_tool = as_object(arguments).get(name, arguments)
            yield ToolCall(id=as_text_or_none(thought.get("id")), name=name, arguments=by_tool)


def _document(resource: Mapping[str, Json]) -> Json:
    return {"id": resource.get("segment_id"), "score": resource.get("score"), "content": resource.get("content")}


def _requested_form(criteria: FormCriteria) -> AnswerForm:
    return "sse" if as_object(criteria.body).get("response_mode") == "streaming" else "whole"


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a message. What an app calls, it calls itself, so the message has only a text."""
    if parts.tool_calls or parts.text is None:
        return None
    return {
        "event": "message",
        **dict.fromkeys(("task_id", "id", "message_id", "conversation_id"), parts.id),
        "mode": "chat",
        "answer": parts.text,
        "metadata": {"usage": parts.openai_usage, "retriever_resources": []},
        "created_at": parts.created,
    }


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the message with all of its text, and its end."""
    ids = {name: value for name, value in answer.items() if name not in (*_OF_THE_EVENT, "agent_thoughts")}
    for thought in map(as_object, as_array(answer.get("agent_thoughts"))):
        yield sse_message("", {"event": "agent_thought", **thought})
    yield sse_message("", {"event": "message", **ids, "answer": as_text(answer.get("answer"))})
    metadata = {"metadata": answer["metadata"]} if "metadata" in answer else {}
    yield sse_message("", {"event": "message_end", **ids, **metadata})


def _error_body(status: int, message: str) -> Json:
    codes: Mapping[ErrorClass, str] = {
        "invalid": "invalid_param",
        "authentication": "unauthorized",
        "permission": "forbidden",
        "not_found": "not_found",
        "rate_limit": "too_many_requests",
        "overloaded": "service_unavailable",
        "server": "internal_server_error",
    }
    return {"code": codes[error_class(status)], "message": message, "status": status}


DIALECT: Final = Dialect(
    name="dify",
    claim=claim,
    services=(Service(provider="dify", hosts=("api.dify.ai",)),),
    assemble=assemble,
    summarize_answer=summarize_answer,
    answer_form=_requested_form,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
    answer_paths=AnswerPaths(texts=("answer",)),
    error_body=_error_body,
)
