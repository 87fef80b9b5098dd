"""Group exchanges without an explicit run by shared trace context or correlation ids.

The first of them cannot be told from a call that stands alone, so it is stored under its connection's owner and taken from
there when the second comes. What is asked is the database, so a store server that dies in between changes nothing.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from calls.model import Exchange
from store.attribution import run_chains as chains
from store.attribution import tool_attribution as errands
from store.attribution.correlation_ids import owner_of, session_tie, ties
from store.attribution.processes import Processes
from store.attribution.run_assignment import (
    done_for,
    given_back,
    in_trace,
    is_done,
    may_follow,
    may_go,
    placed,
    trace_of,
)
from store.attribution.run_chains import Chains, link_of
from store.attribution.tool_attribution import Around, RecentRequests, ToolRequests, asking, seen
from store.call_graph.call_graph import done_by
from store.database.blobs import Corrupt
from store.database.connection import Database
from store.ingest.batch_writer import DerivedExchange
from store.query.exchanges import ExchangeQueries


class Grouping:
    """Finds the runs of a batch's traces and chains. `understand` derives the call of an exchange that is moved."""

    def __init__(
        self,
        database: Database,
        understand: Callable[[Exchange], DerivedExchange],
        project: str = "default",
        *,
        reads_large: bool = False,
    ) -> None:
        self._reads_large = reads_large
        self._database = database
        self._understand = understand
        self._project = project
        self._recent = RecentRequests()
        self._processes = Processes(database, project)

    async def joined(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """The batch with each exchange in the run of its kin, and with those stored earlier that are to be moved there.

        Raises `Unavailable` while Postgres is away.
        """
        batch = await self._traced(batch)
        await self._processes.prepare(batch)
        batch = await self._done(await self._chained(await self._divided(batch)))
        self._processes.learn(batch)
        return await self._placed(batch)

    # -- by processes

    async def _divided(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """With the conversations of processes that turn out to have several at once in runs of their own."""
        moves = await self._processes.divide(batch)
        kept = [_moved(one, moves.pop(one.exchange.id, None)) for one in batch]
        return kept + [_moved(self._understand(one), moves[one.id]) for one in await self._exchanges(moves)]

    async def _placed(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """With what only a process names beside the conversations of that process."""
        goals = await self._processes.place(batch)
        read = {one.exchange.id: one for one in batch if one.exchange.id in goals}
        read |= await self._understood(goals.keys() - read.keys())
        return _merged(batch, [_gone(one, placed(one.exchange, *goals[name])) for name, one in read.items()])

    # -- by traces

    async def _traced(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        traces = {kept.exchange.id: trace for kept in batch if (trace := trace_of(kept.exchange))}
        if not traces:
            return list(batch)
        alone, made = await self._stored(traces.values())
        carriers: dict[str, set[str]] = {}
        for name, trace in (*traces.items(), *alone.items()):
            carriers.setdefault(trace, set()).add(name)
        shared = made | {trace for trace, names in carriers.items() if len(names) > 1}
        kept = [_in_trace(one) if traces.get(one.exchange.id) in shared else one for one in batch]
        earlier = [name for name, trace in alone.items() if trace in shared and name not in traces]
        return kept + [_in_trace(self._understand(one)) for one in await self._exchanges(earlier)]

    async def _stored(self, traces: Iterable[str]) -> tuple[dict[str, str], set[str]]:
        """Exchanges that are alone with one of these traces so far, and the traces that have a run already."""
        wanted = sorted(set(traces))
        async with self._database.raw() as connection:
            alone = await connection.fetch(ALONE, self._project, wanted)
            made = await connection.fetch(MADE, self._project, wanted)
        return {str(row["id"]): row["trace"] for row in alone}, {row["trace"] for row in made}

    # -- by the ids that they hand back

    async def _chained(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        apart = [one for one in batch if not self._processes.keeps_together(one.exchange)]
        fresh = [link_of(one.exchange, tied) for one in apart if (tied := ties(one.exchange, one.call))]
        if not fresh:
            return list(batch)
        async with self._database.raw() as connection:
            found = await chains.kin(connection, self._project, fresh)
            made = Chains([*fresh, *found])
            others = await chains.members(connection, self._project, made.renamed, made.runs.keys())
        at = {one.id: one.run for one in found}
        kept = [_moved(one, made.runs.get(one.exchange.id), at.pop(one.exchange.id, None)) for one in batch]
        earlier = {name: made.runs[name] for name, run in at.items() if made.runs[name] != run}
        earlier |= {name: made.renamed[run] for name, run in others.items()}
        stored = [one for one in await self._exchanges(earlier) if may_follow(one)]
        return kept + [_moved(self._understand(one), earlier[one.id]) for one in stored]

    # -- by what a model asked for

    async def _done(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """With the calls of tools in the runs of the models that asked for them."""
        told = {one.exchange.id: one for one in batch}
        if not (fresh := [found for one in batch if (found := seen(one))]):
            return list(batch)
        async with self._database.raw() as connection:
            known, done = await errands.around(connection, self._project, fresh)
        asked = {one.id: [asker.id for asker in known.askers(one)] for one in done}
        asked = {name: askers for name, askers in asked.items() if askers}
        told, askings = await self._read(told, known, asked)
        unread = await self._large(set(itertools.chain(*asked.values())) - askings.keys())
        placed = [
            _done_for(told[name], known, [askings[one] for one in askers if one in askings])
            for name, askers in asked.items()
            # Where one of those who may have asked was not read, nobody can say which of them it was.
            if name in told and unread.isdisjoint(askers)
        ]
        merged = _merged(batch, placed)
        self._recent.learn(merged)
        return await self._in_sessions(merged)

    async def _read(
        self, told: dict[str, DerivedExchange], known: Around, asked: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, DerivedExchange], dict[str, ToolRequests]]:
        """The calls of tools and what their askers ask, as far as these still are here."""
        askers = set(itertools.chain(*asked.values()))
        told = told | {one: kept for one in asked.keys() - told.keys() if (kept := self._recent.done(known.seen[one]))}
        askings = {one: it for one in askers - told.keys() if (it := self._recent.asking(one))}
        told |= await self._understood((askers | asked.keys()) - told.keys() - askings.keys())
        return told, askings | {one: asking(told[one]) for one in askers & told.keys()}

    async def _in_sessions(self, batch: list[DerivedExchange]) -> list[DerivedExchange]:
        """With what surrounds the calls of tools in a session of MCP."""
        sessions = {tie for one in batch if (tie := session_tie(one.exchange)) is not None}
        mine = [found for one in batch if (found := seen(one))] if sessions else []
        if not mine:
            return batch
        async with self._database.raw() as connection:
            goals = await errands.in_sessions(connection, self._project, mine, sessions)
        read = {one.exchange.id: one for one in batch if one.exchange.id in goals}
        read |= await self._understood(goals.keys() - read.keys())
        return _merged(batch, [_in_session(one, goals[name]) for name, one in read.items()])

    async def _understood(self, ids: Iterable[str]) -> dict[str, DerivedExchange]:
        return {one.id: self._understand(one) for one in await self._exchanges(ids)}

    async def _large(self, ids: Collection[str]) -> set[str]:
        """Which of these are large, and so are not read here."""
        if self._reads_large or not ids:
            return set()
        recorded = ExchangeQueries(self._database, lambda _: _nothing_is_derived(), self._project)
        return set(ids) - set(await recorded.not_large(ids))

    async def _exchanges(self, ids: Iterable[str]) -> list[Exchange]:
        recorded, wanted = ExchangeQueries(self._database, lambda _: _nothing_is_derived(), self._project), list(ids)
        if not self._reads_large:
            # They are left where they are: to open them is not for this process (`store.large`).
            wanted = await recorded.not_large(wanted)
        try:
            return list((await recorded.evidence(wanted)).values())
        except Corrupt:
            # What cannot be read stays where it is, and holds up no other; whoever opens it is told.
            half = len(wanted) // 2
            return [*await self._exchanges(wanted[:half]), *await self._exchanges(wanted[half:])] if half else []


def _in_trace(kept: DerivedExchange) -> DerivedExchange:
    return _moved(kept, in_trace(kept.exchange).run)


def _moved(kept: DerivedExchange, run: str | None, stored: str | None = None) -> DerivedExchange:
    """The same in this run; `stored` is the one in which it is stored already."""
    exchange = kept.exchange
    if run is None or run == exchange.run:
        return kept
    return replace(kept, exchange=replace(exchange, run=run), was=stored or kept.was or exchange.run)


def _merged(batch: Sequence[DerivedExchange], moved: Iterable[DerivedExchange]) -> list[DerivedExchange]:
    """The batch with what was moved in its place, and with what is moved besides."""
    left = {one.exchange.id: one for one in moved if one.was}
    return [left.pop(one.exchange.id, one) for one in batch] + list(left.values())


def _done_for(kept: DerivedExchange, known: Around, askings: Sequence[ToolRequests]) -> DerivedExchange:
    """A call of a tool in the run that asked for it, or back with its owner where that is not known (any more)."""
    exchange = kept.exchange
    if kept.call is None or not may_go(exchange):
        return kept
    rounds = [found for one in askings for found in known.rounds(one)]
    runs = errands.asked_for(done_by(exchange, kept.call), rounds) if len(askings) <= errands.MANY else {}
    run, tool = next(iter(runs.items())) if len(runs) == 1 else (None, "")
    if run is None or run == owner_of(exchange):
        return _gone(kept, given_back(exchange)) if is_done(exchange) else kept
    return _gone(kept, done_for(exchange, run, tool))


def _in_session(kept: DerivedExchange, run: str | None) -> DerivedExchange:
    exchange = kept.exchange
    if not may_go(exchange):
        return kept
    return _gone(kept, given_back(exchange) if run is None else replace(exchange, run=run))


def _gone(kept: DerivedExchange, exchange: Exchange) -> DerivedExchange:
    stays = exchange.run == kept.exchange.run
    return kept if stays else replace(kept, exchange=exchange, was=kept.was or kept.exchange.run)


def _nothing_is_derived() -> Any:
    raise AssertionError("only evidence is read here")


ALONE = "SELECT id, trace FROM exchanges WHERE project = $1 AND trace = ANY ($2::text[])"

MADE = """
SELECT trace FROM unnest($2::text[]) AS wanted (trace)
WHERE EXISTS (SELECT FROM exchanges WHERE exchanges.project = $1 AND exchanges.run = wanted.trace)
"""
