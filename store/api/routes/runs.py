"""`/v1/runs`: list, show, name, label, pin, end and delete runs; their calls and gaps; a run as a bundle."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from itertools import count, zip_longest
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from calls.comparison.envelope import EnvelopeBuilder
from calls.events import Gap
from calls.model import Exchange
from calls.redaction.call import clean_member
from store.api.answers import JsonResponse, page_response
from store.api.content import readable_pages, require_bodies
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.line_lists import accepts_lines, list_response
from store.api.parameters import (
    RUN_ID_PATTERN,
    Limit,
    PageCursor,
    RunId,
    TheFields,
    TheFilters,
    TheRunFields,
    TheSort,
    TheStepSort,
    WhenCaughtUp,
    WhenSettled,
    settle,
)
from store.api.problems import Problem, not_found
from store.api.routes.keep.erasures import SETTLE_WAIT, erase_run
from store.bundle.bundle import BundleWriter, Entry, call_members
from store.bundle.stored_effects import EffectQueries
from store.otlp.spans.names import DEFAULT_VERSION
from store.otlp.target import Semconv, SpanOptions
from store.proof.bundle_proof import load_bundle_proof, signed_text
from store.proof.signing_keys import log_origin
from store.query.call_summaries import is_summary
from store.query.rekey import stored_keys
from store.query.rest_shapes import Shape, envelope_shape, rfc3339
from store.query.runs import Page
from store.questions import Questions
from store.run_modes import Mode

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

BATCH = 100
BATCH_WEIGHT = 4 << 20
"""Bytes of bodies that are read and written together; only the last body of a batch may exceed it."""

type Name = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00]*$")]


class RunPut(BaseModel):
    """The settings of a run that is created or reopened."""

    model_config = ConfigDict(extra="forbid")
    name: Name | None = None
    labels: dict[Name, Name] = {}
    parent: Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)] | None = None
    """The run that it is a fork of."""

    forked_at: Annotated[int, Field(ge=0, le=1 << 30)] | None = None
    """The last step that it has from its parent."""

    mode: Mode | None = None
    """The mode for its requests from now on, in place of the workers' mode; null removes it."""


class RunPatch(BaseModel):
    """The changes of a run."""

    model_config = ConfigDict(extra="forbid")
    name: Name | None = None
    labels: dict[Name, Name | None] = {}
    """A label with the value null is removed."""

    pinned: bool | None = None
    ended: Literal[True] | None = None
    succeeded: bool | None = None
    """With `ended`: whether the agent succeeded. In mode `auto`, it decides whether the recording becomes a generation."""

    isolation: Literal["captive", "watched", "none"] | None = None
    """How far its command was isolated from the network. A run keeps the weakest value that it was given."""


class NewGap(BaseModel):
    """Something that passed and was not recorded."""

    model_config = ConfigDict(extra="forbid")
    reason: Name
    count: Annotated[int, Field(ge=1, le=1 << 30)] = 1


class NewGaps(BaseModel):
    """One or more gaps."""

    model_config = ConfigDict(extra="forbid")
    gaps: Annotated[list[NewGap], Field(min_length=1, max_length=1000)]


@router.get("/runs", summary="Runs with at least one call that matches the filters, newest first")
async def list_runs(
    request: Request,
    deps: TheDeps,
    settled: WhenCaughtUp,
    filters: TheFilters,
    fields: TheRunFields,
    sort: TheSort,
    cursor: PageCursor,
    limit: Limit = 50,
) -> Response:
    """One page; with `Accept: application/x-ndjson`, all of them, one run a line.

    Costs, durations and tokens, by which runs may be sorted and filtered, are summed up a moment after the calls; with
    `settled=true` the response waits up to 20 s for them.
    """
    resolved = await deps.resolve(filters)

    async def fetch(limit: int, cursor: str | None) -> Page:
        return await deps.runs.page(resolved, deps.now(), limit, cursor, sort, fields)

    return await list_response(request, fetch, limit, cursor, more=settled.members)


