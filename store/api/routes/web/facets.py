"""`/v1/facets`, `/v1/marks`: what the list of runs shows beside the runs."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import StringConstraints

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.parameters import RUN_ID_PATTERN, TheFilters, WhenCaughtUp
from store.proof.seal_marks import load_seals, proof_shape
from store.sums.facets import FacetCounts

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

type RunIds = Annotated[
    list[Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)]],
    Query(min_length=1, max_length=500, description="ids of runs; may be repeated"),
]


@router.get("/facets", summary="How many runs have each model, tool, label and so on")
async def get_facets(deps: TheDeps, filters: TheFilters, settled: WhenCaughtUp) -> Response:
    """Of the newest 2,000 runs that fit the filters; `is_complete` says whether these are all. Each facet has its 30 most frequent
    values."""
    resolved = await deps.resolve(filters)
    return JsonResponse(await FacetCounts(deps.database, deps.project).load_facets(resolved) | settled.members)


@router.get("/marks", summary="Errors, durations, replays and seals of some runs")
async def get_marks(deps: TheDeps, run: RunIds) -> Response:
    """What a list shows beside its runs. Errors and durations are null until they are summed up, a moment after the calls; of replays,
    the newest 200 of the project are known. `proof` says how far a run is sealed and how its last verification ended, if there was one since the
    store server started; nothing is verified for it."""
    marks = await FacetCounts(deps.database, deps.project).load_marks(run)
    seals = await load_seals(deps.database, deps.project, run)
    for mark in marks:
        name = mark["run"]
        mark["proof"] = proof_shape(seals.get(name), deps.last_verdicts.get(deps.project, name))
    return JsonResponse({"items": marks})
