"""AWS Bedrock's agents: a question in text, answered by an event stream of traces and pieces of text.

There is no whole answer in Bedrock's API; the one made here has the text, and all other events in their order.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from calls.codec.lenient_json import count, elements, members, some, text
from calls.dialects import AnswerSummary, Assembly, Claim, RequestSummary
from calls.dialects.aws.bedrock_converse import FRAMINGS
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.pieces import payload
from calls.model import Headers, Json, ToolCall, Usage

NAME: Final = "bedrock_agent"

_PATH: Final = re.compile(r"(/agents/[^/]+/agentAliases/[^/]+/sessions/)[^/]+(/text)|(/flows/[^/]+/aliases/[^/]+)")
_INLINE: Final = re.compile(r"(/agents/)[^/]+()")
"""An agent that is described with the question. What makes agents to be kept has such paths too, at a host of its own."""


def claims(method: str, host: str, path: str, headers: Headers) -> Claim | None:  # noqa: ARG001 # as the protocol has it
    """Bedrock's agents and flows. A session is who is talking, not what is asked."""
    if method != "POST" or "bedrock" not in host:
        return None
    match = _PATH.fullmatch(path) or (_INLINE.fullmatch(path) if "agent-runtime" in host else None)
    if match is None:
        return None
    place = f"{match[1]}*{match[2]}" if match[1] else path
    return Claim(dialect=NAME, operation="invoke_agent", kind="model", path=place)


def asked(body: Json) -> RequestSummary:
    """The model of an agent that is described here, and what was done outside on an agent's behalf."""
    request = members(body)
    state = members(request.get("sessionState") or request.get("inlineSessionState"))
    results = [members(one) for one in elements(state.get("returnControlInvocationResults"))]
    return RequestSummary(
        model=some(request.get("foundationModel")),
        tool_results=tuple({"id": state.get("invocationId"), "content": dict(one)} for one in results),
    )


def told(answer: Json) -> AnswerSummary:
    """What the agent says, what it wants done outside, what it looked up, and what its models took."""
    said = members(answer)
    wanted = [members(one) for one in elements(members(said.get("returnControl")).get("invocationInputs"))]
    steps = [step for event in elements(said.get("trace")) for step in _steps(members(event))]
    known = [usage for usage in map(_usage, steps) if usage.input_tokens is not None]
    total = Usage(
        input_tokens=sum(usage.input_tokens or 0 for usage in known) if known else None,
        output_tokens=sum(usage.output_tokens or 0 for usage in known) if known else None,
    )
    return AnswerSummary(
        text=some(said.get("completion")) or "".join(_documents(said)) or None,
        finish_reason=next(filter(None, (some(members(one).get("completionReason")) for one in _ends(said))), None),
        tool_calls=tuple(map(_tool_call, wanted)),
        usage=total,
        results=tuple(one for step in steps for one in _found(step)),
    )


def assemble(content_type: str) -> Assembly:
    """An assembly for the events of an agent."""
    return AccumulatorAssembly(content_type, BedrockAgentStream(), FRAMINGS)


class BedrockAgentStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._events: dict[str, list[Json]] = {}
        self._error: Json = None

    def take(self, event: str, data: str) -> None:
        """Take one event."""
        said = payload(data)
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **said}
        elif event == "chunk":
            self._texts.append(_opened(said.get("bytes")))
            self._events.setdefault("attribution", []).extend([said["attribution"]] if "attribution" in said else [])
        else:
            self._events.setdefault(event, []).append(dict(said))

    @property
    def answer(self) -> Json:
        """The text and the events so far."""
        answer: dict[str, Json] = {name: events for name, events in self._events.items() if events}
        if "returnControl" in answer:
            answer["returnControl"] = self._events["returnControl"][-1]
        if self._texts:
            answer["completion"] = b"".join(self._texts).decode("utf-8", "replace")
        return {**answer, "error": self._error} if self._error is not None else answer or None

    @property
    def complete(self) -> bool | None:
        """An error is no whole answer; a flow says that it is over, for an agent only HTTP can tell."""
        return False if self._error is not None else True if "flowCompletionEvent" in self._events else None


def _opened(written: Json) -> bytes:
    try:
        return base64.b64decode(text(written))
    except (binascii.Error, ValueError):
        return b""


def _documents(said: Mapping[str, Json]) -> Iterator[str]:
    """What the nodes of a flow put out."""
    for event in elements(said.get("flowOutputEvent")):
        yield text(members(members(event).get("content")).get("document"))


def _ends(said: Mapping[str, Json]) -> Sequence[Json]:
    return elements(said.get("flowCompletionEvent"))


def _steps(event: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """What a trace tells of: preparing, routing, orchestrating, going over the answer; each has models of its own."""
    yield from map(members, members(event.get("trace")).values())


def _usage(step: Mapping[str, Json]) -> Usage:
    """What one of the agent's own models took."""
    used = members(members(members(step.get("modelInvocationOutput")).get("metadata")).get("usage"))
    return Usage(input_tokens=count(used.get("inputTokens")), output_tokens=count(used.get("outputTokens")))


def _found(step: Mapping[str, Json]) -> Iterator[Json]:
    """What one look into a knowledge base found."""
    looked = members(members(step.get("observation")).get("knowledgeBaseLookupOutput"))
    for one in map(members, elements(looked.get("retrievedReferences"))):
        yield {"id": one.get("location"), "score": None, "content": one.get("content")}


def _tool_call(wanted: Json) -> ToolCall:
    function = members(members(wanted).get("functionInvocationInput") or members(wanted).get("apiInvocationInput"))
    given = [members(one) for one in elements(function.get("parameters"))]
    name = text(function.get("function")) or text(function.get("apiPath"))
    return ToolCall(id=None, name=name, arguments={text(one.get("name")): one.get("value") for one in given})
