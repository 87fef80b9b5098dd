"""`/v1/runs/{run}/timeline`, `conversation` and `effects`: when a run did what, what was said in it, and what else its programs got."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from store.api.answers import JsonResponse, page_response
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.parameters import Limit, Next, RunId, Text, WhenSettled
from store.api.routes.runs import require_run
from store.effects.loading import RunEffects
from store.effects.shapes import EffectFilter
from store.timeline.loading import RunTimelines
from store.timeline.timeline import MOST_STEPS

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

type After = Annotated[
    int, Query(ge=0, le=1 << 31, description="the steps after this one: `next` of the answer before")
]
type StepLimit = Annotated[int, Query(ge=1, le=MOST_STEPS, description="how many steps at most")]
type EffectKinds = Annotated[
    list[Annotated[str, Query(min_length=1, max_length=100)]],
    Query(max_length=20, description="kinds, or their beginnings; may be repeated"),
]
type BeforeStep = Annotated[
    int | None,
    Query(
        ge=1,
        le=1 << 31,
        description="only those between this call and the one before it; one more than the last step: those after it",
    ),
]
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


@router.get("/runs/{run}/effects", summary="What the programs of a run got from elsewhere than the network")
async def get_effects(
    deps: TheDeps,
    run: RunId,
    settled: WhenSettled,
    kind: EffectKinds = [],  # noqa: B006 - FastAPI copies it
    process: Text = None,
    step: BeforeStep = None,
    cursor: Next = None,
    limit: Limit = 50,
) -> Response:
    """The time, random numbers, variables, files and so on (docs/effects.md), by process, in the order in which it asked. A page may
    have fewer items than `limit`, and none, while `next` names another.

    For a token without `bodies:read`, the members `args`, `results`, `error` and `text` are null.
    """
    await require_run(deps, run)
    effect_filter = EffectFilter(kinds=tuple(kind), process=process, step=step)
    effects = RunEffects(deps.database, deps.project)
    page = await effects.page(run, effect_filter, cursor, limit, shows_values=deps.grant.reads_bodies)
    return page_response(page.items, page.next, **settled.members)


@router.get("/runs/{run}/effects/sums", summary="How many effects a run had between its calls")
async def get_effect_sums(deps: TheDeps, run: RunId, settled: WhenSettled) -> Response:
    """By the call that they came before and by kind, each with the first result and some names. `whole` is false for a run with so many
    that only the first were counted.

    For a token without `bodies:read`, the members `names` and `text` are null.
    """
    await require_run(deps, run)
    found = await RunEffects(deps.database, deps.project).groups(run, shows_values=deps.grant.reads_bodies)
    return JsonResponse(found | settled.members)


def _timelines(deps: Deps) -> RunTimelines:
    return RunTimelines(deps.database, deps.call_reader, deps.derive, deps.clean, deps.project)
