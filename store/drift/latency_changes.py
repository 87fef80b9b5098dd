"""Find models that became slower or faster, from the latencies of ordinary calls, day by day.

Both the time to the first byte and that to the end are judged, and apart from what models answer. A change is a day since which the
median of a model's latencies is another, for good. There is no verdict without enough calls on both sides, nor where these are
other calls: longer prompts and answers take longer.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

from store.database.connection import Database
from store.drift.model_changes import DriftQuestion
from store.query.filters import Filters
from store.query.rest_shapes import Shape, milliseconds, rfc3339
from store.query.stats.stats import DayLatencies, Stats
from store.sums.latency_classes import middle_latency

FEWEST_CALLS: Final = 30
"""Calls with a latency that each side of a change must have."""

LEAST_RATIO: Final = 1.5
"""A model is slower if the median is so many times as long, and faster if it was."""

LEAST_SHARE: Final = 0.75
"""How often a call of one side must be slower than one of the other, drawn at random: medians alone may lie between two humps."""

LARGEST_P: Final = 0.001
"""The largest probability (Mann-Whitney) that equal latencies differ so by chance, over all days that were tried."""

MOST_TOKENS_RATIO: Final = 1.5
"""If the tokens of a call, of its prompt or its answer, changed more on average, the calls are not comparable."""

type Verdict = Literal["slower", "faster", "same", "unknown"]
type Classes = Mapping[int, int]
"""How many calls are in each class of latency (`store.sums.latency_classes`)."""

MEASURES: Final = ("first_byte", "duration")

type _Tokens = Literal["input_tokens", "output_tokens"]
TOKENS: Final[tuple[_Tokens, ...]] = ("input_tokens", "output_tokens")


async def find_latency_changes(database: Database, question: DriftQuestion, project: str = "default") -> list[Shape]:
    """Return of each model that was asked for whether it became slower or faster, and since when; those that did come first."""
    filters = Filters(
        until=question.until,
        models=(question.model,) if question.model else (),
        providers=(question.provider,) if question.provider else (),
        kinds=("model",),
        statuses=(range(200, 300),),
    )
    days = await Stats(database, project).load_day_latencies(filters)
    return await asyncio.to_thread(lambda: sorted(_judge_models(days, question.since or 0), key=_order))


def _judge_models(days: Sequence[DayLatencies], since: int) -> Iterator[Shape]:
    name = attrgetter("provider", "model")
    model_days = sorted((day for day in days if day.model is not None), key=attrgetter("provider", "model", "day"))
    for (provider, model), of_model in groupby(model_days, key=name):
        own = list(of_model)
        judged = {measure: judge_days(own, measure, since) for measure in MEASURES}
        yield {"provider": provider, "model_requested": model, **judged}


def _order(one: Shape) -> tuple[bool, str, str]:
    has_changed = any(one[measure]["verdict"] in ("slower", "faster") for measure in MEASURES)
    return not has_changed, one["provider"], one["model_requested"]


def judge_days(days: Sequence[DayLatencies], measure: str, since: int = 0) -> Shape:
    """Judge the days of one model, in order: the change since `since` that is the clearest, if there is one."""
    sides = [one for one in _divide(days, measure) if one.day >= since and one.has_enough]
    if not sides:
        return _shape("unknown", f"there are fewer than {FEWEST_CALLS} calls before or after each day")
    changes = [one for one in sides if one.verdict != "same" and one.chance * len(sides) <= LARGEST_P]
    if not changes:
        return _shape("same")
    change = max(changes, key=lambda one: abs(one.share - 0.5))
    if (why := change.difference) is not None:
        return _shape("unknown", why, change)
    return _shape(change.verdict, None, change)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """The calls of some days."""

    days: Sequence[DayLatencies]
    classes: Classes
    """The sum of those of the days."""

    def tokens(self, name: _Tokens) -> float | None:
        """The tokens of a call on average; None where no call has any."""
        calls = sum(day.calls for day in self.days)
        known = [tokens for day in self.days if (tokens := getattr(day, name)) is not None]
        return sum(known) / calls if calls and known else None

    @property
    def calls(self) -> int:
        """The calls of which the latency is known."""
        return sum(self.classes.values())

    @property
    def median(self) -> float:
        """Nanoseconds, within 1 %."""
        return middle_latency(self.classes)

    def shape(self) -> Shape:
        """The side in JSON."""
        return {
            "calls": self.calls,
            "median_ms": milliseconds(round(self.median)),
            "input_tokens": self.tokens("input_tokens"),
            "output_tokens": self.tokens("output_tokens"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """The calls before a day, and those since."""

    day: int
    before: _Side
    after: _Side

    @property
    def has_enough(self) -> bool:
        """Whether there are enough calls on both sides."""
        return min(self.before.calls, self.after.calls) >= FEWEST_CALLS

    @property
    def ratio(self) -> float:
        """How many times as long the median is."""
        return self.after.median / self.before.median

    @property
    def share(self) -> float:
        """How often a call after it is slower than one before; equal ones count half."""
        return _slower_share(self.before.classes, self.after.classes)

    @property
    def verdict(self) -> Verdict:
        """By the sizes of the difference alone."""
        if self.ratio >= LEAST_RATIO and self.share >= LEAST_SHARE:
            return "slower"
        return "faster" if self.ratio <= 1 / LEAST_RATIO and self.share <= 1 - LEAST_SHARE else "same"

    @property
    def chance(self) -> float:
        """The probability that equal latencies differ so by chance: Mann-Whitney's test with its correction for ties."""
        before, after = self.before.calls, self.after.calls
        whole = before + after
        counts = Counter(self.before.classes) + Counter(self.after.classes)
        ties = sum(count**3 - count for count in counts.values()) / (whole * (whole - 1))
        deviation = math.sqrt(before * after / 12 * (whole + 1 - ties))
        return math.erfc(abs(self.share - 0.5) * before * after / deviation / math.sqrt(2)) if deviation else 1.0

    @property
    def difference(self) -> str | None:
        """Why the calls cannot be compared; None if they can."""
        for name in TOKENS:
            was, now = self.before.tokens(name), self.after.tokens(name)
            if was and now and not 1 / MOST_TOKENS_RATIO <= now / was <= MOST_TOKENS_RATIO:
                part = "prompt" if name == "input_tokens" else "answer"
                return f"its calls are others: {now:,.0f} tokens of the {part} on average, {was:,.0f} before"
        return None


