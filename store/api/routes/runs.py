"""`/v1/runs`: list, look at, name, label, pin, end and delete; a run's calls, and the run as a bundle."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calls.events import Gap
from calls.model import Exchange
from store.api.answers import Json, page
from store.api.deps import Deps, TheDesk
from store.api.parameters import RUN_ID, At, Limit, RunId, TheFields, TheFilters, WhenSettled, settle
from store.api.problems import Problem, unknown
from store.bundle.bundle import Entry, Writer, told
from store.ingest.batch_writer import Ingest
from store.query.rekey import stored_keys
from store.query.rest_shapes import Shape, rfc3339
from store.query.rows_export import Packer
from store.run_modes import Mode

router = APIRouter(tags=["runs"])

BATCH = 100
BATCH_WEIGHT = 4 << 20
"""Exchanges that are read and written together, and bytes of their bodies, but for the last one's."""

type Name = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$")]


class Put(BaseModel):
    """What a run can be made with."""

    model_config = ConfigDict(extra="forbid")
    name: Name | None = None
    labels: dict[Name, Name] = {}
    parent: Annotated[str, StringConstraints(pattern=RUN_ID)] | None = None
    """The run that it is a fork of…"""

    forked_at: Annotated[int, Field(ge=0, le=1 << 30)] | None = None
    """…and the step it left from."""

    mode: Mode | None = None
    """What workers do with its requests from now on, in place of what they do with others; null takes that back."""


class Patch(BaseModel):
    """What of a run can be changed."""

    model_config = ConfigDict(extra="forbid")
    name: Name | None = None
    labels: dict[Name, Name | None] = {}
    """A label of null is taken away."""

    pinned: bool | None = None
    ended: Literal[True] | None = None
    succeeded: bool | None = None
    """With `ended`, whether the agent came to its good end. What counts of a recording in mode `auto` depends on it."""

    isolation: Literal["captive", "watched", "none"] | None = None
    """How far the command that made it was isolated from the network. A run keeps the least that it was given."""


class NewGap(BaseModel):
    """Something that passed and is not in the recording."""

    model_config = ConfigDict(extra="forbid")
    reason: Name
    count: Annotated[int, Field(ge=1, le=1 << 30)] = 1


class NewGaps(BaseModel):
    """Some of them."""

    model_config = ConfigDict(extra="forbid")
    gaps: Annotated[list[NewGap], Field(min_length=1, max_length=1000)]


@router.get("/runs", summary="Runs, newest first, that have at least one call which fits the filters")
async def list_runs(desk: TheDesk, filters: TheFilters, cursor: At, limit: Limit = 50) -> Response:
    """One page."""
    await desk.recorded.check_search(filters)
    found = await desk.runs.page(await desk.recorded.heard(filters), desk.now(), limit, cursor)
    return page(found.items, found.next)


@router.get("/runs/{run}", summary="One run")
async def get_run(desk: TheDesk, run: RunId, settled: WhenSettled) -> Response:
    """What was counted about it, as of now."""
    return Json(_with_mode(desk, await shape(desk, run)) | settled.told)


@router.put("/runs/{run}", summary="Make a run, or open it again; and say what workers do with it")
async def put_run(desk: TheDesk, run: RunId, wanted: Put | None = None) -> Response:
    """A name and labels are added to what it has. A mode holds from the next request on, and ends a recording that lasts."""
    wanted = wanted or Put()
    if "mode" in wanted.model_fields_set:
        await _switched(desk, run, wanted.mode)
    name, labels = wanted.name and desk.clean(wanted.name), _redacted(desk, wanted.labels)
    await desk.runs.put(run, desk.now(), name, labels, parent=wanted.parent, forked_at=wanted.forked_at)
    return Json(_with_mode(desk, await shape(desk, run)))


@router.patch("/runs/{run}", summary="Name, label, pin or end a run")
async def patch_run(desk: TheDesk, run: RunId, wanted: Patch) -> Response:
    """What is not given stays. The end of a run is that of its recording in mode `auto`, which then counts or does not."""
    if wanted.ended and desk.takes is not None:
        await desk.takes.end(run, succeeded=wanted.succeeded)
    ended_at = desk.now() if wanted.ended else None
    changed = await desk.runs.patch(
        run,
        name=wanted.name and desk.clean(wanted.name),
        labels=_redacted(desk, wanted.labels),
        pinned=wanted.pinned,
        ended_at=ended_at,
        isolation=wanted.isolation,
    )
    if not changed:
        raise unknown("run", run)
    return Json(await shape(desk, run))


@router.delete("/runs/{run}", summary="Delete a run with all its evidence", status_code=204)
async def delete_run(desk: TheDesk, run: RunId) -> Response:
    """It cannot be had back."""
    if not await desk.runs.delete(run):
        raise unknown("run", run)
    if desk.modes is not None:
        desk.modes.put(run, None)
    if desk.run_tokens is not None:
        desk.run_tokens.release(run)
    return Response(status_code=204)


@router.get("/runs/{run}/calls", summary="A run's calls in the order of their steps")
async def run_calls(
    desk: TheDesk, run: RunId, settled: WhenSettled, fields: TheFields, cursor: At, limit: Limit = 50
) -> Response:
    """Summaries, as in `/v1/calls`. With `settled=true` the answer waits, up to 10 s, for all that was acknowledged;
    `settled` tells whether it is in."""
    await shape(desk, run)
    found = await desk.recorded.run_calls(run, limit, cursor, fields)
    return page(found.items, found.next, **settled.told)


