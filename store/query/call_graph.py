"""Add the connections between a run's calls to their REST shapes (`store.call_graph.call_graph`).

The ids that make links are columns, so a page costs one look at those of its run; only to tell which call did what a model
asked of a tool are the requests between looked at, of the rounds that the page touches.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import RowMapping, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from calls.model import Call, Exchange, ToolCall
from store.call_graph.call_graph import MOST, Node, Threads, ToolExecution, ToolRound, done_by, executed
from store.call_graph.retry_query import Folds, among
from store.database.tables import calls
from store.query.rest_shapes import Shape

LOOKED_AT: Final = 256
"""Calls that are read for one page to tell which did what; beyond, it stays unknown."""

type Read = tuple[Exchange, Call]


@dataclass(frozen=True, slots=True)
class Links:
    """A run's threads, and who did what in the rounds that were looked at."""

    threads: Threads
    between: Sequence[tuple[ToolRound, Sequence[str]]]
    """The rounds that a page touches, and the calls of tools between their asking and telling."""

    executed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """By call and the id that it gave: the call that did it."""

    @property
    def wanted(self) -> set[str]:
        """The calls that must be read to tell who did what."""
        wanted: set[str] = set()
        for one, names in self.between:
            more = wanted | {one.asked.giver, *names}
            wanted = more if len(more) <= LOOKED_AT else wanted
        return wanted

    def judged(self, known: Mapping[str, Read]) -> "Links":
        """With what follows from the calls that were read."""
        found: dict[tuple[str, str], str] = {}
        for one, names in self.between:
            if {one.asked.giver, *names} <= known.keys():
                found |= _executed(one, known[one.asked.giver][1], [done_by(*known[name]) for name in names])
        return replace(self, executed=found)

    def doing(self, call: str) -> tuple[str, str] | None:
        """The call that asked a tool for what this one did, and the id of that."""
        return next((asked for asked, done in self.executed.items() if done == call), None)

    def around(self, call: str) -> set[str]:
        """The calls that this one leads back to."""
        doing = self.doing(call)
        return {one.call for one in self.threads.follows.get(call, ())} | ({doing[0]} if doing else set())


async def links_of(
    connection: AsyncConnection, project: str, run: str, folded: Folds, page: Sequence[RowMapping]
) -> Links:
    """The links of a page of a run's calls, given in step order; not judged yet."""
    threads = await _threads(connection, project, run, folded)
    if not page:
        return Links(threads, ())
    first, last = page[0]["started_at"], page[-1]["started_at"]
    touched = [one for one in threads.rounds if one.asked.started_at <= last and one.told.started_at >= first]
    return Links(threads, await _between(connection, project, run, folded, touched))


def linked(shape: Shape, links: Links, steps: Mapping[str, int]) -> Shape:
    """The call with its links. `steps` has the step of each call that it leads back to."""
    call, threads = shape["id"], links.threads
    does = links.doing(call)
    follows = [{"call": one.call, "step": steps[one.call], "by": list(one.by)} for one in threads.follows.get(call, ())]
    told = {
        "branch": threads.branches.get(does[0] if does else call),
        "follows": follows or None,
        "executes": does and {"call": does[0], "step": steps[does[0]], "tool_call": does[1]},
        "tool_calls": [
            {
                **tool,
                "executed_by": links.executed.get((call, tool["id"])),
                "answered_by": threads.answered.get((call, tool["id"])),
            }
            for tool in shape["tool_calls"]
        ],
    }
    return shape | told


async def _threads(connection: AsyncConnection, project: str, run: str, folded: Folds) -> Threads:
    """What the ids in a run's calls say."""
    some = or_(calls.c.gives.is_not(None), calls.c.takes.is_not(None))
    query = select(calls.c.id, calls.c.started_at, calls.c.gives, calls.c.takes)
    query = query.where(calls.c.project == project, calls.c.run == run, some)
    nodes: dict[str, Node] = {}
    for exchange, started_at, gives, takes in await connection.execute(query.order_by(calls.c.started_at, calls.c.id)):
        giver, name = str(exchange), folded.whole(exchange)[0][0]
        if (before := nodes.get(name)) is None:
            nodes[name] = Node(name, started_at, gives or (), takes or (), giver)
        else:
            # A call that was tried again asks the same again; what counts of its tries is what was answered.
            nodes[name] = before._replace(gives=(*before.gives, *(gives or ())), giver=giver)
    return Threads(nodes.values())


async def _between(
    connection: AsyncConnection, project: str, run: str, folded: Folds, rounds: Sequence[ToolRound]
) -> list[tuple[ToolRound, Sequence[str]]]:
    """The calls of tools between each asking and its telling; without the rounds in which there are none, or too many."""
    if not rounds:
        return []
    begin = min(one.asked.started_at for one in rounds)
    end = max(one.told.started_at for one in rounds)
    query = select(calls.c.id, calls.c.started_at).where(
        calls.c.project == project,
        calls.c.run == run,
        calls.c.kind.in_(("tool", "retrieval")),
        calls.c.started_at.between(begin, end),
        ~among(folded.later),
    )
    rows = (await connection.execute(query.order_by(calls.c.started_at, calls.c.id))).all()
    names, times = [str(row[0]) for row in rows], [row[1] for row in rows]
    places = (
        (one, bisect_right(times, one.asked.started_at), bisect_left(times, one.told.started_at)) for one in rounds
    )
    return [(one, names[start:stop]) for one, start, stop in places if 0 < stop - start <= MOST]


def _executed(one: ToolRound, asker: Call, candidates: Sequence[ToolExecution]) -> dict[tuple[str, str], str]:
    tools: list[ToolCall] = [tool for tool in asker.tool_calls if tool.id in one.ids]
    return {(one.asked.id, tool): call for tool, call in executed(tools, candidates).items()}
