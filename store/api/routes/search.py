"""`/v1/search`: what was said in runs."""

from fastapi import APIRouter, Response

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import TheDeps
from store.api.parameters import Limit, SearchCursor, TheFilters, WhenCaughtUp
from store.api.problems import Problem
from store.query.rest_shapes import rfc3339
from store.search.pages import FoundText
from store.search.query import SearchQuery
from store.search.snippets import make_snippet
from store.sums.tool_names import resolve_tools

router = APIRouter(tags=["calls"], route_class=DeferredRoute)


@router.get("/search", summary="Find words in prompts, answers, tool arguments and results")
async def search(
    deps: TheDeps, filters: TheFilters, settled: WhenCaughtUp, cursor: SearchCursor, limit: Limit = 20
) -> Response:
    """The texts that fit `q`: the best of the newest thousand that fit first, then the best of the thousand before, and so on.

    Each has a snippet and the call that has it first.

    All words must occur in one text. `"…"` finds a phrase, `-word` excludes, `prefix*` finds words that begin so, `OR` separates
    alternatives. `highlights` are the places of what was found in the snippet, as [start, end). The index follows the record by
    a moment; with `settled=true` the response waits for it.
    """
    if not filters.q:
        raise Problem(422, "invalid_request", "q is missing: say what to search for, such as q=refund")
    query = SearchQuery.parse(filters.q)
    resolved = await resolve_tools(deps.database, deps.project, filters)
    page = await deps.text_lookup.find_texts(query, resolved, limit, cursor)
    steps = await deps.call_reader.steps([(one.run, one.place.call) for one in page.texts])
    items = [_shape(one, query, steps[one.place.call]) for one in page.texts if one.place.call in steps]
    return JsonResponse({"items": items, "next": page.next} | settled.members)


@router.post("/search/rebuild", summary="Make the index of words anew", status_code=202)
async def rebuild_search(deps: TheDeps) -> Response:
    """From the calls that are stored, in the background; until it is made, searches find less. Nothing needs this unless an index
    is damaged, or the rules by which texts are divided into words have changed. With `settled=true`, a search waits for it.
    """
    if deps.followers is not None:
        await deps.followers.rebuild_search(deps.project)
    return JsonResponse({"status": "rebuilding", "project": deps.project}, 202)


def _shape(text: FoundText, query: SearchQuery, step: int) -> dict[str, object]:
    snippet = make_snippet(text.text, query.phrases)
    return {
        "run": text.run,
        "step": step,
        "call": str(text.place.call),
        "role": text.role,
        "rank": text.rank,
        "snippet": snippet.text,
        "highlights": [list(place) for place in snippet.highlights],
        "started_at": rfc3339(text.place.started_at),
    }
