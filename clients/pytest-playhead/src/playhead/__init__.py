"""Name runs, and query what an agent did in them, from a running Playhead or from a recording's file.

    with playhead.run("ticket-904") as run:
        agent.work()
    assert run.calls.tools == ["search_tickets", "add_note"]

    for run in playhead.Client().runs(label={"branch": "main"}, error=True):
        print(run.id, run.cost_usd)

    assert playhead.load("recordings/ticket-904.jsonl").cost_usd <= 0.02

    flow = playhead.Workflow("refunds")  # plain code whose record can be replayed: docs/workflows.md

It uses the standard library only, because it is installed next to an agent's own requirements.
"""

from typing import TYPE_CHECKING, Any

from playhead.binding import bind, current_run, run
from playhead.bundle import BadBundle, load
from playhead.calls import Call, Calls, ToolCall, ToolCalls
from playhead.checks import CheckFailed
from playhead.client import Client, FoundText, Percentiles, RunSummary, Stats, Sums
from playhead.process import install, proxy, variables
from playhead.rest import Problem, Unreachable
from playhead.runs import Run, Tokens, Unknown
from playhead.stand_ins import answer

if TYPE_CHECKING:
    from playhead.workflow import Trace, Workflow, parallel, parallel_async

__all__ = [
    "BadBundle",
    "Call",
    "Calls",
    "CheckFailed",
    "Client",
    "FoundText",
    "Percentiles",
    "Problem",
    "Run",
    "RunSummary",
    "Stats",
    "Sums",
    "Tokens",
    "ToolCall",
    "ToolCalls",
    "Trace",
    "Unknown",
    "Unreachable",
    "Workflow",
    "answer",
    "bind",
    "current_run",
    "install",
    "load",
    "parallel",
    "parallel_async",
    "proxy",
    "run",
    "variables",
]


def __getattr__(name: str) -> Any:
    """Import what belongs to workflows when it is used: most programs need none of it."""
    if name in ("Trace", "Workflow", "parallel", "parallel_async"):
        from playhead import workflow

        return getattr(workflow, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
