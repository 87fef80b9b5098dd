"""Make the timeline of a run: the document from which a waterfall is drawn. Pure.

All times are milliseconds since the run began. The time before a step in which no request of the run was in flight is the
agent's own: it computed, waited for a person, or did something that was not recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, Self

from calls.events import Gap
from calls.model import Usage
from store.timeline.facts import AttemptFacts, StepFacts
from store.timeline.lanes import LanePlan, StepTime, assign_lanes

MOST_STEPS: Final = 2000
"""Steps of one timeline."""

MOST_GAPS: Final = 200
MOST_ATTEMPTS: Final = 50
"""Exchanges of one step that are listed: the first and the last ones."""

MOST_TOOLS: Final = 20
LONGEST_ERROR: Final = 300
LONGEST_EXCERPT: Final = 200

type Shape = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The steps of the run that a timeline leaves out before its first one."""

    steps: int = 0
    cost: Decimal = Decimal(0)
    tokens: int = 0

    def __add__(self, other: Self) -> Self:
        """Return the sums of both."""
        return replace(
            self,
            steps=self.steps + other.steps,
            cost=self.cost + other.cost,
            tokens=self.tokens + other.tokens,
        )


def sum_earlier(steps: Sequence[StepFacts]) -> Earlier:
    """Add up the steps that a timeline leaves out before its first one."""
    return Earlier(
        steps=len(steps),
        cost=sum((step.cost or Decimal(0) for step in steps), Decimal(0)),
        tokens=sum(_token_sum(step.usage) for step in steps),
    )


def make_timeline(
    run: Mapping[str, Any],
    began_at: int,
    steps: Sequence[StepFacts],
    gaps: Sequence[Gap],
    *,
    earlier: Earlier = Earlier(),
    steps_left_out: int = 0,
) -> Shape:
    """Make the timeline of a run from its steps, in their order. `run` has the members of the REST API."""
    zero = min([began_at, *(step.started_at for step in steps[:1])]) if not earlier.steps else began_at
    plan = assign_lanes(StepTime(one.call, one.actor, one.branch, one.started_at, one.end) for one in steps)
    shapes = list(_step_shapes(steps, plan, zero, earlier))
    failed = [step for step in shapes if step["failed"]]
    end = max((step.end for step in steps), default=zero)
    gap_shapes = [_gap_shape(gap, zero) for gap in gaps[:MOST_GAPS]]
    return {
        "run": dict(run),
        "duration_ms": _ms(max(end, *(gap.happened_at for gap in gaps[:MOST_GAPS]), zero) - zero)
        if gaps
        else _ms(end - zero),
        "thinking_ms": sum(step["thinking_ms"] for step in shapes),
        "lanes": [{"actor": lane.actor, "branches": list(lane.branches)} for lane in plan.lanes],
        "steps": shapes,
        "failed": {
            "count": len(failed),
            "first": {name: failed[0][name] for name in ("step", "call", "label", "status", "error")}
            if failed
            else None,
        },
        "gaps": gap_shapes,
        "gaps_left_out": max(0, len(gaps) - MOST_GAPS),
        "steps_before": earlier.steps,
        "steps_left_out": steps_left_out,
        "next": shapes[-1]["step"] if shapes and steps_left_out else None,
    }


def _step_shapes(steps: Sequence[StepFacts], plan: LanePlan, zero: int, earlier: Earlier) -> Iterator[Shape]:
    numbers = {step.call: step.number for step in steps}
    cost, tokens = earlier.cost, earlier.tokens
    busy_until = zero if not earlier.steps else None
    for step in steps:
        cost += step.cost or 0
        tokens += _token_sum(step.usage)
        thinking = max(0, step.started_at - busy_until) if busy_until is not None else 0
        busy_until = max(busy_until or 0, step.end)
        last = step.attempts[-1]
        yield {
            "step": step.number,
            "call": step.call,
            **{name: getattr(step, name) for name in _PLAIN},
            "lane": plan.places[step.call],
            "follows": [numbers[name] for name in step.follows if name in numbers],
            "status": last.status,
            "outcome": last.outcome,
            "failed": step.has_failed,
            "error": _cut(step.error, LONGEST_ERROR) if step.has_failed else None,
            "tries": step.tries,
            "attempts": [_attempt_shape(one, zero) for one in _ends_of(step.attempts)],
            "attempts_left_out": max(0, len(step.attempts) - MOST_ATTEMPTS),
            "start_ms": _ms(step.started_at - zero),
            "first_byte_ms": None if last.first_byte is None else _ms(last.started_at + last.first_byte - zero),
            "end_ms": None if last.duration is None else _ms(last.started_at + last.duration - zero),
            "thinking_ms": _ms(thinking),
            "tools": list(step.tools[:MOST_TOOLS]),
            "usage": {name: step.usage.get(name) for name in Usage.__slots__},
            "cost_usd": None if step.cost is None else float(step.cost),
            "unpriced": step.unpriced > 0,
            "cost_so_far_usd": float(cost),
            "tokens_so_far": tokens,
            "excerpt": _cut(step.excerpt, LONGEST_EXCERPT),
        }


_PLAIN: Final = (
    *("kind", "provider", "operation", "host", "method", "path", "label", "model", "actor", "branch", "complete"),
    *("streamed", "finish_reason", "answer_state", "origin"),
)


def _ends_of(attempts: Sequence[AttemptFacts]) -> Sequence[AttemptFacts]:
    half = MOST_ATTEMPTS // 2
    return attempts if len(attempts) <= MOST_ATTEMPTS else [*attempts[:half], *attempts[-half:]]


def _attempt_shape(attempt: AttemptFacts, zero: int) -> Shape:
    start = attempt.started_at - zero
    return {
        "exchange": attempt.exchange,
        "poll": attempt.is_poll,
        "status": attempt.status,
        "outcome": attempt.outcome,
        "start_ms": _ms(start),
        "first_byte_ms": None if attempt.first_byte is None else _ms(start + attempt.first_byte),
        "end_ms": None if attempt.duration is None else _ms(start + attempt.duration),
    }


def _gap_shape(gap: Gap, zero: int) -> Shape:
    return {
        "at_ms": _ms(gap.happened_at - zero),
        "reason": _cut(gap.reason, LONGEST_ERROR),
        "count": gap.count,
        "exchange": gap.exchange,
    }


def _token_sum(usage: Mapping[str, int | None]) -> int:
    return (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)


def _ms(ns: int) -> float:
    return ns / 1_000_000


def _cut(text: str | None, limit: int) -> str | None:
    return text if text is None or len(text) <= limit else f"{text[: limit - 1]}…"
