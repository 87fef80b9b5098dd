"""Tell whether the conversations of one process are one agent's work or several that run side by side. Pure.

One after another they are one agent's. Those that run at the same time are one agent's only where one of them started the
others: each lies between two calls of the starter, and begins with what a tool call of it says.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

SHORTEST_ARGUMENT: Final = 8
"""Characters of an argument that is recognised in a question."""

type Side = Literal["one", "unclear", "several"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A call of a model, as far as it matters here."""

    id: str
    started_at: int
    ended_at: int
    question: str
    """What the user said first."""

    arguments: Sequence[str] = ()
    """Values of the tool calls that it asks for."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Calls that go on from one another, in the order in which they began."""

    calls: Sequence[ModelCall]

    @property
    def begin(self) -> int:
        return self.calls[0].started_at

    @property
    def end(self) -> int:
        return max(call.ended_at for call in self.calls)

    def overlaps(self, other: "Conversation") -> bool:
        """Whether both were under way at some time."""
        return self.begin < other.end and other.begin < self.end

    def has_started(self, other: "Conversation") -> bool:
        """Whether a tool call of this one started the other, which was over before this one went on."""
        before = [call for call in self.calls if call.ended_at <= other.begin]
        after = [call for call in self.calls if call.ended_at > other.begin]
        if not before or any(call.started_at < other.end for call in after):
            return False
        question = other.calls[0].question
        return any(len(one) >= SHORTEST_ARGUMENT and one in question for one in before[-1].arguments)


def conversations(calls: Iterable[ModelCall], chains: Mapping[str, str]) -> list[Conversation]:
    """The calls by the chains that they are in; one that is in none is a conversation of its own."""
    found: dict[str, list[ModelCall]] = {}
    for call in sorted(calls, key=lambda one: (one.started_at, one.id)):
        found.setdefault(chains.get(call.id, call.id), []).append(call)
    return [Conversation(one) for one in found.values()]


def judged(found: Sequence[Conversation]) -> Side:
    """Whether these are one agent's work; where calls that stand alone were under way with others, that is unclear."""
    roots = _roots(found)
    side: Side = "one"
    for n, one in enumerate(found):
        for m in range(n + 1, len(found)):
            other = found[m]
            if roots[n] == roots[m] or not one.overlaps(other):
                continue
            if len(one.calls) > 1 and len(other.calls) > 1:
                return "several"
            if _in_flight_together(one, other) and one.calls[0].question != other.calls[0].question:
                side = "unclear"
    return side


def _roots(found: Sequence[Conversation]) -> list[int]:
    """For each the conversation that started it, or started the one that did."""
    roots = list(range(len(found)))
    for m, other in enumerate(found):  # those that began first come first
        starter = next((n for n in range(m) if found[n].has_started(other)), None)
        if starter is not None:
            roots[m] = roots[starter]
    return roots


def _in_flight_together(one: Conversation, other: Conversation) -> bool:
    return any(a.started_at < b.ended_at and b.started_at < a.ended_at for a in one.calls for b in other.calls)
