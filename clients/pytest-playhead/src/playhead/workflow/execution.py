"""Execute steps, and give each effect from its source: the world, or a record."""

from __future__ import annotations

import builtins
import contextvars
import inspect
import os
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Protocol

from playhead.workflow.coroutines import run_coroutine
from playhead.workflow.models import ModelError
from playhead.workflow.purity import forbid_unowned_effects
from playhead.workflow.trace import Effect, Question, StepRecord
from playhead.workflow.values import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from playhead.workflow.comparison import Difference
    from playhead.workflow.flow import Step
    from playhead.workflow.values import Json

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class StepFailed(RuntimeError):
    """A step that raised an exception, after its retries. `__cause__` is the exception, `trace` the record until then."""

    trace: Any = None


class EffectFailed(RuntimeError):
    """An effect that failed in the record, with an exception that is not one of Python's own."""


class Parted(BaseException):
    """The code asks for something other than the record has. Not an Exception, so that no step's `except` hides it."""

    def __init__(self, difference: Difference) -> None:
        self.difference = difference
        super().__init__(str(difference))


class Suspended(BaseException):
    """A person has to answer before the workflow can go on. Not an Exception, so that no step's `except` hides it."""

    def __init__(self, question: Question) -> None:
        self.question = question
        super().__init__(question.prompt)


class Source(Protocol):
    """Where effects come from."""

    def start_step(self, number: int, name: str) -> None:
        """Note that a step begins. Raises Parted if the record has another one there."""

    def take(self, place: Place, kind: str, arguments: Json, where: str) -> Effect | None:
        """Return the next effect of a place; None to perform it. Raises Parted and Suspended."""

    def end_step(self, record: StepRecord) -> None:
        """Compare a step with the record. Raises Parted."""

    def end_run(self, count: int) -> None:
        """Note that there are no more steps. Raises Parted if the record has more."""


@dataclass
class Place:
    """A sequence of effects: a step, or a branch of `parallel` within one."""

    execution: Execution
    step: str
    path: str
    effects: list[Effect] = field(default_factory=list)
    """Also those of its branches that have ended."""

    number: int = 0
    """How many effects of its own there were."""

    branchings: int = 0

    def add(self, effect: Effect) -> None:
        """Append an effect of its own."""
        self.effects.append(effect)
        self.number += 1


_current: contextvars.ContextVar[Place | None] = contextvars.ContextVar("playhead_workflow_place", default=None)


def current_place() -> Place | None:
    """Return the place whose code runs here, None outside of workflows."""
    return _current.get()


@contextmanager
def enter_place(place: Place) -> Iterator[None]:
    """Run the code of a block in a place."""
    token = _current.set(place)
    try:
        yield
    finally:
        _current.reset(token)


class Execution:
    """One pass through the steps of a workflow."""

    def __init__(
        self,
        source: Source,
        ask: Callable[[Mapping[str, Json]], Mapping[str, Json]],
        seed: int,
        *,
        guard: bool,
    ) -> None:
        self.source = source
        self.ask = ask
        self.seed = seed
        self._guard = guard

    def execute(self, steps: Sequence[Step], value: Any, records: list[StepRecord]) -> Any:
        """Execute all steps, append their records, and return the last output.

        Raises StepFailed, Parted, Suspended, and NotRecordable for a step that gives no plain data.
        """
        outputs: dict[str, Any] = {}
        for number, step in enumerate(steps):
            self.source.start_step(number, step.name)
            record = StepRecord(name=step.name, kind="code" if step.fn else "model")
            record.input = to_json(value, f"the input of step `{step.name}`")
            records.append(record)
            if step.when is not None and not step.when(from_json(record.input)):
                record.is_skipped = record.is_whole = True
            else:
                value = outputs[step.name] = self._execute_step(step, record, outputs)
            self.source.end_step(record)
        self.source.end_run(len(steps))
        return value

    def _execute_step(self, step: Step, record: StepRecord, outputs: Mapping[str, Any]) -> Any:
        place = Place(self, step.name, step.name, record.effects)
        for attempt in range(step.retries + 1):
            # Each attempt gets a value of its own: what a failed one changed in it is not seen by the next.
            value = from_json(record.input)
            try:
                with enter_place(place):
                    result = self._call_code(step, value, outputs) if step.fn else self._ask_model(step, value)
                record.output = to_json(result, f"the output of step `{step.name}`")
            except Exception as error:
                if attempt < step.retries:
                    continue
                record.error = describe_error(error)
                record.is_whole = True
                self.source.end_step(record)
                raise StepFailed(f"step `{step.name}` failed: {record.error}") from error
            break
        record.is_whole = True
        # What the next step gets is what a replay gives it: lists instead of tuples, and no object that two steps share.
        return from_json(record.output)

    def _call_code(self, step: Step, value: Any, outputs: Mapping[str, Any]) -> Any:
        assert step.fn is not None
        arguments = (value, dict(outputs)) if _takes_outputs(step.fn) else (value,)
        with forbid_unowned_effects(step.name) if self._guard else nullcontext():
            result = step.fn(*arguments)
        if inspect.iscoroutine(result):
            return run_coroutine(result)
        return result

    def _ask_model(self, step: Step, value: Any) -> Any:
        request = {"model": step.model, "messages": step.messages(value), **step.parameters}
        arguments = to_json(request, f"the request of step `{step.name}`")
        answer = perform("model", arguments, lambda: self.ask(request), where=step.where)
        return answer["text"] if isinstance(answer, dict) and "text" in answer else answer


def perform(kind: str, arguments: Json, act: Callable[[], Any], *, where: str | None = None) -> Any:
    """Return the result of an effect: from the record, or by performing it. Outside of workflows it is only performed."""
    place = current_place()
    if place is None:
        return act()
    place_name = where or caller()
    effect = place.execution.source.take(place, kind, arguments, place_name)
    if effect is None:
        try:
            result = to_json(act(), f"the result of {kind}")
        except Exception as error:
            place.add(Effect(kind, arguments, place.path, place_name, error=describe_error(error)))
            raise
        effect = Effect(kind, arguments, place.path, place_name, result)
    place.add(effect)
    if effect.error is not None:
        raise _rebuild_error(effect.error)
    return from_json(effect.result)


def describe_error(error: BaseException) -> str:
    """Write an exception as `Type: message`."""
    return f"{type(error).__name__}: {error}"


def caller() -> str:
    """Return file and line of the code that called the client, relative to the working directory where it is below it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return describe_line(frame.f_code.co_filename, frame.f_lineno)


def describe_line(file: str, line: int) -> str:
    """Write a line of code as `file:line`."""
    here = os.getcwd() + os.sep
    return f"{file[len(here) :] if file.startswith(here) else file}:{line}"


def _takes_outputs(fn: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a function of C that says nothing
        return False
    required = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) and each.default is each.empty
    ]
    return len(required) == 2


def _rebuild_error(text: str) -> Exception:
    """Return an exception of the recorded type, where it is one of Python's own or a model's."""
    name, _, message = text.partition(": ")
    if name == ModelError.__name__:
        return ModelError(message)
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, UnicodeError):
        return found(message)
    return EffectFailed(text)
