"""A workflow as plain code, whose record can be replayed, compared and resumed. See docs/workflows.md.

values      plain data as JSON, digests, the first difference
trace       the record: steps and their effects; its file
comparison  where two traces differ
execution   one pass through the steps; where effects come from
purity      stop code that reads the clock or the disk by itself
models      ask a model over HTTP
replay      effects from a record, compared with what the code asks
bisection   the effect that makes the difference
reports     steps and traces for the run that Playhead records
stored_traces  traces that a run has
coroutines  steps that are coroutine functions
branches    several functions at once, with results in order
flow        the declaration: `Workflow`, `step`, `run`, `replay`, `resume`
"""

from playhead.workflow.bisection import Bisection
from playhead.workflow.branches import parallel, parallel_async
from playhead.workflow.comparison import Difference
from playhead.workflow.execution import EffectFailed, StepFailed
from playhead.workflow.flow import Workflow
from playhead.workflow.models import ModelError
from playhead.workflow.purity import UnownedEffect
from playhead.workflow.replay import Replay
from playhead.workflow.trace import BadTrace, Effect, Question, StepRecord, Trace
from playhead.workflow.values import NotRecordable

__all__ = [
    "BadTrace",
    "Bisection",
    "Difference",
    "Effect",
    "EffectFailed",
    "ModelError",
    "NotRecordable",
    "Question",
    "Replay",
    "StepFailed",
    "StepRecord",
    "Trace",
    "UnownedEffect",
    "Workflow",
    "parallel",
    "parallel_async",
]
