"""Simulate how many calls a canary takes to notice a change, and how often it is wrong: `python -m bench.canary`.

Prints the tables of docs/canary.md. Providers are simulated by the rate at which their answers differ from the
reference answers. Only the decision of `calls.canary` runs, with the rules of a canary, after each shot.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import msgspec

from calls.canary.canary_state import CanaryRules, CanaryState, PinnedForms, add_answer, begin_canary, end_shot
from calls.canary.canary_verdict import find_changes, judge_canary
from calls.canary.observation import Observation

RULES: Final = CanaryRules()
PER_SHOT: Final = 20
SHOTS_PER_WEEK: Final = 7
QUIET_WEEKS: Final = 4
"""Weeks without a change before the change."""

CHANGES: Final = ((0.0, 0.05), (0.0, 0.1), (0.0, 0.2), (0.0, 0.5), (0.02, 0.12), (0.05, 0.15), (0.2, 0.4), (0.5, 0.8))
DISTANCES: Final = ((0.05, 0.15), (0.1, 0.2), (0.1, 0.3), (0.2, 0.4), (0.3, 0.6))
"""The mean distance of answers before a change and after it."""

RATES: Final = (0.0, 0.01, 0.05, 0.2, 0.5)
WEEKS: Final = 1000
REPEATS: Final = 200

_USUAL: Final = Observation(exact="a", structure="a")
_OTHER: Final = Observation(exact="b", structure="a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A canary and its simulated provider."""

    rules: CanaryRules
    rate: float
    """The rate at which answers differ."""

    random: random.Random
    is_distance: bool = False
    """Whether `rate` is the mean of distances between answers whose words always differ, spread by a Beta distribution.
    """

    def begin(self) -> CanaryState:
        """Return the state after the baseline."""
        state = begin_canary(self.rules, 0)
        usual = PinnedForms(answers=self.rules.references, exact=("a",), structure=("a",))
        return self.ask(msgspec.structs.replace(state, pins={"call": usual}), self.rules.baseline)

    def ask(self, state: CanaryState, count: int, rate: float | None = None) -> CanaryState:
        """Return the state after a shot."""
        rate = self.rate if rate is None else rate
        for _ in range(count):
            state = add_answer(state, "call", self._answer(rate), 0)
        return end_shot(state, 0, run=None, failed=0, problem=None)

    def _answer(self, rate: float) -> Observation:
        if self.is_distance:
            return msgspec.structs.replace(_OTHER, embedding=self.random.betavariate(4 * rate, 4 * (1 - rate)))
        return _OTHER if self.random.random() < rate else _USUAL


def count_calls_until_found(
    before: float, after: float, seed: int, *, most: int = 5000, canaries: int = 1, is_distance: bool = False
) -> int | None:
    """Return the number of calls after a change until it is found; None if it is not found within the limit."""
    simulation = Simulation(rules=RULES, rate=before, random=random.Random(seed), is_distance=is_distance)
    state = simulation.begin()
    others = {str(number): state for number in range(1, canaries)}
    for _ in range(QUIET_WEEKS * SHOTS_PER_WEEK):
        state = simulation.ask(state, PER_SHOT)
    for calls in range(PER_SHOT, most + PER_SHOT, PER_SHOT):
        state = simulation.ask(state, PER_SHOT, after)
        if find_changes({"it": state, **others}, 0)["it"].changed:
            return calls
    return None


def count_false_alarms(rates: Sequence[float], weeks: int, seed: int, *, is_distance: bool = False) -> tuple[int, int]:
    """Return the number of canaries, one for each rate, that wrongly report a change within this many weeks, and the
    number of weeks after which one did not report "unchanged".
    """
    simulations = [
        Simulation(rules=RULES, rate=rate, random=random.Random(f"{seed} {rate}"), is_distance=is_distance)
        for rate in rates
    ]
    states = {str(place): simulation.begin() for place, simulation in enumerate(simulations)}
    undecided = 0
    for shot in range(weeks * SHOTS_PER_WEEK):
        states = {
            name: simulation.ask(state, PER_SHOT)
            for (name, state), simulation in zip(states.items(), simulations, strict=True)
        }
        states = find_changes(states, 0)
        if shot % SHOTS_PER_WEEK == SHOTS_PER_WEEK - 1:
            verdicts = [judge_canary(state, len(states)).verdict for state in states.values()]
            undecided += any(verdict != "unchanged" for verdict in verdicts)
    return sum(state.changed is not None for state in states.values()), undecided


def detection_lines(repeats: int, *, is_distance: bool = False) -> Iterator[str]:
    """Yield the lines of the table of changes that are found."""
    what = "mean distance" if is_distance else "differing answers"
    yield f"| {what} | found after (median) | in 9 of 10 cases within | with 10 canaries |"
    yield "|---|---|---|---|"
    for before, after in DISTANCES if is_distance else CHANGES:
        cells = []
        for canaries in (1, 10):
            found = sorted(
                calls if calls is not None else 1 << 30
                for calls in (
                    count_calls_until_found(before, after, seed, canaries=canaries, is_distance=is_distance)
                    for seed in range(repeats)
                )
            )
            cells += [_calls_text(median(found)), _calls_text(found[int(len(found) * 0.9)])]
        change = f"{before:.2f} → {after:.2f}" if is_distance else f"{before:.0%} → {after:.0%}"
        yield f"| {change} | {cells[0]} | {cells[1]} | {cells[3]} |"


def _calls_text(calls: float) -> str:
    return "more than 5,000" if calls >= 1 << 29 else f"{calls:,.0f} calls"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--weeks", type=int, default=WEEKS)
    parser.add_argument("--distances", action="store_true", help="of answers with a distance, by embeddings or a judge")
    options = parser.parse_args()
    if options.distances:
        for line in detection_lines(options.repeats, is_distance=True):
            print(line, flush=True)
        means = [before for before, _ in DISTANCES]
        weeks = [count_false_alarms(means, 1, seed, is_distance=True)[0] for seed in range(options.weeks)]
        print(
            f"\n{len(means)} canaries whose distances do not change, {options.weeks:,} weeks: {sum(map(bool, weeks))} with a false alarm"
        )
        return
    for line in detection_lines(options.repeats):
        print(line, flush=True)
    wrong, _ = count_false_alarms(RATES, options.weeks, 1)
    rates = ", ".join(f"{rate:.0%}" for rate in RATES)
    print(
        f"\n{len(RATES)} canaries that do not change (rates {rates}), {options.weeks:,} weeks in a row: {wrong} false alarms"
    )
    weeks = [count_false_alarms(RATES, 1, seed)[0] for seed in range(options.weeks)]
    print(
        f"the same, {options.weeks:,} single weeks, each with a baseline of its own: {sum(map(bool, weeks))} with a false alarm"
    )


if __name__ == "__main__":
    main()