@router.get("/runs/{run}", summary="One run")
async def get_run(deps: TheDeps, run: RunId, settled: WhenSettled) -> Response:
    """With its counts as of now; `waiting` is the number of questions that wait for a person (`/v1/waiting`)."""
    found = await require_run(deps, run)
    run_questions = await Questions(deps.database, deps.project).list_run(run)
    waiting = sum(question.answer is None for question in run_questions)
    return JsonResponse(_with_mode(deps, found) | {"waiting": waiting} | settled.members)


@router.put("/runs/{run}", summary="Create or reopen a run, and set its mode")
async def put_run(deps: TheDeps, run: RunId, settings: RunPut | None = None) -> Response:
    """A name and labels are added to those it has. A mode holds from the next request on, and ends an auto session."""
    settings = settings or RunPut()
    if "mode" in settings.model_fields_set:
        await _switch_mode(deps, run, settings.mode)
    name, labels = settings.name and deps.clean(settings.name), _redact_labels(deps, settings.labels)
    await deps.runs.put(run, deps.now(), name, labels, parent=settings.parent, forked_at=settings.forked_at)
    return JsonResponse(_with_mode(deps, await require_run(deps, run)))


@router.patch("/runs/{run}", summary="Name, label, pin or end a run")
async def patch_run(deps: TheDeps, run: RunId, changes: RunPatch) -> Response:
    """Members that are left out do not change. Ending a run ends its auto session, too."""
    if changes.ended and deps.auto_sessions is not None:
        await deps.auto_sessions.end(deps.full_name(run), succeeded=changes.succeeded)
    ended_at = deps.now() if changes.ended else None
    changed = await deps.runs.patch(
        run,
        name=changes.name and deps.clean(changes.name),
        labels=_redact_labels(deps, changes.labels),
        pinned=changes.pinned,
        ended_at=ended_at,
        isolation=changes.isolation,
    )
    if not changed:
        raise not_found("run", run, deps.project)
    return JsonResponse(await require_run(deps, run))


@router.delete("/runs/{run}", summary="Erase a run with all its exchanges")
async def delete_run(deps: TheDeps, run: RunId) -> Response:
    """As `POST /v1/erasures` does. This cannot be undone, and backups keep it."""
    return await erase_run(deps, run, is_settled=await deps.store_server.wait_until_settled(SETTLE_WAIT))


@router.get("/runs/{run}/calls", summary="A run's calls in the order of their steps")
async def run_calls(
    request: Request,
    deps: TheDeps,
    run: RunId,
    settled: WhenSettled,
    fields: TheFields,
    sort: TheStepSort,
    cursor: PageCursor,
    limit: Limit = 50,
) -> Response:
    """Summaries, as in `/v1/calls`; with `Accept: application/x-ndjson`, all of them, one call a line.

    With `settled=true` the response waits up to 10 s until everything acknowledged is stored; its member `settled` says whether it is.
    """
    if accepts_lines(request) and not is_summary(fields):
        await deps.call_reader.check_run(run, needs_bodies=False)

    async def fetch(limit: int, cursor: str | None) -> Page:
        # Each page: the run may have been deleted meanwhile. What it has is not counted: that takes as long as all else of a long run.
        if not await deps.runs.exists(run):
            raise not_found("run", run, deps.project)
        return await deps.call_reader.run_calls(run, limit, cursor, fields, sort)

    readable = readable_pages(deps.grant, fetch)
    return await list_response(
        request, readable, limit, cursor, more=settled.members, has_bodies=not is_summary(fields)
    )


@router.get("/runs/{run}/gaps", summary="What passed and could not be recorded")
async def run_gaps(deps: TheDeps, run: RunId, settled: WhenSettled) -> Response:
    """Oldest first."""
    await require_run(deps, run)
    return page_response([_gap_shape(gap) for gap in await deps.runs.gaps(run)], None, **settled.members)


