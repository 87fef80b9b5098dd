"""`/v1/runs/{run}/timeline` and `/v1/runs/{run}/conversation`: when a run did what, and what was said in it."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.parameters import RunId, WhenSettled
from store.api.routes.runs import require_run
from store.timeline.loading import RunTimelines
from store.timeline.timeline import MOST_STEPS

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

type After = Annotated[
    int, Query(ge=0, le=1 << 31, description="the steps after this one: `next` of the answer before")
]
type StepLimit = Annotated[int, Query(ge=1, le=MOST_STEPS, description="how many steps at most")]
type PageLimit = Annotated[int, Query(ge=1, le=200, description="how many calls at most")]


@router.get("/runs/{run}/timeline", summary="When a run did what")
async def get_timeline(
    deps: TheDeps, run: RunId, settled: WhenSettled, after: After = 0, limit: StepLimit = 1000
) -> Response:
    """Its steps with their times, lanes, amounts and failures; its gaps; and the time in which the agent did nothing on the network.

    For a token without `bodies:read`, the members `error` and `excerpt` are null.
    """
    head = await require_run(deps, run)
    found = await _timelines(deps).load_timeline(head, after, limit, shows_texts=deps.grant.reads_bodies)
    return JsonResponse(found | settled.members)


@router.get("/runs/{run}/conversation", summary="What was said in a run: of each prompt what is new in it")
async def get_conversation(
    deps: TheDeps, run: RunId, settled: WhenSettled, after: After = 0, limit: PageLimit = 50
) -> Response:
    """Each call with the messages that the calls before it did not send, and its answer; tool calls with the steps that executed
    them and that brought their results to a model. Texts are cut at 4,000 characters.

    For a token without `bodies:read`, texts are null.
    """
    head = await require_run(deps, run)
    found = await _timelines(deps).load_conversation(head, after, limit, shows_texts=deps.grant.reads_bodies)
    return JsonResponse(found | settled.members)


def _timelines(deps: Deps) -> RunTimelines:
    return RunTimelines(deps.database, deps.exchange_queries, deps.derive, deps.clean, deps.project)
