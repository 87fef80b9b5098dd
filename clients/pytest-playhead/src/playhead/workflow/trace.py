"""What one execution of a workflow did: its steps, and for each the effects that it received."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from playhead.workflow.comparison import Difference, list_differences
from playhead.workflow.stored_traces import stored_traces
from playhead.workflow.values import Json, from_json

if TYPE_CHECKING:
    from playhead.workflow.bisection import Bisection
    from playhead.workflow.flow import Workflow
    from playhead.workflow.replay import Replay

FORMAT = "playhead-workflow/1"

Status = Literal["done", "failed", "waiting"]


class BadTrace(ValueError):
    """A file that is not a trace. The message says why."""


@dataclass(frozen=True)
class Effect:
    """Something that a step received from outside: a model's answer, the time, a file, a person's answer."""

    kind: str
    """`model`, `now`, `random`, `uuid`, `read`, `env`, `sleep`, `input` or `http`."""

    arguments: Json
    """What was asked."""

    place: str
    """The step's name, and within `parallel` the branch: `fetch`, `fetch/0`. Effects of a place are in order."""

    where: str
    """File and line of the call."""

    result: Json = None
    error: str | None = None
    """The exception that was raised instead, as `Type: message`."""

    answered_by: str | None = None
    """Who gave a person's answer."""

    answered_at: str | None = None
    """When, in RFC 3339."""


@dataclass
class StepRecord:
    """One step: what it was given, what it received meanwhile, what it returned."""

    name: str
    kind: Literal["model", "code"]
    input: Json = None
    output: Json = None
    error: str | None = None
    is_skipped: bool = False
    is_whole: bool = False
    """False for a step that waits for a person's answer."""

    effects: list[Effect] = field(default_factory=list)


@dataclass
class Question:
    """What a workflow waits for."""

    step: str
    place: str
    prompt: str
    where: str


@dataclass
class Trace:
    """The record of one execution. Plain data, but for the workflow, which is needed to replay it."""

    workflow: str
    seed: int
    input: Json
    steps: list[StepRecord] = field(default_factory=list)
    status: Status = "done"
    error: str | None = None
    waiting: Question | None = None
    run: str | None = None
    """The Playhead run that has the HTTP calls."""

    flow: Workflow | None = field(default=None, repr=False, compare=False)

    @property
    def output(self) -> Any:
        """What the last step that ended well returned; the input if there is none."""
        outputs = [step.output for step in self.steps if step.is_whole and not step.is_skipped and step.error is None]
        return from_json(outputs[-1] if outputs else self.input)

    def step(self, name: str) -> StepRecord:
        """Return the record of a step. Raises KeyError."""
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(f"no step {name!r}; there are {', '.join(step.name for step in self.steps) or 'none'}")

    def replay(self) -> Replay:
        """Execute the code of the workflow again, with all effects from this record: nothing is asked, nothing is paid."""
        return self._flow().replay(self)

    def assert_equal(self) -> None:
        """Replay, and raise AssertionError with the first difference, if there is one."""
        replay = self.replay()
        if not replay:
            raise AssertionError(str(replay))

    def diff(self, other: Trace) -> list[Difference]:
        """Return where another trace differs from this one, in order of execution."""
        return list_differences(self, other)

    def bisect(self, other: Trace) -> Bisection:
        """Find the effect of another trace that makes the output of this one become that of the other.

        The code is executed with more and more of the other's effects in place of this one's. Nothing is asked.
        """
        return self._flow().bisect(self, other)

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the trace as JSON."""
        Path(file).write_text(json.dumps(self.content(), indent=1) + "\n", encoding="utf-8")

    def content(self) -> dict[str, Any]:
        """Return the trace as plain data."""
        content: dict[str, Any] = {"format": FORMAT, **asdict(replace(self, flow=None))}
        del content["flow"]
        return content

    @classmethod
    def load(cls, file: str | os.PathLike[str], flow: Workflow | None = None) -> Trace:
        """Read a trace that `save` wrote. Raises BadTrace, and OSError."""
        return cls._parse(file, Path(file).read_text("utf-8", "replace"), flow)

    @classmethod
    def from_run(cls, run: str | os.PathLike[str], flow: Workflow | None = None) -> Trace:
        """Read the last trace of a workflow from a recorded run, or from its bundle: of `flow`, if it is given.

        Raises BadTrace if there is none, Unreachable without a running Playhead, and OSError.
        """
        found = [text for name, text in stored_traces(run) if flow is None or name == flow.name]
        if not found:
            raise BadTrace(
                f"{os.fspath(run)} has no trace of {f'workflow {flow.name}' if flow else 'a workflow'}: run it under playhead record"
            )
        return cls._parse(run, found[-1], flow)

    @classmethod
    def _parse(cls, file: str | os.PathLike[str], text: str, flow: Workflow | None) -> Trace:
        try:
            content = json.loads(text)
            if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
                raise BadTrace(f"{file} is not a trace of a workflow in the format {FORMAT}")
            steps = [
                StepRecord(**{**step, "effects": [Effect(**effect) for effect in step["effects"]]})
                for step in content.pop("steps")
            ]
            question = content.pop("waiting")
            waiting = None if question is None else Question(**question)
            return cls(steps=steps, waiting=waiting, flow=flow, **content)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise BadTrace(f"{file} is not a whole trace of a workflow: {error}") from None

    def _flow(self) -> Workflow:
        if self.flow is None:
            raise ValueError("this trace was read from a file: use flow.replay(trace), or Trace.load(file, flow)")
        return self.flow
