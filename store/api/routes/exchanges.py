"""`/v1/exchanges`: exchanges, down to their bytes.

A stored body is foreign content and may be a web page with scripts. It is sent as opaque bytes to be saved, in a sandbox,
and without its content type or encoding in the headers that a client acts on, so that every client receives the stored
bytes exactly, including one that decodes content encodings.
"""

import re
from typing import Annotated, Final

from fastapi import APIRouter, Header, Response

from calls.model import Body, Headers, header
from store.api.answers import JsonResponse, page_response
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.parameters import ExchangeId
from store.api.problems import Problem, not_found
from store.bundle.trace import digest
from store.query.rest_shapes import chunk_shapes

router = APIRouter(tags=["exchanges"], route_class=DeferredRoute)

type WantedRange = Annotated[str | None, Header(alias="range", description="one range of bytes, `bytes=FIRST-LAST`")]


@router.get("/exchanges/{exchange}", summary="One exchange, without its bodies")
async def get_exchange(deps: TheDeps, exchange: ExchangeId) -> Response:
    """Heads, sizes, digests and times."""
    found = await deps.call_reader.exchange_shape(exchange)
    if found is None:
        raise not_found("exchange", exchange, deps.project)
    return JsonResponse(found)


@router.get("/exchanges/{exchange}/chunks", summary="The pieces of both bodies, as they arrived")
async def get_chunks(deps: TheDeps, exchange: ExchangeId) -> Response:
    """Those of the request come first."""
    found = await deps.call_reader.exchange_without_bodies(exchange)
    if found is None:
        raise not_found("exchange", exchange, deps.project)
    return page_response(chunk_shapes(found[0]), None)


@router.get("/exchanges/{exchange}/request", summary="The request's body: the stored bytes exactly")
async def get_request(deps: TheDeps, exchange: ExchangeId, byte_range: WantedRange = None) -> Response:
    """With the content encoding in which they arrived. A `Range` of bytes, `bytes=0-65535`, is answered with that part."""
    request = await deps.call_reader.request(exchange)
    if request is None:
        raise not_found("exchange", exchange, deps.project)
    return _raw_response(request.body, request.headers, f"{exchange}.request", byte_range)


@router.get("/exchanges/{exchange}/response", summary="The response's body: the stored bytes exactly")
async def get_response(deps: TheDeps, exchange: ExchangeId, byte_range: WantedRange = None) -> Response:
    """With the content encoding in which they arrived. A `Range` of bytes, `bytes=0-65535`, is answered with that part."""
    response = await deps.call_reader.response(exchange)
    if response is None:
        if await deps.call_reader.exchange_without_bodies(exchange) is None:
            raise not_found("exchange", exchange, deps.project)
        detail = f"exchange {exchange} has no response: it ended before one arrived; its `outcome` and `error` say why"
        raise Problem(404, "no_response", detail)
    return _raw_response(response.body, response.headers, f"{exchange}.response", byte_range)


def _raw_response(body: Body, headers: Headers, name: str, byte_range: str | None) -> Response:
    response_headers = {
        "accept-ranges": "bytes",
        "content-disposition": f'attachment; filename="{name}"',
        "etag": f'"{digest(body.data)}"',
        "playhead-truncated": str(body.truncated).lower(),
        "playhead-reencoded": str(body.reencoded).lower(),
    }
    for name_of_header in ("content-type", "content-encoding"):
        value = header(headers, name_of_header)
        # A value with control characters cannot be sent in a header.
        if value is not None and value.isprintable():
            response_headers[f"playhead-{name_of_header}"] = value
    data, status = body.data, 200
    if (found := _read_range(byte_range)) is not None:
        begin, end = found[0], min(found[1], len(data) - 1)
        if begin >= len(data) > 0:
            detail = f"the range begins at byte {begin}, and the body has {len(data)} bytes: ask for a part of these"
            raise Problem(416, "range_not_satisfiable", detail, headers={"content-range": f"bytes */{len(data)}"})
        if data:
            response_headers["content-range"] = f"bytes {begin}-{end}/{len(data)}"
            data, status = data[begin : end + 1], 206
    return Response(data, status, media_type="application/octet-stream", headers=response_headers)


def _read_range(text: str | None) -> tuple[int, int] | None:
    """Read a range with a beginning and an end (RFC 9110, 14.1.2); any other may be ignored, and is."""
    found = _RANGE.fullmatch(text) if text else None
    if found is None or int(found[2]) < int(found[1]):
        return None
    return int(found[1]), int(found[2])


_RANGE: Final = re.compile(r"bytes=(\d{1,15})-(\d{1,15})", re.ASCII)
