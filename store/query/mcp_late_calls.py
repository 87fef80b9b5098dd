"""Add MCP answers that arrived on another exchange to their calls (`calls.mcp_late_answers`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from calls.dialects.protocols import mcp
from calls.mcp_late_answers import LateAnswer, find_late_answer, unanswered_id
from calls.model import Exchange, Json
from store.ingest.insert_rows import request_host
from store.query.rest_shapes import Shape, milliseconds

MAX_STREAMS = 32
"""The number of streams that are searched for the answers of one page."""

MAX_STREAM_DELAY = 10 * 60 * 1_000_000_000
"""Nanoseconds after a request in which the client may open the stream with its answer."""


def unanswered_calls(shapes: Sequence[Shape]) -> dict[str, Json]:
    """Return the calls whose answers may have arrived elsewhere, each with its JSON-RPC id."""
    found = {
        shape["id"]: unanswered_id(shape["request"], shape["answer"], shape["status"])
        for shape in shapes
        if shape["dialect"] == mcp.DIALECT.name and shape["method"] == "POST"
    }
    return {call: ids for call, ids in found.items() if ids is not None}


async def candidate_streams(connection: asyncpg.Connection, project: str, exchanges: Sequence[Exchange]) -> list[str]:
    """Return the ids of the exchanges that may have the answers to these requests."""
    runs, hosts = list({one.run for one in exchanges}), list({request_host(one.request.url) for one in exchanges})
    first, last = min(one.started_at for one in exchanges), max(one.started_at for one in exchanges)
    rows: Sequence[Any] = await connection.fetch(
        STREAMS, project, runs, hosts, first, last + MAX_STREAM_DELAY, MAX_STREAMS
    )
    return [str(row["id"]) for row in rows]


def add_late_answer(shape: Shape, exchange: Exchange, id: Json, found: Mapping[str, Exchange]) -> Shape:  # noqa: A002 # what it is
    """Add the answer that one of the streams has to the call, if any has it."""
    for name, stream in found.items():
        if stream.run == exchange.run and (late := find_late_answer(exchange, id, stream)):
            return shape | _late_members(shape, exchange, name, stream, late)
    return shape


def _late_members(shape: Shape, exchange: Exchange, name: str, stream: Exchange, late: LateAnswer) -> Shape:
    answer: dict[str, Json] = dict(late.message)
    summary = mcp.summarize_answer(answer)
    at = stream.ended_at if late.at is None else late.at
    duration = None if at is None else stream.started_at + at - exchange.started_at
    return {
        "exchanges": [*shape["exchanges"], name],
        "answer": answer,
        "text": summary.text,
        "tool_results": [*shape["tool_results"], *summary.results],
        "streamed": True,
        "complete": True,
        "duration_ms": milliseconds(duration),
    }


STREAMS = """
SELECT calls.id FROM calls JOIN exchanges USING (project, id)
WHERE project = $1 AND calls.run = ANY ($2::text[]) AND calls.host = ANY ($3::text[])
    AND calls.streamed AND calls.dialect IN ('mcp', 'generic') AND exchanges.method = 'GET'
    AND calls.started_at <= $5 AND calls.started_at + coalesce(exchanges.ended_at, $5 - $4) >= $4
ORDER BY calls.started_at, calls.id LIMIT $6
"""
