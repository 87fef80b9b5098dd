"""Add the connections between a run's calls to their REST shapes (`store.call_graph.call_graph`).

The ids that connect calls are columns, so a page needs one query for those of its run, which `run_graphs` keeps for the next page.
Requests are loaded only to find the calls that executed tool calls, and only for the rounds that overlap the page.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import asyncpg
from sqlalchemy import RowMapping, select

from calls.model import Call, Exchange, ToolCall
from store.call_graph.call_graph import (
    MOST_BETWEEN,
    CallGraph,
    Node,
    ToolExecution,
    ToolRound,
    match_executions,
    tool_execution,
)
from store.call_graph.packed_graph import GraphPart, LinkGraph, PackedGraph
from store.call_graph.retry_query import RetryGroups, is_among
from store.database.asyncio_engine import AsyncConnection, driver_connection
from store.database.tables import calls
from store.query.rest_shapes import Shape

MOST_READ: Final = 256
"""Calls that are read for one page to match them with tool calls. Beyond them, executions stay unknown."""

type Read = tuple[Exchange, Call]


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The call graph of a page, and the executions of tool calls in the rounds of the page."""

    graph: LinkGraph
    tool_calls_between: Sequence[tuple[ToolRound, Sequence[str]]]
    """The rounds that overlap the page, each with the calls of tools between its asker and its follower."""

    executions: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By call and tool call id: the call that executed it."""

    @property
    def calls_to_read(self) -> set[str]:
        """The calls that must be read to find the executions."""
        call_ids: set[str] = set()
        for one, names in self.tool_calls_between:
            more = call_ids | {one.asker.answer_exchange, *names}
            call_ids = more if len(more) <= MOST_READ else call_ids
        return call_ids

    def with_executions(self, read_calls: Mapping[str, Read]) -> "PageLinks":
        """Add the executions that follow from the calls that were read."""
        found: dict[tuple[str, str], str] = {}
        for one, names in self.tool_calls_between:
            if {one.asker.answer_exchange, *names} <= read_calls.keys():
                found |= _round_executions(
                    one, read_calls[one.asker.answer_exchange][1], [tool_execution(*read_calls[name]) for name in names]
                )
        return replace(self, executions=found)

    def executed_tool_call(self, call: str) -> tuple[str, str] | None:
        """Return the tool call that this call executed: the call that requested it, and its id."""
        return next((tool_call for tool_call, execution in self.executions.items() if execution == call), None)

    def linked_calls(self, call: str) -> set[str]:
        """Return the calls to which the links of this one lead."""
        executed = self.executed_tool_call(call)
        return {one.call for one in self.graph.follows.get(call, ())} | ({executed[0]} if executed else set())


async def load_page_links(
    connection: AsyncConnection,
    project: str,
    run: str,
    groups: RetryGroups,
    page: Sequence[RowMapping],
    packed: PackedGraph | None = None,
) -> PageLinks:
    """Load the links of a page of a run's calls, given in step order; still without executions.

    With the run's packed graph, the links are those of the page only.
    """
    if packed is None:
        graph: LinkGraph = await load_call_graph(connection, project, run, groups, CallGraph)
    elif page:
        names = [groups.ids_and_attempts(row["id"])[0][0] for row in page]
        # In a thread: each call of a long conversation may continue hundreds.
        graph = await asyncio.to_thread(packed.part, names, page[0]["started_at"], page[-1]["started_at"])
    else:
        graph = GraphPart()
    if not page:
        return PageLinks(graph, ())
    first, last = page[0]["started_at"], page[-1]["started_at"]
    touched = [one for one in graph.rounds if one.asker.started_at <= last and one.follower.started_at >= first]
    return PageLinks(graph, await _load_tool_calls_between(connection, project, run, groups, touched))


def add_links(shape: Shape, links: PageLinks, steps: Mapping[str, int]) -> Shape:
    """Add a call's links to its shape. `steps` has the step of each linked call, but of those that were erased meanwhile."""
    call, graph = shape["id"], links.graph
    does = links.executed_tool_call(call)
    follows = [
        {"call": one.call, "step": steps[one.call], "by": list(one.by)}
        for one in graph.follows.get(call, ())
        if one.call in steps
    ]
    members = {
        "branch": graph.branches.get(does[0] if does else call),
        "follows": follows or None,
        "executes": {"call": does[0], "step": steps[does[0]], "tool_call": does[1]}
        if does and does[0] in steps
        else None,
        "tool_calls": [
            {
                **tool,
                "executed_by": links.executions.get((call, tool["id"])),
                "answered_by": graph.answered_by.get((call, tool["id"])),
            }
            for tool in shape["tool_calls"]
        ],
    }
    return shape | members


async def load_call_graph[Graph: (CallGraph, PackedGraph)](
    connection: AsyncConnection, project: str, run: str, groups: RetryGroups, build: Callable[[Iterable[Node]], Graph]
) -> Graph:
    """Build a call graph from the ids of a run's calls."""
    # By asyncpg itself: SQLAlchemy takes three times as long to read arrays, and a run may have a hundred thousand.
    rows = await (await driver_connection(connection)).fetch(_CALLS_WITH_IDS, project, run)
    # In a thread: for such a run it takes a second.
    return await asyncio.to_thread(lambda: build(_nodes(rows, groups)))


_CALLS_WITH_IDS: Final = """
SELECT id, started_at, created_ids, returned_ids FROM calls
WHERE project = $1 AND run = $2 AND (created_ids IS NOT NULL OR returned_ids IS NOT NULL) ORDER BY started_at, id
"""


def _nodes(rows: Iterable[asyncpg.Record], groups: RetryGroups) -> Iterable[Node]:
    nodes: dict[str, Node] = {}
    for exchange, started_at, created, returned in rows:
        giver, name = str(exchange), groups.ids_and_attempts(exchange)[0][0]
        if (before := nodes.get(name)) is None:
            nodes[name] = Node(name, started_at, created or (), returned or (), giver)
        else:
            # The attempts of a call have the same request; of their answers, the last one counts.
            nodes[name] = before._replace(created_ids=(*before.created_ids, *(created or ())), answer_exchange=giver)
    return nodes.values()


async def _load_tool_calls_between(
    connection: AsyncConnection, project: str, run: str, groups: RetryGroups, rounds: Sequence[ToolRound]
) -> list[tuple[ToolRound, Sequence[str]]]:
    """Load the calls of tools between the asker and the follower of each round; omit rounds with none or too many."""
    if not rounds:
        return []
    begin = min(one.asker.started_at for one in rounds)
    end = max(one.follower.started_at for one in rounds)
    query = select(calls.c.id, calls.c.started_at).where(
        calls.c.project == project,
        calls.c.run == run,
        calls.c.kind.in_(("tool", "retrieval")),
        calls.c.started_at.between(begin, end),
        ~is_among(groups.later_exchanges),
    )
    rows = (await connection.execute(query.order_by(calls.c.started_at, calls.c.id))).all()
    names, times = [str(row[0]) for row in rows], [row[1] for row in rows]
    places = (
        (one, bisect_right(times, one.asker.started_at), bisect_left(times, one.follower.started_at)) for one in rounds
    )
    return [(one, names[start:stop]) for one, start, stop in places if 0 < stop - start <= MOST_BETWEEN]


def _round_executions(one: ToolRound, asker: Call, candidates: Sequence[ToolExecution]) -> dict[tuple[str, str], str]:
    tools: list[ToolCall] = [tool for tool in asker.tool_calls if tool.id in one.ids]
    return {(one.asker.id, tool): call for tool, call in match_executions(tools, candidates).items()}
