"""Record the spans of OpenTelemetry: those of pydantic-ai, of OpenInference's instrumentations, and of any other library."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from playhead.bridges.steps import StepReporter, name_requests

if TYPE_CHECKING:
    from collections.abc import Mapping

_INPUTS = (
    "input.value",
    "gen_ai.input.messages",
    "tool_arguments",
    "gen_ai.tool.call.arguments",
    "all_messages_events",
    "events",
)
_OUTPUTS = ("output.value", "gen_ai.output.messages", "final_result", "tool_response", "gen_ai.tool.call.result")
_KINDS = ("openinference.span.kind", "gen_ai.operation.name")


@cache
def install(provider: Any = None) -> None:
    """Record from now on the spans of a tracer provider; without one, of the global one, which is made if there is none.

    Raises ImportError if opentelemetry-sdk is not there.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

    if provider is None:
        provider = trace.get_tracer_provider()
        if not hasattr(provider, "add_span_processor"):
            provider = TracerProvider()
            trace.set_tracer_provider(provider)
    reporter = StepReporter("otel")

    class Processor(SpanProcessor):  # type: ignore[misc,unused-ignore] # the library is not there when types are checked
        """Receives spans."""

        def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002
            """A span begins."""
            attributes = span.attributes or {}
            parent = span.parent.span_id if span.parent else None
            kind = str(_first(attributes, _KINDS) or "span").lower()
            reporter.start(span.context.span_id, parent, kind, span.name)

        def on_end(self, span: Any) -> None:
            """A span ends."""
            error = None if span.status.is_ok or not span.status.description else span.status.description
            attributes = span.attributes or {}
            reporter.end(span.context.span_id, _first(attributes, _OUTPUTS), error, input=_first(attributes, _INPUTS))

    def current_span() -> str | None:
        return reporter.name(trace.get_current_span().get_span_context().span_id)

    provider.add_span_processor(Processor())
    name_requests(current_span)


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if name in attributes), None)
