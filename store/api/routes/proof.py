"""`/v1/runs/{run}/verify`, `/v1/verify`, `/v1/verifications`, `/v1/runs/{run}/envelope`, `/v1/checkpoint`: whether a run is as it was recorded, what was captured of it, and
what the store server has signed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response

from calls.comparison.envelope import EnvelopeBuilder
from calls.model import Call, Exchange
from calls.proof.checkpoint import InvalidNote, VerifierKey, parse_verifier_key
from calls.proof.tree import consistency_path
from store.anchors.anchor_check import AnchorTrust
from store.anchors.anchorer import Trouble
from store.anchors.rows import AnchorKind
from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.parameters import RunId, settle
from store.api.problems import Problem, not_found
from store.api.routes.runs import batch_exchanges, require_run
from store.proof.seal_marks import LastVerdict, load_seals
from store.proof.sealing import newest_checkpoint
from store.proof.signing_keys import log_origin
from store.proof.tiles import load_nodes
from store.proof.verdict import Verification, verification_shape
from store.proof.verification import RunVerifier
from store.query.rest_shapes import Shape, envelope_shape, rfc3339

router = APIRouter(tags=["proof"], route_class=DeferredRoute)


MOST_VERIFIED: Final = 100
MOST_KEYS: Final = 100

type Keys = Annotated[
    list[str],
    Query(
        alias="key",
        default_factory=list,
        max_length=MOST_KEYS,
        description="the public key of a store server of this database, as `playhead signing-key` prints it; may be repeated."
        " These alone are trusted then",
    ),
]

type Since = Annotated[
    int | None,
    Query(ge=1, lt=1 << 62, description="the size of an earlier checkpoint, to be shown as the beginning of this one"),
]


@router.get("/runs/{run}/verify", summary="Whether the run is as it was recorded", dependencies=[Depends(settle)])
async def verify_run(deps: TheDeps, run: RunId) -> Response:
    """Compares everything that the run has with the records of its chains, and these with the newest signed checkpoint (docs/proof.md).

    `failed` if something does not fit: `findings` has each element and what was done to it. `unproven` if something was stored without
    a record, or is not sealed yet, which takes a minute at most.
    """
    await deps.call_reader.check_run(run, needs_bodies=False)
    verifier = _make_verifier(deps, _trusted_keys(deps, ()))
    if deps.sealer is not None:
        await deps.sealer.seal_soon(deps.project)
    found = await verifier.verify(run)
    if found is None:
        raise not_found("run", run, deps.project)
    await _note_verdicts(deps, {run: found})
    return JsonResponse(verification_shape(run, found) | {"asked": _anchor_sources(deps)})


async def _note_verdicts(deps: Deps, found: Mapping[str, Verification]) -> None:
    for run, seal in (await load_seals(deps.database, deps.project, list(found))).items():
        incarnation, records = seal["incarnation"], seal["records"]
        last = LastVerdict(verdict=found[run].verdict, at=deps.now(), incarnation=incarnation, records=records)
        deps.last_verdicts.note(deps.project, run, last)


@router.get("/verify", summary="Whether every run that was sealed is there, or was erased")
async def verify_project(deps: TheDeps, keys: Keys) -> Response:
    """Compares the signed tree of the project with its runs, without looking into them: `proven` counts leaves of the tree. A run that
    somebody removed from the database is a finding; one that was erased is not."""
    if deps.log_keys is None:
        raise _no_checkpoint()
    if deps.sealer is not None:
        await deps.sealer.seal_soon(deps.project)
    verifier = _make_verifier(deps, _trusted_keys(deps, keys))
    contradictions = [one.message for one in _troubles(deps).values() if one.is_contradiction]
    found = await verifier.verify_project(deps.log_keys.server, contradictions)
    return JsonResponse(verification_shape(None, found) | {"asked": _anchor_sources(deps)})


@router.get(
    "/verifications", summary="Whether each of these runs is as it was recorded", dependencies=[Depends(settle)]
)
async def verify_runs(
    deps: TheDeps,
    run: Annotated[list[RunId], Query(min_length=1, max_length=MOST_VERIFIED, description="a run; may be repeated")],
    keys: Keys,
) -> Response:
    """The same as `/v1/runs/{run}/verify`, for up to 100 runs in a fraction of the time. Those that there are not are left out."""
    verifier = _make_verifier(deps, _trusted_keys(deps, keys))
    if deps.sealer is not None:
        await deps.sealer.seal_soon(deps.project)
    found = await verifier.verify_many(run)
    if not keys:
        # What other keys say is for who trusts them, not for the marks that everybody sees.
        await _note_verdicts(deps, found)
    sources = {"asked": _anchor_sources(deps)}
    return JsonResponse({"items": [verification_shape(name, one) | sources for name, one in found.items()]})


def _troubles(deps: Deps) -> Mapping[tuple[AnchorKind, str], Trouble]:
    return {} if deps.anchorer is None else deps.anchorer.troubles(deps.project)


def _anchor_sources(deps: Deps) -> list[Shape]:
    """Return who is asked to vouch for checkpoints, and what prevents it."""
    troubles = _troubles(deps)
    return [
        {"kind": kind, "by": by, "problem": None if (trouble := troubles.get((kind, by))) is None else trouble.message}
        for kind, by in deps.anchors.names
    ]


def _trusted_keys(deps: Deps, texts: Sequence[str]) -> list[VerifierKey]:
    """Return the keys that a request trusts, or our own."""
    if not texts:
        return deps.log_keys.verifier_keys(deps.project) if deps.log_keys else []
    try:
        keys = [parse_verifier_key(text) for text in texts]
    except InvalidNote as error:
        raise Problem(422, "invalid_request", f"key: {error}; `playhead signing-key` prints one") from error
    # It prints the name of one project's log; the key signs those of all.
    return [VerifierKey(f"{key.name.rpartition('/')[0]}/{deps.project}", key.public_key) for key in keys]


def _make_verifier(deps: Deps, keys: Sequence[VerifierKey]) -> RunVerifier:
    trust = AnchorTrust(deps.anchors.witness_keys, deps.anchors.roots)
    return RunVerifier(deps.database, deps.project, deps.call_reader, keys, deps.checkpoint_directory, trust)


@router.get(
    "/runs/{run}/envelope", summary="What was captured of what moves between runs", dependencies=[Depends(settle)]
)
async def get_envelope(deps: TheDeps, run: RunId) -> Response:
    """Models and fingerprints, sampling parameters, prompts, retrievals, tools, times, the conversation, the version of the code, the
    environment: the values that were seen with their steps, and in `missing` a sentence for whatever was not captured."""
    run_shape = await require_run(deps, run)
    await deps.call_reader.check_run(run)
    builder = EnvelopeBuilder()
    step = 0
    async for batch in batch_exchanges(deps.call_reader.exchanges(run)):
        await asyncio.to_thread(_add_to_envelope, builder, step, batch, deps.derive)
        step += len(batch)
    return JsonResponse({"run": run} | envelope_shape(builder, run_shape))


def _add_to_envelope(
    builder: EnvelopeBuilder, before: int, batch: Sequence[Exchange], derive: Callable[[Exchange], Call]
) -> None:
    for step, exchange in enumerate(batch, before + 1):
        builder.add(step, exchange, derive(exchange))


@router.get("/checkpoint", summary="The newest signed checkpoint of the project")
async def get_checkpoint(deps: TheDeps, since: Since = None) -> Response:
    """Keep it somewhere else: with it you can show later that nothing that it covers was taken back. `since` adds the proof that the tree
    begins with that of an earlier checkpoint."""
    if deps.sealer is not None:
        await deps.sealer.seal_soon(deps.project)
    return JsonResponse(await _checkpoint_shape(deps, since))


async def _checkpoint_shape(deps: Deps, since: int | None) -> Shape:
    if deps.log_keys is None:
        raise _no_checkpoint()
    server = deps.log_keys.server
    shape: Shape = {
        "origin": log_origin(server, deps.project),
        "keys": [str(key) for key in deps.log_keys.verifier_keys(deps.project)],
    }
    async with deps.database.connection() as connection, connection.transaction(readonly=True):
        newest = await newest_checkpoint(connection, deps.project, server)
        if newest is None:
            raise _no_checkpoint()
        shape |= {"size": newest["size"], "signed_at": rfc3339(newest["signed_at"]), "note": newest["note"]}
        if since is not None:
            if since > newest["size"]:
                detail = f"since={since} is larger than the newest checkpoint, which has {newest['size']} leaves"
                raise Problem(422, "invalid_query", detail)
            path = await load_nodes(
                connection,
                deps.project,
                server,
                newest["size"],
                lambda read: consistency_path(since, newest["size"], read),
            )
            shape["consistency"] = [each.hex() for each in path]
    return shape


def _no_checkpoint() -> Problem:
    return Problem(
        404, "no_checkpoint", "no checkpoint was signed yet; the first one is, a moment after something was recorded"
    )
