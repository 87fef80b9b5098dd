"""Agent to Agent: a request by JSON-RPC or REST, answered by a message or by a task that continues.

A stream tells of one task: the task itself, its states, and its artifacts in pieces. They are folded into the task as the same
agent would have answered it whole. Versions 0.3 (`kind`, `final`) and 1.0 (one member names what it is) differ.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.dialects.protocols.jsonrpc import messages
from calls.model import Headers, Json

NAME: Final = "a2a"

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
"""States in which a task is over, or waits for whoever asked."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """The paths of the REST binding. JSON-RPC is known by its body (`speaks`)."""
    match = _REST.fullmatch(path) if method == "POST" else None
    if match is None:
        return None
    streams = match[2] == "stream"
    return Claim(dialect=NAME, operation="invoke_agent", kind="tool", path=f"{match[1]}/message:send", streams=streams)


def speaks(headers: Headers, methods: tuple[str, ...]) -> Claim | None:  # noqa: ARG001 # as MCP has it
    """A claim on these calls of JSON-RPC."""
    match methods:
        case [method] if _METHODS.fullmatch(method):
            operation = _OPERATIONS.get(method, method)
            return Claim(dialect=NAME, operation=operation, kind="tool" if operation != method else "other")
        case _:
            return None


def asked(body: Json) -> RequestSummary:  # noqa: ARG001 # as the protocol has it
    """What is asked for is the message itself."""
    return RequestSummary()


def told(answer: Json) -> AnswerSummary:
    """What the agent says, and in which state its task is."""
    [said, *_] = messages(answer) or [{}]
    result = _result(said)
    state = some(members(result.get("status")).get("state"))
    parts = [part for artifact in elements(result.get("artifacts")) for part in _parts(members(artifact))]
    spoken = parts or _parts(result) or _parts(members(members(result.get("status")).get("message")))
    texts = [text(part.get("text")) for part in spoken if "text" in part]
    return AnswerSummary(text="".join(texts) or None, finish_reason=state)


def assemble(content_type: str) -> Assembly:
    """An assembly for an answer, streamed or not."""
    return AccumulatorAssembly(content_type, A2aStream())


class A2aStream:
    """The events of one stream, folded into the task that they tell of."""

    def __init__(self) -> None:
        self._envelope: dict[str, Json] = {}
        self._result: dict[str, Json] = {}
        self._artifacts: dict[str, dict[str, Json]] = {}
        self._named: str | None = None
        self._error: Json = None
        self._done = False

    def take(self, event: str, data: str) -> None:  # noqa: ARG002 # events have no names
        """Take one event: in an envelope of JSON-RPC, or bare."""
        said = payload(data)
        self._envelope |= {name: said[name] for name in ("jsonrpc", "id") if name in said}
        if "error" in said:
            self._error = said["error"]
        named, result = _opened(members(said.get("result")) if "result" in said else said)
        match named or result.get("kind"):
            case "task" | "message":
                self._take_whole(named, result)
            case "statusUpdate" | "status-update":
                self._take_status(result)
            case "artifactUpdate" | "artifact-update":
                self._take_artifact(result)
            case _:
                pass

    @property
    def answer(self) -> Json:
        """The task or message so far, as it would have been answered whole."""
        result = {name: value for name, value in self._result.items() if name != "artifacts"}
        if self._artifacts:
            result["artifacts"] = list(self._artifacts.values())
        if self._error is not None:
            return {**self._envelope, "error": self._error}
        if not result:
            return None
        inner: Json = {self._named: result} if self._named else result
        return {**self._envelope, "result": inner} if "jsonrpc" in self._envelope else inner

    @property
    def complete(self) -> bool:
        """Whether a message came, or the task said that it is over or that nothing more follows."""
        return self._error is None and self._done

    def _take_whole(self, named: str | None, result: Mapping[str, Json]) -> None:
        self._named = named
        self._result |= result
        for artifact in map(members, elements(result.get("artifacts"))):
            self._artifacts[text(artifact.get("artifactId"))] = dict(artifact)
        self._done = self._done or "status" not in result or _is_over(result)

    def _take_status(self, update: Mapping[str, Json]) -> None:
        self._begin(update)
        self._result["status"] = update.get("status")
        self._done = self._done or update.get("final") is True or _is_over(update)

    def _take_artifact(self, update: Mapping[str, Json]) -> None:
        self._begin(update)
        artifact = members(update.get("artifact"))
        name = text(artifact.get("artifactId"))
        before = self._artifacts.get(name)
        if update.get("append") is True and before is not None:
            joined = [*elements(before.get("parts")), *elements(artifact.get("parts"))]
            self._artifacts[name] = {**before, **artifact, "parts": joined}
        else:
            self._artifacts[name] = dict(artifact)

    def _begin(self, update: Mapping[str, Json]) -> None:
        """A stream that is taken up again does not tell of the task first."""
        if not self._result:
            known = {"id": update.get("taskId"), "contextId": update.get("contextId")}
            self._result = {**known, "kind": "task"} if "kind" in update else known
            self._named = None if "kind" in update else "task"


def _opened(result: Mapping[str, Json]) -> tuple[str | None, Mapping[str, Json]]:
    """The one member that names what a result is (1.0), and what it names."""
    for name in ("task", "message", "statusUpdate", "artifactUpdate"):
        if isinstance(result.get(name), Mapping) and "kind" not in result:
            return name, members(result[name])
    return None, result


def _result(answer: Mapping[str, Json]) -> Mapping[str, Json]:
    return _opened(members(answer.get("result")) if "result" in answer else answer)[1]


def _is_over(task: Mapping[str, Json]) -> bool:
    return _ENDED.fullmatch(text(members(task.get("status")).get("state"))) is not None


def _parts(message: Mapping[str, Json]) -> Sequence[Mapping[str, Json]]:
    return [members(part) for part in elements(message.get("parts"))]
