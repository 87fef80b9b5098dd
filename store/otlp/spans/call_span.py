"""The span of a call."""

from collections.abc import Mapping

from store.otlp.spans.attributes import Attributes
from store.otlp.spans.call_facts import SpannedCall
from store.otlp.spans.genai import put_genai
from store.otlp.spans.ids import TraceIds, call_span_id
from store.otlp.spans.openinference import put_openinference
from store.otlp.spans.span import Span, SpanEvent


def call_span(call: SpannedCall, ids: TraceIds, names: Mapping[str, str], *, content: bool) -> Span:
    """Make the span of a call. It is a child of the model call that requested it as a tool, else of the run's span."""
    shape = call.shape
    attributes = Attributes()
    put_genai(attributes, names, call, run=shape["run"], content=content)
    put_openinference(attributes, call, run=shape["run"], content=content)
    _put_own(attributes, call, content=content)
    return Span(
        trace=ids.trace,
        id=call_span_id(ids.trace, shape["id"]),
        parent=call_span_id(ids.trace, call.tool.asker) if call.tool else ids.root,
        name=_span_name(call),
        kind="client",
        started_at=call.started_at,
        ended_at=call.ended_at,
        attributes=attributes,
        events=_events(call, content=content),
        error=call.error and _error_message(call, content=content),
    )


def _span_name(call: SpannedCall) -> str:
    subject = {"model": call.model, "tool": call.tool_name}.get(call.shape["kind"]) or call.shape["host"]
    return f"{call.operation or call.shape['method']} {subject}"


def _put_own(attributes: Attributes, call: SpannedCall, *, content: bool) -> None:
    put, shape = attributes.put, call.shape
    put("playhead.run", shape["run"])
    put("playhead.call", shape["id"])
    put("playhead.step", shape["step"])
    put("playhead.attempts", shape["attempts"])
    put("playhead.outcome", shape["outcome"])
    put("playhead.complete", shape["complete"])
    put("playhead.cost_usd", shape["cost_usd"])
    put("url.path", shape["path"] if content else None)


def _events(call: SpannedCall, *, content: bool) -> tuple[SpanEvent, ...]:
    events: list[SpanEvent] = []
    if call.is_cut:
        events.append(
            SpanEvent(call.ended_at, "playhead.cut_answer", Attributes({"playhead.outcome": call.shape["outcome"]}))
        )
    if call.error:
        attributes = Attributes({"exception.type": call.error})
        attributes.put("exception.message", _error_message(call, content=content))
        events.append(SpanEvent(call.ended_at, "exception", attributes))
    return tuple(events)


def _error_message(call: SpannedCall, *, content: bool) -> str:
    text = call.error_text if content else None
    return text or (f"HTTP {call.error}" if call.error and call.error.isdigit() else str(call.error))
