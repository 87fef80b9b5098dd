"""Decide whether anything changed, over all canaries at once.

Of K canaries, those are said to have changed whose evidence is at least K/(k a), where k is the largest number for which there are so
many (e-BH, Wang and Ramdas 2022). If none has changed, the probability that any is ever said to have is at most a.
"""

from collections.abc import Mapping
from math import exp, log
from typing import Final, Literal

import msgspec

from calls.canary.canary_state import DISTANCES, CanaryState, ChangeFound, Level, note_change
from calls.canary.evidence import (
    Counts,
    calls_to_clear,
    calls_to_find,
    evidence_of_no_change,
    log_mean,
)

type VerdictName = Literal["unchanged", "changed", "cannot tell"]

SHORTEST_WINDOW: Final = 50
"""The newest answers that must show that nothing changed, at least."""

_COMPARED: Final[tuple[Level, ...]] = ("exact", "structure", "embedding", "judged")
"""The levels of an answer's content."""

_WORDS: Final[Mapping[Level, str]] = {
    "exact": "say something else",
    "structure": "have another structure",
    "embedding": "embedding, on average",
    "judged": "the judge, on average",
    "fingerprint": "have an unknown fingerprint",
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a canary."""

    verdict: VerdictName
    reason: str
    level: Level | None = None
    """The level that the numbers are of."""

    rate_before: float | None = None
    rate_since: float | None = None
    answers_before: int = 0
    answers_since: int = 0
    evidence: float = 0.0
    """The logarithm of the evidence for a change."""

    calls_needed: int | None = None
    """How many more calls may decide, if nothing changed; None where none are needed, or no number is enough."""

    calls_to_find: int | None = None
    """How many calls after a change that raises the rate by the effect are expected to show it; None: more than a hundred thousand."""

    @property
    def effect(self) -> float | None:
        """By how much the rate of differing answers rose."""
        if self.rate_before is None or self.rate_since is None:
            return None
        return self.rate_since - self.rate_before


def canary_evidence(state: CanaryState) -> float:
    """The logarithm of the evidence that a canary's answers changed: the mean over its levels."""
    levels = state.used_levels
    return log_mean([state.series(level).evidence for level in levels]) if levels else 0.0


def find_changes(states: Mapping[str, CanaryState], at: int) -> dict[str, CanaryState]:
    """Note in each state whether its answers are now said to have changed."""
    found = {name: canary_evidence(state) + log(state.rules.false_alarm) for name, state in states.items()}
    ranked = sorted(found, key=lambda name: found[name], reverse=True)
    count = max((k for k, name in enumerate(ranked, 1) if found[name] >= log(len(ranked) / k)), default=0)
    return {
        name: note_change(state, _answers_changed(state, at)) if name in ranked[:count] else state
        for name, state in states.items()
    }


def judge_canary(state: CanaryState, canaries: int) -> Verdict:
    """Return what is said of a canary. `canaries`: the number of all of them."""
    if state.changed is not None:
        return _verdict(state, _strongest_level(state), "changed", state.changed.reason)
    if missing := _missing_calls(state):
        return Verdict(
            verdict="cannot tell",
            reason=f"its baseline needs {missing} more answers",
            calls_needed=missing + _calls_after_baseline(state),
        )
    able = [level for level in _COMPARED if _can_rise(state, level)]
    if not able:
        return _verdict(
            state, "exact", "cannot tell", "its answers differ nearly every time, so that a change would not show"
        )
    if set(able) & set(DISTANCES) and "exact" in able:
        # Whoever asks for a distance says that words may vary: their rate may still show a change, but need not be clear.
        able.remove("exact")
    open_levels = {level: calls_needed for level in able if (calls_needed := _calls_to_clear(state, level)) != 0}
    if not open_levels:
        level = able[-1] if "exact" not in able else "exact"
        return _verdict(state, level, "unchanged", _unchanged_reason(state, able), canaries=canaries)
    level, calls_needed = max(open_levels.items(), key=lambda one: one[1] if one[1] is not None else 1 << 60)
    return _verdict(
        state,
        level,
        "cannot tell",
        "its newest answers are too few to tell",
        calls_needed=calls_needed,
        canaries=canaries,
    )


def _unchanged_reason(state: CanaryState, able: list[Level]) -> str:
    blind = [level for level in _COMPARED if state.series(level).count and not _can_rise(state, level)]
    without = f" ({', '.join(blind)} differ nearly every time, and say nothing)" if blind else ""
    what = (
        "rate of differing answers"
        if not set(able) & set(DISTANCES)
        else "rate of differing answers, or their distance,"
    )
    return f"the {what} has not risen by {state.rules.effect:.0%}{without}"


def _missing_calls(state: CanaryState) -> int:
    references = sum(max(0, state.missing_references(pin)) for pin in state.pins)
    if not state.pins:
        return state.rules.references + state.rules.baseline
    return references + max(0, state.rules.baseline - state.exact.count)


def _calls_after_baseline(state: CanaryState) -> int:
    guess = Counts(before=state.rules.baseline, differing_before=0)
    return calls_to_clear(guess, state.rules.effect, -log(state.rules.false_alarm)) or 0


def _can_rise(state: CanaryState, level: Level) -> bool:
    """Whether the rate of a level is low enough that a rise could show."""
    series = state.series(level)
    return bool(series.count) and series.likely_split.rate_before <= 1.0 - state.rules.effect


def _calls_to_clear(state: CanaryState, level: Level) -> int | None:
    """How many more calls may show that a level is unchanged: 0 if that is shown; None if no number is enough."""
    series, rules = state.series(level), state.rules
    bar = -log(rules.false_alarm)
    everything = Counts(differing_before=series.differing, before=series.count)
    window = calls_to_clear(everything, rules.effect, bar)
    if window is None:
        return None
    recent = series.recent_split(max(window, SHORTEST_WINDOW))
    if recent.since >= window and evidence_of_no_change(recent, rules.effect) >= bar:
        return 0
    return max(1, window - recent.since)


def _strongest_level(state: CanaryState) -> Level:
    return max(state.used_levels, key=lambda level: state.series(level).evidence, default="exact")


def _answers_changed(state: CanaryState, at: int) -> ChangeFound:
    level = _strongest_level(state)
    split = state.series(level).likely_split
    reason = (
        f"the answers are {split.rate_since:.2f} from the reference answers by {_WORDS[level]}, where they were {split.rate_before:.2f}"
        if level in DISTANCES
        else f"{split.rate_since:.1%} of the answers {_WORDS[level]}, where {split.rate_before:.1%} did"
    )
    return ChangeFound(at=at, stage="answers", reason=reason, example=state.example)


def _verdict(
    state: CanaryState,
    level: Level,
    verdict: VerdictName,
    reason: str,
    *,
    calls_needed: int | None = None,
    canaries: int = 1,
) -> Verdict:
    series = state.series(level)
    split = series.likely_split if verdict == "changed" else series.recent_split(SHORTEST_WINDOW)
    bar = log(canaries / state.rules.false_alarm)
    find = calls_to_find(split, split.rate_before + state.rules.effect, bar) if split.before else None
    return Verdict(
        verdict=verdict,
        reason=reason,
        level=level,
        rate_before=split.rate_before if split.before else None,
        rate_since=split.rate_since if split.since else None,
        answers_before=split.before,
        answers_since=split.since,
        evidence=canary_evidence(state),
        calls_needed=calls_needed,
        calls_to_find=None if verdict == "changed" else find,
    )


def shown_evidence(evidence: float) -> float:
    """Return evidence as a number: 20 means that what was seen is twenty times as likely if something changed."""
    return exp(min(evidence, 700.0))
