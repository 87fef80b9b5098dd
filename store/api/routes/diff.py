"""`/v1/runs/{a}/diff/{b}`: compare two runs."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from calls.model import Exchange
from store.api.answers import Json
from store.api.deps import Deps, TheDesk
from store.api.parameters import RunId, WhenSettled
from store.api.routes.runs import shape
from store.diff.diff import LOOKED_AT, Diff, Side, side
from store.diff.steps import Gist, StepReader, gist

router = APIRouter(tags=["compare"])

type LookedAt = Annotated[int, Query(ge=1, le=5000, description="how many pairs that differ are looked at closely")]

_TOGETHER = 10


@router.get("/runs/{a}/diff/{b}", summary="Where two runs part, and why")
async def get_diff(
    desk: TheDesk, a: RunId, b: RunId, settled: WhenSettled, looked_at: LookedAt = LOOKED_AT
) -> Response:
    """The calls of both runs aligned, from the first that differs on (docs/compare.md)."""
    for run in (a, b):
        await desk.recorded.check_run(run)
    reading = StepReader(profiles=desk.profiles, clean=desk.clean)
    one, other = [await _side(desk, run, reading) for run in (a, b)]
    diff = await asyncio.to_thread(Diff, one, other, looked_at)
    for places in diff.wants():
        here, there = diff.evidence(places)
        held = await desk.recorded.evidence(here), await desk.recorded.evidence(there)
        await asyncio.to_thread(diff.look, places, held, reading)
    return Json(await asyncio.to_thread(diff.shape) | settled.told)


async def _side(desk: Deps, run: str, reading: StepReader) -> Side:
    """One run, read some exchanges at a time: only their gists are held."""
    await shape(desk, run)
    gists: list[Gist] = []
    waiting: list[Exchange] = []

    def digested(exchanges: Sequence[Exchange]) -> list[Gist]:
        return [gist(exchange, reading) for exchange in exchanges]

    async for exchange in desk.recorded.exchanges(run):
        waiting.append(exchange)
        if len(waiting) == _TOGETHER:
            # Beside the loop: to key a page of long conversations takes a while.
            gists += await asyncio.to_thread(digested, waiting)
            waiting = []
    gists += await asyncio.to_thread(digested, waiting)
    return await asyncio.to_thread(side, run, gists)
