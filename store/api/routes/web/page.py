"""The web page: one document for all of its addresses, and its files."""

import asyncio
from typing import Final

from fastapi import APIRouter, Request, Response

from store.api.deferred_route import DeferredRoute
from store.api.problems import Problem
from store.page.addresses import TEMPLATES, twin_address, views_of
from store.page.assets import load_assets
from store.page.policy import PAGE_HEADERS

router = APIRouter(route_class=DeferredRoute)

FOREVER: Final = "public, max-age=31536000, immutable"


async def show_page(request: Request) -> Response:
    """The document; with `Accept: application/json`, a redirect to the JSON that it shows.

    It holds nothing that was recorded: its scripts ask the REST API, with the session of the user.
    """
    if prefers_json(request.headers.get("accept", "")):
        address = twin_address(request.scope["path"], request.query_params.multi_items())
        return Response(status_code=303, headers={"location": address, "vary": "accept"})
    headers = {**PAGE_HEADERS, "vary": "accept", "cache-control": "no-cache"}
    document = (await asyncio.to_thread(load_assets)).index_with(views_of(request.scope["path"]))
    return Response(document, media_type="text/html; charset=utf-8", headers=headers)


for _template in TEMPLATES:
    router.add_api_route(_template, show_page, methods=["GET"], include_in_schema=False)


@router.get("/assets/{version}/{path:path}", include_in_schema=False)
async def get_asset(version: str, path: str) -> Response:
    """One file of the page, to be kept by the browser if it is of this version."""
    assets = await asyncio.to_thread(load_assets)
    asset = assets.files.get(path)
    if asset is None or path == "index.html":
        raise Problem(404, "not_found", f"the page has no file {path[:200]}; reload the page")
    cache_control = FOREVER if version == assets.version else "no-cache"
    content = await asyncio.to_thread(lambda: asset.content)
    return Response(content, media_type=asset.media_type, headers={"cache-control": cache_control})


def prefers_json(accept: str) -> bool:
    """Whether a client asks for JSON and not for HTML. One that takes anything gets the page."""
    types = {one.partition(";")[0].strip().lower() for one in accept.split(",")}
    return "application/json" in types and "text/html" not in types
