"""`/v1/canaries`: models that are asked the same again and again, and whether they still answer as before (docs/canary.md)."""

from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Path, Request, Response

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.problems import Problem, not_found
from store.canaries import Canaries, Shot, TooManyCanaries, canary_shape

router = APIRouter(tags=["canaries"], route_class=DeferredRoute)

type CanaryName = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", description="1 to 63 of A-Z a-z 0-9 . _ -")
]

_decoder: Final = msgspec.json.Decoder(Shot)


@router.get("/canaries", summary="Whether models still answer as before")
async def list_canaries(deps: TheDeps) -> Response:
    """All canaries of the project, by name: `unchanged`, `changed` or `cannot tell`, with the numbers behind it."""
    states = await Canaries(deps.database, deps.project).load()
    items = [canary_shape(name, state, len(states)) for name, state in states.items()]
    return JsonResponse({"items": items, "next": None})


@router.post("/canaries/{canary}/shots", summary="Add what a shot of a canary has found", status_code=201)
async def add_shot(deps: TheDeps, canary: CanaryName, request: Request) -> Response:
    """`playhead canary` sends it: digests of answers, without their content. `is_news`: it is said to have changed just now."""
    try:
        shot = _decoder.decode(await request.body())
    except msgspec.MsgspecError as error:
        raise Problem(422, "invalid_request", f"this is not a shot of a canary: {error}") from error
    try:
        states, is_news = await Canaries(deps.database, deps.project).add_shot(canary, shot, deps.now())
    except TooManyCanaries:
        raise Problem(
            409, "too_many_canaries", "this project has a thousand canaries: remove those that nobody needs"
        ) from None
    return JsonResponse(canary_shape(canary, states[canary], len(states)) | {"is_news": is_news}, 201)


@router.delete("/canaries/{canary}", summary="Forget a canary, so that it begins anew", status_code=204)
async def remove_canary(deps: TheDeps, canary: CanaryName) -> Response:
    """Its runs stay. The next shot begins with new reference answers."""
    if not await Canaries(deps.database, deps.project).remove(canary):
        raise not_found("canary", canary)
    return Response(status_code=204)
