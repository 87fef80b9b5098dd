"""Answer lists: one page as JSON or, where the client accepts `application/x-ndjson`, all pages as one JSON object a line.

A stream of lines is made page by page, so that it takes the memory of one page. If it cannot go on, its last line is a problem with
the member `"incomplete": true`; no item has that member.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from store.api.answers import encode_json, page_response
from store.api.problems import Problem
from store.api.spilled_answers import YIELD_TURN
from store.database.blobs import CorruptData
from store.database.connection import DatabaseError
from store.query.exchange_reader import TooLarge
from store.query.runs import Page

NDJSON: Final = "application/x-ndjson"

LINES_AT_ONCE: Final = 100
"""Items that are held at a time; `LINES_WITH_BODIES` where they may be as large as bodies."""

LINES_WITH_BODIES: Final = 10

type FetchPage = Callable[[int, str | None], Awaitable[Page]]
"""Load a page of at most so many items, from a cursor on."""


def accepts_lines(request: Request) -> bool:
    """Whether the client asks for lines."""
    media = request.headers.get("accept", "").split(",")
    return any(one.partition(";")[0].strip().lower() == NDJSON for one in media)


async def list_response(
    request: Request,
    fetch: FetchPage,
    limit: int,
    cursor: str | None,
    *,
    more: Mapping[str, Any] | None = None,
    has_bodies: bool = False,
) -> Response:
    """Return one page of a list or, as lines, the whole list from the cursor on; at most `limit` lines if the client gave a limit.

    The first page is loaded before the response begins, so that what is wrong with the request is an ordinary problem. `more` are
    members of the JSON, which lines do not have.
    """
    if not accepts_lines(request):
        found = await fetch(limit, cursor)
        return page_response(found.items, found.next, **(more or {}))
    most = limit if "limit" in request.query_params else None
    at_once = LINES_WITH_BODIES if has_bodies else LINES_AT_ONCE
    first = await fetch(at_once if most is None else min(at_once, most), cursor)
    return _LineResponse(request, first, fetch, at_once, most)


class _LineResponse(Response):
    """A response that loads further pages while it is sent."""

    media_type = NDJSON

    def __init__(self, request: Request, first: Page, fetch: FetchPage, at_once: int, most: int | None) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._request = request
        self._page = first
        self._fetch = fetch
        self._at_once = at_once
        self._lacking = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all pages."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        client = Request(scope, receive)
        is_last = False
        while not is_last:
            lines = b"".join(encode_json(item) + b"\n" for item in self._page.items)
            await send({"type": "http.response.body", "body": lines, "more_body": True})
            if self._lacking is not None:
                self._lacking -= len(self._page.items)
            is_last = self._page.next is None or self._lacking == 0
            if is_last or await client.is_disconnected():
                break
            # Other lists take their turn between two pages.
            async with scope.get(YIELD_TURN, contextlib.nullcontext)():
                pass
            try:
                self._page = await self._fetch(min(self._at_once, self._lacking or self._at_once), self._page.next)
            except (Problem, DatabaseError, TooLarge, CorruptData) as error:
                problem = _problem(error).members(self._request.url.path) | {"incomplete": True}
                await send({"type": "http.response.body", "body": encode_json(problem) + b"\n", "more_body": True})
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case DatabaseError():
            return Problem(
                503, "database_unavailable", f"{error} The lines before this one are right; request the rest later."
            )
        case TooLarge():
            detail = "the next item takes more memory than this process may use; request fewer `fields`"
            return Problem(507, "too_large", detail)
        case _:
            return Problem(500, "corrupt_data", f"the next item cannot be read: {error}")
