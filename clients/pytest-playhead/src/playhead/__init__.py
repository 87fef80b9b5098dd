"""Name runs, and query what an agent did in them, from a running Playhead or from a recording's file.

    with playhead.run("ticket-904") as run:
        agent.work()
    assert run.calls.tools == ["search_tickets", "add_note"]

    for run in playhead.Client().runs(label={"branch": "main"}, error=True):
        print(run.id, run.cost_usd)

    assert playhead.load("recordings/ticket-904.jsonl").cost_usd <= 0.02

It uses the standard library only, because it is installed next to an agent's own requirements.
"""

from playhead.binding import bind, current_run, run
from playhead.bundle import BadBundle, load
from playhead.calls import Call, Calls, ToolCall, ToolCalls
from playhead.checks import CheckFailed
from playhead.client import Client, FoundText, Percentiles, RunSummary, Stats, Sums
from playhead.process import install, proxy, variables
from playhead.rest import Problem, Unreachable
from playhead.runs import Run, Tokens, Unknown
from playhead.stand_ins import answer

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
    "Unknown",
    "Unreachable",
    "answer",
    "bind",
    "current_run",
    "install",
    "load",
    "proxy",
    "run",
    "variables",
]
