"""Record the steps of LlamaIndex workflows, and the queries, models and retrievers of LlamaIndex, by a span handler."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from playhead.bridges.steps import StepReporter, name_requests


@cache
def install() -> None:
    """Record workflows, queries, models and retrievers from now on. Raises ImportError without llama-index-core."""
    from llama_index.core.instrumentation import get_dispatcher
    from llama_index.core.instrumentation.span import BaseSpan
    from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
    from llama_index_instrumentation.dispatcher import active_span_id

    reporter = StepReporter("llama_index")

    class Handler(BaseSpanHandler[BaseSpan]):  # type: ignore[misc,unused-ignore] # the framework is not there when types are checked
        """Receives the spans of the root dispatcher."""

        def new_span(
            self,
            id_: str,
            bound_args: inspect.BoundArguments,
            instance: Any = None,
            parent_span_id: str | None = None,
            tags: dict[str, Any] | None = None,  # noqa: ARG002
            **_: Any,
        ) -> Any:
            """A function begins. Its id is `Class.function-uuid`."""
            name = id_.rsplit("-", 5)[0] or type(instance).__name__
            arguments = {key: value for key, value in bound_args.arguments.items() if key not in ("self", "ctx")}
            reporter.start(id_, parent_span_id, "step", name, arguments)
            return BaseSpan(id_=id_, parent_id=parent_span_id)

        def prepare_to_exit_span(
            self,
            id_: str,
            bound_args: inspect.BoundArguments,  # noqa: ARG002
            instance: Any = None,  # noqa: ARG002
            result: Any = None,
            **_: Any,
        ) -> Any:
            """A function returned."""
            reporter.end(id_, result)
            return self.open_spans.get(id_)

        def prepare_to_drop_span(
            self,
            id_: str,
            bound_args: inspect.BoundArguments,  # noqa: ARG002
            instance: Any = None,  # noqa: ARG002
            err: BaseException | None = None,
            **_: Any,
        ) -> Any:
            """A function raised an exception."""
            reporter.end(id_, error=err or "stopped")
            return self.open_spans.get(id_)

    def current_function() -> str | None:
        found = active_span_id.get()
        return reporter.name(found) if found else None

    get_dispatcher().add_span_handler(Handler())
    name_requests(current_function)
