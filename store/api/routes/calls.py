"""`/v1/calls`: calls, and how their keys were made."""

import asyncio
from dataclasses import asdict

from fastapi import APIRouter, Response

from calls.keys.explain import explain
from calls.keys.key import KeyResult, keyed
from calls.model import Json as Value
from store.api.answers import Json, page
from store.api.deps import TheDesk
from store.api.parameters import At, Limit, TheFields, TheFilters
from store.api.problems import unknown

router = APIRouter(tags=["calls"])


@router.get("/calls", summary="Calls of all runs, newest first")
async def list_calls(desk: TheDesk, filters: TheFilters, fields: TheFields, cursor: At, limit: Limit = 50) -> Response:
    """One page of summaries: without request, answer and results of tools, and with cut text. `fields` selects others."""
    await desk.recorded.check_search(filters)
    found = await desk.recorded.calls(await desk.recorded.heard(filters, cursor), limit, cursor, fields)
    return page(found.items, found.next)


@router.get("/calls/{call}", summary="One call")
async def get_call(desk: TheDesk, call: str) -> Response:
    """Its request and answer are derived from the evidence as of now."""
    found = await desk.recorded.call(call)
    if found is None:
        raise unknown("call", call)
    return Json(found)


@router.get("/calls/{call}/explain", summary="What went into a call's key, and what was left out, and why")
async def explain_call(desk: TheDesk, call: str) -> Response:
    """Under the profiles in force. `stored_key` differs where those have changed since it was recorded."""
    if (found := await desk.recorded.call(call)) is None:
        raise unknown("call", call)
    # Of several tries the first: it is the one whose key the call has.
    if (evidence := await desk.recorded.exchange(found["id"])) is None:
        raise unknown("call", call)
    key = await asyncio.to_thread(keyed, evidence.request, desk.profiles)
    return Json({"call": found["id"], "stored_key": found["key"]} | _explained(key))


def _explained(key: KeyResult) -> dict[str, Value]:
    """The table for people, and what it was made of."""
    return {
        **explain(key).as_json(),
        "selected": key.selected,
        "left_out": [asdict(one) for one in key.left_out],
        "renamed": [asdict(one) for one in key.renamed],
        "folded": [asdict(one) for one in key.folded],
    }
