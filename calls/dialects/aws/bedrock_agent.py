"""AWS Bedrock's agents: a question in text, answered by an event stream of traces and pieces of text.

Bedrock's API has no answer without streaming; the one made here has the text, and all other events in order.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from calls.codec.json import dumps
from calls.codec.lenient_json import as_array, as_count, as_object, as_text, as_text_or_none
from calls.dialects.aws.bedrock_converse import FRAMINGS, error_headers
from calls.dialects.aws.converse_writer import event_frame
from calls.dialects.dialect import AnswerSummary, Assembly, Claim, Dialect, RequestSummary, Service
from calls.dialects.parts.answer_composition import AnswerParts
from calls.dialects.parts.answer_forms import AnswerForm, FormCriteria
from calls.dialects.parts.assembly import AccumulatorAssembly
from calls.dialects.parts.error_bodies import message_error
from calls.dialects.parts.pieces import parse_payload
from calls.dialects.parts.unclaimed_kinds import tool_or_other
from calls.model import Headers, Json, ToolCall, Usage

_PATH: Final = re.compile(r"(/agents/[^/]+/agentAliases/[^/]+/sessions/)[^/]+(/text)|(/flows/[^/]+/aliases/[^/]+)")
_INLINE: Final = re.compile(r"(/agents/)[^/]+()")
"""An agent that is defined in the request. Stored agents are created at such paths too, but at another host."""


def claim(method: str, host: str, path: str, _headers: Headers) -> Claim | None:
    """Claim Bedrock's agents and flows. The session is not part of the key."""
    if method != "POST" or "bedrock" not in host:
        return None
    match = _PATH.fullmatch(path) or (_INLINE.fullmatch(path) if "agent-runtime" in host else None)
    if match is None:
        return None
    key_path = f"{match[1]}*{match[2]}" if match[1] else path
    return Claim(operation="invoke_agent", kind="model", path=key_path)


def summarize_request(body: Json) -> RequestSummary:
    """Find the model of an agent that is defined in the request, and the results that the client returns to an agent."""
    request = as_object(body)
    state = as_object(request.get("sessionState") or request.get("inlineSessionState"))
    results = [as_object(one) for one in as_array(state.get("returnControlInvocationResults"))]
    return RequestSummary(
        model=as_text_or_none(request.get("foundationModel")),
        tool_results=tuple({"id": state.get("invocationId"), "content": dict(one)} for one in results),
    )


def summarize_answer(answer: Json) -> AnswerSummary:
    """Find the text, the calls that the client is to make, the documents that were retrieved, and the usage of its models."""
    fields = as_object(answer)
    invocations = [as_object(one) for one in as_array(as_object(fields.get("returnControl")).get("invocationInputs"))]
    steps = [step for event in as_array(fields.get("trace")) for step in _trace_steps(as_object(event))]
    known = [usage for usage in map(_step_usage, steps) if usage.input_tokens is not None]
    total = Usage(
        input_tokens=sum(usage.input_tokens or 0 for usage in known) if known else None,
        output_tokens=sum(usage.output_tokens or 0 for usage in known) if known else None,
    )
    return AnswerSummary(
        text=as_text_or_none(fields.get("completion")) or "".join(_flow_documents(fields)) or None,
        finish_reason=next(
            filter(
                None, (as_text_or_none(as_object(one).get("completionReason")) for one in _completion_events(fields))
            ),
            None,
        ),
        tool_calls=tuple(map(_tool_call, invocations)),
        usage=total,
        results=tuple(one for step in steps for one in _retrieved_documents(step)),
    )


def assemble(content_type: str) -> Assembly:
    """Make an assembly for the events of an agent."""
    return AccumulatorAssembly(content_type, BedrockAgentStream(), FRAMINGS)