def _divide(days: Sequence[DayLatencies], measure: str) -> Iterator[_Sides]:
    """Yield both sides of each day but the first. From one day to the next, only the calls of one day change sides."""
    of_days = [day.first_bytes if measure == "first_byte" else day.durations for day in days]
    before, after = Counter[int](), Counter[int]()
    for classes in of_days:
        after.update(classes)
    for place, moved in enumerate(of_days[:-1], 1):
        before.update(moved)
        after.subtract(moved)
        sides = [
            _Side(days=some, classes={number: calls for number, calls in counts.items() if calls})
            for some, counts in ((days[:place], before), (days[place:], after))
        ]
        yield _Sides(day=days[place].day, before=sides[0], after=sides[1])


def _slower_share(before: Classes, after: Classes) -> float:
    slower, below = 0.0, 0
    for number in sorted(before.keys() | after.keys()):
        equal = before.get(number, 0)
        slower += after.get(number, 0) * (below + equal / 2)
        below += equal
    return slower / (below * sum(after.values()))


def _shape(verdict: Verdict, why: str | None = None, sides: _Sides | None = None) -> Shape:
    return {
        "verdict": verdict,
        "why": why,
        "since": rfc3339(sides.day) if sides else None,
        "ratio": round(sides.ratio, 3) if sides else None,
        "before": sides.before.shape() if sides else None,
        "after": sides.after.shape() if sides else None,
    }
