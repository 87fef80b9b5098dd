"""The run of a bundle in the shape of the REST API."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

from calls.model import Usage, client_outcome, has_answer_ended
from store.bundle.bundle import Bundle
from store.query.rest_shapes import Shape, dollars, rfc3339
from store.recorded_file.call_shapes import FileExchange
from store.timeline.facts import StepFacts


def make_run_shape(bundle: Bundle, exchanges: Sequence[FileExchange], steps: Sequence[StepFacts]) -> Shape:
    """Return the run. What a bundle leaves out is counted from its exchanges."""
    members = bundle.run
    costs = [step.cost for step in steps if step.cost is not None]
    known_cost = sum(costs, Decimal(0)) if costs else None
    unpriced = sum(step.unpriced for step in steps)
    starts = [one.exchange.started_at for one in exchanges] + [gap.happened_at for gap in bundle.gaps]
    return {
        "id": members["id"],
        "name": members.get("name"),
        "labels": members.get("labels") or {},
        "started_at": members.get("started_at") or rfc3339(min(starts, default=0)),
        "active_at": rfc3339(max((step.end for step in steps), default=max(starts, default=0))),
        "ended_at": members.get("ended_at")
        or rfc3339(max((step.end for step in steps), default=max(starts, default=0))),
        "calls": len(steps),
        "exchanges": len(exchanges),
        "gaps": len(bundle.gaps),
        "complete": not bundle.gaps and not any(map(_is_cut, exchanges)),
        "pinned": False,
        "parent": members.get("parent"),
        "forked_at": members.get("forked_at"),
        "models": sorted({one.call.model_requested or one.call.model_returned or "" for one in exchanges} - {""}),
        "tokens": {name: _sum(step.usage.get(name) for step in steps) for name in Usage.__slots__},
        "cost_usd": None if unpriced else dollars(known_cost),
        "known_cost_usd": dollars(known_cost),
        "unpriced": unpriced,
        "profile": members.get("profile"),
        "attribution": members.get("attribution"),
        "isolation": members.get("isolation") or "none",
        "mode": None,
        "head": None,
    }


def _is_cut(one: FileExchange) -> bool:
    ending = client_outcome(one.exchange, answer_ended=has_answer_ended(one.call))
    return one.exchange.is_truncated or ending in ("server_closed", "timed_out")


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
