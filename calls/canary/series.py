"""A series of answers that differ or do not, or by how much, and the moments in it at which something may have changed."""

from math import log
from typing import Final

import msgspec

from calls.canary.evidence import Counts, Split, evidence_of_any_change

MOST_MOMENTS: Final = 256
"""Moments that are kept. Beyond them every second one of the older half is dropped, which weakens the evidence and keeps it valid."""


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """The end of a shot, after which something may have changed."""

    number: int
    """Its place among all moments, from 1, which gives its weight."""

    differing: float
    count: int


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The answers so far, of which the first are the baseline."""

    differing: float = 0
    """How many differ; of distances, their sum."""

    count: int = 0
    moments: tuple[Moment, ...] = ()
    passed_moments: int = 0

    def with_answer(self, differs: float) -> "Series":
        """Add an answer: whether it differs, or by how much, from 0 to 1."""
        return msgspec.structs.replace(self, differing=self.differing + differs, count=self.count + 1)

    def with_moment(self, baseline: int) -> "Series":
        """Note that something may change now, if the baseline is there."""
        if self.count < baseline or (self.moments and self.moments[-1].count == self.count):
            return self
        number = self.passed_moments + 1
        moments = (*self.moments, Moment(number, self.differing, self.count))
        if len(moments) > MOST_MOMENTS:
            half = len(moments) // 2
            moments = (*moments[:half:2], *moments[half:])
        return msgspec.structs.replace(self, moments=moments, passed_moments=number)

    @property
    def evidence(self) -> float:
        """The logarithm of the evidence that the rate changed at any of the moments."""
        return evidence_of_any_change([self._split(moment) for moment in self.moments]) if self.moments else 0.0

    @property
    def likely_split(self) -> Counts:
        """The counts before and since the moment at which a change is the most likely."""
        splits = [self._split(moment) for moment in self.moments]
        if not splits:
            return Counts(differing_before=self.differing, before=self.count)
        return max(splits, key=lambda split: evidence_of_any_change([split]))[1]

    def recent_split(self, window: int) -> Counts:
        """The counts before and since the newest moment that at least so many answers have followed."""
        moment = next((one for one in reversed(self.moments) if self.count - one.count >= window), None)
        if moment is None and self.moments:
            moment = self.moments[0]
        return Counts(differing_before=self.differing, before=self.count) if moment is None else self._split(moment)[1]

    def _split(self, moment: Moment) -> Split:
        counts = Counts(
            differing_before=moment.differing,
            before=moment.count,
            differing_since=self.differing - moment.differing,
            since=self.count - moment.count,
        )
        # 1/2 + 1/6 + 1/12 + … = 1
        return -log(moment.number * (moment.number + 1)), counts
