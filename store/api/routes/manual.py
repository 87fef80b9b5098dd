"""The description of the API: OpenAPI for programs, and one page for people that loads nothing from other hosts."""

import asyncio
import base64
import hashlib
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute

router = APIRouter(tags=["manual"], route_class=DeferredRoute)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; text-transform: capitalize }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid #ddd }
th { font-weight: 600 }
code { font: 14px/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
td:nth-child(2) { color: #666; width: 22rem }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 }
  a { color: #8ab4f8 }
  th, td { border-color: #444 }
  td:nth-child(2) { color: #999 }
}
"""

_ALLOWED = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_ALLOWED}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy of the page: only its style sheet is allowed, by its digest."""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Playhead's REST interface</title><style>{style}</style></head><body>
<h1>Playhead's REST interface</h1>
<p>Lists are <code>{{"items": […], "next": cursor or null}}</code>; errors are problem details (RFC 9457); times are
RFC 3339. For programs: <a href="openapi.json">openapi.json</a>.</p>
{sections}
</body></html>
"""

_SECTION = """<h2>{name}</h2>
<table>
<tr><th>request<th>query<th>what it does
{rows}
</table>
"""


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """OpenAPI 3.1."""
    return JsonResponse(await _document(request.app))


async def _document(app: FastAPI) -> dict[str, Any]:
    """Return the document. The first time takes a moment, hence in a thread."""
    # The schemas are imported here: most servers are never asked for the document.
    from store.api.openapi.document import openapi_document

    if not hasattr(app.state, "document"):
        app.state.document = await asyncio.to_thread(openapi_document, app)
    document: dict[str, Any] = app.state.document
    return document


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """All routes, in one table for each resource."""
    paths: dict[str, dict[str, Any]] = (await _document(request.app))["paths"]
    sections: dict[str, list[str]] = {}
    for path, methods in paths.items():
        for method, operation in methods.items():
            noun = (operation.get("tags") or ["other"])[0]
            sections.setdefault(noun, []).append(_row(method, path, operation))
    tables = [_SECTION.format(name=escape(noun), rows="\n".join(rows)) for noun, rows in sections.items()]
    page = _PAGE.format(style=_STYLE, sections="".join(tables))
    return HTMLResponse(page, headers={"content-security-policy": _POLICY})


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    query = ", ".join(one["name"] for one in operation.get("parameters", ()) if one["in"] == "query")
    cells = (f"<code>{method.upper()} {escape(path)}</code>", escape(query), escape(operation.get("summary", "")))
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells)
