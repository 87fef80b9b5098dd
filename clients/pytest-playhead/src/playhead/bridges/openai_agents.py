"""Record the agents, tools, handoffs and guardrails of OpenAI's Agents SDK, by a tracing processor."""

from __future__ import annotations

from functools import cache
from typing import Any

from playhead.bridges.steps import StepReporter, name_requests


@cache
def install() -> None:
    """Record from now on; other tracing processors keep working. Raises ImportError without openai-agents."""
    from agents.tracing import TracingProcessor, add_trace_processor, get_current_span

    reporter = StepReporter("agents")

    class Processor(TracingProcessor):  # type: ignore[misc,unused-ignore] # the framework is not there when types are checked
        """Receives the SDK's traces and spans."""

        def on_trace_start(self, trace: Any) -> None:
            """A workflow begins."""
            reporter.start(trace.trace_id, None, "workflow", trace.name)

        def on_trace_end(self, trace: Any) -> None:
            """A workflow ends."""
            reporter.end(trace.trace_id)

        def on_span_start(self, span: Any) -> None:
            """A part of a workflow begins."""
            data = span.span_data
            reporter.start(span.span_id, span.parent_id or span.trace_id, data.type, getattr(data, "name", None) or "")

        def on_span_end(self, span: Any) -> None:
            """A part of a workflow ends. Only now is its input and output known."""
            data = span.span_data.export()
            output = data.get("output") if data.get("output") is not None else data.get("to_agent")
            error = span.error
            reporter.end(
                span.span_id, output, str(error.get("message", error)) if error else None, input=data.get("input")
            )

        def shutdown(self) -> None:
            """Do nothing: this processor holds nothing back."""

        def force_flush(self) -> None:
            """Do nothing: this processor holds nothing back."""

    def current_agent() -> str | None:
        span = get_current_span()
        return reporter.name(span.span_id) if span else None

    add_trace_processor(Processor())
    name_requests(current_agent)
