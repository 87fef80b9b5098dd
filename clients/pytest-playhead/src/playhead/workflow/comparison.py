"""Say where two executions of a workflow differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playhead.workflow.values import first_difference

if TYPE_CHECKING:
    from playhead.workflow.trace import Effect, StepRecord, Trace
    from playhead.workflow.values import Json


@dataclass(frozen=True)
class Difference:
    """One place at which two executions differ."""

    step: str
    message: str
    recorded: Json = None
    now: Json = None
    where: str = ""

    def __str__(self) -> str:
        return self.message + (f" ({self.where})" if self.where else "")


def compare_values(what: str, recorded: Json, now: Json) -> str | None:
    """Say in a line where two values differ: `what` at a pointer, what was recorded, what there is now."""
    found = first_difference(recorded, now)
    if found is None:
        return None
    pointer, before, after = found
    return (
        f"{what}{f' differs at {pointer}' if pointer else ' differs'}: recorded {shorten(before)}, now {shorten(after)}"
    )


def shorten(value: Json) -> str:
    """Write a value in at most 80 letters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def list_differences(one: Trace, other: Trace) -> list[Difference]:
    """Return where another trace differs: its input, its steps and their effects and outputs, its end."""
    found = [Difference("", message) for message in [compare_values("the input", one.input, other.input)] if message]
    there = {step.name: step for step in other.steps}
    for step in one.steps:
        if (match := there.get(step.name)) is None:
            found.append(Difference(step.name, f"step `{step.name}` is not in the other"))
        else:
            found.extend(_step_differences(step, match))
    names = {step.name for step in one.steps}
    found.extend(
        Difference(step.name, f"step `{step.name}` is only in the other")
        for step in other.steps
        if step.name not in names
    )
    orders = [[step.name for step in trace.steps] for trace in (one, other)]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        found.append(Difference("", f"the steps are in another order: {', '.join(orders[0])}; {', '.join(orders[1])}"))
    if one.status != other.status:
        found.append(Difference("", f"one is {one.status}, the other {other.status}"))
    return found


def _step_differences(step: StepRecord, other: StepRecord) -> list[Difference]:
    found = []
    here, there = keyed_effects(step), keyed_effects(other)
    for key, effect in here.items():
        label = f"{effect.kind} in `{effect.place}`"
        if (match := there.get(key)) is None:
            found.append(Difference(step.name, f"{label} is not in the other", where=effect.where))
        elif effect.kind != match.kind:
            found.append(Difference(step.name, f"{label} is {match.kind} in the other", where=effect.where))
        else:
            for message, before, now in (
                (
                    compare_values(f"what {label} asks", effect.arguments, match.arguments),
                    effect.arguments,
                    match.arguments,
                ),
                (compare_values(f"the answer of {label}", effect.result, match.result), effect.result, match.result),
                (compare_values(f"the error of {label}", effect.error, match.error), effect.error, match.error),
            ):
                if message is not None:
                    found.append(Difference(step.name, message, before, now, effect.where))
    found.extend(
        Difference(step.name, f"{effect.kind} in `{effect.place}` is only in the other", where=effect.where)
        for key, effect in there.items()
        if key not in here
    )
    for what, before, now in (
        ("whether it was skipped", step.is_skipped, other.is_skipped),
        ("the output", step.output, other.output),
        ("the error", step.error, other.error),
    ):
        if (message := compare_values(f"step `{step.name}`: {what}", before, now)) is not None:
            found.append(Difference(step.name, message, before, now))
    return found


def keyed_effects(step: StepRecord) -> dict[tuple[str, int], Effect]:
    """Return the effects of a step by place and number there."""
    counts: dict[str, int] = {}
    found = {}
    for effect in step.effects:
        number = counts.get(effect.place, 0)
        counts[effect.place] = number + 1
        found[(effect.place, number)] = effect
    return found
