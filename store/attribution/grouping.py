"""Group exchanges without an explicit run by shared trace context or correlation ids.

The first exchange of a group looks like a call on its own, so it is stored in the run of its connection's owner and moved
when the second comes. The database is queried for it, so a store server that dies in between changes nothing.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from calls.model import Exchange
from store.attribution import run_chains, tool_attribution
from store.attribution.correlation_ids import id_ties, owner_run, session_tie
from store.attribution.processes import Processes
from store.attribution.run_assignment import (
    assign_by_process,
    assign_to_requester,
    assign_to_trace,
    assignable_trace,
    can_join_chain,
    can_join_requester,
    is_assigned_to_requester,
    return_to_owner,
)
from store.attribution.run_chains import Chains, chain_link
from store.attribution.shared_traces import (
    FETCH_LONE_TRACES,
    TracedExchange,
    find_shared_traces,
    stored_exchange,
    traced_exchange,
)
from store.attribution.tool_attribution import (
    RecentRequests,
    RelatedExchanges,
    ToolRequests,
    outline_exchange,
    requesting_runs,
    tool_requests,
)
from store.call_graph.call_graph import tool_execution
from store.database.blobs import CorruptData
from store.database.connection import Database
from store.ingest.batch_writer import DerivedExchange
from store.query.call_reader import CallReader


class RunGrouping:
    """Moves the exchanges of a batch to their runs. `derive` derives the call of a stored exchange that is moved."""

    def __init__(
        self,
        database: Database,
        derive: Callable[[Exchange], DerivedExchange],
        project: str = "default",
        *,
        reads_large: bool = False,
    ) -> None:
        self._reads_large = reads_large
        self._database = database
        self._derive = derive
        self._project = project
        self._recent = RecentRequests()
        self._processes = Processes(database, project)

    async def group_batch(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """Move each exchange to the run of related ones; also return stored exchanges that are moved.

        Raises `DatabaseUnavailable`.
        """
        batch = await self._group_by_trace(batch)
        await self._processes.load_windows(batch)
        batch = await self._attribute_tool_calls(await self._group_by_chain(await self._divide_processes(batch)))
        self._processes.update_runs(batch)
        return await self._assign_by_process(batch)

    # -- by process

    async def _divide_processes(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """Move the conversations of processes that have several at once to runs of their own."""
        moves = await self._processes.divide_processes(batch)
        moved = [_move_to_run(one, moves.pop(one.exchange.id, None)) for one in batch]
        return moved + [_move_to_run(self._derive(one), moves[one.id]) for one in await self._read_exchanges(moves)]

    async def _assign_by_process(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """Move exchanges that only their process attributes to the conversations of that process."""
        placements = await self._processes.find_placements(batch)
        derived = {one.exchange.id: one for one in batch if one.exchange.id in placements}
        derived |= await self._derive_stored(placements.keys() - derived.keys())
        moved = [
            _replace_exchange(one, assign_by_process(one.exchange, *placements[name])) for name, one in derived.items()
        ]
        return _merge_moved(batch, moved)

    # -- by trace

    async def _group_by_trace(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        fresh = [traced_exchange(one, trace) for one in batch if (trace := assignable_trace(one.exchange))]
        if not fresh:
            return list(batch)
        traces = {one.id: one.trace for one in fresh}
        lone, with_run = await self._fetch_traces(traces.values())
        shared = with_run | find_shared_traces([*lone, *fresh])
        moved = [_assign_to_trace(one) if traces.get(one.exchange.id) in shared else one for one in batch]
        earlier = [one.id for one in lone if one.trace in shared and one.id not in traces]
        return moved + [_assign_to_trace(self._derive(one)) for one in await self._read_exchanges(earlier)]

    async def _fetch_traces(self, traces: Iterable[str]) -> tuple[list[TracedExchange], set[str]]:
        """The stored exchanges of these traces that are not grouped yet, and the traces that have a run."""
        names = sorted(set(traces))
        async with self._database.connection() as connection:
            lone = await connection.fetch(FETCH_LONE_TRACES, self._project, names)
            with_run = await connection.fetch(FETCH_TRACE_RUNS, self._project, names)
        return [stored_exchange(row) for row in lone], {row["trace"] for row in with_run}

    # -- by the ids that their requests refer to

    async def _group_by_chain(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        candidates = [one for one in batch if not self._processes.is_undivided(one.exchange)]
        fresh = [chain_link(one.exchange, ties) for one in candidates if (ties := id_ties(one.exchange, one.call))]
        if not fresh:
            return list(batch)
        async with self._database.connection() as connection:
            related = await run_chains.fetch_related(connection, self._project, fresh)
            chains = Chains([*fresh, *related])
            members = await run_chains.fetch_run_members(connection, self._project, chains.renames, chains.runs.keys())
        stored_runs = {one.id: one.run for one in related}
        moved = [
            _move_to_run(one, chains.runs.get(one.exchange.id), stored_runs.pop(one.exchange.id, None)) for one in batch
        ]
        earlier = {name: chains.runs[name] for name, run in stored_runs.items() if chains.runs[name] != run}
        earlier |= {name: chains.renames[run] for name, run in members.items()}
        stored = [one for one in await self._read_exchanges(earlier) if can_join_chain(one)]
        return moved + [_move_to_run(self._derive(one), earlier[one.id]) for one in stored]

    # -- by the tool calls that a model requested

    async def _attribute_tool_calls(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """Move tool calls to the runs of the models that requested them."""
        if not (fresh := [found for one in batch if (found := outline_exchange(one))]):
            return list(batch)
        async with self._database.connection() as connection:
            related, executions = await tool_attribution.fetch_related(connection, self._project, fresh)
        candidates = {one.id: [requester.id for requester in related.candidate_requesters(one)] for one in executions}
        candidates = {name: requesters for name, requesters in candidates.items() if requesters}
        derived, requests = await self._read_related({one.exchange.id: one for one in batch}, related, candidates)
        unread = await self._find_large(set(itertools.chain(*candidates.values())) - requests.keys())
        # If one of the candidates was not read, it is unknown which of them requested the call.
        read = {name: some for name, some in candidates.items() if name in derived and unread.isdisjoint(some)}

        def assign(name: str, one: DerivedExchange) -> DerivedExchange:
            return _assign_to_requester(one, related, [requests[other] for other in read[name] if other in requests])

        assigned = {name: assign(name, derived[name]) for name in read}
        # Few are moved, and only these are needed with their answers.
        reduced = [name for name in read if assigned[name].previous_run and self._recent.is_reduced(derived[name])]
        whole = await self._derive_stored(reduced)
        moved = [one for name, one in assigned.items() if name not in reduced]
        moved += [assign(name, one) for name, one in whole.items()]
        merged = _merge_moved(batch, moved)
        self._recent.remember(merged)
        return await self._attribute_sessions(merged)

    async def _read_related(
        self, derived: dict[str, DerivedExchange], related: RelatedExchanges, candidates: Mapping[str, Sequence[str]]
    ) -> tuple[dict[str, DerivedExchange], dict[str, ToolRequests]]:
        """Read the tool calls and the tool requests of their candidates, as far as they are still stored."""
        requesters = set(itertools.chain(*candidates.values()))
        derived = derived | {
            name: execution
            for name in candidates.keys() - derived.keys()
            if (execution := self._recent.execution(related.outlines[name]))
        }
        requests = {name: found for name in requesters - derived.keys() if (found := self._recent.tool_requests(name))}
        stored = await self._derive_stored((requesters | candidates.keys()) - derived.keys() - requests.keys())
        self._recent.remember(stored.values())
        derived |= stored
        return derived, requests | {name: tool_requests(derived[name]) for name in requesters & derived.keys()}

    async def _attribute_sessions(self, batch: list[DerivedExchange]) -> list[DerivedExchange]:
        """Move the other exchanges of MCP sessions to the runs of their tool calls."""
        sessions = {tie for one in batch if (tie := session_tie(one.exchange)) is not None}
        outlines = [found for one in batch if (found := outline_exchange(one))] if sessions else []
        if not outlines:
            return batch
        async with self._database.connection() as connection:
            moves = await tool_attribution.find_session_moves(connection, self._project, outlines, sessions)
        derived = {one.exchange.id: one for one in batch if one.exchange.id in moves}
        derived |= await self._derive_stored(moves.keys() - derived.keys())
        return _merge_moved(batch, [_assign_to_session(one, moves[name]) for name, one in derived.items()])

    async def _derive_stored(self, ids: Iterable[str]) -> dict[str, DerivedExchange]:
        return {one.id: self._derive(one) for one in await self._read_exchanges(ids)}

    async def _find_large(self, ids: Collection[str]) -> set[str]:
        """Find the large exchanges among these, which are not read here."""
        if self._reads_large or not ids:
            return set()
        queries = CallReader(self._database, lambda _: _refuse_to_derive(), self._project)
        return set(ids) - set(await queries.without_large(ids))

    async def _read_exchanges(self, ids: Iterable[str]) -> list[Exchange]:
        if not (names := list(ids)):
            return []
        queries = CallReader(self._database, lambda _: _refuse_to_derive(), self._project)
        if not self._reads_large:
            # Large exchanges stay in their runs, because only helper processes read them (`store.large`).
            names = await queries.without_large(names)
        try:
            return list((await queries.exchanges_by_id(names)).values())
        except CorruptData:
            # A damaged exchange stays in its run and must not keep others from being read.
            half = len(names) // 2
            return (
                [*await self._read_exchanges(names[:half]), *await self._read_exchanges(names[half:])] if half else []
            )


def _assign_to_trace(derived: DerivedExchange) -> DerivedExchange:
    return _move_to_run(derived, assign_to_trace(derived.exchange).run)


def _move_to_run(derived: DerivedExchange, run: str | None, stored_run: str | None = None) -> DerivedExchange:
    """Move an exchange to a run. `stored_run` is the run it is stored in, if it is stored."""
    exchange = derived.exchange
    if run is None or run == exchange.run:
        return derived
    return replace(
        derived, exchange=replace(exchange, run=run), previous_run=stored_run or derived.previous_run or exchange.run
    )


def _merge_moved(batch: Sequence[DerivedExchange], moved: Iterable[DerivedExchange]) -> list[DerivedExchange]:
    """Replace the exchanges of a batch that were moved, and append the other moved ones."""
    moved_by_id = {one.exchange.id: one for one in moved if one.previous_run}
    return [moved_by_id.pop(one.exchange.id, one) for one in batch] + list(moved_by_id.values())


def _assign_to_requester(
    derived: DerivedExchange, related: RelatedExchanges, requests: Sequence[ToolRequests]
) -> DerivedExchange:
    """Move a tool call to the run that requested it, or back to its owner if that run is not certain (any more)."""
    exchange = derived.exchange
    if derived.call is None or not can_join_requester(exchange):
        return derived
    tools = [found for one in requests for found in related.requested_tools(one)]
    runs = (
        requesting_runs(tool_execution(exchange, derived.call), tools)
        if len(requests) <= tool_attribution.MAX_REQUESTERS
        else {}
    )
    run, tool = next(iter(runs.items())) if len(runs) == 1 else (None, "")
    if run is None or run == owner_run(exchange):
        return _replace_exchange(derived, return_to_owner(exchange)) if is_assigned_to_requester(exchange) else derived
    return _replace_exchange(derived, assign_to_requester(exchange, run, tool))


def _assign_to_session(derived: DerivedExchange, run: str | None) -> DerivedExchange:
    exchange = derived.exchange
    if not can_join_requester(exchange):
        return derived
    return _replace_exchange(derived, return_to_owner(exchange) if run is None else replace(exchange, run=run))


def _replace_exchange(derived: DerivedExchange, exchange: Exchange) -> DerivedExchange:
    is_same_run = exchange.run == derived.exchange.run
    return (
        derived
        if is_same_run
        else replace(derived, exchange=exchange, previous_run=derived.previous_run or derived.exchange.run)
    )


def _refuse_to_derive() -> Any:
    raise AssertionError("calls must not be derived here, only exchanges read")


FETCH_TRACE_RUNS = """
SELECT trace FROM unnest($2::text[]) AS candidate (trace)
WHERE EXISTS (SELECT FROM exchanges WHERE exchanges.project = $1 AND exchanges.run = candidate.trace)
"""
