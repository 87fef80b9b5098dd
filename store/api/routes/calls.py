"""`/v1/calls`: calls, and how their keys were made."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import asdict

from calls.keys.explain import explain_key
from calls.keys.key import KeyResult, make_key
from calls.model import Json as Value
from store.api.answers import JsonResponse
from store.api.content import readable_call, readable_pages
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.line_lists import accepts_lines, list_response
from store.api.parameters import CallId, Limit, PageCursor, TheFields, TheFilters, TheSort, WhenCaughtUp
from store.api.problems import Problem, not_found
from store.query.call_summaries import is_summary
from store.query.runs import Page
from store.snippets.snippet import CopiedCall, NotCopyable, SnippetForm, make_snippet
from store.timeline.short_call import short_call

router = APIRouter(tags=["calls"], route_class=DeferredRoute)


@router.get("/calls", summary="Calls of all runs, newest first")
async def list_calls(
    request: Request,
    deps: TheDeps,
    settled: WhenCaughtUp,
    filters: TheFilters,
    fields: TheFields,
    sort: TheSort,
    cursor: PageCursor,
    limit: Limit = 50,
) -> Response:
    """One page of summaries: without request, answer and tool results, and with shortened text. `fields` selects other members.

    With `Accept: application/x-ndjson`, all pages, one call a line.
    """
    if accepts_lines(request) and not is_summary(fields):
        await deps.call_reader.check_large()

    async def fetch(limit: int, cursor: str | None) -> Page:
        resolved = await deps.resolve(filters)
        return await deps.call_reader.calls(resolved, limit, cursor, fields, sort)

    readable = readable_pages(deps.grant, fetch)
    return await list_response(
        request, readable, limit, cursor, more=settled.members, has_bodies=not is_summary(fields)
    )


type CallContent = Annotated[
    Literal["whole", "short"], Query(description="`short`: what was said, shortened, in place of what was sent")
]


@router.get("/calls/{call}", summary="One call")
async def get_call(deps: TheDeps, call: CallId, content: CallContent = "whole") -> Response:
    """Its request and answer are derived from the stored exchanges under the current profiles.

    `content=short` is for a first look at a large call: `request`, `answer` and `tool_results` are empty, and `said` has its messages, its answer
    and its tool calls with texts of up to 64 KB, a megabyte in all.
    """
    found = await deps.call_reader.call(call)
    if found is None:
        raise not_found("call", call, deps.project)
    if content == "short":
        found = await asyncio.to_thread(short_call, found, shows_texts=deps.grant.reads_bodies)
    return JsonResponse(readable_call(deps.grant, found))


@router.get("/calls/{call}/explain", summary="What went into a call's key, and what was left out, and why")
async def explain_call(deps: TheDeps, call: CallId) -> Response:
    """Under the profiles in force. `stored_key` differs where they have changed since the call was recorded."""
    if (found := await deps.call_reader.call(call)) is None:
        raise not_found("call", call, deps.project)
    # Of several attempts, the first: the call has its key.
    if (evidence := await deps.call_reader.exchange(found["id"])) is None:
        raise not_found("call", call, deps.project)
    key = await asyncio.to_thread(make_key, evidence.request, deps.profiles)
    return JsonResponse({"call": found["id"], "stored_key": found["key"]} | _explanation(key))


type CopiedForm = Annotated[SnippetForm, Query(alias="as", description="the form of the copy")]


@router.get("/calls/{call}/snippet", summary="A call as a command, code or a file")
async def copy_call(deps: TheDeps, call: CallId, form: CopiedForm) -> Response:
    """What was sent, byte by byte; `jsonl`, `har` and `vcr` have the answer as well. Secrets are environment variables in it."""
    if (found := await deps.call_reader.call(call)) is None:
        raise not_found("call", call, deps.project)
    # Of several attempts, the last: it has the answer.
    if (evidence := await deps.call_reader.exchange(found["exchanges"][-1])) is None:
        raise not_found("call", call, deps.project)
    copied = CopiedCall(
        exchange=evidence,
        run=found["run"],
        step=found["step"],
        provider=found["provider"],
        streamed=found["streamed"],
        profiles=deps.profiles.digest,
    )
    try:
        snippet = await asyncio.to_thread(make_snippet, copied, form)
    except NotCopyable as error:
        raise Problem(422, "not_copyable", f"the call cannot be copied as {form}: {error}") from error
    return JsonResponse(snippet.as_json())


def _explanation(key: KeyResult) -> dict[str, Value]:
    """Return the table for people, and the data that it was made from."""
    return {
        **explain_key(key).as_json(),
        "selected": key.selected_fields,
        "left_out": [asdict(one) for one in key.left_out_fields],
        "renamed": [asdict(one) for one in key.renamed_ids],
        "folded": [asdict(one) for one in key.normalized_fields],
    }
