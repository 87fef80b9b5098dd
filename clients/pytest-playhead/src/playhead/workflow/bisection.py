"""Find the effect that makes one execution of a workflow end like another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from playhead.workflow.comparison import Difference, compare_values, keyed_effects
from playhead.workflow.execution import Execution, Parted, Place, StepFailed, Suspended
from playhead.workflow.values import first_difference, from_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from playhead.workflow.flow import Step
    from playhead.workflow.trace import Effect, StepRecord, Trace
    from playhead.workflow.values import Json


Key = tuple[str, int]
"""An effect's place, and its number there."""


@dataclass(frozen=True)
class Bisection:
    """Which effect makes the difference. False if none could be found; `message` says why."""

    effect: Effect | None
    message: str

    def __bool__(self) -> bool:
        return self.effect is not None

    def __str__(self) -> str:
        return self.message


def bisect_traces(steps: Sequence[Step], one: Trace, other: Trace) -> Bisection:
    """Execute with the effects of one trace, and more and more of another's in their place, until the output is the other's."""
    here = {key: effect for step in one.steps for key, effect in keyed_effects(step).items()}
    there = {key: effect for step in other.steps for key, effect in keyed_effects(step).items()}
    differing = [
        key
        for key, effect in here.items()
        if key in there and (effect.result, effect.error) != (there[key].result, there[key].error)
    ]
    bad_outcome = (other.status, other.output)
    if (one.status, one.output) == bad_outcome:
        return Bisection(None, "both end alike, so there is nothing to find")
    if not differing:
        return Bisection(None, "no effect has another answer in the other trace: the input or the code differs")
    for count in range(1, len(differing) + 1):
        outcome = _execute_with(steps, one, _MixedEffects(set(differing[:count]), here, there))
        if isinstance(outcome, str):
            continue
        if outcome == bad_outcome:
            effect = there[differing[count - 1]]
            before = here[differing[count - 1]]
            change = (
                compare_values("its answer", before.result, effect.result)
                or f"its error: {effect.error or before.error}"
            )
            return Bisection(
                effect, f"{effect.kind} in `{effect.place}` makes the difference ({effect.where}): {change}"
            )
    return Bisection(
        None, "no effect alone, and not all in order, make the output that of the other: the input or the code differs"
    )


class _MixedEffects:
    """The effects of two traces. An effect that the one trace does not have is taken from the other."""

    def __init__(self, exchanged: set[Key], here: Mapping[Key, Effect], there: Mapping[Key, Effect]) -> None:
        self._exchanged = exchanged
        self._here = here
        self._there = there

    def start_step(self, number: int, name: str) -> None:
        """Accept any step."""

    def take(self, place: Place, kind: str, arguments: Json, where: str) -> Effect | None:
        """Return the effect that was asked in this way."""
        key = (place.path, place.number)
        both = (self._here, self._there)
        for effects in reversed(both) if key in self._exchanged else both:
            effect = effects.get(key)
            if effect is not None and effect.kind == kind and first_difference(effect.arguments, arguments) is None:
                return effect
        raise Parted(
            Difference(place.step, f"{kind} in `{place.path}` was asked like this in neither trace", where=where)
        )

    def end_step(self, record: StepRecord) -> None:
        """Accept any output."""

    def end_run(self, count: int) -> None:
        """Accept any number of steps."""


def _execute_with(steps: Sequence[Step], trace: Trace, source: _MixedEffects) -> tuple[str, object] | str:
    """Return how an execution ends and its output, or why these are not known."""
    execution = Execution(source, _refuse_to_ask, trace.seed, guard=False)
    again = replace(trace, steps=[])
    try:
        execution.execute(steps, from_json(trace.input), again.steps)
    except StepFailed:
        return "failed", again.output
    except Suspended as suspended:
        return str(suspended)
    except Parted as parted:
        return str(parted)
    return "done", again.output


def _refuse_to_ask(request: Mapping[str, Json]) -> Mapping[str, Json]:
    raise AssertionError(f"a bisection asks nobody: {request}")
