"""`/v1/stats`: calls summed up in groups. `/v1/runs/{run}/cost`: where the money of one run went."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.parameters import RunId, TheFilters, WhenCaughtUp, WhenSettled
from store.api.problems import Problem, not_found
from store.query.run_cost import MOST_STEPS, RunCost
from store.query.stats.groupings import Grouping, UnknownGrouping
from store.query.stats.stats import MOST_GROUPS, GroupSort, Stats

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

type GroupBy = Annotated[
    list[str],
    Query(
        min_length=1,
        max_length=3,
        description="run, model, provider, host, tool, kind, dialect, operation, actor, status, day, hour or label:NAME; up to three",
    ),
]

type SortGroups = Annotated[
    GroupSort | None, Query(description="cost, calls, errors or tokens: the largest first; or name, ascending")
]


@router.get("/stats", summary="Counts, errors, tokens, costs and latencies of calls, in groups")
async def get_stats(
    deps: TheDeps,
    filters: TheFilters,
    settled: WhenCaughtUp,
    group_by: GroupBy,
    sort: SortGroups = None,
    limit: Annotated[int, Query(ge=1, le=MOST_GROUPS, description="how many groups at most")] = MOST_GROUPS,
) -> Response:
    """Groups by `group_by`, the most expensive first, or the newest first by day and hour; and the total of all groups.

    `cost_usd` is null where the price of some call is unknown; `known_cost_usd` is the sum of the others. A call that requests
    several tools counts for each of them. A call that was tried several times counts once, by its last exchange. Percentiles
    are within 1 %.
    """
    try:
        groupings = [Grouping.parse(text) for text in group_by]
    except UnknownGrouping as error:
        raise Problem(422, "unknown_group", str(error)) from error
    resolved = await deps.resolve(filters)
    stats = Stats(deps.database, deps.project)
    items, total = await stats.load_stats(resolved, groupings, sort, limit)
    return JsonResponse({"items": items, "total": total} | settled.members)


@router.get("/runs/{run}/cost", summary="Where the money of a run went, step by step and as a tree")
async def run_cost(
    deps: TheDeps,
    run: RunId,
    settled: WhenSettled,
    limit: Annotated[int, Query(ge=1, le=MOST_STEPS, description="how many steps at most, the first ones")] = 500,
) -> Response:
    """Of each step: tokens by kind, cost, the cost so far, and how many tokens of its prompt had been sent before in its branch.

    That division is an estimate; `estimate` says how it is made. `tree` sums up the steps that are returned, and `total` the
    whole run.
    """
    if (head := await deps.runs.get(run, deps.now())) is None:
        raise not_found("run", run)
    cost = await RunCost(deps.database, deps.call_reader, deps.project).load_cost(head, limit)
    return JsonResponse(cost | settled.members)