@router.post("/runs/{run}/gaps", summary="Add gaps: what passed and could not be recorded", status_code=201)
async def add_gaps(deps: TheDeps, run: RunId, new_gaps: NewGaps) -> Response:
    """A gap makes the run incomplete. For programs that watch a command from outside."""
    await require_run(deps, run)
    now = deps.now()
    gaps = [Gap(run, now, deps.clean(one.reason), None, one.count) for one in new_gaps.gaps]
    await deps.writer.write_batch((), gaps)
    return JsonResponse({"items": [_gap_shape(gap) for gap in gaps]}, status_code=201)


@router.get("/runs/{run}/bundle", summary="The run as one file (docs/trace-format.md)", dependencies=[Depends(settle)])
async def run_bundle(
    deps: TheDeps,
    run: RunId,
    *,
    proof: Annotated[bool, Query(description="with the proof that it was not altered (docs/proof.md)")] = True,
) -> Response:
    """JSON Lines, sent as they are read. A bundle without its last line is incomplete, and every reader refuses it. Without its
    proof, it depends on nothing but what was recorded."""
    head = await require_run(deps, run)
    await deps.call_reader.check_run(run)
    await deps.call_reader.check_objects(run)
    name = f'attachment; filename="{run.replace(":", "_")}.jsonl"'
    headers = {"content-disposition": name}
    return StreamingResponse(
        _bundle_lines(deps, head, with_proof=proof), media_type="application/jsonl", headers=headers
    )


@router.get("/runs/{run}/rows", include_in_schema=False, dependencies=[Depends(settle)])
async def run_rows(deps: TheDeps, run: RunId) -> Response:
    """For Playhead's own workers, which replay the run (`store.bundle.rows_bundle`). Other clients use the bundle."""
    found = await deps.rows_exporter.export(run, deps.now())
    if found is None:
        raise not_found("run", run, deps.project)
    return StreamingResponse(found[1], media_type="application/octet-stream")


@router.get("/runs/{run}/spans", summary="The run as a trace of OpenTelemetry", dependencies=[Depends(settle)])
async def run_spans(
    deps: TheDeps,
    run: RunId,
    *,
    content: Annotated[bool, Query(description="with prompts, answers, arguments and results")] = False,
    semconv: Annotated[Semconv, Query(description="version of the GenAI conventions")] = DEFAULT_VERSION,
    receiver_project: Annotated[str | None, Query(max_length=200, description="project of the receiver")] = None,
) -> Response:
    """An `ExportTraceServiceRequest` of OTLP as protobuf. With `content=true`, prompts, answers, arguments and results are in it.
    `semconv` is the version of the GenAI semantic conventions, `receiver_project` the project of the receiver."""
    if content:
        require_bodies(deps.grant, "content=true")
    await require_run(deps, run)
    # Importing the messages of OpenTelemetry takes long, and most store servers export nothing.
    from store.otlp.run_export import RunExport

    options = SpanOptions(content=content, semconv=semconv, project=receiver_project)
    spans = RunExport(deps.database, deps.derive, deps.project, options, deps.now()).requests(run)
    return StreamingResponse(spans, media_type="application/x-protobuf")


async def _switch_mode(deps: Deps, run: str, mode: Mode | None) -> None:
    """Set or remove the run's own mode. Raises Problem where the workers do not support it."""
    if mode is not None and (deps.run_modes is None or deps.mode not in ("auto", mode)):
        detail = (
            f"run {run} cannot have mode {mode}: the workers of this store server are in mode {deps.mode};"
            " start `playhead up --mode auto`, where a run can have any mode"
        )
        raise Problem(409, "not_switchable", detail)
    if deps.run_modes is not None and deps.run_modes.mode_of(deps.full_name(run)) != mode:
        deps.run_modes.set_mode(deps.full_name(run), mode)
        if deps.auto_sessions is not None:
            await deps.auto_sessions.end(deps.full_name(run), succeeded=None)


