"""Record the nodes and checkpoints of LangGraph, and the chains, models, tools and retrievers of LangChain, by a callback handler for all runs."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from playhead.bridges.langgraph_checkpoints import record_checkpoints
from playhead.bridges.steps import StepReporter, name_requests

if TYPE_CHECKING:
    from uuid import UUID


@cache
def install() -> None:
    """Record all graphs, chains, models, tools and retrievers from now on. Raises ImportError without langchain-core."""
    from langchain_core.runnables.config import var_child_runnable_config
    from langchain_core.tracers.context import register_configure_hook

    reporter = StepReporter("langgraph")
    handler = _make_handler(reporter)
    record_checkpoints(reporter)
    # A default holds in every thread and task, whatever context it was started in.
    register_configure_hook(ContextVar("playhead_langgraph", default=handler), True)

    def current_node() -> str | None:
        config = var_child_runnable_config.get(None)
        found = (config or {}).get("metadata", {}).get("langgraph_node")
        return None if found is None else str(found)

    name_requests(current_node)


def _make_handler(reporter: StepReporter) -> Any:
    """Return a callback handler, whose class can be defined only where the framework is there."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Handler(BaseCallbackHandler):  # type: ignore[misc,unused-ignore] # the framework is not there when types are checked
        """Receives the events of LangChain's callback managers."""

        run_inline = True

        def on_chain_start(
            self,
            serialized: dict[str, Any] | None,  # noqa: ARG002
            inputs: Any,
            *,
            run_id: UUID,
            parent_run_id: UUID | None = None,
            metadata: dict[str, Any] | None = None,
            name: str | None = None,
            **_: Any,
        ) -> None:
            """A graph, a node, or a chain within one begins."""
            node = (metadata or {}).get("langgraph_node")
            kind = "node" if node is not None and node == name else "chain"
            reporter.start(run_id, parent_run_id, kind, name or str(node or "chain"), inputs)

        def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
            """A chain or a node returned."""
            reporter.end(run_id, outputs)

        def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
            """A chain or a node raised an exception, or was interrupted to wait for a person."""
            reporter.end(run_id, error=error)

        def on_tool_start(
            self,
            serialized: dict[str, Any] | None,
            input_str: str,
            *,
            run_id: UUID,
            parent_run_id: UUID | None = None,
            **_: Any,
        ) -> None:
            """A tool is called."""
            reporter.start(run_id, parent_run_id, "tool", str((serialized or {}).get("name") or "tool"), input_str)

        def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
            """A tool returned."""
            reporter.end(run_id, getattr(output, "content", output))

        def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
            """A tool raised an exception."""
            reporter.end(run_id, error=error)

        def on_retriever_start(
            self,
            serialized: dict[str, Any] | None,
            query: str,
            *,
            run_id: UUID,
            parent_run_id: UUID | None = None,
            **_: Any,
        ) -> None:
            """Documents are looked up."""
            reporter.start(
                run_id, parent_run_id, "retriever", str((serialized or {}).get("name") or "retriever"), query
            )

        def on_retriever_end(self, documents: Any, *, run_id: UUID, **_: Any) -> None:
            """A retriever returned."""
            reporter.end(run_id, documents)

        def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
            """A retriever raised an exception."""
            reporter.end(run_id, error=error)

    return Handler()
