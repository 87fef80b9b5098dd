"""Declare a workflow: steps of plain code and steps that ask a model."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import os
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Callable

from playhead.binding import current_run
from playhead.people import rfc3339_now, user_name
from playhead.workflow.bisection import Bisection, bisect_traces
from playhead.workflow.comparison import Difference
from playhead.workflow.coroutines import use_loop
from playhead.workflow.execution import Execution, Parted, StepFailed, Suspended, caller, describe_error
from playhead.workflow.models import ask_model
from playhead.workflow.replay import Answer, RecordedEffects, Replay
from playhead.workflow.trace import Trace
from playhead.workflow.values import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playhead.workflow.execution import Place, Source
    from playhead.workflow.trace import Effect, StepRecord
    from playhead.workflow.values import Json

Ask = Callable[["Mapping[str, Json]"], "Mapping[str, Json]"]
"""Asks a model: a request with `model`, `messages` and parameters; an answer with `text`, and what else should be recorded."""


@dataclass(frozen=True)
class Step:
    """One step of a workflow."""

    name: str
    fn: Callable[..., Any] | None = None
    model: str | None = None
    prompt: Callable[[Any], Any] | str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    when: Callable[[Any], bool] | None = None
    retries: int = 0
    where: str = ""

    def messages(self, value: Any) -> list[Any]:
        """Return the messages that ask the model about a value."""
        if callable(self.prompt):
            value = self.prompt(value)
        elif self.prompt is not None:
            return [{"role": "user", "content": self.prompt.replace("{input}", _as_text(value))}]
        if isinstance(value, list) and value and all(isinstance(each, dict) and "role" in each for each in value):
            return value
        return [{"role": "user", "content": _as_text(value)}]


class Workflow:
    """Steps in order. The output of one is the input of the next.

        flow = Workflow("refunds")
        flow.step("classify", model="gpt-4o", temperature=0, prompt="What does the customer want?\n\n{input}")
        flow.step("route", fn=route_intent)
        flow.step("respond", model="claude-haiku-4-5")
        trace = flow.run("Where is my money?", seed=42)
        assert trace.replay()

    `ask` replaces how models are asked. With `guard`, a step of plain code that reads the clock, the disk, the environment or the network by
    itself, and not through `effects`, raises UnownedEffect.
    """

    def __init__(self, name: str, *, ask: Ask | None = None, guard: bool = False) -> None:
        self.name = name
        self.ask = ask or ask_model
        self.steps: list[Step] = []
        self._guard = guard

    def step(
        self,
        name: str,
        *,
        fn: Callable[..., Any] | None = None,
        model: str | None = None,
        prompt: Callable[[Any], Any] | str | None = None,
        when: Callable[[Any], bool] | None = None,
        retries: int = 0,
        **parameters: Any,
    ) -> None:
        """Add a step: `fn` is called with the output of the step before (and with a dict of all outputs, if it takes two
        arguments); `model` is asked with it, in the place of `{input}` in `prompt` or as `prompt(value)` returns it.

        `fn` may be a coroutine function: `await flow.run_async(…)` runs it in its event loop, `flow.run(…)` in one of its own.

        Where `when(value)` is false the step is skipped. One that fails is tried `retries` times more. `parameters` go to the model's API.
        """
        if (fn is None) == (model is None):
            raise TypeError(f"step `{name}` needs either fn= or model=")
        if fn is not None and (prompt is not None or parameters):
            raise TypeError(f"step `{name}` is code: {', '.join(['prompt'] if prompt else parameters)} is for a model")
        if any(step.name == name for step in self.steps):
            raise ValueError(f"there is a step `{name}` already: a replay finds steps by name")
        if "/" in name or not name:
            raise ValueError(f"{name!r} cannot be the name of a step: it must not be empty or have a slash")
        self.steps.append(Step(name, fn, model, prompt, parameters, when, retries, caller()))

    def run(self, input: Any = None, *, seed: int | None = None) -> Trace:  # noqa: A002 - the name in the public API
        """Execute the workflow. The trace is `waiting` if a person has to answer first; see `resume`.

        Raises StepFailed, which has the trace until then as `trace`.
        """
        trace = Trace(
            workflow=self.name,
            seed=secrets.randbits(48) if seed is None else seed,
            input=to_json(input, "the input of the workflow"),
            run=current_run(),
            flow=self,
        )
        return self._complete_and_report(trace, _LiveEffects())

    async def run_async(self, input: Any = None, *, seed: int | None = None) -> Trace:  # noqa: A002 - the name in the public API
        """Execute the workflow in a thread; its coroutine steps run in this event loop. Otherwise like `run`."""
        loop = asyncio.get_running_loop()
        with use_loop(loop):
            work = functools.partial(contextvars.copy_context().run, self.run, input, seed=seed)
        return await loop.run_in_executor(None, work)

    def replay(self, trace: Trace) -> Replay:
        """Execute the code with all effects of a trace. Nothing is asked."""
        again = replace(trace, steps=[], status="done", error=None, waiting=None, flow=self)
        source = RecordedEffects(trace, [step.name for step in self.steps])
        try:
            self._complete(again, source)
        except StepFailed:
            pass  # compared with the record below
        except Parted as parted:
            return Replay(again, parted.difference)
        if again.status != trace.status:
            message = f"the recording is {trace.status}, the replay {again.status}"
            return Replay(again, Difference("", f"{message}: {again.error}" if again.error else message))
        return Replay(again, None)

    def resume(self, trace: Trace, answer: Any = None, *, by: str | None = None) -> Trace:
        """Go on with a trace that waits, with a person's answer. What was recorded is not asked again.

        Raises RuntimeError with the first difference if the code asks for something else by now.
        """
        if trace.status != "waiting" or trace.waiting is None:
            raise ValueError(f"this trace does not wait for an answer: it is {trace.status}")
        new_answer = Answer(
            to_json(answer, "the answer"),
            by or user_name(),
            rfc3339_now(),
        )
        source = RecordedEffects(trace, [step.name for step in self.steps], goes_on=True, answer=new_answer)
        again = replace(trace, steps=[], status="done", error=None, waiting=None, flow=self)
        try:
            return self._complete_and_report(again, source)
        except Parted as parted:
            raise RuntimeError(f"the code is not what it was when the workflow stopped: {parted}") from None

    def bisect(self, one: Trace, other: Trace) -> Bisection:
        """Find the effect of `other` that makes the output of `one` become that of `other`. Nothing is asked."""
        return bisect_traces(self.steps, one, other)

    def _complete_and_report(self, trace: Trace, source: Source) -> Trace:
        """Complete a trace, with its steps and itself reported to the run that Playhead records, if there is one."""
        if not (os.environ.get("PLAYHEAD_API") and (current_run() or os.environ.get("PLAYHEAD_RUN"))):
            return self._complete(trace, source)
        from playhead.workflow.reports import ReportedSteps, trace_text

        reported = ReportedSteps(source, self.name)
        try:
            return self._complete(trace, reported)
        finally:
            reported.finish(trace.status, trace_text(trace.content()))

    def _complete(self, trace: Trace, source: Source) -> Trace:
        execution = Execution(source, self.ask, trace.seed, guard=self._guard)
        try:
            execution.execute(self.steps, from_json(trace.input), trace.steps)
        except Suspended as suspended:
            trace.status, trace.waiting = "waiting", suspended.question
        except StepFailed as failure:
            trace.status, trace.error = "failed", describe_error(failure.__cause__ or failure)
            failure.trace = trace
            raise
        return trace


class _LiveEffects:
    """The world."""

    def start_step(self, number: int, name: str) -> None:
        """Accept any step."""

    def take(self, place: Place, kind: str, arguments: Json, where: str) -> Effect | None:  # noqa: ARG002
        """Have every effect performed."""
        return None

    def end_step(self, record: StepRecord) -> None:
        """Accept any output."""

    def end_run(self, count: int) -> None:
        """Accept any number of steps."""


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(to_json(value, "the prompt"), ensure_ascii=False)
