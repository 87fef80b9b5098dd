"""`/v1/audit`: who read bodies, exported, changed or deleted what."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from store.api.answers import page_response
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.parameters import Limit, PageCursor, Text, Time, parse_times
from store.query.audit_entries import AuditFilters, load_audit_page

router = APIRouter(tags=["server"], route_class=DeferredRoute)

type TokenName = Annotated[
    str | None, Query(min_length=1, max_length=500, pattern=r"^[^\x00]*$", description="the name of a token")
]
type Action = Annotated[
    str | None,
    Query(min_length=1, max_length=50, pattern=r"^[a-z ]*$", description="read, export, preload, change or delete"),
]


@router.get("/audit", summary="Who read bodies, exported, changed or deleted what, newest first")
async def list_audit_entries(
    deps: TheDeps,
    cursor: PageCursor,
    since: Time = None,
    until: Time = None,
    token: TokenName = None,
    action: Action = None,
    subject: Text = None,
    limit: Limit = 50,
) -> Response:
    """Requests are noted when they are answered, and listed half a second later; also those that were refused for want of a scope.

    `token` is the name of the token, null where none was needed; `subject` is the run, call, exchange or replay.
    """
    if deps.audit is not None:
        await deps.audit.flush()
    begin, end = parse_times(since, until)
    filters = AuditFilters(
        since=begin,
        until=end,
        token=token,
        action=action,
        subject=subject,
    )
    found = await load_audit_page(deps.database, deps.project, filters, limit, cursor)
    return page_response(found.items, found.next)