class BedrockAgentStream:
    """The events of one answer."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._events: dict[str, list[Json]] = {}
        self._error: Json = None

    def add_message(self, event: str, data: str) -> None:
        """Add one event."""
        fields = parse_payload(data)
        if event.startswith(("exception:", "error:")):
            self._error = {"type": event.partition(":")[2], **fields}
        elif event == "chunk":
            self._texts.append(_decode_base64(fields.get("bytes")))
            self._events.setdefault("attribution", []).extend(
                [fields["attribution"]] if "attribution" in fields else []
            )
        else:
            self._events.setdefault(event, []).append(dict(fields))

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
    def is_complete(self) -> bool | None:
        """Whether a flow has ended; None for an agent, because only HTTP can tell; False after an error."""
        return False if self._error is not None else True if "flowCompletionEvent" in self._events else None


def _decode_base64(encoded: Json) -> bytes:
    try:
        return base64.b64decode(as_text(encoded))
    except (binascii.Error, ValueError):
        return b""


def _flow_documents(fields: Mapping[str, Json]) -> Iterator[str]:
    """The outputs of the nodes of a flow."""
    for event in as_array(fields.get("flowOutputEvent")):
        yield as_text(as_object(as_object(event).get("content")).get("document"))


def _completion_events(fields: Mapping[str, Json]) -> Sequence[Json]:
    return as_array(fields.get("flowCompletionEvent"))


def _trace_steps(event: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """The steps of a trace: pre-processing, routing, orchestration, post-processing. Each has model calls of its own."""
    yield from map(as_object, as_object(event.get("trace")).values())


def _step_usage(step: Mapping[str, Json]) -> Usage:
    """The usage of one model call of the agent."""
    usage = as_object(as_object(as_object(step.get("modelInvocationOutput")).get("metadata")).get("usage"))
    return Usage(input_tokens=as_count(usage.get("inputTokens")), output_tokens=as_count(usage.get("outputTokens")))


def _retrieved_documents(step: Mapping[str, Json]) -> Iterator[Json]:
    """The documents that one knowledge base lookup retrieved."""
    lookup = as_object(as_object(step.get("observation")).get("knowledgeBaseLookupOutput"))
    for one in map(as_object, as_array(lookup.get("retrievedReferences"))):
        yield {"id": one.get("location"), "score": None, "content": one.get("content")}


def _tool_call(invocation: Json) -> ToolCall:
    function = as_object(
        as_object(invocation).get("functionInvocationInput") or as_object(invocation).get("apiInvocationInput")
    )
    parameters = [as_object(one) for one in as_array(function.get("parameters"))]
    name = as_text(function.get("function")) or as_text(function.get("apiPath"))
    return ToolCall(id=None, name=name, arguments={as_text(one.get("name")): one.get("value") for one in parameters})


def _requested_form(_criteria: FormCriteria) -> AnswerForm:
    return "eventstream"


def _compose_answer(parts: AnswerParts) -> Json | None:
    """Make the text of an agent, or the functions that it leaves to the client; of a flow, its output."""
    if "inputs" in parts.request:
        if parts.tool_calls:
            return None
        output: Json = {"content": {"document": parts.text}, "nodeName": "Output", "nodeType": "FlowOutputNode"}
        completion: Json = {"completionReason": parts.finish_word("SUCCESS", "SUCCESS")}
        return {"flowOutputEvent": [output], "flowCompletionEvent": [completion]}
    text: dict[str, Json] = {} if parts.text is None else {"completion": parts.text}
    if not parts.tool_calls:
        return text
    return {
        **text,
        "returnControl": {"invocationId": parts.id, "invocationInputs": list(map(_composed_call, parts.tool_calls))},
    }


def _composed_call(call: ToolCall) -> Json:
    """A function with its parameters, which are texts."""
    parameters = [
        {"name": name, "type": "string", "value": value if isinstance(value, str) else dumps(value).decode()}
        for name, value in as_object(call.arguments).items()
    ]
    return {"functionInvocationInput": {"actionGroup": "tools", "function": call.name, "parameters": parameters}}


def _write_stream(answer: Mapping[str, Json], _request: Mapping[str, Json]) -> Iterator[bytes]:
    """Write the traces, the text in one chunk, the functions that are left to the client, and the events of a flow."""
    for event in as_array(answer.get("trace")):
        yield event_frame("trace", event)
    if "completion" in answer:
        encoded = base64.b64encode(as_text(answer["completion"]).encode("utf-8", "replace")).decode()
        yield event_frame("chunk", {"bytes": encoded})
    if "returnControl" in answer:
        yield event_frame("returnControl", answer["returnControl"])
    for name in ("flowOutputEvent", "flowCompletionEvent"):
        for event in as_array(answer.get(name)):
            yield event_frame(name, event)


DIALECT: Final = Dialect(
    name="bedrock_agent",
    claim=claim,
    services=(
        Service(
            provider="aws.bedrock",
            host_pattern=r"bedrock-agent(core|-runtime)?\..+\.amazonaws\.com(\.cn)?",
            only_models=False,
            unclaimed_kind=tool_or_other,  # AWS runs tools, sessions and memories there
        ),
    ),
    summarize_request=summarize_request,
    assemble=assemble,
    summarize_answer=summarize_answer,
    error_body=message_error,
    error_headers=error_headers,
    answer_form=_requested_form,
    stream_writers={"eventstream": _write_stream},
    compose_answer=_compose_answer,
)
