"""`POST /v1/erasures` and `DELETE /v1/calls/{call}`: erase runs and calls for good."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.parameters import RUN_ID_PATTERN, CallId
from store.api.problems import Problem, not_found
from store.erasure.eraser import (
    NOTHING_ERASED,
    Eraser,
    ErasureReport,
    SearchPlace,
    parse_place,
    unreadable_sentences,
)
from store.erasure.matching import BadMatch, parse_match
from store.query.rest_shapes import Shape

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

SETTLE_WAIT: Final = 10.0
"""Seconds to wait until everything acknowledged is stored, so that it can be erased."""

STEP: Final = 3.0
"""Seconds that a request looks for what a match finds."""

UNSETTLED: Final = "not everything that was recorded is stored yet: erase again when GET /readyz names no trouble"


class ErasureRequest(BaseModel):
    """What to erase: a run, a call, or all calls with a value at a path."""

    model_config = ConfigDict(extra="forbid")
    run: Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)] | None = None
    call: Annotated[str, StringConstraints(max_length=100)] | None = None
    match: Annotated[str, StringConstraints(min_length=1, max_length=4000)] | None = None
    """JSONPATH=VALUE: an RFC 9535 path into the JSON of requests and answers, and the value that it must have, in all runs."""

    after: Annotated[str, StringConstraints(max_length=100)] | None = None
    """With `match`: `next` of the answer before, to go on from there."""

    dry_run: bool = False
    """Whether only to say what would be erased."""

    @model_validator(mode="after")
    def _require_one(self) -> "ErasureRequest":
        if sum(one is not None for one in (self.run, self.call, self.match)) != 1:
            raise ValueError("give one of run, call and match")
        if self.after is not None and self.match is None:
            raise ValueError("after goes with match")
        return self


@router.post("/erasures", summary="Erase a run, a call, or all calls with a value")
async def erase(deps: TheDeps, erasure: ErasureRequest) -> Response:
    """From the tables, spools, replays, the index of words, and the files and the write-ahead log of the database.

    The answer lists what was erased and where it was, and what may still have it. It cannot be undone, and backups keep it.

    A `match` looks into every exchange: one request does so for some seconds, and names in `next` where to go on. Repeat it with `after`
    until `next` is null: only then all is looked into, and the files of the database are rewritten. Begin anew if that was interrupted.
    """
    is_settled = await deps.store_server.wait_until_settled(SETTLE_WAIT)
    if erasure.match is not None:
        return _answer(await _take_step(deps, erasure), is_settled=is_settled, is_done=not erasure.dry_run)
    if erasure.run is not None and not erasure.dry_run:
        return await erase_run(deps, erasure.run, is_settled=is_settled)
    exchanges = await _wanted_exchanges(deps, erasure)
    if erasure.dry_run:
        return _answer(_plan_of(exchanges), is_settled=is_settled, is_done=False)
    return _answer(await make_eraser(deps).erase_exchanges(exchanges), is_settled=is_settled)


@router.delete("/calls/{call}", summary="Erase a call with all its attempts")
async def delete_call(deps: TheDeps, call: CallId) -> Response:
    """As `POST /v1/erasures` does. Its run and the other calls stay."""
    is_settled = await deps.store_server.wait_until_settled(SETTLE_WAIT)
    report = await make_eraser(deps).erase_exchanges(await _call_exchanges(deps, call))
    return _answer(report, is_settled=is_settled)


async def erase_run(deps: Deps, run: str, *, is_settled: bool) -> Response:
    """Erase a run and what the data directory knows of it. Raises a 404."""
    report = await make_eraser(deps).erase_run(run)
    if report is None:
        raise not_found("run", run, deps.project)
    if deps.run_modes is not None:
        deps.run_modes.forget(deps.full_name(run))
    if deps.run_tokens is not None:
        deps.run_tokens.release(deps.full_name(run))
    return _answer(report, is_settled=is_settled)


def make_eraser(deps: Deps) -> Eraser:
    """Make the eraser of the request's project."""
    return Eraser(
        database=deps.database, derive=deps.derive, project=deps.project, data=deps.data_directory, now=deps.now
    )


async def _take_step(deps: Deps, erasure: ErasureRequest) -> ErasureReport:
    """Look for what a match finds, and erase it unless it is a dry run. Raises a 422."""
    try:
        match = parse_match(erasure.match or "")
    except BadMatch as error:
        raise Problem(422, "bad_match", str(error)) from error
    try:
        place = SearchPlace() if erasure.after is None else parse_place(erasure.after)
    except ValueError as error:
        raise Problem(422, "bad_cursor", "`after` is not `next` of an erasure: omit it to begin anew") from error
    eraser = make_eraser(deps)
    if not erasure.dry_run:
        return await eraser.erase_matching(match, place, STEP)
    step = await eraser.find(match, place, STEP)
    report = _plan_of(step.found).with_remains(unreadable_sentences(step))
    report = report.with_quotes(await eraser.find_quotes(match, place))
    return report._replace(looked_at=step.looked_at, next=SearchPlace(exchange=step.next) if step.next else None)


def _plan_of(exchanges: Mapping[str, Sequence[str]]) -> ErasureReport:
    ids = sorted(one for found in exchanges.values() for one in found)
    return NOTHING_ERASED._replace(runs=sorted(exchanges), exchanges=ids)


async def _wanted_exchanges(deps: Deps, erasure: ErasureRequest) -> Mapping[str, Sequence[str]]:
    """Return the exchanges to erase, by their runs. Raises a 404."""
    if erasure.run is None:
        return await _call_exchanges(deps, erasure.call or "")
    if await deps.runs.get(erasure.run, deps.now()) is None:
        raise not_found("run", erasure.run, deps.project)
    return {erasure.run: sorted(await deps.call_reader.exchange_ids(erasure.run))}


async def _call_exchanges(deps: Deps, call: str) -> Mapping[str, Sequence[str]]:
    if (found := await deps.call_reader.call(call)) is None:
        raise not_found("call", call, deps.project)
    return {found["run"]: found["exchanges"]}


def _answer(report: ErasureReport | None, *, is_settled: bool, is_done: bool = True) -> Response:
    shape = _shape(report or NOTHING_ERASED, is_done=is_done)
    if not is_settled:
        shape["remains"].append(UNSETTLED)
    return JsonResponse(shape)


def _shape(report: ErasureReport, *, is_done: bool) -> Shape:
    files = report.files
    return {
        "erased": is_done,
        "runs": list(report.runs),
        "exchanges": list(report.exchanges),
        "rows": dict(report.rows),
        "files": {"spool_bytes": files.spool_bytes, "replays": files.replay_files, "damaged": files.damaged_files},
        "objects": report.objects,
        "remains": list(report.remains),
        "looked_at": report.looked_at,
        "next": report.next and str(report.next),
    }
