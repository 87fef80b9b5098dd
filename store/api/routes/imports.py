"""`POST /v1/import`: store a bundle as a run. It may be sent twice; a different run of that name is never changed."""

import asyncio
import hashlib
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from calls.events import Gap
from calls.model import Exchange, UnknownFormat
from store.api.answers import Json
from store.api.deps import Deps, TheDesk
from store.api.helper_answers import answer_file
from store.api.parameters import RUN_ID
from store.api.problems import Problem
from store.api.routes.runs import shape
from store.api.spilled_answers import BODY
from store.bundle.bundle import BadBundle, BundleHead, Entry, FiledRequests, NoRoom, parts
from store.generations.fork_copies import UUID7, new_id
from store.ingest.batch_writer import DerivedExchange, Ingest
from store.large.summary import summary_if_large
from store.prices import cost

router = APIRouter(tags=["runs"])

LARGEST = 512 << 20
UNPACKED = 2 << 30
"""Bytes of all bodies: a line of a hundred may say that its body is that of another line, of millions."""

HERE = 512 << 10
"""Bytes of a bundle that is read by the store server itself; a helper process reads larger ones."""

HERE_UNPACKED = 16 << 20
"""Bytes of all bodies up to which the store server itself reads a bundle."""

BATCH = 100
BATCH_WEIGHT = 8 << 20
"""Bytes of bodies that are stored together, but for the last one of a batch."""

DAY = 24 * 60 * 60 * 1000
"""Milliseconds: how far the clock of another machine may be ahead."""


@router.post("/import", summary="Import a bundle (the request's body)", status_code=201)
async def post_import(
    desk: TheDesk,
    request: Request,
    name: Annotated[str | None, Query(alias="as", pattern=RUN_ID, description="the run's new id")] = None,
) -> Response:
    """201 where something of it was new here, 200 where all of it was here already."""
    request.scope[BODY] = None
    with tempfile.NamedTemporaryFile(dir=desk.spilled, buffering=0) as content:
        size = await _upload(request, content)
        file = Path(content.name)
        if desk.helper is not None and size > HERE:
            return await answer_file(request, file)
        try:
            bundle = await asyncio.to_thread(_listed, _Upload(desk, file), name)
        except NoRoom:
            if desk.helper is not None:
                return await answer_file(request, file)
            detail = (
                f"a bundle whose bodies are more than {UNPACKED:,} bytes is not imported; replay it as the file it is"
            )
            raise Problem(413, "too_large", detail) from None
        return await _imported(desk, bundle)


async def _imported(desk: Deps, bundle: "_Listing") -> Response:
    had = await _had(desk, bundle)
    if had is None or had < len(bundle.prints):
        await _store(desk, bundle)
        await _confirm(desk, bundle, new=had is None)
    imported = len(bundle.prints) - (had or 0)
    return Json(await shape(desk, bundle.run) | {"imported": imported}, 201 if had is None or imported else 200)


async def _upload(request: Request, content: IO[bytes]) -> int:
    """Take the request's body; it waits on disk, as redacted as it came. How long it is."""
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > LARGEST:
            detail = f"a bundle of more than {LARGEST:,} bytes is not imported; replay it as the file it is"
            raise Problem(413, "too_large", detail)
        await asyncio.to_thread(content.write, piece)
    return size