@router.get("/runs/{run}/gaps", summary="What passed and could not be recorded")
async def run_gaps(desk: TheDesk, run: RunId, settled: WhenSettled) -> Response:
    """Oldest first."""
    await shape(desk, run)
    return page([_gap_shape(gap) for gap in await desk.runs.gaps(run)], None, **settled.told)


@router.post("/runs/{run}/gaps", summary="Note what passed and could not be recorded", status_code=201)
async def add_gaps(desk: TheDesk, run: RunId, wanted: NewGaps) -> Response:
    """What is told here of a run makes it incomplete. It is for whoever watches a command from outside."""
    await shape(desk, run)
    now = desk.now()
    gaps = [Gap(run, now, desk.clean(one.reason), None, one.count) for one in wanted.gaps]
    await Ingest(desk.database, profile=desk.profiles.digest).put((), gaps)
    return Json({"items": [_gap_shape(gap) for gap in gaps]}, status_code=201)


@router.get("/runs/{run}/bundle", summary="The run as one file (docs/trace-format.md)", dependencies=[Depends(settle)])
async def run_bundle(desk: TheDesk, run: RunId) -> Response:
    """JSON Lines, as they are read. One that breaks off lacks its last line, and is refused by every reader."""
    head = await shape(desk, run)
    await desk.recorded.check_run(run)
    name = f'attachment; filename="{run.replace(":", "_")}.jsonl"'
    headers = {"content-disposition": name}
    return StreamingResponse(_bundle(desk, head), media_type="application/jsonl", headers=headers)


@router.get("/runs/{run}/rows", include_in_schema=False, dependencies=[Depends(settle)])
async def run_rows(desk: TheDesk, run: RunId) -> Response:
    """For a worker of ours that replays the run: see `store.bundle.rows_bundle`. Everybody else asks for its bundle."""
    head = await shape(desk, run)
    rows = Packer(database=desk.database, batch=await desk.recorded.check_rows(run)).packed(
        head, head["profile"] or desk.profiles.digest, await desk.runs.gaps(run)
    )
    return StreamingResponse(rows, media_type="application/octet-stream")


async def _switched(desk: Deps, run: str, mode: Mode | None) -> None:
    """Have workers do so with the run. Raises Problem where they cannot."""
    if mode is not None and (desk.modes is None or desk.mode not in ("auto", mode)):
        detail = (
            f"the workers of this store server are in mode {desk.mode}, and a run of theirs cannot be in mode {mode};"
            " start `playhead up --mode auto`, where a run can have any"
        )
        raise Problem(409, "not_switchable", detail)
    if desk.modes is not None and desk.modes.of(run) != mode:
        desk.modes.put(run, mode)
        if desk.takes is not None:
            await desk.takes.end(run, succeeded=None)


def _redacted[Value: (str, str | None)](desk: Deps, labels: Mapping[str, Value]) -> dict[str, Value]:
    """Labels without the secrets that a client may have put there."""
    return {desk.clean(label): value and desk.clean(value) for label, value in labels.items()}


def _with_mode(desk: Deps, run: Shape) -> Shape:
    return run | {"mode": desk.modes.of(run["id"]) if desk.modes else None}


async def shape(desk: Deps, run: str) -> Shape:
    """The run in the contract's form, or a 404."""
    found = await desk.runs.get(run, desk.now())
    if found is None:
        raise unknown("run", run)
    return found


def _gap_shape(gap: Gap) -> Shape:
    return {"happened_at": rfc3339(gap.happened_at), "reason": gap.reason, "exchange": gap.exchange}


async def _batches(exchanges: AsyncIterator[Exchange]) -> AsyncIterator[Sequence[Exchange]]:
    """Some at a time: handing each over to a thread and to the client by itself takes longer than to write it."""
    batch: list[Exchange] = []
    weight = 0
    async for exchange in exchanges:
        batch.append(exchange)
        weight += len(exchange.request.body.data) + (len(exchange.response.body.data) if exchange.response else 0)
        if len(batch) == BATCH or weight > BATCH_WEIGHT:
            yield batch
            batch, weight = [], 0
    yield batch


async def _bundle(desk: Deps, run: Shape) -> AsyncIterator[bytes]:
    writer = Writer()
    seen: Counter[str] = Counter()
    # Under the rules that it was recorded under, until it is keyed again: so a replay can tell what the rules changed.
    profiles = run["profile"] or desk.profiles.digest
    current = profiles == desk.profiles.digest
    then = {} if current else await stored_keys(desk.database, run["id"])

    def lines(batch: Sequence[Exchange]) -> bytes:
        return b"".join(map(line, batch))

    def line(exchange: Exchange) -> bytes:
        call = desk.derive(exchange)
        if exchange.id in then:
            key, profile = then[exchange.id]
            call = replace(call, key=key, profile=profile)
        seen[call.key] += 1
        return writer.exchange(Entry(exchange=exchange, call=told(call, seen[call.key] - 1)))

    yield writer.head(run, profiles)
    async for batch in _batches(desk.recorded.exchanges(run["id"])):
        yield await asyncio.to_thread(lines, batch)
    for gap in await desk.runs.gaps(run["id"]):
        yield writer.gap(gap)
    yield writer.end()
