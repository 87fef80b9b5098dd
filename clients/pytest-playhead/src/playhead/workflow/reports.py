"""Report the steps of a workflow and its trace to the run that Playhead records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from playhead.bridges.steps import StepReporter, name_requests
from playhead.workflow.execution import current_place
from playhead.workflow.stored_traces import TRACE

if TYPE_CHECKING:
    from playhead.workflow.execution import Place, Source
    from playhead.workflow.trace import Effect, StepRecord
    from playhead.workflow.values import Json

MOST_TRACE = 4 << 20
"""Characters of a trace that is stored."""

_reporter = StepReporter("workflow")


class ReportedSteps:
    """Gives effects from another source, and reports each step when it ends."""

    def __init__(self, source: Source, workflow: str) -> None:
        self._source = source
        self._workflow = workflow
        self._step: tuple[ReportedSteps, int] | None = None
        name_requests(_current_step)
        _reporter.start(self, None, "run", workflow)

    def start_step(self, number: int, name: str) -> None:
        """Note that a step begins."""
        self._source.start_step(number, name)
        self._step = (self, number)
        _reporter.start(self._step, self, "step", name)

    def take(self, place: Place, kind: str, arguments: Json, where: str) -> Effect | None:
        """Return the next effect of a place; None to perform it."""
        return self._source.take(place, kind, arguments, where)

    def end_step(self, record: StepRecord) -> None:
        """Report the step."""
        self._source.end_step(record)
        output = "skipped" if record.is_skipped else record.output
        _reporter.end(self._step, output, record.error, input=record.input)

    def end_run(self, count: int) -> None:
        """Note that there are no more steps."""
        self._source.end_run(count)

    def finish(self, status: str, text: str) -> None:
        """Report the trace. A step that waits for an answer is reported when it ends."""
        _reporter.forget(self._step)
        _reporter.forget(self)
        _reporter.add_document(TRACE, self._workflow, {"status": status}, text, MOST_TRACE)


def _current_step() -> str | None:
    place = current_place()
    return None if place is None else place.step


def trace_text(content: dict[str, Any]) -> str:
    """Write a trace as one text of ASCII."""
    return json.dumps(content, separators=(",", ":"))
