"""Mix a recording from two runs: each answer in it was given to the request that it answers, in one of them.

Where both runs asked the same and were told otherwise (a candidate) one of the two answers is taken; what only one of them
asked is there from whoever asked it. So a program that is replayed from it goes the one way or the other by what it is
told, and never hears an answer to something else.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from calls.model import Exchange
from store.bundle.bundle import Bundle, Entry
from store.diff.cause import Cause
from store.diff.diff import Diff
from store.diff.steps import Step

_TOLD: Final = frozenset(("answer", "tool_answer", "model", "failure"))
_PAUSE: Final = 1_000_000
"""Nanoseconds between two exchanges, so that none seems to have run beside another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A request that both runs made and that was answered otherwise."""

    place: int
    one: Step
    other: Step
    cause: Cause
    where: str
    """Step and address, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Two runs, of which recordings can be mixed."""

    diff: Diff
    one: Sequence[Exchange]
    other: Sequence[Exchange]
    profiles: str
    """The digest of the rules in force."""

    @property
    def candidates(self) -> list[Candidate]:
        """In the order of the first run."""
        return [
            Candidate(place=place, one=one, other=other, cause=cause, where=self.diff.where(place))
            for place, one, other, cause in self.diff.pairs()
            if one and other and cause in _TOLD and one.told.said != other.told.said
        ]

    def bundle(self, run: str, chosen: Collection[int]) -> Bundle:
        """The recording in which these candidates, by their places, are answered as in the other run."""
        mixed = list(_in_turn(self._exchanges(chosen)))
        return Bundle(run={"id": run}, profiles=self.profiles, entries=tuple(Entry(exchange=each) for each in mixed))

    def _exchanges(self, chosen: Collection[int]) -> Iterator[Exchange]:
        here, there = ({each.id: each for each in side} for side in (self.one, self.other))
        for place, one, other, _ in self.diff.pairs():
            alike = one and other and one.asked.call.key == other.asked.call.key
            if one and not (alike and place in chosen):
                yield from (here[name] for name in one.ids)
            if other and (not alike or place in chosen):
                yield from (there[name] for name in other.ids)


def _in_turn(exchanges: Iterable[Exchange]) -> Iterator[Exchange]:
    """One after the other, whenever they were: by that they are answered in this order."""
    at: int | None = None
    for exchange in exchanges:
        at = exchange.started_at if at is None else at
        yield replace(exchange, started_at=at)
        at += (exchange.ended_at or 0) + _PAUSE
