"""Give effects from a record, and compare what the code does with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from playhead.workflow.comparison import Difference, compare_values, shorten
from playhead.workflow.execution import Parted, Suspended
from playhead.workflow.trace import Effect, Question, Trace

if TYPE_CHECKING:
    from playhead.workflow.execution import Place
    from playhead.workflow.trace import StepRecord
    from playhead.workflow.values import Json


@dataclass(frozen=True)
class Replay:
    """What a replay found. True if every step asked for the same and returned the same."""

    trace: Trace
    """What the code did this time."""

    difference: Difference | None

    def __bool__(self) -> bool:
        return self.difference is None

    def __str__(self) -> str:
        if self.difference is None:
            effects = sum(len(step.effects) for step in self.trace.steps)
            return f"equal: {len(self.trace.steps)} steps and {effects} effects, as recorded"
        return f"not as recorded: {self.difference}"


@dataclass(frozen=True)
class Answer:
    """A person's answer to what a workflow waits for."""

    value: Json
    by: str
    at: str


class RecordedEffects:
    """The effects of a trace, in order for each place.

    With `goes_on` the steps after the one that waited, and its own effects after the last recorded one, are performed.
    """

    def __init__(self, trace: Trace, names: list[str], *, goes_on: bool = False, answer: Answer | None = None) -> None:
        self._trace = trace
        self._names = names
        self._goes_on = goes_on
        self._answer = answer
        self._effects: dict[str, list[Effect]] = {}
        for step in trace.steps:
            for effect in step.effects:
                self._effects.setdefault(effect.place, []).append(effect)

    def start_step(self, number: int, name: str) -> None:
        """Refuse a step that was another one, or none, in the record."""
        steps = self._trace.steps
        if number >= len(steps):
            if self._trace.status == "done" or (not self._goes_on and self._trace.status != "waiting"):
                raise Parted(Difference(name, f"step `{name}` is new: the recording ends before it"))
            return
        if steps[number].name == name:
            return
        before = [step.name for step in steps]
        there = steps[number].name
        if name in before:
            message = f"step {number + 1} is `{name}` now and was `{there}`: the steps were reordered"
        elif there in self._names:
            message = f"step {number + 1}, `{name}`, is new: the recording has `{there}` there"
        else:
            message = f"step {number + 1} was recorded as `{there}` and is `{name}` now: it was renamed, or replaced"
        raise Parted(Difference(name, message))

    def take(self, place: Place, kind: str, arguments: Json, where: str) -> Effect | None:
        """Return the next recorded effect of a place."""
        recorded = self._effects.get(place.path, [])
        number = place.number
        if number < len(recorded):
            effect = recorded[number]
            if effect.kind != kind:
                raise Parted(
                    Difference(
                        place.step,
                        f"`{place.path}` asks for {kind} {shorten(arguments)} where the recording has "
                        f"{effect.kind} {shorten(effect.arguments)}, recorded at {effect.where}",
                        effect.arguments,
                        arguments,
                        where,
                    )
                )
            if message := compare_values(f"what {kind} in `{place.path}` asks", effect.arguments, arguments):
                raise Parted(Difference(place.step, message, effect.arguments, arguments, where))
            return effect
        if self._is_open(place.step):
            if kind == "input":
                return self._take_answer(place, arguments, where)
            if self._goes_on:
                return None
        last = f", the last is at {recorded[-1].where}" if recorded else ""
        raise Parted(
            Difference(
                place.step,
                f"`{place.path}` asks for {kind} {shorten(arguments)}; the recording has {len(recorded)} effects there{last}",
                None,
                arguments,
                where,
            )
        )

    def end_step(self, record: StepRecord) -> None:
        """Compare a step's output, and refuse recorded effects that nobody asked for."""
        found = next((step for step in self._trace.steps if step.name == record.name), None)
        if found is None or not found.is_whole:
            return
        for what, before, now in (
            ("input", found.input, record.input),
            ("decision to skip it", found.is_skipped, record.is_skipped),
            ("error", found.error, record.error),
            ("output", found.output, record.output),
        ):
            if message := compare_values(f"step `{record.name}`: its {what}", before, now):
                raise Parted(Difference(record.name, message, before, now))
        if len(found.effects) > len(record.effects):
            unused = found.effects[len(record.effects)]
            raise Parted(
                Difference(
                    record.name,
                    f"step `{record.name}` no longer asks for {unused.kind} {shorten(unused.arguments)}, "
                    f"recorded at {unused.where}",
                )
            )

    def end_run(self, count: int) -> None:
        """Refuse a record that has more steps."""
        if count < len(self._trace.steps):
            name = self._trace.steps[count].name
            raise Parted(Difference(name, f"step `{name}` is in the recording and not in the workflow"))

    def _is_open(self, name: str) -> bool:
        found = next((step for step in self._trace.steps if step.name == name), None)
        return found is None or not found.is_whole

    def _take_answer(self, place: Place, arguments: Json, where: str) -> Effect | None:
        question = self._trace.waiting
        prompt = str(arguments["prompt"]) if isinstance(arguments, dict) else ""
        if question is None or question.place != place.path or self._answer is None:
            raise Suspended(Question(place.step, place.path, prompt, where))
        if question.prompt != prompt:
            raise Parted(
                Difference(
                    place.step,
                    f"`{place.path}` waited for an answer to {question.prompt!r} and asks {prompt!r} now",
                    where=where,
                )
            )
        answer, self._answer = self._answer, None
        return Effect("input", arguments, place.path, where, answer.value, answered_by=answer.by, answered_at=answer.at)
