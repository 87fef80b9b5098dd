"""The interface described by itself: OpenAPI for programs, and one page for people that loads nothing from anywhere."""

from html import escape
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from store.api.answers import Json

router = APIRouter(tags=["manual"])

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Playhead's REST interface</title>
<h1>Playhead's REST interface</h1>
<p>Lists are {{"items": […], "next": cursor or null}}; errors are problem details (RFC 9457). For programs: <a href="openapi.json">openapi.json</a>.</p>
<table>
<tr><th align="left">request<th align="left">query<th align="left">what it does
{rows}
</table>
"""


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """OpenAPI 3.1."""
    return Json(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Every route in one table."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    rows = [_row(method, path, told) for path, methods in paths.items() for method, told in methods.items()]
    return HTMLResponse(_PAGE.format(rows="\n".join(rows)))


def _row(method: str, path: str, told: dict[str, Any]) -> str:
    query = ", ".join(one["name"] for one in told.get("parameters", ()) if one["in"] == "query")
    cells = (f"<code>{method.upper()} {escape(path)}</code>", escape(query), escape(told.get("summary", "")))
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells)
