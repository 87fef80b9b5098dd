"""Decide whether the conversations of a process are the work of one agent or of several concurrent ones. Pure.

Conversations one after another are one agent's. Concurrent ones are one agent's only if one of them started the others: each
lies between two calls of the starter, and its question contains an argument of a tool call of the starter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

MIN_ARGUMENT_LENGTH: Final = 8
"""Characters of an argument from which it is looked for in a question."""

type Side = Literal["one", "unclear", "several"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """The parts of a model call that are compared here."""

    id: str
    started_at: int
    ended_at: int
    question: str
    """The first message of the user."""

    arguments: Sequence[str] = ()
    """Values of the arguments of the requested tool calls."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Calls that continue one another, in the order in which they began."""

    calls: Sequence[ModelCall]

    @property
    def begin(self) -> int:
        return self.calls[0].started_at

    @property
    def end(self) -> int:
        return max(call.ended_at for call in self.calls)

    def overlaps(self, other: "Conversation") -> bool:
        """Whether both were in progress at the same time."""
        return self.begin < other.end and other.begin < self.end

    def has_started(self, other: "Conversation") -> bool:
        """Whether a tool call of this conversation started the other, which ended before this one continued."""
        before = [call for call in self.calls if call.ended_at <= other.begin]
        after = [call for call in self.calls if call.ended_at > other.begin]
        if not before or any(call.started_at < other.end for call in after):
            return False
        question = other.calls[0].question
        return any(len(one) >= MIN_ARGUMENT_LENGTH and one in question for one in before[-1].arguments)


def group_conversations(calls: Iterable[ModelCall], chains: Mapping[str, str]) -> list[Conversation]:
    """Group calls by their chains. A call without a chain is a conversation of its own."""
    found: dict[str, list[ModelCall]] = {}
    for call in sorted(calls, key=lambda one: (one.started_at, one.id)):
        found.setdefault(chains.get(call.id, call.id), []).append(call)
    return [Conversation(one) for one in found.values()]


def estimate_agent_count(conversations: Sequence[Conversation]) -> Side:
    """Estimate whether these are one agent's work; "unclear" if only single calls overlap with others."""
    roots = _root_indices(conversations)
    side: Side = "one"
    for n, one in enumerate(conversations):
        for m in range(n + 1, len(conversations)):
            other = conversations[m]
            if roots[n] == roots[m] or not one.overlaps(other):
                continue
            if len(one.calls) > 1 and len(other.calls) > 1:
                return "several"
            if _have_overlapping_calls(one, other) and one.calls[0].question != other.calls[0].question:
                side = "unclear"
    return side


def _root_indices(conversations: Sequence[Conversation]) -> list[int]:
    """For each conversation, the index of the one that started it, directly or through others."""
    roots = list(range(len(conversations)))
    for m, other in enumerate(conversations):  # ordered by their begin
        starter = next((n for n in range(m) if conversations[n].has_started(other)), None)
        if starter is not None:
            roots[m] = roots[starter]
    return roots


def _have_overlapping_calls(one: Conversation, other: Conversation) -> bool:
    return any(a.started_at < b.ended_at and b.started_at < a.ended_at for a in one.calls for b in other.calls)
