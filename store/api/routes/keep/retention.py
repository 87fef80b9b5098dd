"""`/v1/retention`: what the rules of retention would remove, and removing it."""

from typing import Final

import msgspec
from fastapi import APIRouter, Response

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.problems import Problem
from store.query.rest_shapes import Shape, rfc3339
from store.retention.plan import Expiry, RetentionPlan
from store.retention.rules import RetentionPolicy
from store.retention.runner import RetentionBusy

router = APIRouter(tags=["server"], route_class=DeferredRoute)

MOST_LISTED: Final = 1000


@router.get("/retention", summary="What the rules of retention would remove now")
async def plan_retention(deps: TheDeps) -> Response:
    """In all projects. Nothing is changed."""
    assert deps.retention is not None, "helper processes have no such route"
    plan = await deps.retention.plan()
    return JsonResponse(_plan_shape(plan, deps.retention.policy))


@router.post("/retention/run", summary="Remove what the rules of retention let go")
async def run_retention(deps: TheDeps) -> Response:
    """In all projects. The store server does the same every hour. What was removed cannot be restored."""
    assert deps.retention is not None, "helper processes have no such route"
    try:
        result = await deps.retention.run_once()
    except RetentionBusy as error:
        raise Problem(409, "retention_runs", str(error)) from error
    days = [
        {"day": day.day.isoformat(), "way": day.way, "before": day.before, "after": day.after} for day in result.days
    ]
    parts = [one.part for one in result.runs]
    counts = {"runs": parts.count("run"), "bodies": parts.count("bodies"), "freed": result.freed}
    size = result.plan.size - result.freed
    return JsonResponse(
        {**counts, "size": size, "objects": result.objects, "days": days, "warnings": list(result.warnings)}
    )


def _plan_shape(plan: RetentionPlan, policy: RetentionPolicy) -> Shape:
    return {
        "at": rfc3339(plan.at),
        "rules": msgspec.to_builtins(policy.rules),
        "budget": policy.budget,
        "size": plan.size,
        "frees": plan.frees,
        "runs": len(plan.expiries),
        "items": [_expiry_shape(one) for one in plan.expiries[:MOST_LISTED]],
        "kept": [{"reason": one.reason, "runs": one.runs, "bytes": one.size} for one in plan.kept_runs],
        "warnings": list(plan.warnings),
    }


def _expiry_shape(one: Expiry) -> Shape:
    facts = one.judged.facts
    return {
        "project": facts.project,
        "run": facts.run,
        "part": one.part,
        "rule": one.rule,
        "reason": one.reason,
        "newest_at": rfc3339(facts.newest_at),
        "bytes": one.size,
    }
