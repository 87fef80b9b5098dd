"""`POST /v1/rekey`: key stored runs again under the rules in force, with a line of progress for each."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, StringConstraints

from store.api.deps import Deps, TheDesk
from store.api.helper_answers import lines_of
from store.api.parameters import RUN_ID
from store.api.problems import Problem
from store.api.routes.runs import shape
from store.database.blobs import Corrupt
from store.database.connection import DatabaseError
from store.query.exchanges import TooLarge
from store.query.filters import Filters
from store.query.rekey import LISTED, Rekeyer, RekeyResult

router = APIRouter(tags=["runs"])

PAGE = 100

type Run = Annotated[str, StringConstraints(pattern=RUN_ID)]


class RekeyRequest(BaseModel):
    """Which runs, and whether only to say what would become of them."""

    model_config = ConfigDict(extra="forbid")
    runs: list[Run] | None = None
    """All, where none is named."""
    dry_run: bool = False
    profiles: str | None = None
    """The digest of the rules that are meant; others are refused."""


@router.post("/rekey", summary="Key stored calls again under the rules in force")
async def rekey(desk: TheDesk, wanted: RekeyRequest) -> Response:
    """JSON Lines: `{run, done}` while a run is keyed, then `{run, calls, changed, unchanged, collide, part, …}`, at last `{end: true, …}`.

    `collide`: calls that had keys of their own and now share one, with different answers. `part`: calls that shared a key and no
    longer do. A run is written whole or not at all; an answer that lacks its last line broke off.
    """
    if wanted.profiles not in (None, desk.profiles.digest):
        detail = (
            "the store server goes by the rules of the playhead.toml it was started with, and yours are others; "
            "start `playhead up` again, then rekey"
        )
        raise Problem(409, "other_rules", detail, profiles=desk.profiles.digest)
    for run in wanted.runs or ():
        await shape(desk, run)
    return StreamingResponse(_lines(desk, wanted), media_type="application/jsonl")


async def _lines(desk: Deps, wanted: RekeyRequest) -> AsyncIterator[bytes]:
    totals = {"runs": 0, "calls": 0, "changed": 0, "unchanged": 0, "collide": 0, "part": 0, "failed": 0}
    async for run in _runs(desk, wanted):
        async with aclosing(_told(desk, run, dry=wanted.dry_run)) as lines:
            async for told in lines:
                yield msgspec.json.encode(told) + b"\n"
                for name in totals:
                    totals[name] += told.get("counts", {}).get(name, 0)
    ended = {"end": True, "profiles": desk.profiles.digest, "dry_run": wanted.dry_run}
    yield msgspec.json.encode(ended | totals) + b"\n"


async def _runs(desk: Deps, wanted: RekeyRequest) -> AsyncIterator[str]:
    if wanted.runs is not None:
        for run in dict.fromkeys(wanted.runs):
            yield run
        return
    cursor: str | None = None
    while True:
        page = await desk.runs.page(Filters(), desk.now(), PAGE, cursor)
        for found in page.items:
            yield found["id"]
        if (cursor := page.next) is None:
            return


async def _told(desk: Deps, run: str, *, dry: bool) -> AsyncGenerator[dict[str, Any]]:
    """What is told of one run; the last of it has the counts."""
    work = Rekeyer(desk.database, desk.recorded, desk.profiles)
    try:
        async with aclosing(work.run(run, dry=dry)) as told:
            async for found in told:
                yield {"run": run, "done": found} if isinstance(found, int) else _report(found)
    except TooLarge:
        async for line in _told_aside(desk, run, dry=dry):
            yield line
    except (Corrupt, DatabaseError) as error:
        yield {"run": run, "failed": f"{error} Its keys are as they were.", "counts": {"runs": 1, "failed": 1}}


async def _told_aside(desk: Deps, run: str, *, dry: bool) -> AsyncGenerator[dict[str, Any]]:
    """The same of a run with large exchanges, which a helper process keys."""
    wanted = msgspec.json.encode({"runs": [run], "dry_run": dry})
    try:
        lines = await lines_of(desk, "/v1/rekey", wanted)
    except Problem as problem:
        yield {"run": run, "failed": f"{problem.detail} Its keys are as they were.", "counts": {"runs": 1, "failed": 1}}
        return
    for line in lines:
        told = msgspec.json.decode(line)
        if "run" in told:
            yield told


def _report(found: RekeyResult) -> dict[str, Any]:
    counts = {
        "runs": 1,
        "calls": found.calls,
        "changed": found.changed,
        "unchanged": found.calls - found.changed,
        "collide": len(found.collide),
        "part": len(found.part),
    }
    return {
        "run": found.run,
        "counts": counts,
        "collide": [asdict(one) for one in found.collide[:LISTED]],
        "part": [asdict(one) for one in found.part[:LISTED]],
    }
