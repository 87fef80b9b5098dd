"""`POST /v1/import`: store a bundle as a run. Importing it again changes nothing; a different run of that name is never changed."""

import asyncio
import contextlib
import datetime as dt
import hashlib
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from calls.events import EffectBatch, Gap
from calls.model import Exchange, UnknownFormat
from store.api.answers import JsonResponse
from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.helper_answers import answer_upload_in_helper
from store.api.parameters import RUN_ID_PATTERN
from store.api.problems import Problem
from store.api.routes.runs import require_run
from store.api.spilled_answers import BODY, YIELD_TURN
from store.bundle.bundle import BadBundle, BundleHead, BundleTooLarge, Entry, RequestFile, read_parts
from store.generations.fork_copies import UUID7, copied_id
from store.ingest.batch_writer import DerivedExchange
from store.ingest.partitions import OLDEST_DAY
from store.large.summary import encode_summary_if_large
from store.pricing.prices import call_cost

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

LARGEST = 512 << 20
LARGEST_UNPACKED = 2 << 30
"""Bytes of all bodies together. They may exceed the file by far: a short line can refer to the large body of another line."""

REPLAY_THE_FILE: Final = "Replay the file itself: playhead replay FILE -- COMMAND"
"""What to do about a bundle that is too large to import."""

IN_PROCESS_SIZE = 512 << 10
"""Bytes of a bundle up to which the store server reads it itself; a helper process reads larger ones."""

IN_PROCESS_UNPACKED = 16 << 20
"""Bytes of all bodies together up to which the store server reads a bundle itself."""

BATCH = 100
BATCH_WEIGHT = 8 << 20
"""Bytes of bodies that are stored together; only the last body of a batch may exceed it."""

MOST_DAYS: Final = 400
"""Days that an import may name ahead."""

DAY = 24 * 60 * 60 * 1000
"""Milliseconds by which the clock of another machine may be ahead."""


@router.post("/import", summary="Import a bundle (the request's body)", status_code=201)
async def post_import(
    deps: TheDeps,
    request: Request,
    name: Annotated[str | None, Query(alias="as", pattern=RUN_ID_PATTERN, description="the run's new id")] = None,
    days: Annotated[
        str | None,
        Query(
            max_length=MOST_DAYS * len("2026-11-21,"),
            description="up to 400 days (UTC, with commas between them) of the files that will be imported after this one:"
            " the tables of all are made at once, which is faster than one by one",
        ),
    ] = None,
) -> Response:
    """201 where something was imported, 200 where everything was stored already."""
    request.scope[BODY] = None
    named_days = _parse_days(days, deps.now()) if days else ()
    with tempfile.NamedTemporaryFile(dir=deps.spill_directory, buffering=0) as content:
        # Others have the turn while the client sends.
        async with request.scope.get(YIELD_TURN, contextlib.nullcontext)():
            size = await _upload(request, content)
            await deps.writer.create_partitions(named_days)
        file = Path(content.name)
        if deps.helper is not None and size > IN_PROCESS_SIZE:
            return await answer_upload_in_helper(request, file, REPLAY_THE_FILE)
        try:
            bundle = await asyncio.to_thread(_list_bundle, _Upload(deps, file), name)
        except BundleTooLarge:
            if deps.helper is not None:
                return await answer_upload_in_helper(request, file, REPLAY_THE_FILE)
            detail = f"the bodies of the bundle are larger than {LARGEST_UNPACKED:,} bytes, the limit of an import. {REPLAY_THE_FILE}"
            raise Problem(413, "too_large", detail) from None
        return await _import_bundle(deps, bundle)


