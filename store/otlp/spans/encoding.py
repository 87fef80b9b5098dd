"""Encode spans as protobuf: an `ExportTraceServiceRequest` of OTLP 1."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from store.otlp.spans.attributes import Attributes, clean_text
from store.otlp.spans.span import Span

SERVICE: Final = "playhead"
MAX_REQUEST_SIZE: Final = 2 << 20

_KINDS: Final = {"client": trace_pb2.Span.SPAN_KIND_CLIENT, "internal": trace_pb2.Span.SPAN_KIND_INTERNAL}


def encode_spans(spans: Iterable[Span], resource: Mapping[str, str]) -> Iterator[bytes]:
    """Encode spans as requests of at most `MAX_REQUEST_SIZE` bytes, if no single span exceeds that. Requests may be joined: repeated fields
    of protobuf are concatenated."""
    batch: list[trace_pb2.Span] = []
    batch_size = 0
    for span in map(_span, spans):
        span_size = span.ByteSize()
        if batch and batch_size + span_size > MAX_REQUEST_SIZE:
            yield _request(batch, resource)
            batch, batch_size = [], 0
        batch.append(span)
        batch_size += span_size
    if batch:
        yield _request(batch, resource)


def _request(spans: Sequence[trace_pb2.Span], resource: Mapping[str, str]) -> bytes:
    scope = trace_pb2.ScopeSpans(scope=InstrumentationScope(name=SERVICE, version=version("playhead")), spans=spans)
    attributes = Attributes(resource)
    traces = trace_pb2.ResourceSpans(resource=Resource(attributes=_key_values(attributes)), scope_spans=[scope])
    encoded: bytes = ExportTraceServiceRequest(resource_spans=[traces]).SerializeToString()
    return encoded


def resource_attributes(project: str | None) -> dict[str, str]:
    """Return the attributes of the resource. `project` is what Phoenix and others file the traces under."""
    return {"service.name": project or SERVICE} | ({"openinference.project.name": project} if project else {})


def _span(span: Span) -> trace_pb2.Span:
    failed = trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR, message=clean_text(span.error or ""))
    return trace_pb2.Span(
        trace_id=span.trace,
        span_id=span.id,
        parent_span_id=span.parent or b"",
        name=clean_text(span.name),
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.started_at,
        end_time_unix_nano=span.ended_at,
        attributes=_key_values(span.attributes),
        events=[
            trace_pb2.Span.Event(time_unix_nano=event.at, name=event.name, attributes=_key_values(event.attributes))
            for event in span.events
        ],
        links=[
            trace_pb2.Span.Link(trace_id=link.trace, span_id=link.span, attributes=_key_values(link.attributes))
            for link in span.links
        ],
        status=failed if span.error else trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_UNSET),
    )


def _key_values(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=clean_text(name), value=_any_value(value)) for name, value in attributes.items()]


def _any_value(value: str | bool | int | float | list[str]) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=one) for one in value]))
