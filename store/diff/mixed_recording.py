"""Mix a recording from two runs: each of its answers was given, in one of the runs, to the request that it answers.

Where both runs have the same request with different answers (a candidate), one of the two answers is taken. Requests that
only one run has are included as they are. A program that is replayed from the mixture behaves as in one run or the other,
depending on the answers, and never receives the answer to another request.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from calls.model import Exchange
from store.bundle.bundle import Bundle, Entry
from store.bundle.trace import rfc3339_ns
from store.diff.cause import Cause
from store.diff.diff import Diff
from store.diff.steps import Step

_ANSWER_CAUSES: Final = frozenset(("answer", "tool_answer", "model", "failure"))
_PAUSE: Final = 1_000_000
"""Nanoseconds between two exchanges, so that no two overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A request that both runs made and that was answered differently."""

    place: int
    one: Step
    other: Step
    cause: Cause
    where: str
    """A description of its step and address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Two runs from which recordings can be mixed."""

    diff: Diff
    one: Sequence[Exchange]
    other: Sequence[Exchange]
    profiles: str
    """The digest of the profiles in force."""

    surroundings: Mapping[str, Any] = field(default_factory=dict)
    """What the first run says of how its command ran: members of a bundle's run."""

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates, in the order of the first run."""
        return [
            Candidate(place=place, one=one, other=other, cause=cause, where=self.diff.where(place))
            for place, one, other, cause in self.diff.pairs()
            if one and other and cause in _ANSWER_CAUSES and one.answer.answer_digest != other.answer.answer_digest
        ]

    def bundle(self, run: str, chosen: Collection[int]) -> Bundle:
        """Return the recording in which the candidates at the chosen places are answered as in the other run."""
        mixed = list(_serialize_times(self._exchanges(chosen)))
        started = {"started_at": rfc3339_ns(mixed[0].started_at)} if mixed else {}
        entries = tuple(Entry(exchange=each) for each in mixed)
        return Bundle(run={**self.surroundings, "id": run, **started}, profiles=self.profiles, entries=entries)

    def _exchanges(self, chosen: Collection[int]) -> Iterator[Exchange]:
        here, there = ({each.id: each for each in side} for side in (self.one, self.other))
        for place, one, other, _ in self.diff.pairs():
            alike = one and other and one.request.call.key == other.request.call.key
            if one and not (alike and place in chosen):
                yield from (here[name] for name in one.ids)
            if other and (not alike or place in chosen):
                yield from (there[name] for name in other.ids)


def _serialize_times(exchanges: Iterable[Exchange]) -> Iterator[Exchange]:
    """Change the times so that the exchanges follow one another, because a replay answers in the order of time."""
    at: int | None = None
    for exchange in exchanges:
        at = exchange.started_at if at is None else at
        yield replace(exchange, started_at=at)
        at += (exchange.ended_at or 0) + _PAUSE