def _parse_days(text: str, now: int) -> list[dt.date]:
    """Parse days on which an exchange may be stored. Raises Problem."""
    latest = dt.datetime.fromtimestamp(now // 1_000_000_000 + DAY // 1000, dt.UTC).date()
    try:
        days = [dt.date.fromisoformat(one) for one in text.split(",")]
    except ValueError:
        raise Problem(422, "invalid_request", f"invalid days={text[:200]}: write each like 2026-11-21") from None
    for day in days:
        if not OLDEST_DAY <= day <= latest:
            detail = (
                f"invalid day {day} in days: no exchange can be stored there; name days from {OLDEST_DAY} to {latest}"
            )
            raise Problem(422, "invalid_request", detail)
    return days


async def _import_bundle(deps: Deps, bundle: "_Listing") -> Response:
    had = await _stored_count(deps, bundle)
    if had is None or had < len(bundle.fingerprints):
        await _store(deps, bundle)
        await _confirm(deps, bundle, new=had is None)
    imported = len(bundle.fingerprints) - (had or 0)
    return JsonResponse(
        await require_run(deps, bundle.run) | {"imported": imported}, 201 if had is None or imported else 200
    )


async def _upload(request: Request, content: IO[bytes]) -> int:
    """Write the request's body to a file, as it is, and return its size."""
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > LARGEST:
            detail = f"the bundle is larger than {LARGEST:,} bytes, the limit of an import. {REPLAY_THE_FILE}"
            raise Problem(413, "too_large", detail)
        await asyncio.to_thread(content.write, piece)
    return size


@dataclass(frozen=True, slots=True)
class _Upload:
    """A bundle in a file, of which at most one exchange is in memory."""

    deps: Deps
    file: Path

    def read_parts(self) -> Iterator[BundleHead | Entry | Gap | EffectBatch]:
        """Read its parts from the beginning. Raises Problem and BundleTooLarge."""
        room = LARGEST_UNPACKED if self.deps.helper is None else IN_PROCESS_UNPACKED
        with self.file.open("rb") as content, tempfile.TemporaryFile(dir=self.deps.spill_directory) as earlier:
            try:
                yield from read_parts(content, room, RequestFile(earlier))
            except BundleTooLarge:
                raise
            except BadBundle as error:
                raise Problem(422, "bad_bundle", str(error), line=error.line) from None
            except UnknownFormat as error:
                raise Problem(422, "unknown_format", str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What is known about a bundle after it was read once and checked."""

    upload: _Upload
    head: BundleHead
    run: str
    """The id under which the run is stored."""

    name: str | None
    """The same id where it differs from that in the bundle; else None."""

    fingerprints: Mapping[str, bytes]
    """The fingerprints of its exchanges, by the ids under which they are stored."""

    gaps: Sequence[Gap]
    has_effects: bool
    end: int
    """The time when the last exchange ended; 0 where there is none."""

    def effects(self) -> Iterator[EffectBatch]:
        """Read the batches of effects as they are to be stored."""
        for part in self.upload.read_parts() if self.has_effects else ():
            if isinstance(part, EffectBatch):
                name = copied_id(part.id, self.name) if self.name else part.id
                yield msgspec.structs.replace(part, id=name, run=self.run)

    def exchanges(self) -> Iterator[Exchange]:
        """Read the exchanges as they are to be stored."""
        for part in self.upload.read_parts():
            if isinstance(part, Entry):
                yield _admitted_exchange(part.exchange, self.run, self.name)


def _list_bundle(upload: _Upload, name: str | None) -> _Listing:
    """Read a bundle once and check it; `name` renames its run. Raises Problem and BundleTooLarge."""
    parts = upload.read_parts()
    head = next(parts)
    assert isinstance(head, BundleHead)
    run = name or head.run["id"]
    name = None if run == head.run["id"] else name
    if not re.fullmatch(RUN_ID_PATTERN, run):
        raise _bad_bundle(f"{run[:200]!r} is not a valid run id; choose one with ?as=NAME")
    latest = str(uuid.UUID(int=(upload.deps.now() // 1_000_000 + DAY) << 80))
    fingerprints: dict[str, bytes] = {}
    gaps: list[Gap] = []
    ids: dict[str, str] = {}
    end = 0
    has_effects = False
    for part in parts:
        match part:
            case Entry():
                if part.exchange.id > latest:
                    # Retention goes by the day in the id: an exchange of the future would be kept for ever.
                    raise _bad_bundle(
                        f"the exchange id {part.exchange.id[:80]!r} lies in the future, or is not a uuidv7"
                    )
                each = _admitted_exchange(part.exchange, run, name)
                if each.id in fingerprints:
                    raise _bad_bundle("two of its exchanges have the same id")
                ids[part.exchange.id] = each.id
                fingerprints[each.id] = _fingerprint(each)
                end = max(end, _end_time(each))
            case Gap():
                gaps.append(part)
            case EffectBatch():
                if not UUID7.fullmatch(part.id):
                    raise _bad_bundle(f"the id {part.id[:80]!r} of effects is not a uuidv7")
                has_effects = True
    admitted = [
        Gap(run, gap.happened_at, gap.reason, ids.get(gap.exchange or "", gap.exchange), gap.count) for gap in gaps
    ]
    return _Listing(
        upload=upload,
        head=head,
        run=run,
        name=name,
        fingerprints=fingerprints,
        gaps=admitted,
        has_effects=has_effects,
        end=end,
    )


def _fingerprint(exchange: Exchange) -> bytes:
    """Return a digest of everything in an exchange."""
    request, response = exchange.request, exchange.response
    bodies = [request.body, *([response.body] if response else [])]
    bare = replace(
        exchange,
        request=replace(request, body=replace(request.body, data=b"")),
        response=response and replace(response, body=replace(response.body, data=b"")),
    )
    digest = hashlib.sha256(msgspec.msgpack.encode(bare))
    for body in bodies:
        digest.update(hashlib.sha256(body.data).digest())
    return digest.digest()


def _admitted_exchange(exchange: Exchange, run: str, name: str | None) -> Exchange:
    if not UUID7.fullmatch(exchange.id):
        raise _bad_bundle(f"the exchange id {exchange.id[:80]!r} is not a uuidv7")
    return replace(exchange, id=copied_id(exchange.id, name) if name else exchange.id, run=run)


def _bad_bundle(why: str) -> Problem:
    return Problem(422, "bad_bundle", f"the bundle cannot be imported: {why}")


async def _stored_count(deps: Deps, bundle: _Listing) -> int | None:
    """Return how many of the exchanges are stored already; None without such a run. Raises Problem for a different run."""
    if await deps.runs.get(bundle.run, deps.now()) is None:
        return None
    had = 0
    async for each in deps.call_reader.exchanges(bundle.run):
        if bundle.fingerprints.get(each.id) != await asyncio.to_thread(_fingerprint, each):
            detail = (
                f"run {bundle.run} exists and differs from the one in the file; import it under another id: ?as=NAME"
            )
            raise Problem(409, "run_exists", detail, exchange=each.id)
        had += 1
    return had


async def _store(deps: Deps, bundle: _Listing) -> None:
    ingest = deps.writer
    batches = _batches(deps, bundle.exchanges())
    while batch := await asyncio.to_thread(next, batches, None):
        await ingest.write_batch(batch)
    await ingest.write_batch((), bundle.gaps)
    effects = bundle.effects()
    while (effect_batch := await asyncio.to_thread(next, effects, None)) is not None:
        await ingest.write_batch((), effects=(effect_batch,))
    run = bundle.head.run
    labels = run.get("labels")
    await deps.runs.put(
        bundle.run, deps.now(), _text_or_none(run.get("name")), _text_members(labels) if labels else None
    )
    await deps.runs.adopt(bundle.run, run, bundle.end or deps.now(), deps.now() + DAY * 1_000_000)


def _batches(deps: Deps, exchanges: Iterator[Exchange]) -> Iterator[list[DerivedExchange]]:
    """Yield some exchanges at a time, of which the last one may be large."""
    batch: list[DerivedExchange] = []
    weight = 0
    for each in exchanges:
        batch.append(_derived_exchange(deps, each))
        weight += len(each.request.body.data) + (len(each.response.body.data) if each.response else 0)
        if len(batch) == BATCH or weight > BATCH_WEIGHT:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _derived_exchange(deps: Deps, exchange: Exchange) -> DerivedExchange:
    call = deps.derive(exchange)
    return DerivedExchange(
        exchange, call, ("import",), call_cost(exchange, call), summary=encode_summary_if_large(exchange, call)
    )


async def _confirm(deps: Deps, bundle: _Listing, *, new: bool) -> None:
    """Check that all exchanges of the bundle are stored: one whose id another run has would be missing. Raises Problem."""
    lacking = bundle.fingerprints.keys() - await deps.call_reader.exchange_ids(bundle.run)
    if lacking:
        if new:
            await deps.runs.delete(bundle.run)
        detail = "exchanges with the same ids are stored in another run; to store them twice, import under another id: ?as=NAME"
        raise Problem(409, "exchanges_exist", detail, exchange=min(lacking))


def _end_time(exchange: Exchange) -> int:
    return exchange.started_at + (exchange.ended_at or exchange.first_byte_at or 0)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _text_members(value: object) -> dict[str, str]:
    pairs = value.items() if isinstance(value, Mapping) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
