"""Keep prompts, answers and headers from requests whose token may not read bodies."""

from collections.abc import Iterable
from typing import Final

from store.access.grants import Grant
from store.api.line_lists import FetchPage
from store.api.problems import Problem
from store.query.rest_shapes import Shape
from store.query.runs import Page

WITHHELD: Final[Shape] = {"request": None, "answer": None, "text": None, "params": {}, "tool_results": []}
"""What a call has in place of its content. Its tool calls have their names, but no arguments; its path has no query."""


def require_bodies(grant: Grant, what: str) -> None:
    """Raise Problem unless the request may read bodies."""
    if not grant.reads_bodies:
        detail = f"{what} has content, and the token {grant.token} lacks the scope bodies:read"
        raise Problem(403, "scope_missing", detail)


def require_readable_fields(grant: Grant, fields: Iterable[str]) -> None:
    """Raise Problem if the request names members of a call that it may not read."""
    if content := sorted(WITHHELD.keys() & set(fields)):
        require_bodies(grant, f"fields={content[0]}")


def readable_call(grant: Grant, call: Shape) -> Shape:
    """Return a call as the request may see it."""
    if grant.reads_bodies:
        return call
    members = {name: WITHHELD.get(name, value) for name, value in call.items()}
    if path := members.get("path"):
        members["path"] = path.partition("?")[0]
    if tools := members.get("tool_calls"):
        members["tool_calls"] = [tool | {"arguments": None} for tool in tools]
    return members


def readable_pages(grant: Grant, fetch: FetchPage) -> FetchPage:
    """Return a function that loads pages of calls as the request may see them."""
    if grant.reads_bodies:
        return fetch

    async def fetch_readable(limit: int, cursor: str | None) -> Page:
        page = await fetch(limit, cursor)
        return Page([readable_call(grant, item) for item in page.items], page.next)

    return fetch_readable
