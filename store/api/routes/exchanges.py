"""`/v1/exchanges`: exchanges, down to their bytes.

A stored body is somebody else's content and may be a web page with scripts. It is sent as opaque bytes to be saved, in a
sandbox, and without its own type or coding in the headers that a client acts on: so every client, also one that undoes
codings, receives the stored bytes exactly.
"""

from fastapi import APIRouter, Response

from calls.model import Body, Exchange, Headers, header
from store.api.answers import Json, page
from store.api.deps import Deps, TheDesk
from store.api.problems import Problem, unknown
from store.bundle.trace import digest
from store.query.rest_shapes import chunk_shapes

router = APIRouter(tags=["exchanges"])


@router.get("/exchanges/{exchange}", summary="One exchange, without its bodies")
async def get_exchange(desk: TheDesk, exchange: str) -> Response:
    """Heads, sizes, digests and times."""
    found = await desk.recorded.exchange_shape(exchange)
    if found is None:
        raise unknown("exchange", exchange)
    return Json(found)


@router.get("/exchanges/{exchange}/chunks", summary="The pieces of both bodies, as they arrived")
async def get_chunks(desk: TheDesk, exchange: str) -> Response:
    """The request's first."""
    return page(chunk_shapes(await _evidence(desk, exchange)), None)


@router.get("/exchanges/{exchange}/request", summary="The request's body: the stored bytes exactly")
async def get_request(desk: TheDesk, exchange: str) -> Response:
    """Content-encoded as they came."""
    request = (await _evidence(desk, exchange)).request
    return _raw(request.body, request.headers, f"{exchange}.request")


@router.get("/exchanges/{exchange}/response", summary="The response's body: the stored bytes exactly")
async def get_response(desk: TheDesk, exchange: str) -> Response:
    """Content-encoded as they came."""
    response = (await _evidence(desk, exchange)).response
    if response is None:
        detail = f"exchange {exchange} has no response: none came before it ended; its `outcome` and `error` say why"
        raise Problem(404, "no_response", detail)
    return _raw(response.body, response.headers, f"{exchange}.response")


async def _evidence(desk: Deps, exchange: str) -> Exchange:
    found = await desk.recorded.exchange(exchange)
    if found is None:
        raise unknown("exchange", exchange)
    return found


def _raw(body: Body, headers: Headers, name: str) -> Response:
    told = {
        "content-disposition": f'attachment; filename="{name}"',
        "etag": f'"{digest(body.data)}"',
        "playhead-truncated": str(body.truncated).lower(),
        "playhead-reencoded": str(body.reencoded).lower(),
    }
    for asked in ("content-type", "content-encoding"):
        value = header(headers, asked)
        # What could not stand in a header is not put into one.
        if value is not None and value.isprintable():
            told[f"playhead-{asked}"] = value
    return Response(body.data, media_type="application/octet-stream", headers=told)