def _redact_labels[Value: (str, str | None)](deps: Deps, labels: Mapping[str, Value]) -> dict[str, Value]:
    """Redact secrets that a client may have put into labels."""
    return {deps.clean(label): value and clean_member(label, value, deps.clean) for label, value in labels.items()}


def _with_mode(deps: Deps, run: Shape) -> Shape:
    return run | {"mode": deps.run_modes.mode_of(deps.full_name(run["id"])) if deps.run_modes else None}


async def require_run(deps: Deps, run: str) -> Shape:
    """Return the run as the API shows it. Raises a 404."""
    found = await deps.runs.get(run, deps.now())
    if found is None:
        raise not_found("run", run, deps.project)
    return found


def _gap_shape(gap: Gap) -> Shape:
    return {"happened_at": rfc3339(gap.happened_at), "reason": gap.reason, "exchange": gap.exchange}


async def batch_exchanges(exchanges: AsyncIterator[Exchange]) -> AsyncIterator[Sequence[Exchange]]:
    """Yield some exchanges at a time: passing each to a thread and to the client alone takes longer than writing it."""
    batch: list[Exchange] = []
    weight = 0
    async for exchange in exchanges:
        batch.append(exchange)
        weight += len(exchange.request.body.data) + (len(exchange.response.body.data) if exchange.response else 0)
        if len(batch) == BATCH or weight > BATCH_WEIGHT:
            yield batch
            batch, weight = [], 0
    yield batch


async def _bundle_lines(deps: Deps, run: Shape, *, with_proof: bool) -> AsyncIterator[bytes]:
    writer = BundleWriter()
    if with_proof and deps.sealer is not None:
        await deps.sealer.seal_soon(deps.project)
    proof = await load_bundle_proof(deps.database, deps.project, run["id"]) if with_proof else None
    proofs = {} if proof is None else proof.lines
    key_counts: Counter[str] = Counter()
    envelope, steps = EnvelopeBuilder(), count(1)
    # The keys of the rules that it was recorded under, until it is rekeyed: a replay then sees what the rules changed.
    profiles = run["profile"] or deps.profiles.digest
    current = profiles == deps.profiles.digest
    then = {} if current else await stored_keys(deps.database, run["id"], deps.project)

    def lines(batch: Sequence[Exchange]) -> bytes:
        return b"".join(map(line, batch))

    def line(exchange: Exchange) -> bytes:
        call = deps.derive(exchange)
        if exchange.id in then:
            key, profile = then[exchange.id]
            call = replace(call, key=key, profile=profile)
        key_counts[call.key] += 1
        envelope.add(next(steps), exchange, call)
        return writer.exchange(
            Entry(exchange=exchange, call=call_members(call, key_counts[call.key] - 1)), proofs.get(exchange.id)
        )

    queries = EffectQueries(deps.database, deps.project)
    effects = await queries.ids(run["id"])
    yield writer.head(run, profiles, has_effects=bool(effects))
    async for batch in batch_exchanges(deps.call_reader.exchanges(run["id"])):
        yield await asyncio.to_thread(lines, batch)
    gaps = await deps.runs.gaps(run["id"])
    for gap, name in zip_longest(gaps, (proof.gaps if proof else ())[: len(gaps)]):
        yield writer.gap(gap, proofs.get(name or ""))
    async for observed in queries.batches(run["id"], effects):
        yield writer.effects(observed, proofs.get(observed.id))
    # Without the proof, a bundle has nothing that can be derived from it.
    captured = envelope_shape(envelope, run) if with_proof else None
    yield writer.end(proof.end if proof else None, partial(_sign_bundle, deps) if proof else None, captured)


def _sign_bundle(deps: Deps, last_line: Mapping[str, Any]) -> str | None:
    if deps.sealer is None or deps.log_keys is None:
        return None
    origin = log_origin(deps.log_keys.server, deps.project)
    return deps.sealer.sign(signed_text(origin, last_line), deps.project)
