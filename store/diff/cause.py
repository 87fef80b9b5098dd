"""Find why two matching calls differ, as far as each of them shows it."""

from dataclasses import dataclass
from typing import Final, Literal

from calls.comparison.answer_fingerprint import meaning
from calls.comparison.answer_volatile import AnswerDifferences, compared
from calls.keys.divergence import Difference
from calls.keys.key import KeyResult
from calls.keys.rules import Plan
from calls.model import Call, Exchange, Json, concluded, ended
from store.diff.steps import Step, StepReader

type Cause = Literal[
    "same", "volatile", "order", "model", "tool_answer", "answer", "failure", "prompt", "follows", "missing", "extra"
]

ROOTS: Final = frozenset(("order", "model", "tool_answer", "answer", "failure", "prompt", "missing", "extra"))
"""What makes two runs part. The others are no parting, or follow from one."""

SHOWN: Final = 12
"""Places at which two requests or answers part that are told. Nobody reads a longer list."""

type Named = tuple[str | None, str | None]
"""What an answer says of its model: name and fingerprint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCall:
    """One call of a pair, looked at closely."""

    asked: Exchange
    key: KeyResult
    call: Call
    """As its last exchange tells it."""

    told: Exchange
    ignored: Plan | None = None
    """What its profile says to ignore in the answer."""

    @property
    def said(self) -> Json:
        """What the answer says."""
        return meaning(self.call, self.ignored)

    @property
    def left(self) -> bool:
        """Whether the client left in the midst of the answer. How much it had then is chance."""
        return ended(self.told, concluded=concluded(self.call)) == "client_closed"


def seen(first: Exchange, last: Exchange, reading: StepReader) -> ComparedCall:
    """Look at a call closely: at its first exchange for what was asked, at its last for the answer."""
    key = reading.key(first)
    call = reading.call(last, key if last is first else reading.key(last))
    return ComparedCall(asked=first, key=key, call=call, told=last, ignored=reading.ignored(call))


def volatile_answers(one: ComparedCall, other: ComparedCall, *, ids: bool = False) -> AnswerDifferences | None:
    """In which volatile values two answers differ; None where it is models that answered, or where the end was another."""
    here, there = one.told.response, other.told.response
    models = "model" in (one.call.kind, other.call.kind)
    if models or not (here and there and here.status == there.status and one.call.complete == other.call.complete):
        return None
    return compared(one.said, other.said, (one.told.started_at, other.told.started_at), ids=ids)


def left_alike(one: ComparedCall, other: ComparedCall) -> bool:
    """Whether both clients left in the midst of what is the same answer, as far as both have it."""
    here, there = one.told.response, other.told.response
    if not (one.left and other.left and here and there and here.status == there.status):
        return False
    if one.call.kind == "model":
        # Its bytes have ids and times that are new each time.
        return one.call.tool_calls == other.call.tool_calls and _begins(one.call.text or "", other.call.text or "")
    return _begins(here.body.data, there.body.data)


def _begins[T: (str, bytes)](one: T, other: T) -> bool:
    return one.startswith(other) or other.startswith(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFindings:
    """What was found out about a pair."""

    cause: Cause | None
    """None where it was not looked at closely: there are too many."""

    requests: tuple[Difference, ...] = ()
    """Where the load-bearing parts of the requests differ."""

    volatile: tuple[Difference, ...] = ()
    """Where the requests differ outside of their keys."""

    answers: tuple[Difference, ...] = ()
    more: int = 0
    """Places that are not listed."""

    follows: int | None = None
    """The pair that this one follows from, by its place."""


def gist_cause(one: Step | None, other: Step | None, *, moved: bool) -> Cause | None:
    """What can be told without a closer look; None where one is needed."""
    if one is None:
        return "extra"
    if other is None:
        return "missing"
    if one.asked.call.key != other.asked.call.key:
        return None
    if one.told.said != other.told.said:
        return _answered(one, other)
    if _model(one) != _model(other):
        return "model"
    if moved and not (one.alongside or other.alongside):
        return "order"
    alike = one.asked.sent == other.asked.sent and one.told.said_whole == other.told.said_whole
    return "same" if alike else None


def _answered(one: Step, other: Step) -> Cause:
    """Why the same request has another answer."""
    if (one.failed or other.failed) and _ending(one) != _ending(other):
        return "failure"
    if _model(one) != _model(other):
        return "model"
    return "answer" if one.asked.call.kind == "model" else "tool_answer"


def _ending(step: Step) -> tuple[object, ...]:
    return step.told.part.status, step.told.part.outcome, step.told.part.complete


def _model(step: Step) -> Named:
    """Who answered. A failure names nobody, and says nothing about that."""
    call = step.told.call
    return (None, None) if step.failed else (call.model_returned, call.system_fingerprint)