@dataclass(frozen=True, slots=True)
class _Upload:
    """A bundle in a file, of which no more than one exchange is held."""

    desk: Deps
    file: Path

    def parts(self) -> Iterator[BundleHead | Entry | Gap]:
        """What it holds, read anew. Raises Problem and NoRoom."""
        room = UNPACKED if self.desk.helper is None else HERE_UNPACKED
        with self.file.open("rb") as content, tempfile.TemporaryFile(dir=self.desk.spilled) as earlier:
            try:
                yield from parts(content, room, FiledRequests(earlier))
            except BadBundle as error:
                raise Problem(422, "bad_bundle", str(error), line=error.line) from None
            except UnknownFormat as error:
                raise Problem(422, "unknown_format", str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What is known of a bundle that was read once: each part is as it should be."""

    upload: _Upload
    head: BundleHead
    run: str
    """The run that it will be here."""

    name: str | None
    """The same, where that is not its own name."""

    prints: Mapping[str, bytes]
    """The fingerprints of its exchanges, by the ids that they will have."""

    gaps: Sequence[Gap]
    end: int
    """When the last exchange ended; 0 where there is none."""

    def exchanges(self) -> Iterator[Exchange]:
        """As they will be stored."""
        for part in self.upload.parts():
            if isinstance(part, Entry):
                yield _admitted_exchange(part.exchange, self.run, self.name)


def _listed(upload: _Upload, name: str | None) -> _Listing:
    """Read it once: under the run, and under ids of its own where the run gets a new name. Raises Problem and NoRoom."""
    found = upload.parts()
    head = next(found)
    assert isinstance(head, BundleHead)
    run = name or head.run["id"]
    name = None if run == head.run["id"] else name
    if not re.fullmatch(RUN_ID, run):
        raise _bad(f"its run is called {run[:200]!r}, which is no run id; give it one with ?as=NAME")
    latest = str(uuid.UUID(int=(upload.desk.now() // 1_000_000 + DAY) << 80))
    prints: dict[str, bytes] = {}
    gaps: list[Gap] = []
    ids: dict[str, str] = {}
    end = 0
    for part in found:
        match part:
            case Entry():
                if part.exchange.id > latest:
                    # The day in an id is the day it is kept under: one to come would be kept for ever.
                    raise _bad(
                        f"the exchange {part.exchange.id[:80]!r} is of a time to come, or has no id of an exchange"
                    )
                each = _admitted_exchange(part.exchange, run, name)
                if each.id in prints:
                    raise _bad("two of its exchanges have the same id")
                ids[part.exchange.id] = each.id
                prints[each.id] = _fingerprint(each)
                end = max(end, _end(each))
            case Gap():
                gaps.append(part)
    admitted = [
        Gap(run, gap.happened_at, gap.reason, ids.get(gap.exchange or "", gap.exchange), gap.count) for gap in gaps
    ]
    return _Listing(upload=upload, head=head, run=run, name=name, prints=prints, gaps=admitted, end=end)


def _fingerprint(exchange: Exchange) -> bytes:
    """A digest of all of an exchange."""
    request, response = exchange.request, exchange.response
    bodies = [request.body, *([response.body] if response else [])]
    bare = replace(
        exchange,
        request=replace(request, body=replace(request.body, data=b"")),
        response=response and replace(response, body=replace(response.body, data=b"")),
    )
    told = hashlib.sha256(msgspec.msgpack.encode(bare))
    for body in bodies:
        told.update(hashlib.sha256(body.data).digest())
    return told.digest()


def _admitted_exchange(exchange: Exchange, run: str, name: str | None) -> Exchange:
    if not UUID7.fullmatch(exchange.id):
        raise _bad(f"{exchange.id[:80]!r} is not the id of an exchange (a uuidv7)")
    return replace(exchange, id=new_id(exchange.id, name) if name else exchange.id, run=run)


def _bad(why: str) -> Problem:
    return Problem(422, "bad_bundle", f"the bundle cannot be imported: {why}")


async def _had(desk: Deps, bundle: _Listing) -> int | None:
    """How many of the exchanges are here already; None where the run is not. Refuses to add to a different run."""
    if await desk.runs.get(bundle.run, desk.now()) is None:
        return None
    had = 0
    async for each in desk.recorded.exchanges(bundle.run):
        if bundle.prints.get(each.id) != await asyncio.to_thread(_fingerprint, each):
            detail = f"there is a run {bundle.run} here that differs from the one in the file; import it as another: ?as=NAME"
            raise Problem(409, "run_exists", detail, exchange=each.id)
        had += 1
    return had


async def _store(desk: Deps, bundle: _Listing) -> None:
    ingest = Ingest(desk.database, profile=desk.profiles.digest)
    batches = _batches(desk, bundle.exchanges())
    while batch := await asyncio.to_thread(next, batches, None):
        await ingest.put(batch)
    await ingest.put((), bundle.gaps)
    told = bundle.head.run
    labels = told.get("labels")
    await desk.runs.put(bundle.run, desk.now(), _text(told.get("name")), _texts(labels) if labels else None)
    await desk.runs.adopt(bundle.run, told, bundle.end or desk.now(), desk.now() + DAY * 1_000_000)


def _batches(desk: Deps, exchanges: Iterator[Exchange]) -> Iterator[list[DerivedExchange]]:
    """Some exchanges at a time, of which the last one may be large."""
    batch: list[DerivedExchange] = []
    weight = 0
    for each in exchanges:
        batch.append(_kept(desk, each))
        weight += len(each.request.body.data) + (len(each.response.body.data) if each.response else 0)
        if len(batch) == BATCH or weight > BATCH_WEIGHT:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def _kept(desk: Deps, exchange: Exchange) -> DerivedExchange:
    call = desk.derive(exchange)
    return DerivedExchange(exchange, call, ("import",), cost(exchange, call), summary=summary_if_large(exchange, call))


async def _confirm(desk: Deps, bundle: _Listing, *, new: bool) -> None:
    """What was stored is what the bundle holds: an id that another run has already would be missing."""
    lacking = bundle.prints.keys() - await desk.recorded.ids(bundle.run)
    if lacking:
        if new:
            await desk.runs.delete(bundle.run)
        detail = (
            "its exchanges are here already, in another run; to have them twice give it a name of its own: ?as=NAME"
        )
        raise Problem(409, "exchanges_exist", detail, exchange=min(lacking))


def _end(exchange: Exchange) -> int:
    return exchange.started_at + (exchange.ended_at or exchange.first_byte_at or 0)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: object) -> dict[str, str]:
    pairs = value.items() if isinstance(value, Mapping) else ()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
