"""`playhead bisect GOOD BAD -- CMD`: find the answer of BAD that makes the command fail.

The command is replayed again and again from a recording mixed of both runs (`store.diff.mixed_recording`), each time with more or
fewer of BAD's answers to the requests that both runs made; its exit code judges, as in `git bisect run`. A trial in which
it asked for something that neither run has tells nothing, and is skipped.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
import msgspec

from proxy.capture.command import NO_WISH, IsolationWish, Work, isolation_lines, run_command
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.terminal.text import printable
from proxy.trust.client_environment import replay_roots
from store.bundle.bundle import write
from store.diff.mixed_recording import Candidate, Mixture

type Verdict = Literal["good", "bad", "skip"]

SKIP: Final = 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the command."""

    from_bad: tuple[int, ...]
    """The steps of GOOD that were answered as in BAD."""

    code: int
    missed: int
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectResult:
    """What the trials told."""

    culprits: Sequence[Candidate]
    """One; several where trials between them had to be skipped."""

    alone: bool | None
    """Whether its answer alone makes the command fail; None where that could not be told."""

    trials: Sequence[Trial]


async def bracket(count: int, judge: Callable[[int], Awaitable[Verdict]]) -> tuple[int, int]:
    """Of `count` things added one by one, the number with which it is still good and a greater one with which it is bad.

    It is good with none and bad with all. The two are neighbours, unless all between them had to be skipped.
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


class Harmless(Failure):
    """The command succeeds with all answers of BAD."""


class Bisection:
    """The trials of one bisection."""

    def __init__(
        self,
        house: CommandProcesses,
        mixture: Mixture,
        command: Sequence[str],
        wish: IsolationWish = NO_WISH,
    ) -> None:
        self._house = house
        self._wish = wish
        self._mixture = mixture
        self._command = command
        self._candidates = mixture.candidates
        self._trials: list[Trial] = []
        self._missed = 0

    async def run(self) -> BisectResult:
        """Find the answer. Raises Failure where the command does not behave as the two runs did."""
        all_ = len(self._candidates)
        await self._ends(
            "good", 0, "it fails with the answers of GOOD: it is not the command of that run, or not by them alone"
        )
        await self._ends("bad", all_, "it succeeds with all answers of BAD as well: it is not they that make it fail")
        low, high = await bracket(all_, lambda count: self._judged(self._candidates[:count]))
        culprits = self._candidates[low:high]
        alone = await self._alone(low, high)
        return BisectResult(culprits=culprits, alone=alone, trials=self._trials)

    async def _ends(self, wanted: Verdict, count: int, else_: str) -> None:
        verdict = await self._judged(self._candidates[:count], baseline=True)
        if verdict != wanted:
            why = "it exited with 125, which says that it cannot be judged" if verdict == "skip" else else_
            kind = Harmless if (wanted, verdict) == ("bad", "good") else Failure
            raise kind(f"cannot bisect by {self._command[0]}: {why}; see: playhead diff GOOD BAD")

    async def _alone(self, low: int, high: int) -> bool | None:
        if high - low > 1:
            return None
        if low == 0:
            return True
        return {"bad": True, "good": False}.get(await self._judged(self._candidates[low:high]))

    async def _judged(self, chosen: Sequence[Candidate], *, baseline: bool = False) -> Verdict:
        """Run the command with these answers of BAD."""
        code, missed = await self._replayed(frozenset(one.place for one in chosen))
        if baseline:
            # A command may ask for things that no run ever has, such as whether there is a newer version of it.
            self._missed = max(self._missed, missed)
        verdict: Verdict = "good" if code == 0 else "bad"
        if code == SKIP or missed > self._missed:
            verdict = "skip"
        trial = Trial(from_bad=tuple(one.one.number for one in chosen), code=code, missed=missed, verdict=verdict)
        self._trials.append(trial)
        click.echo(f"playhead: {_words(len(self._trials), trial)}", err=True)
        return verdict

    async def _replayed(self, chosen: frozenset[int]) -> tuple[int, int]:
        """The command's exit code, and how much it asked for in vain."""
        name = f"bisect-{self._house.started}-{len(self._trials)}"
        replays = self._house.data.replays
        recording, report = replays / f"{name}.jsonl", replays / f"{name}.json"
        try:
            with recording.open("wb") as file:
                file.writelines(write(self._mixture.bundle(name, chosen)))
            options = {"id": name, "report": str(report), "allow_unused": True}
            worker = await self._house.worker(
                mode="replay", spooled=False, replay=[str(recording)], replay_options=options
            )
            place = {"proxy": f"http://127.0.0.1:{worker.ready['port']}", **worker.ready}
            place["roots"] = replay_roots(worker.ready, self._house.settings.tunnel.hosts, os.environ)
            # What the command says is not what we say: it goes where our own progress goes.
            work = Work(
                command=self._command,
                place=place,
                run=name,
                token=self._house.run_token(name),
                passes_other_traffic=False,
                wish=self._wish,
                stdout=sys.stderr.fileno(),
            )
            try:
                ran = await run_command(work)
            finally:
                await self._house.close_workers()
            for line in isolation_lines(ran, is_replay=True) if ran.escaped else ():
                click.echo(f"playhead: {printable(line)}", err=True)
            return ran.code, _missed(report)
        finally:
            recording.unlink(missing_ok=True)
            report.unlink(missing_ok=True)


def _missed(report: Path) -> int:
    told: Mapping[str, Any] = msgspec.json.decode(report.read_bytes())
    return int(told["missed"])


def _words(number: int, trial: Trial) -> str:
    steps = ", ".join(map(str, trial.from_bad))
    told = f"BAD's answers at step {steps}" if steps else "no answer of BAD"
    missed = f", {trial.missed} missed" if trial.missed else ""
    return f"trial {number}: {told}: exit {trial.code}{missed}: {trial.verdict}"


def sentence(found: BisectResult) -> str:
    """The verdict."""
    first, *others = found.culprits
    if others:
        named = ", ".join(one.where for one in found.culprits[:-1])
        return (
            f"{named} and {others[-1].where}: with these answers of BAD the command fails;"
            " given some of them only, it asks for what neither run has, or exits with 125, so which of them does it cannot be told"
        )
    beside = {True: "", False: " (together with BAD's answers before it)", None: ""}[found.alone]
    return f"{first.where}: with the answer of BAD the command fails{beside}"
