"""`playhead perturb RUN -- CMD`: replay one recording with variations of what the agent received, and say which break it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from calls.checking.check import CheckResult, check_run
from calls.checking.spec import SpecRule
from calls.overrides.overrides import BadOverride, read_overrides
from calls.perturbation.edits import AnswerEdit, Group, ToolAnswer
from calls.perturbation.entries import override_entries
from calls.perturbation.proposals import propose_edits
from calls.perturbation.reduction import find_smallest
from calls.perturbation.variations import Variation, choose_variations
from proxy.commands.check import build_checked_run
from proxy.errors import Failure
from proxy.trials.outcome import SKIP, last_words
from proxy.trials.trial import TrialPlan, TrialResult, TrialRunner, run_trial
from replay.overrides.prepare import prepare_overrides
from replay.playback import is_websocket
from store.bundle.bundle import Bundle
from store.diff.steps import StepReader

type Effect = Literal["held", "broke", "could not go on", "cannot tell"]

DEFINITE: Final = frozenset(("forbid", "only", "argument", "target", "same", "no-secret", "grounded"))
"""Kinds of rules that nothing later in a run could satisfy again. The others are not judged where a run was cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a variation did to the command."""

    effect: Effect
    reasons: tuple[str, ...] = ()
    signature: str = ""
    """What equal breaks have in common: the rules that do not hold, or how the command ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedRun:
    """One variation, and what it did."""

    variation: Variation
    finding: Finding
    result: TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestBreak:
    """The smallest edits that break the command in one way."""

    edits: tuple[AnswerEdit, ...]
    finding: Finding
    result: TrialResult
    from_variation: int
    trials: int
    """How many trials it took to find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbationResult:
    """What came of all variations."""

    runs: Sequence[VariedRun]
    smallest: Sequence[SmallestBreak]
    proposals: int
    answers: Sequence[ToolAnswer]

    @property
    def has_broken(self) -> bool:
        """Whether a variation broke the command."""
        return any(run.finding.effect == "broke" for run in self.runs)


def trial_finding(result: TrialResult, check: CheckResult | None, limit_s: float) -> Finding:
    """Return what came of a varied run."""
    report = result.report
    if result.failure is not None or report is None:
        return Finding(effect="cannot tell", reasons=(result.failure or "the replay left no report",))
    stuck = _stuck_reason(report)
    if broken := _broken_rules(check, is_cut_short=stuck is not None or result.is_timed_out):
        return Finding(effect="broke", reasons=tuple(broken.values()), signature=", ".join(broken))
    if stuck is not None:
        return Finding(effect="could not go on", reasons=(stuck,))
    if result.is_timed_out:
        reason = f"it did not end within {limit_s:g} s"
        return Finding(effect="broke", reasons=(reason,), signature="did not end in time")
    if result.code == SKIP:
        return Finding(effect="cannot tell", reasons=(f"the command ended with {SKIP}",))
    if not any(report.get(name) for name in ("served", "edited", "live")):
        what = f"it ended with {result.code} before its first call" if result.code else "it made no request"
        return Finding(effect="cannot tell", reasons=(f"{what}{last_words(result.output)}",))
    if result.code:
        reason = f"the command ended with {result.code}{last_words(result.output)}"
        return Finding(effect="broke", reasons=(reason,), signature=f"exit {result.code}")
    if check is not None and check.verdict == "unknown":
        return Finding(effect="cannot tell", reasons=("a rule cannot be decided",))
    return Finding(effect="held")


def _stuck_reason(report: Mapping[str, Any]) -> str | None:
    """Return which request could not be answered; None if all were."""
    fork = report.get("fork") or {}
    if blocked := fork.get("blocked_calls"):
        return f"{blocked[0]['asked']} was blocked; see --side-effects and --override"
    if report["missed"] or report["refused"]:
        first = report["first_divergence"] or {}
        return f"{first.get('asked') or 'a request'} was not recorded; see --model-url and --override"
    return None


def _broken_rules(check: CheckResult | None, *, is_cut_short: bool) -> dict[str, str]:
    """Return the first finding of each broken rule, by its title."""
    found: dict[str, str] = {}
    for rule in check.rules if check is not None else ():
        is_definite = str(rule.rule.rule.__struct_config__.tag) in DEFINITE
        if rule.verdict == "fail" and (is_definite or not is_cut_short):
            first = next(one for one in rule.findings if not one.is_undecided)
            where = "" if first.step is None else f"step {first.step}: "
            found[rule.rule.title] = f"{rule.rule.title}: {where}{first.message}"
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """Runs the variations of one recording."""

    runner: TrialRunner
    reading: StepReader
    recording: Path
    called: str
    bundle: Bundle
    answers: Sequence[ToolAnswer]
    fork: Mapping[str, Any]
    upstreams: Mapping[str, str]
    spec: Sequence[SpecRule]
    base: Sequence[Mapping[str, Any]]
    """Overrides that every trial has, after its own."""

    groups: Sequence[Group]
    seed: int
    count: int
    jobs: int
    show_progress: Callable[[str], None] = field(default=lambda _line: None)

    async def run(self) -> PerturbationResult:
        """Run the unvaried command, all variations, and the search for the smallest that break. Raises Failure."""
        await self._require_that_it_holds()
        proposals = self.proposals()
        variations = choose_variations(proposals, self.answers, self.count, self.seed)
        if not variations:
            raise Failure(
                f"there is nothing to vary in {self.called}: it has no JSON answers of tools, and --vary leaves no faults"
            )
        limit = asyncio.Semaphore(self.jobs)
        done = 0

        async def try_one(variation: Variation) -> VariedRun:
            nonlocal done
            async with limit:
                finding, result = await self._try(f"perturb-{variation.number}", variation.edits)
            done += 1
            kinds = ", ".join(dict.fromkeys(edit.kind for edit in variation.edits))
            self.show_progress(f"{done} of {len(variations)}: {kinds}: {finding.effect}")
            return VariedRun(variation=variation, finding=finding, result=result)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(try_one(variation)) for variation in variations]
        runs = [task.result() for task in tasks]
        smallest = [await self._reduce(run) for run in _simplest_breaks(runs)]
        return PerturbationResult(runs=runs, smallest=smallest, proposals=len(proposals), answers=self.answers)

    def proposals(self) -> list[AnswerEdit]:
        """Return the edits that the recording allows and Playhead can make."""
        ordered = sorted(self.bundle.exchanges, key=lambda each: (each.started_at, each.id))
        steps = [step for step, exchange in enumerate(ordered, 1) if not is_websocket(exchange)]
        proposed = propose_edits(self.answers, steps, self.groups, self.seed)
        patched = {edit.step: edit for edit in proposed if edit.operations}
        unpatchable = {step for step, edit in patched.items() if not self._can_make(edit)}
        return [
            edit
            for edit in proposed
            if (self._can_make(edit) if edit.fault is not None else edit.step not in unpatchable)
        ]

    def _can_make(self, edit: AnswerEdit) -> bool:
        try:
            overrides = read_overrides(override_entries(self.answers, [edit]))
            prepare_overrides(self.bundle, overrides, self.reading.profiles)
        except BadOverride:
            return False
        return True

    async def _require_that_it_holds(self) -> None:
        finding, result = await self._try("perturb-unvaried", ())
        if finding.effect == "held":
            return
        reason = finding.reasons[0] if finding.reasons else finding.effect
        what = {
            "broke": "it breaks without any variation",
            "could not go on": "it cannot go on without any variation",
            "cannot tell": "it cannot be told what the command does without any variation",
        }[finding.effect]
        # The reason may have the command's last words already.
        words = last_words(result.output)
        why = f": {reason}{'' if finding.effect == 'broke' or reason.endswith(words) else words}"
        raise Failure(f"there is nothing to compare with: {what}{why}")

    async def _try(self, name: str, edits: Sequence[AnswerEdit]) -> tuple[Finding, TrialResult]:
        entries = [*override_entries(self.answers, edits), *self.base]
        result = await run_trial(
            self.runner,
            TrialPlan(
                name=name,
                recording=self.recording,
                called=self.called,
                fork=self.fork,
                overrides={"overrides": entries} if entries else {},
                upstreams=self.upstreams,
            ),
        )
        check = None
        if self.spec:
            check = await asyncio.to_thread(
                lambda: check_run(build_checked_run(self.called, result.exchanges, self.reading), self.spec)
            )
        return trial_finding(result, check, self.runner.limit_s), result

    async def _reduce(self, run: VariedRun) -> SmallestBreak:
        """Find the smallest part of a variation that still breaks in the same way."""
        best: dict[tuple[str, ...], tuple[Finding, TrialResult]] = {}
        trials = 0

        async def still_breaks(edits: Sequence[AnswerEdit]) -> bool:
            nonlocal trials
            trials += 1
            finding, result = await self._try(f"perturb-{run.variation.number}-{trials}", edits)
            self.show_progress(f"reducing variation {run.variation.number}: {len(edits)} edits: {finding.effect}")
            is_same = finding.effect == "broke" and finding.signature == run.finding.signature
            if is_same:
                best[tuple(map(repr, edits))] = finding, result
            return is_same

        edits = tuple(await find_smallest(run.variation.edits, still_breaks))
        finding, result = best.get(tuple(map(repr, edits)), (run.finding, run.result))
        return SmallestBreak(
            edits=edits, finding=finding, result=result, from_variation=run.variation.number, trials=trials
        )


def _simplest_breaks(runs: Sequence[VariedRun]) -> list[VariedRun]:
    """Return the variation with the fewest edits for each way to break."""
    found: dict[str, VariedRun] = {}
    for run in runs:
        if run.finding.effect != "broke":
            continue
        known = found.get(run.finding.signature)
        if known is None or len(run.variation.edits) < len(known.variation.edits):
            found[run.finding.signature] = run
    return list(found.values())
