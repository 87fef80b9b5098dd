"""Read a run and encode its spans, page by page, so that no run is held as a whole."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from calls.model import Call, Exchange
from store.database.connection import Database
from store.effects.loading import RunEffects
from store.otlp.spans.call_facts import CostParts, SpannedCall, ToolPlace
from store.otlp.spans.call_span import call_span
from store.otlp.spans.encoding import encode_spans, resource_attributes
from store.otlp.spans.ids import TraceIds, trace_ids
from store.otlp.spans.openinference import last_text
from store.otlp.spans.run_span import SpannedRun, run_span
from store.otlp.spans.span import Span
from store.otlp.target import SpanOptions
from store.pricing.prices import split_cost
from store.query.call_reader import CallReader
from store.query.call_summaries import SUMMARY, Fields
from store.query.exchange_reader import TooLarge
from store.query.rest_shapes import Shape
from store.query.run_graphs import RunGraphs
from store.query.runs import Page, Runs

PAGE: Final = 20
"""Calls that are read together."""

_LEAN: Final[Fields] = (SUMMARY or frozenset()) | {"answer", "tool_results"}
"""What spans without content are made from. Of large calls these are only summaries."""


class RunExport:
    """Encodes the spans of runs of a project."""

    def __init__(
        self, database: Database, derive: Callable[[Exchange], Call], project: str, options: SpanOptions, now: int
    ) -> None:
        self._database = database
        self._project = project
        self._options = options
        self._now = now
        self._queries = CallReader(database, derive, project, reads_large=False, graphs=RunGraphs())

    async def requests(self, run: str) -> AsyncIterator[bytes]:
        """Yield the spans of a run as requests of OTLP; nothing for a run that does not exist (any more)."""
        shape = await Runs(self._database, self._project).get(run, self._now)
        times = await self._run_times(run)
        if shape is None or times is None:
            return
        trace = _RunTrace(shape, trace_ids(self._project, run, str(times["incarnation"])), self._options)
        cursor: str | None = None
        while True:
            page = await self._page(run, cursor)
            started = await self._start_times(page.items)
            for request in await asyncio.to_thread(trace.encode_calls, page.items, started):
                yield request
            cursor = page.next
            if cursor is None:
                break
        gaps = await Runs(self._database, self._project).gaps(run)
        ended_at = max(times["ended_at"] or times["active_at"], trace.ended_at)
        started_at = min(times["started_at"], trace.started_at or times["started_at"])
        root = SpannedRun(
            shape=shape,
            started_at=started_at,
            ended_at=ended_at,
            ids=trace.ids,
            parent=await self._parent(shape["parent"]),
            gaps=gaps,
            effects=(await RunEffects(self._database, self._project).load_groups(run))[0],
            shows_content=self._options.content,
            asked=trace.asked,
            answered=trace.answered,
        )
        for request in encode_spans([run_span(root, self._options.names)], resource_attributes(self._options.project)):
            yield request

    async def _page(self, run: str, cursor: str | None) -> Page:
        """Read a page of calls; those that are too large for this process without their bodies."""
        if self._options.content:
            try:
                return await self._queries.run_calls(run, PAGE, cursor)
            except TooLarge:
                pass
        return await self._queries.run_calls(run, PAGE, cursor, _LEAN)

    async def _run_times(self, run: str) -> Mapping[str, Any] | None:
        async with self._database.connection() as connection:
            found: Mapping[str, Any] | None = await connection.fetchrow(RUN_TIMES, self._project, run)
            return found

    async def _start_times(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """Return when calls began, in nanoseconds, which the shapes round."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(STARTED, self._project, [UUID(shape["id"]) for shape in shapes])
        return {str(row["id"]): row["started_at"] for row in rows}

    async def _parent(self, parent: str | None) -> TraceIds | None:
        found = await self._run_times(parent) if parent else None
        return trace_ids(self._project, parent, str(found["incarnation"])) if parent and found else None


class _RunTrace:
    """The trace of one run while its calls are read."""

    def __init__(self, run: Shape, ids: TraceIds, options: SpanOptions) -> None:
        self.run = run
        self.ids = ids
        self.started_at: int | None = None
        self.ended_at = 0
        self.asked: str | None = None
        self.answered: str | None = None
        self._options = options
        self._tool_names: dict[tuple[str, str], str] = {}
        """By call and tool call id, the names of the tools that models requested."""

    def encode_calls(self, shapes: Sequence[Shape], started: Mapping[str, int]) -> list[bytes]:
        """Encode the spans of a page of calls."""
        spans = [self._span(shape, started[shape["id"]]) for shape in shapes if shape["id"] in started]
        return list(encode_spans(spans, resource_attributes(self._options.project)))

    def _span(self, shape: Shape, started_at: int) -> Span:
        for tool in shape["tool_calls"] if shape["kind"] == "model" else ():
            if tool["id"]:
                self._tool_names[shape["id"], tool["id"]] = tool["name"]
        call = SpannedCall(
            shape=shape,
            started_at=started_at,
            tool=self._tool_place(shape["executes"]),
            cost_parts=_cost_parts(shape, started_at),
        )
        self.started_at = min(started_at, self.started_at or started_at)
        self.ended_at = max(self.ended_at, call.ended_at)
        if self._options.content and shape["kind"] == "model":
            self.asked = self.asked or last_text(call.content.messages)
            self.answered = shape["text"] or self.answered
        return call_span(call, self.ids, self._options.names, content=self._options.content)

    def _tool_place(self, executes: Mapping[str, Any] | None) -> ToolPlace | None:
        if not executes:
            return None
        asker, tool_call = executes["call"], executes["tool_call"]
        return ToolPlace(asker, tool_call, self._tool_names.get((asker, tool_call)))


def _cost_parts(shape: Shape, started_at: int) -> CostParts | None:
    if shape["cost_usd"] is None:
        return None
    parts = split_cost(
        provider=shape["provider"],
        host=shape["host"],
        dialect=shape["dialect"],
        models=(shape["model_returned"], shape["model_requested"]),
        answer=shape.get("answer"),
        prices=shape["prices"],
        started_at=started_at,
    )
    # Only if it is the same sum: the stored cost may have been stated by the provider.
    is_same = parts is not None and abs(float(sum(parts)) - shape["cost_usd"]) < 1e-9
    return CostParts(float(parts[0]), float(parts[1])) if parts is not None and is_same else None


RUN_TIMES = "SELECT incarnation, started_at, active_at, ended_at FROM runs WHERE project = $1 AND id = $2"

STARTED = "SELECT id, started_at FROM calls WHERE project = $1 AND id = ANY ($2::uuid[])"
