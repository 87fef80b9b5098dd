"""`/v1/runs/{a}/diff/{b}`: compare two runs. `/v1/drift`: changes of the models behind their names."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request, Response

from calls.model import Exchange
from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.parameters import RunId, Text, Time, WhenSettled, parse_times
from store.api.problems import Problem
from store.api.routes.runs import require_run
from store.diff.diff import MOST_EXAMINED, Diff, Side, make_side
from store.diff.steps import Gist, StepReader, make_gist
from store.drift.latency_changes import find_latency_changes
from store.drift.model_changes import AnswerComparison, DriftQuestion, find_model_changes
from store.effects.comparison import effects_until, shape_with_effect, steps_of_cause
from store.effects.loading import RunEffects
from store.query.rest_shapes import Shape

router = APIRouter(tags=["compare"], route_class=DeferredRoute)

type LookedAt = Annotated[int, Query(ge=1, le=5000, description="how many differing pairs to examine closely")]

_BATCH = 10

MOST_COMPARED: Final = 30_000
"""Requests of both runs together that are compared here, which take 120 MB. Those of 200,000 took 800."""


@router.get("/runs/{a}/diff/{b}", summary="Where two runs differ, and why")
async def get_diff(
    request: Request, deps: TheDeps, a: RunId, b: RunId, settled: WhenSettled, looked_at: LookedAt = MOST_EXAMINED
) -> Response:
    """The calls of both runs, aligned, from the first that differs (docs/compare.md). Runs that have more than 30,000 requests together
    are refused with 507: export both and compare the files."""
    for run in (a, b):
        await deps.call_reader.check_run(run)
    await _check_size(deps, (a, b))
    reader = StepReader(profiles=deps.profiles, clean=deps.clean)
    try:
        one, other = [await _load_side(deps, run, reader, request.is_disconnected) for run in (a, b)]
    except _ClientGone:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    diff = await asyncio.to_thread(Diff, one, other, looked_at)
    for places in diff.batches_to_examine():
        here, there = diff.exchange_ids(places)
        evidence = await deps.call_reader.exchanges_by_id(here), await deps.call_reader.exchanges_by_id(there)
        await asyncio.to_thread(diff.examine, places, evidence, reader)
    shape = await _with_effect(deps, (a, b), await asyncio.to_thread(diff.shape))
    return JsonResponse(shape | settled.members)


async def _with_effect(deps: Deps, runs: tuple[str, str], shape: Shape) -> Shape:
    """Add the first effect that differs, up to the first requests that do."""
    effects = RunEffects(deps.database, deps.project)
    collected = []
    for run, step in zip(runs, steps_of_cause(shape), strict=True):
        values = effects_until(step, await effects.step_times(run))
        await effects.observe(run, values.add)
        collected.append(values)
    return await asyncio.to_thread(shape_with_effect, shape, *collected)


async def _check_size(deps: Deps, runs: Sequence[str]) -> None:
    """Refuse a comparison that takes more memory than the store server may use. Raises Problem."""
    counts = [await deps.call_reader.exchange_count(run) for run in runs]
    if sum(counts) > MOST_COMPARED:
        sizes = " and ".join(f"run {run} has {count:,}" for run, count in zip(runs, counts, strict=True))
        detail = (
            f"the runs are too long to be compared here: {sizes} requests, and the store server has memory for"
            f" {MOST_COMPARED:,} together. Export both with `playhead export RUN -o FILE`, and compare the files with"
            " `playhead diff FILE FILE`"
        )
        raise Problem(507, "too_large", detail)


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


CLIENT_CLOSED_REQUEST: Final = 499
"""The status of an answer that nobody gets, as nginx logs it."""


async def _load_side(deps: Deps, run: str, reader: StepReader, is_client_gone: Callable[[], Awaitable[bool]]) -> Side:
    """Load one run, some exchanges at a time: only their gists stay in memory."""
    await require_run(deps, run)
    gists: list[Gist] = []
    waiting: list[Exchange] = []

    def make_gists(exchanges: Sequence[Exchange]) -> list[Gist]:
        return [make_gist(exchange, reader) for exchange in exchanges]

    async for exchange in deps.call_reader.exchanges(run):
        waiting.append(exchange)
        if len(waiting) == _BATCH:
            # In a thread: computing the keys of long conversations takes a while.
            gists += await asyncio.to_thread(make_gists, waiting)
            waiting = []
            if await is_client_gone():
                raise _ClientGone
    gists += await asyncio.to_thread(make_gists, waiting)
    return await asyncio.to_thread(make_side, run, gists)


async def _drift_question(
    since: Time = None, until: Time = None, model: Text = None, provider: Text = None
) -> DriftQuestion:
    begin, end = parse_times(since, until)
    return DriftQuestion(since=begin, until=end, model=model, provider=provider)


type TheQuestion = Annotated[DriftQuestion, Depends(_drift_question)]


@router.get("/drift", summary="Changes of the model behind a name, newest first")
async def get_drift(deps: TheDeps, question: TheQuestion, settled: WhenSettled) -> Response:
    """From ordinary runs (docs/compare.md): the changes, all models that answered, requests that were repeated, and latencies."""
    ignoring = AnswerComparison(recorded=deps.call_reader, derive=deps.derive, profiles=deps.profiles)
    changes = await find_model_changes(deps.database, question, deps.project, comparison=ignoring)
    latencies = await find_latency_changes(deps.database, question, deps.project)
    return JsonResponse(changes | {"latencies": latencies} | settled.members)
