"""Agent to Agent: a request by JSON-RPC or REST, answered by a message or by a task.

A stream has the events of one task: the task itself, its states, and its artifacts in pieces. They are joined into the task as the
agent would have sent it without streaming. Version 0.3 has `kind` and `final`; in 1.0 one member names what a result is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import as_array, as_object, as_text, as_text_or_none
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.stream_writing import sse_message
from calls.dialects.protocols.jsonrpc import jsonrpc_error, split_messages, state_of_answers
from calls.model import Headers, Json

_OPERATIONS: Final[Mapping[str, str]] = {
    "message/send": "invoke_agent",
    "message/stream": "invoke_agent",
    "SendMessage": "invoke_agent",
    "SendStreamingMessage": "invoke_agent",
}
_METHODS: Final = re.compile(
    r"message/(send|stream)|tasks/\w+(/\w+)?|agent/\w+"
    r"|Send(Streaming)?Message|(Get|List|Cancel|SubscribeTo)Tasks?|\w+TaskPushNotificationConfigs?|GetExtendedAgentCard"
)
_REST: Final = re.compile(r"(.*)/message:(send|stream)")
_ENDED: Final = re.compile(
    r"(TASK_STATE_)?(completed|failed|cancell?ed|rejected|input[-_]required|auth[-_]required)", re.IGNORECASE
)
"""States in which a task has ended, or waits for the client."""

_FAILED: Final = re.compile(r"(TASK_STATE_)?(failed|rejected)", re.IGNORECASE)


def claim(method: str, _host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim the paths of the REST binding. JSON-RPC is recognised by its body (`claim_json_rpc`)."""
    match = _REST.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    streams = match[2] == "stream"
    return Claim(operation="invoke_agent", kind="tool", path=f"{match[1]}/message:send", streams=streams)


def claim_json_rpc(_headers: Headers, methods: tuple[str, ...]) -> Claim | None:
    """Claim a call of one of its methods."""
    match methods:
        case [method] if _METHODS.fullmatch(method):
            operation = _OPERATIONS.get(method, method)
            return Claim(operation=operation, kind="tool" if operation != method else "other")
        case _:
            return None


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text of the agent, and the state of its task."""
    [message, *_] = split_messages(answer) or [{}]
    result = _answer_result(message)
    state = as_text_or_none(as_object(result.get("status")).get("state"))
    artifact_parts = [
        part for artifact in as_array(result.get("artifacts")) for part in _message_parts(as_object(artifact))
    ]
    parts = (
        artifact_parts
        or _message_parts(result)
        or _message_parts(as_object(as_object(result.get("status")).get("message")))
    )
    texts = [as_text(part.get("text")) for part in parts if "text" in part]
    failed = state_of_answers([message], lambda _: state is not None and _FAILED.fullmatch(state) is not None)
    return AnswerSummary(text="".join(texts) or None, finish_reason=state, state=failed)


def assemble(content_type: str) -> Assembly:
    """Make an assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, A2aStream())


