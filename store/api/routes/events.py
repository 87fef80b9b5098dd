"""`/v1/events`: what is stored, as it is stored."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from store.api.deferred_route import DeferredRoute
from store.api.deps import Deps, TheDeps
from store.api.parameters import TheEventFilters
from store.api.problems import Problem
from store.feed.entries import FeedEntry
from store.feed.events import (
    EventFilters,
    EventId,
    InvalidEventId,
    event_members,
    event_name,
    load_labelled_runs,
    new_events,
)
from store.feed.feed import deleted_position, last_position, position_before, read_feed
from store.query.rest_shapes import rfc3339

router = APIRouter(tags=["runs"], route_class=DeferredRoute)

HEARTBEAT: Final = 15.0
"""Seconds after which a comment is sent, so that proxies and clients know that the connection is alive."""

POLL_INTERVAL: Final = 1.0
"""Seconds between two looks at the feed: another store server may have written to it."""

LOOK_INTERVAL: Final = 0.1
"""Seconds between two looks while more and more is stored, so that many streams do not each read every transaction by itself."""

BATCH: Final = 100
"""Rows of the feed that are read at a time."""

MOST_STREAMS: Final = 100

RETRY: Final = 2000
"""Milliseconds after which a client connects again."""

_LAST_SEEN = "the id of the last event that was received: the stream continues after it"

type LastEventId = Annotated[str | None, Header(max_length=200, description=_LAST_SEEN)]
type LastEventIdParameter = Annotated[
    str | None,
    Query(alias="last_event_id", max_length=200, description=f"{_LAST_SEEN}; for clients that cannot set the header"),
]


@router.get(
    "/events",
    summary="What is stored, as it is stored (server-sent events)",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, 503: {}},
)
async def get_events(
    deps: TheDeps,
    filters: TheEventFilters,
    last_event_id: LastEventId = None,
    after: LastEventIdParameter = None,
) -> StreamingResponse:
    """Runs that begin and end, calls, gaps, replays and drift, each with its run and its time.

    Without the id of a last event, the stream begins now. Events are kept for a week; where some after the given id are gone, the
    first event is `reset`. The filters of calls let only calls pass.
    """
    if deps.signal.streams >= MOST_STREAMS:
        detail = (
            f"there are {MOST_STREAMS} open streams of events already: close some, or filter one stream in the client"
        )
        raise Problem(503, "too_many_streams", detail, headers={"retry-after": "5"})
    try:
        last = EventId.parse(cursor) if (cursor := last_event_id or after) else None
    except InvalidEventId as error:
        raise Problem(422, "bad_event_id", str(error)) from error
    # Read before the response begins, so that whatever is stored from now on is in it.
    async with deps.database.connection() as connection:
        position = await last_position(connection) if last is None else position_before(last.position)
        is_cut = last is not None and last.position.transaction < await deleted_position(connection, deps.project)
    begin = "event: reset\ndata: {}\n\n" if is_cut else ""
    lines = _stream_events(deps, filters, last or EventId(position, -1), begin)
    return StreamingResponse(lines, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _stream_events(deps: Deps, filters: EventFilters, last: EventId, begin: str) -> AsyncIterator[str]:
    deps.signal.streams += 1
    try:
        yield f": connected\nretry: {RETRY}\n\n{begin}"
        sent_at = time.monotonic()
        position = position_before(last.position) if last.place >= 0 else last.position
        while not deps.signal.is_closed and deps.is_still_granted():
            read_at = time.monotonic()
            async with deps.database.connection() as connection:
                rows = await read_feed(connection, deps.project, position, BATCH)
                new_entries = [event for row in rows for event in new_events(row, last, filters)]
                if (filters.labels or filters.other_labels) and new_entries:
                    runs = list({entry.run for _, entry in new_entries if entry.run is not None})
                    fitting = await load_labelled_runs(connection, deps.project, runs, filters)
                    new_entries = [event for event in new_entries if event[1].run in fitting]
            if rows:
                position = rows[-1].position
            # One text for each row, so that a batch of many large rows is not one.
            for _, of_row in groupby(new_entries, key=lambda event: event[0].position):
                if events := "".join(_format(*event) for event in of_row):
                    yield events
                    sent_at = time.monotonic()
            if len(rows) == BATCH:
                continue
            if time.monotonic() - sent_at > HEARTBEAT:
                yield ": nothing new\n\n"
                sent_at = time.monotonic()
            await deps.signal.wait(POLL_INTERVAL)
            await asyncio.sleep(max(0.0, read_at + LOOK_INTERVAL - time.monotonic()))
    finally:
        deps.signal.streams -= 1


@lru_cache(maxsize=1024)
def _format(event_id: EventId, entry: FeedEntry) -> str:
    """Write an event (WHATWG HTML 9.2.6), once for all streams. JSON has no line breaks."""
    members = {"run": entry.run, "at": rfc3339(entry.at)} | event_members(entry)
    return f"event: {event_name(entry)}\nid: {event_id}\ndata: {msgspec.json.encode(members).decode()}\n\n"
