"""`playhead regress RUNS… -- CMD`: replay many recordings against changed code, and group what came of them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, Literal

from calls.checking.check import CheckResult, check_run
from calls.checking.spec import SpecRule
from calls.judgement.verdict import Judgement
from calls.redaction.redactor import Redactor
from proxy.commands.check import build_checked_run
from proxy.trials.filled_command import fill_command, has_placeholders
from proxy.trials.outcome import Divergence, Outcome, trial_outcome
from proxy.trials.recordings import NamedRecording, load_recording
from proxy.trials.trial import TrialPlan, TrialResult, TrialRunner, run_trial
from store.diff.steps import StepReader

type Status = Literal["same", "diverged", "passed", "broken", "cannot tell", "not run"]
"""What is said of a run. `passed`: it diverged, was completed live, and its rules and its judge found nothing wrong.
`broken`: a rule does not hold, or the judge prefers the old run. `not run`: there was no budget left for it."""

EXIT_CODES: Final[Mapping[Status, int]] = {
    "same": 0,
    "passed": 0,
    "diverged": 1,
    "broken": 1,
    "cannot tell": 125,
    "not run": 125,
}
WORST_FIRST: Final = (1, 125, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What came of completing a diverged run live."""

    finished: bool
    usd: Decimal
    live_calls: int
    unpriced_calls: int
    blocked: Sequence[str]
    """The requests that the policy for side effects did not let out."""

    code: int | None
    file: str | None
    """The bundle of the new run."""

    reason: str | None = None
    """Why it was not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of one recording."""

    name: str
    outcome: Outcome
    seconds: float = 0.0
    code: int | None = None
    output: str = ""
    check: CheckResult | None = None
    """What the rules found in the new run: the completed one, if it was completed."""

    completion: Completion | None = None
    judgements: Sequence[Judgement] = ()
    judge_run: str | None = None
    judge_trouble: str | None = None
    is_decided_live: bool = False
    """Whether rules or a judge decide about completed runs."""

    was_not_run: bool = False
    """Whether it was not completed because no budget was left."""

    @property
    def status(self) -> Status:
        """What is said of the run."""
        if self.outcome.verdict == "cannot tell":
            return "cannot tell"
        if self.check is not None and self.check.verdict == "fail":
            return "broken"
        if self.was_not_run:
            return "not run"
        if self.completion is not None:
            return self._completed_status(self.completion)
        if self.check is not None and self.check.verdict == "unknown":
            return "cannot tell"
        return "same" if self.outcome.verdict == "same" else "diverged"

    def _completed_status(self, completion: Completion) -> Status:
        verdicts = {one.verdict for one in self.judgements}
        if "fail" in verdicts:
            return "broken"
        if not completion.finished:
            return "cannot tell"
        if not self.is_decided_live:
            return "diverged"
        if completion.code:
            return "cannot tell" if completion.blocked else "broken"
        undecided = self.judge_trouble is not None or "cannot tell" in verdicts
        if undecided or (self.check is not None and self.check.verdict == "unknown"):
            return "cannot tell"
        return "passed"

    @property
    def divergence(self) -> Divergence | None:
        """Where it diverged."""
        return self.outcome.divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Runs that diverged alike."""

    divergence: Divergence
    """That of the first of them."""

    runs: Sequence[str]
    steps: Sequence[int]


def divergence_clusters(results: Sequence[RunResult]) -> list[Cluster]:
    """Group the runs that diverged by cause, kind of step and pointer; the largest group first."""
    grouped: dict[tuple[str, str, str], list[RunResult]] = {}
    for result in results:
        if result.divergence is not None:
            grouped.setdefault(result.divergence.cluster, []).append(result)
    clusters = [
        Cluster(
            divergence=found[0].divergence,  # type: ignore[arg-type] # only runs with one are grouped
            runs=[one.name for one in found],
            steps=sorted({one.divergence.step for one in found if one.divergence and one.divergence.step is not None}),
        )
        for found in grouped.values()
    ]
    return sorted(clusters, key=lambda cluster: -len(cluster.runs))


def exit_code(results: Sequence[RunResult]) -> int:
    """Return 1 if a run diverged or broke, else 125 if one cannot be told, else 0: what `git bisect run` expects."""
    codes = {EXIT_CODES[result.status] for result in results}
    return next(code for code in WORST_FIRST if code in codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Replays recordings in parallel."""

    runner: TrialRunner
    reading: StepReader
    redactor: Redactor
    jobs: int
    spec: Sequence[SpecRule] = ()
    show_progress: Callable[[str], None] = field(default=lambda _line: None)

    async def replay_all(self, recordings: Sequence[NamedRecording]) -> list[RunResult]:
        """Replay every recording, a few at a time. Return what came of them in their order. Raises Failure."""
        for recording in recordings:
            # Before anything is replayed: a label that is missing is a mistake in the command.
            await self.runner_for(recording)
        limit = asyncio.Semaphore(self.jobs)
        done = 0

        async def replay_one(number: int, recording: NamedRecording) -> RunResult:
            nonlocal done
            async with limit:
                result = await self._replay(number, recording)
            done += 1
            self.show_progress(
                f"{done} of {len(recordings)}: {recording.name}: {result.status} ({result.seconds:.1f} s)"
            )
            return result

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(replay_one(*pair)) for pair in enumerate(recordings, 1)]
        return [task.result() for task in tasks]

    async def _replay(self, number: int, recording: NamedRecording) -> RunResult:
        # Only what is checked needs to be recorded: a recording with a WebSocket can be replayed, but not forked.
        fork = await self.fork_options(recording, {"offline": True}) if self.spec else None
        trial = TrialPlan(name=f"regress-{number}", recording=recording.file, called=recording.name, fork=fork)
        result = await run_trial(await self.runner_for(recording), trial)
        outcome = trial_outcome(result, self.runner.limit_s, allow_unused=self.runner.allow_unused)
        return RunResult(
            name=recording.name,
            outcome=outcome,
            seconds=result.seconds,
            code=result.code,
            output=result.output,
            check=await self.check(recording.name, result) if outcome.verdict != "cannot tell" else None,
        )

    async def runner_for(self, recording: NamedRecording) -> TrialRunner:
        """Return the runner with a recording's name and labels in its command. Raises Failure for a label that there is not."""
        command = self.runner.command
        if not has_placeholders(command):
            return self.runner
        bundle = await load_recording(recording, self.redactor, self.reading.profiles)
        return replace(self.runner, command=fill_command(command, recording.name, bundle.run))

    async def fork_options(self, recording: NamedRecording, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of a fork after the last step of a recording."""
        bundle = await load_recording(recording, self.redactor, self.reading.profiles)
        return {"at": len(bundle.entries), **options}

    async def check(self, name: str, result: TrialResult) -> CheckResult | None:
        """Check what the command did; None without rules."""
        if not self.spec:
            return None
        return await asyncio.to_thread(
            lambda: check_run(build_checked_run(name, result.exchanges, self.reading), self.spec)
        )