class A2aStream:
    """The events of one stream, joined into their task."""

    def __init__(self) -> None:
        self._envelope: dict[str, Json] = {}
        self._answer_result: dict[str, Json] = {}
        self._artifacts: dict[str, dict[str, Json]] = {}
        self._named: str | None = None
        self._error: Json = None
        self._has_ended = False

    def add_message(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Add one event: in an envelope of JSON-RPC, or bare."""
        fields = parse_payload(data)
        self._envelope |= {name: fields[name] for name in ("jsonrpc", "id") if name in fields}
        if "error" in fields:
            self._error = fields["error"]
        wrapper, result = _unwrap_result(as_object(fields.get("result")) if "result" in fields else fields)
        match wrapper or result.get("kind"):
            case "task" | "message":
                self._add_whole_result(wrapper, result)
            case "statusUpdate" | "status-update":
                self._update_status(result)
            case "artifactUpdate" | "artifact-update":
                self._add_artifact(result)
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The task or message so far, as it would be without streaming."""
        result = {name: value for name, value in self._answer_result.items() if name != "artifacts"}
        if self._artifacts:
            result["artifacts"] = list(self._artifacts.values())
        if self._error is not None:
            return {**self._envelope, "error": self._error}
        if not result:
            return None
        inner: Json = {self._named: result} if self._named else result
        return {**self._envelope, "result": inner} if "jsonrpc" in self._envelope else inner

    @property
    def is_complete(self) -> bool:
        """Whether a message arrived, or the task ended or is marked as final."""
        return self._error is None and self._has_ended

    def _add_whole_result(self, wrapper: str | None, result: Mapping[str, Json]) -> None:
        self._named = wrapper
        self._answer_result |= result
        for artifact in map(as_object, as_array(result.get("artifacts"))):
            self._artifacts[as_text(artifact.get("artifactId"))] = dict(artifact)
        self._has_ended = self._has_ended or "status" not in result or _is_over(result)

    def _update_status(self, update: Mapping[str, Json]) -> None:
        self._start_task(update)
        self._answer_result["status"] = update.get("status")
        self._has_ended = self._has_ended or update.get("final") is True or _is_over(update)

    def _add_artifact(self, update: Mapping[str, Json]) -> None:
        self._start_task(update)
        artifact = as_object(update.get("artifact"))
        name = as_text(artifact.get("artifactId"))
        before = self._artifacts.get(name)
        if update.get("append") is True and before is not None:
            joined = [*as_array(before.get("parts")), *as_array(artifact.get("parts"))]
            self._artifacts[name] = {**before, **artifact, "parts": joined}
        else:
            self._artifacts[name] = dict(artifact)

    def _start_task(self, update: Mapping[str, Json]) -> None:
        """Start the task from an update: a stream that is resumed does not begin with it."""
        if not self._answer_result:
            known = {"id": update.get("taskId"), "contextId": update.get("contextId")}
            self._answer_result = {**known, "kind": "task"} if "kind" in update else known
            self._named = None if "kind" in update else "task"


def _unwrap_result(result: Mapping[str, Json]) -> tuple[str | None, Mapping[str, Json]]:
    """Split a result of version 1.0 into the member that names its type, and the value."""
    for name in ("task", "message", "statusUpdate", "artifactUpdate"):
        if isinstance(result.get(name), Mapping) and "kind" not in result:
            return name, as_object(result[name])
    return None, result


def _answer_result(answer: Mapping[str, Json]) -> Mapping[str, Json]:
    return _unwrap_result(as_object(answer.get("result")) if "result" in answer else answer)[1]


def _is_over(task: Mapping[str, Json]) -> bool:
    return _ENDED.fullmatch(as_text(as_object(task.get("status")).get("state"))) is not None


def _message_parts(message: Mapping[str, Json]) -> Sequence[Mapping[str, Json]]:
    return [as_object(part) for part in as_array(message.get("parts"))]


_STREAMING: Final = ("message/stream", "SendStreamingMessage")


def _requested_form(criteria: FormCriteria) -> AnswerForm:
    """The method or the path asks for a stream."""
    return "sse" if criteria.streams or as_object(criteria.body).get("method") in _STREAMING else "whole"


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make a message of the agent, in the version that the request has."""
    if parts.operation != "invoke_agent" or parts.tool_calls:
        return None
    head: dict[str, Json] = {"messageId": f"msg-{parts.id}", "contextId": f"ctx-{parts.id}"}
    method = as_text(parts.request.get("method"))
    result: dict[str, Json]
    if method in ("message/send", "message/stream"):
        result = {"kind": "message", "role": "agent", **head, "parts": [{"kind": "text", "text": parts.text}]}
    else:
        result = {"message": {"role": "ROLE_AGENT", **head, "parts": [{"text": parts.text}]}}
    return {"jsonrpc": "2.0", "id": parts.request.get("id"), "result": result} if method else result


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the message or the whole task as one event."""
    yield sse_message("", dict(answer))


DIALECT: Final = Dialect(
    name="a2a",
    claim=claim,
    claim_json_rpc=claim_json_rpc,
    precedence=5,  # MCP has methods by the same names
    assemble=assemble,
    summarize_answer=summarize_answer,
    error_body=jsonrpc_error,
    answer_form=_requested_form,
    stream_writers={"sse": _write_stream},
    compose_answer=_compose_answer,
)
