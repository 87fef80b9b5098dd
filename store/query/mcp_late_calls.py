"""Add answers that came on another exchange to the calls that asked (`calls.mcp_late_answers`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from calls.dialects.protocols import mcp
from calls.mcp_late_answers import Late, answered, awaited
from calls.model import Exchange, Json
from store.ingest.insert_rows import host_of
from store.query.rest_shapes import Shape, milliseconds

MOST = 32
"""Streams of one page that are searched."""

PATIENCE = 10 * 60 * 1_000_000_000
"""Nanoseconds after a request in which a client begins to ask for what followed."""


def waiting(shapes: Sequence[Shape]) -> dict[str, Json]:
    """The calls that lack an answer which may have come elsewhere, and the ids that they asked under."""
    found = {
        shape["id"]: awaited(shape["request"], shape["answer"], shape["status"])
        for shape in shapes
        if shape["dialect"] == mcp.NAME and shape["method"] == "POST"
    }
    return {call: asked for call, asked in found.items() if asked is not None}


async def streams(connection: asyncpg.Connection, project: str, asked: Sequence[Exchange]) -> list[str]:
    """The exchanges that may have brought the answers to these."""
    runs, hosts = list({one.run for one in asked}), list({host_of(one.request.url) for one in asked})
    first, last = min(one.started_at for one in asked), max(one.started_at for one in asked)
    rows: Sequence[Any] = await connection.fetch(STREAMS, project, runs, hosts, first, last + PATIENCE, MOST)
    return [str(row["id"]) for row in rows]


def brought(shape: Shape, asked: Exchange, id: Json, found: Mapping[str, Exchange]) -> Shape:  # noqa: A002 # what it is
    """The call with the answer that one of the streams brought, or as it is."""
    for name, stream in found.items():
        if stream.run == asked.run and (late := answered(asked, id, stream)):
            return shape | _told(shape, asked, name, stream, late)
    return shape


def _told(shape: Shape, asked: Exchange, name: str, stream: Exchange, late: Late) -> Shape:
    answer: dict[str, Json] = dict(late.message)
    told = mcp.told(answer)
    at = stream.ended_at if late.at is None else late.at
    took = None if at is None else stream.started_at + at - asked.started_at
    return {
        "exchanges": [*shape["exchanges"], name],
        "answer": answer,
        "text": told.text,
        "tool_results": [*shape["tool_results"], *told.results],
        "streamed": True,
        "complete": True,
        "duration_ms": milliseconds(took),
    }


STREAMS = """
SELECT calls.id FROM calls JOIN exchanges USING (project, id)
WHERE project = $1 AND calls.run = ANY ($2::text[]) AND calls.host = ANY ($3::text[])
    AND calls.streamed AND calls.dialect IN ('mcp', 'generic') AND exchanges.method = 'GET'
    AND calls.started_at <= $5 AND calls.started_at + coalesce(exchanges.ended_at, $5 - $4) >= $4
ORDER BY calls.started_at, calls.id LIMIT $6
"""
