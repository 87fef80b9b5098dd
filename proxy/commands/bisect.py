"""`playhead bisect GOOD BAD -- CMD`: find the answer of BAD that makes the command fail.

Each trial replays the command from a mixture of both runs (`store.diff.mixed_recording`) that takes some of its answers from BAD.
The exit code decides whether a trial is good or bad, as in `git bisect run`. A trial whose command made a request that neither run
recorded is skipped.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
import msgspec

from proxy.capture.command import DEFAULT_ISOLATION, CommandPlan, IsolationOptions, isolation_lines, run_command
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.terminal.text import printable
from proxy.trust.client_environment import replay_ca_file
from store.bundle.bundle import bundle_lines
from store.diff.mixed_recording import Candidate, Mixture

type Verdict = Literal["good", "bad", "skip"]

SKIP: Final = 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One replay of the command."""

    from_bad: tuple[int, ...]
    """The steps of GOOD whose answers were taken from BAD."""

    code: int
    missed: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectResult:
    """The outcome of all trials."""

    culprits: Sequence[Candidate]
    """One candidate, or several if the trials between them had to be skipped."""

    alone: bool | None
    """Whether the culprit's answer alone makes the command fail; None if that is unknown."""

    trials: Sequence[Trial]


async def find_bracket(count: int, judge: Callable[[int], Awaitable[Verdict]]) -> tuple[int, int]:
    """Search 0 (good) to `count` (bad) for a number that is good and a greater one that is bad.

    The two are adjacent unless every number between them had to be skipped.
    """
    low, high = 0, count
    skipped: set[int] = set()
    while between := [number for number in range(low + 1, high) if number not in skipped]:
        middle = min(between, key=lambda number: (abs(number - (low + high) / 2), number))
        match await judge(middle):
            case "good":
                low = middle
            case "bad":
                high = middle
            case "skip":
                skipped.add(middle)
    return low, high


class BadRunSucceeds(Failure):
    """Raised if the command succeeds with all answers of BAD."""


class Bisection:
    """The trials of one bisection."""

    def __init__(
        self,
        processes: CommandProcesses,
        mixture: Mixture,
        command: Sequence[str],
        isolation: IsolationOptions = DEFAULT_ISOLATION,
    ) -> None:
        self._processes = processes
        self._isolation = isolation
        self._mixture = mixture
        self._command = command
        self._candidates = mixture.candidates
        self._trials: list[Trial] = []
        self._missed = 0

    async def find_culprits(self) -> BisectResult:
        """Find the answers that make the command fail. Raise Failure if it does not fail with BAD's or succeed with GOOD's."""
        all_ = len(self._candidates)
        await self._check_end(
            "good",
            0,
            "it fails with the answers of GOOD, so it is another command or depends on more than these answers",
        )
        await self._check_end("bad", all_, "it succeeds with all answers of BAD, so they are not what makes it fail")
        low, high = await find_bracket(all_, lambda count: self._judge(self._candidates[:count]))
        culprits = self._candidates[low:high]
        alone = await self._is_culprit_alone(low, high)
        return BisectResult(culprits=culprits, alone=alone, trials=self._trials)

    async def _check_end(self, expected: Verdict, count: int, else_: str) -> None:
        verdict = await self._judge(self._candidates[:count], baseline=True)
        if verdict != expected:
            why = "it exited with 125, which means that it cannot be judged" if verdict == "skip" else else_
            kind = BadRunSucceeds if (expected, verdict) == ("bad", "good") else Failure
            raise kind(f"cannot bisect by {self._command[0]}: {why}; see: playhead diff GOOD BAD")

    async def _is_culprit_alone(self, low: int, high: int) -> bool | None:
        if high - low > 1:
            return None
        if low == 0:
            return True
        return {"bad": True, "good": False}.get(await self._judge(self._candidates[low:high]))

    async def _judge(self, chosen: Sequence[Candidate], *, baseline: bool = False) -> Verdict:
        """Replay the command with these answers of BAD and record the trial."""
        code, missed = await self._replay(frozenset(one.place for one in chosen))
        if baseline:
            # Some requests miss in every run, such as a check for a newer version of the command.
            self._missed = max(self._missed, missed)
        verdict: Verdict = "good" if code == 0 else "bad"
        if code == SKIP or missed > self._missed:
            verdict = "skip"
        trial = Trial(from_bad=tuple(one.one.number for one in chosen), code=code, missed=missed, verdict=verdict)
        self._trials.append(trial)
        click.echo(f"playhead: {_trial_line(len(self._trials), trial)}", err=True)
        return verdict

    async def _replay(self, chosen: frozenset[int]) -> tuple[int, int]:
        """Replay the command. Return its exit code and the number of missed requests."""
        name = f"bisect-{self._processes.started}-{len(self._trials)}"
        replays = self._processes.data.replays
        recording, report = replays / f"{name}.jsonl", replays / f"{name}.json"
        try:
            with recording.open("wb") as file:
                file.writelines(bundle_lines(self._mixture.bundle(name, chosen)))
            options = {"id": name, "report": str(report), "allow_unused": True}
            worker = await self._processes.start_worker(
                mode="replay", spooled=False, replay=[str(recording)], replay_options=options
            )
            worker_info = {"proxy": f"http://127.0.0.1:{worker.ready['port']}", **worker.ready}
            worker_info["roots"] = replay_ca_file(worker.ready, self._processes.settings.tunnel.hosts, os.environ)
            # Standard output is for the result.
            work = CommandPlan(
                command=self._command,
                worker_info=worker_info,
                run=name,
                token=self._processes.run_token(name),
                passes_other_traffic=False,
                isolation=self._isolation,
                stdout=sys.stderr.fileno(),
            )
            try:
                result = await run_command(work)
            finally:
                await self._processes.close_workers()
            for line in isolation_lines(result, is_replay=True) if result.escaped_connections else ():
                click.echo(f"playhead: {printable(line)}", err=True)
            return result.code, _missed_count(report)
        finally:
            recording.unlink(missing_ok=True)
            report.unlink(missing_ok=True)


def _missed_count(report: Path) -> int:
    decoded: Mapping[str, Any] = msgspec.json.decode(report.read_bytes())
    return int(decoded["missed"])


def _trial_line(number: int, trial: Trial) -> str:
    steps = ", ".join(map(str, trial.from_bad))
    answers = f"BAD's answers at step {steps}" if steps else "no answer of BAD"
    missed = f", {trial.missed} missed" if trial.missed else ""
    return f"trial {number}: {answers}: exit {trial.code}{missed}: {trial.verdict}"


def verdict_sentence(result: BisectResult) -> str:
    """The verdict."""
    first, *others = result.culprits
    if others:
        places = ", ".join(one.where for one in result.culprits[:-1])
        return (
            f"{places} and {others[-1].where}: with these answers of BAD the command fails;"
            " with only some of them it makes requests that neither run recorded, or exits with 125, so the one among them is unknown"
        )
    beside = {True: "", False: " (together with BAD's answers before it)", None: ""}[result.alone]
    return f"{first.where}: with the answer of BAD the command fails{beside}"
