"""`POST /v1/rekey`: compute the keys of stored runs again under the profiles in force, reporting progress as JSON Lines."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, StringConstraints

from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.helper_answers import post_in_helper
from store.api.parameters import RUN_ID_PATTERN
from store.api.problems import Problem
from store.api.routes.runs import require_run
from store.database.blobs import CorruptData
from store.database.connection import DatabaseError
from store.query.exchange_reader import TooLarge
from store.query.filters import Filters
from store.query.rekey import MOST_LISTED, Rekeyer, RekeyResult

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

PAGE = 100

type RunToRekey = Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)]


class RekeyRequest(BaseModel):
    """The runs to rekey, and whether only to report what would change."""

    model_config = ConfigDict(extra="forbid")
    runs: list[RunToRekey] | None = None
    """All runs where it is null."""
    dry_run: bool = False
    profiles: str | None = None
    """The digest of the expected profiles; if others are in force, the request is refused."""


@router.post("/rekey", summary="Compute the keys of stored calls again under the profiles in force")
async def rekey(deps: TheDeps, rekey_request: RekeyRequest) -> Response:
    """JSON Lines: `{run, done}` while a run is keyed, then `{run, counts, collide, part}`, and at the end `{end: true, …}`.

    `collide`: calls that had different keys and now share one, with different answers. `part`: calls that shared a key and no
    longer do. A run is rewritten as a whole or not at all. Without its last line the response is incomplete.
    """
    if rekey_request.profiles not in (None, deps.profiles.digest):
        detail = (
            "the store server uses the profiles of the playhead.toml that it was started with, and yours differ; "
            "restart `playhead up`, then rekey"
        )
        raise Problem(409, "other_rules", detail, profiles=deps.profiles.digest)
    for run in rekey_request.runs or ():
        await require_run(deps, run)
    return StreamingResponse(_report_lines(deps, rekey_request), media_type="application/jsonl")


async def _report_lines(deps: Deps, rekey_request: RekeyRequest) -> AsyncIterator[bytes]:
    totals = {"runs": 0, "calls": 0, "changed": 0, "unchanged": 0, "collide": 0, "part": 0, "failed": 0}
    async for run in _run_ids(deps, rekey_request):
        async with aclosing(_rekey_run(deps, run, dry=rekey_request.dry_run)) as lines:
            async for report in lines:
                yield msgspec.json.encode(report) + b"\n"
                for name in totals:
                    totals[name] += report.get("counts", {}).get(name, 0)
    last_line = {"end": True, "profiles": deps.profiles.digest, "dry_run": rekey_request.dry_run}
    yield msgspec.json.encode(last_line | totals) + b"\n"


async def _run_ids(deps: Deps, rekey_request: RekeyRequest) -> AsyncIterator[str]:
    if rekey_request.runs is not None:
        for run in dict.fromkeys(rekey_request.runs):
            yield run
        return
    cursor: str | None = None
    while True:
        page = await deps.runs.page(Filters(), deps.now(), PAGE, cursor)
        for found in page.items:
            yield found["id"]
        if (cursor := page.next) is None:
            return


async def _rekey_run(deps: Deps, run: str, *, dry: bool) -> AsyncGenerator[dict[str, Any]]:
    """Rekey one run and yield its report lines; the last one has the counts."""
    work = Rekeyer(deps.database, deps.call_reader, deps.profiles, deps.project)
    try:
        async with aclosing(work.rekey_run(run, dry=dry)) as progress:
            async for found in progress:
                yield {"run": run, "done": found} if isinstance(found, int) else _run_report(found)
    except TooLarge:
        async for line in _rekey_run_in_helper(deps, run, dry=dry):
            yield line
    except (CorruptData, DatabaseError) as error:
        yield {"run": run, "failed": f"{error} Its keys are as they were.", "counts": {"runs": 1, "failed": 1}}


async def _rekey_run_in_helper(deps: Deps, run: str, *, dry: bool) -> AsyncGenerator[dict[str, Any]]:
    """Rekey a run with large exchanges in the helper process and yield its report lines."""
    body = msgspec.json.encode({"runs": [run], "dry_run": dry})
    try:
        lines = await post_in_helper(deps, "/v1/rekey", body, "Rekey the other runs: name them in `runs`.")
    except Problem as problem:
        yield {"run": run, "failed": f"{problem.detail} Its keys are as they were.", "counts": {"runs": 1, "failed": 1}}
        return
    for line in lines:
        report = msgspec.json.decode(line)
        if "run" in report:
            yield report


def _run_report(result: RekeyResult) -> dict[str, Any]:
    counts = {
        "runs": 1,
        "calls": result.calls,
        "changed": result.changed,
        "unchanged": result.calls - result.changed,
        "collide": len(result.collide),
        "part": len(result.part),
    }
    return {
        "run": result.run,
        "counts": counts,
        "collide": [asdict(one) for one in result.collide[:MOST_LISTED]],
        "part": [asdict(one) for one in result.part[:MOST_LISTED]],
    }
