"""Find why two matching calls differ, as far as the two calls show it."""

from dataclasses import dataclass
from typing import Final, Literal

from calls.comparison.answer_fingerprint import answer_meaning
from calls.comparison.answer_volatile import AnswerDifferences, compare_answers
from calls.keys.divergence import Difference
from calls.keys.key import KeyResult
from calls.keys.rules import Plan
from calls.model import Call, Exchange, Json, client_outcome, has_answer_ended
from store.diff.steps import Step, StepReader

type Cause = Literal[
    "same", "volatile", "order", "model", "tool_answer", "answer", "failure", "prompt", "follows", "missing", "extra"
]

ROOTS: Final = frozenset(("order", "model", "tool_answer", "answer", "failure", "prompt", "missing", "extra"))
"""Causes that make two runs differ. The other causes are no difference, or follow from one."""

MOST_SHOWN: Final = 12
"""The number of places that are reported where two requests or answers differ."""

type Named = tuple[str | None, str | None]
"""The name and fingerprint of the model in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCall:
    """One call of a pair, examined closely."""

    request_exchange: Exchange
    key: KeyResult
    call: Call
    """The call that is derived from its last exchange."""

    answer_exchange: Exchange
    ignore_plan: Plan | None = None
    """The parts of the answer that its profile ignores."""

    @property
    def answer_meaning(self) -> Json:
        """The meaning of the answer, without ids and ignored parts."""
        return answer_meaning(self.call, self.ignore_plan, has_all_thoughts=True)

    @property
    def is_client_gone(self) -> bool:
        """Whether the client closed the connection during the answer. How much it had received then is chance."""
        return client_outcome(self.answer_exchange, answer_ended=has_answer_ended(self.call)) == "client_closed"


def examine_call(first: Exchange, last: Exchange, reader: StepReader) -> ComparedCall:
    """Examine a call closely: its first exchange has the request, its last the answer."""
    key = reader.key(first)
    call = reader.derive_call(last, key if last is first else reader.key(last))
    return ComparedCall(
        request_exchange=first, key=key, call=call, answer_exchange=last, ignore_plan=reader.ignore_plan(call)
    )


def volatile_answers(one: ComparedCall, other: ComparedCall, *, ids: bool = False) -> AnswerDifferences | None:
    """Return the volatile values in which two answers differ; None for answers of models or with different endings."""
    here, there = one.answer_exchange.response, other.answer_exchange.response
    models = "model" in (one.call.kind, other.call.kind)
    if models or not (here and there and here.status == there.status and one.call.complete == other.call.complete):
        return None
    return compare_answers(
        one.answer_meaning,
        other.answer_meaning,
        (one.answer_exchange.started_at, other.answer_exchange.started_at),
        ids=ids,
    )


def is_left_alike(one: ComparedCall, other: ComparedCall) -> bool:
    """Whether both clients closed the connection during the answer, and the answers are equal as far as both have them."""
    here, there = one.answer_exchange.response, other.answer_exchange.response
    if not (one.is_client_gone and other.is_client_gone and here and there and here.status == there.status):
        return False
    if one.call.kind == "model":
        # The bytes have ids and times that are new each time.
        return one.call.tool_calls == other.call.tool_calls and _is_prefix_of_either(
            one.call.text or "", other.call.text or ""
        )
    return _is_prefix_of_either(here.body.data, there.body.data)


def _is_prefix_of_either[T: (str, bytes)](one: T, other: T) -> bool:
    return one.startswith(other) or other.startswith(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFindings:
    """What was found about a pair."""

    cause: Cause | None
    """None where the pair was not examined, because there are too many."""

    requests: tuple[Difference, ...] = ()
    """Differences of the key fields of the requests."""

    volatile: tuple[Difference, ...] = ()
    """Differences of the requests outside of their keys."""

    answers: tuple[Difference, ...] = ()
    more: int = 0
    """The number of differences that are not listed."""

    follows: int | None = None
    """The place of the pair from which this one follows."""


def gist_cause(one: Step | None, other: Step | None, *, moved: bool) -> Cause | None:
    """Return the cause that the gists of a pair show; None where the pair must be examined."""
    if one is None:
        return "extra"
    if other is None:
        return "missing"
    if one.request.call.key != other.request.call.key:
        return None
    if one.answer.answer_digest != other.answer.answer_digest:
        return _answer_cause(one, other)
    if _model(one) != _model(other):
        return "model"
    if moved and not (one.is_concurrent or other.is_concurrent):
        return "order"
    alike = (
        one.request.request_digest == other.request.request_digest
        and one.answer.full_answer_digest == other.answer.full_answer_digest
    )
    return "same" if alike else None


def _answer_cause(one: Step, other: Step) -> Cause:
    """Return why the same request has a different answer."""
    if (one.has_failed or other.has_failed) and _ending(one) != _ending(other):
        return "failure"
    if _model(one) != _model(other):
        return "model"
    return "answer" if one.request.call.kind == "model" else "tool_answer"


def _ending(step: Step) -> tuple[object, ...]:
    return step.answer.attempt.status, step.answer.attempt.outcome, step.answer.attempt.complete


def _model(step: Step) -> Named:
    """Return the model that answered. A failure has none."""
    call = step.answer.call
    return (None, None) if step.has_failed else (call.model_returned, call.system_fingerprint)
