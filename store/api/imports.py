"""`POST /v1/import`: a bundle becomes a run. Sent twice it is there once; a different run of that name is never touched."""

import asyncio
import itertools
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Annotated

from fastapi import APIRouter, Query, Request, Response

from calls.events import Gap
from calls.model import Exchange, UnknownFormat
from store.api.answers import Json
from store.api.asked import RUN_ID
from store.api.desk import Desk, TheDesk
from store.api.problems import Problem
from store.api.runs import shape
from store.bundle import BadBundle, Bundle, Entry, Head, gathered, parts
from store.copies import UUID7, new_id
from store.ingest import Ingest, Kept
from store.prices import cost

router = APIRouter(tags=["runs"])

LARGEST = 512 << 20
UNPACKED = 2 << 30
"""Bytes of all bodies: a line of a hundred may say that its body is that of another line, of millions."""

IN_MEMORY = 8 << 20
BATCH = 100
DAY = 24 * 60 * 60 * 1000
"""Milliseconds: how far the clock of another machine may be ahead."""


@router.post("/import", summary="Import a bundle (the request's body)", status_code=201)
async def post_import(
    desk: TheDesk,
    request: Request,
    name: Annotated[str | None, Query(alias="as", pattern=RUN_ID, description="the run's new id")] = None,
) -> Response:
    """201 where something of it was new here, 200 where all of it was here already."""
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as content:
        await _upload(request, content)
        bundle = await asyncio.to_thread(_read, content)
    run = name or bundle.run["id"]
    name = None if run == bundle.run["id"] else name
    latest = uuid.UUID(int=(desk.now() // 1_000_000 + DAY) << 80)
    bundle = await asyncio.to_thread(_admitted, bundle, run, name, str(latest))
    had = await _had(desk, run, bundle)
    if had is None or had < len(bundle.entries):
        await _store(desk, run, bundle)
        await _confirm(desk, run, bundle, new=had is None)
    imported = len(bundle.entries) - (had or 0)
    return Json(await shape(desk, run) | {"imported": imported}, 201 if had is None or imported else 200)


async def _upload(request: Request, content: IO[bytes]) -> None:
    """Take the request's body; a large one waits on disk, as redacted as it came, so that memory holds it once."""
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > LARGEST:
            detail = f"a bundle of more than {LARGEST:,} bytes is not imported; replay it as the file it is"
            raise Problem(413, "too_large", detail)
        await asyncio.to_thread(content.write, piece)


def _read(content: IO[bytes]) -> Bundle:
    content.seek(0)
    try:
        return gathered(_bounded(parts(content)))
    except BadBundle as error:
        raise Problem(422, "bad_bundle", str(error), line=error.line) from None
    except UnknownFormat as error:
        raise Problem(422, "unknown_format", str(error)) from None


def _bounded(found: Iterable[Head | Entry | Gap]) -> Iterator[Head | Entry | Gap]:
    """The same parts, as long as memory may hold them all."""
    size = 0
    for part in found:
        if isinstance(part, Entry):
            request, response = part.exchange.request, part.exchange.response
            size += len(request.body.data) + (len(response.body.data) if response else 0)
        if size > UNPACKED:
            detail = (
                f"a bundle whose bodies are more than {UNPACKED:,} bytes is not imported; replay it as the file it is"
            )
            raise Problem(413, "too_large", detail)
        yield part


def _admitted(bundle: Bundle, run: str, name: str | None, latest: str) -> Bundle:
    """The bundle as it will be stored: under this run, and under ids of its own where the run gets a new name."""
    if not re.fullmatch(RUN_ID, run):
        raise _bad(f"its run is called {run[:200]!r}, which is no run id; give it one with ?as=NAME")
    ids = {each.id: new_id(each.id, name) if name else each.id for each in bundle.exchanges}
    if len(ids) != len(bundle.entries):
        raise _bad("two of its exchanges have the same id")
    if too_late := [each for each in ids if each > latest]:
        # The day in an id is the day it is kept under: one to come would be kept for ever.
        raise _bad(f"the exchange {too_late[0][:80]!r} is of a time to come, or has no id of an exchange")
    entries = tuple(Entry(exchange=_admitted_exchange(each, run, ids[each.id])) for each in bundle.exchanges)
    gaps = tuple(
        Gap(run, gap.happened_at, gap.reason, ids.get(gap.exchange or "", gap.exchange)) for gap in bundle.gaps
    )
    return replace(bundle, entries=entries, gaps=gaps)


def _admitted_exchange(exchange: Exchange, run: str, new_id: str) -> Exchange:
    if not UUID7.fullmatch(exchange.id):
        raise _bad(f"{exchange.id[:80]!r} is not the id of an exchange (a uuidv7)")
    return replace(exchange, id=new_id, run=run)


def _bad(why: str) -> Problem:
    return Problem(422, "bad_bundle", f"the bundle cannot be imported: {why}")


async def _had(desk: Desk, run: str, bundle: Bundle) -> int | None:
    """How many of the exchanges are here already; None where the run is not. Refuses to add to a different run."""
    if await desk.runs.get(run, desk.now()) is None:
        return None
    ours = {each.id: each for each in bundle.exchanges}
    had = 0
    async for each in desk.recorded.exchanges(run):
        if ours.get(each.id) != each:
            detail = f"there is a run {run} here that differs from the one in the file; import it as another: ?as=NAME"
            raise Problem(409, "run_exists", detail, exchange=each.id)
        had += 1
    return had


async def _store(desk: Desk, run: str, bundle: Bundle) -> None:
    ingest = Ingest(desk.database, profile=desk.profiles.digest)
    for batch in itertools.batched(bundle.exchanges, BATCH):
        await ingest.put(await asyncio.to_thread(_kept, desk, batch))
    await ingest.put((), bundle.gaps)
    labels = bundle.run.get("labels")
    await desk.runs.put(run, desk.now(), _text(bundle.run.get("name")), _texts(labels) if labels else None)
    end = max(map(_end, bundle.exchanges), default=desk.now())
    await desk.runs.adopt(run, bundle.run, end, desk.now() + DAY * 1_000_000)


def _kept(desk: Desk, batch: Sequence[Exchange]) -> list[Kept]:
    derived = ((each, desk.derive(each)) for each in batch)
    return [Kept(each, call, ("import",), cost(each, call)) for each, call in derived]


async def _confirm(desk: Desk, run: str, bundle: Bundle, *, new: bool) -> None:
    """What was stored is what the bundle holds: an id that another run has already would be missing."""
    lacking = {each.id for each in bundle.exchanges}
    async for each in desk.recorded.exchanges(run):
        lacking.discard(each.id)
    if lacking:
        if new:
            await desk.runs.delete(run)
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
