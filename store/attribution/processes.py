"""Attribute the calls of a process that names no run: to the process's own run, or to its concurrent conversations.

One agent is one run, so the calls of a process stay in its own run while its conversations follow one another. A process that
has several at once (`conversations`) is divided: each conversation becomes a run, and any other call is moved to the one
conversation that it shares an identifier with. Calls that may belong to several stay in the process's run, and their
attribution is a guess.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from calls.model import Exchange
from store.attribution.conversations import ModelCall, estimate_agent_count, group_conversations
from store.attribution.correlation_ids import id_ties, owner_run
from store.attribution.identifiers import collect_identifiers
from store.attribution.run_assignment import (
    SAME_PROCESS,
    SHARES,
    can_join_requester,
    is_assigned_by_process,
    is_assigned_to_requester,
    is_owned_by_process,
)
from store.attribution.run_chains import ChainLink, Chains, chain_link
from store.attribution.turns import first_question
from store.attribution.window import Window, WindowEntry
from store.call_graph.call_graph import scalar_values
from store.database.connection import Database
from store.ingest.batch_writer import DerivedExchange

MAX_PASSES: Final = 3
MAX_PROCESSES: Final = 128
"""Processes that are remembered at most."""

MAX_RECENT: Final = 256
"""Exchanges of a process that are examined for concurrent conversations."""

MAX_QUESTION_LENGTH: Final = 4000
MAX_ARGUMENTS: Final = 16
MAX_ARGUMENT_LENGTH: Final = 1000
"""Of a call, this many characters of the question, arguments, and characters of an argument are remembered."""


class ProcessPlacement(NamedTuple):
    """The run that an exchange is moved to, with the source and value of the evidence."""

    run: str
    source: str
    value: str


class Processes:
    """The remembered processes whose calls are attributed."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project
        self._windows: OrderedDict[str, Window] = OrderedDict()

    async def load_windows(self, batch: Sequence[DerivedExchange]) -> None:
        """Load the windows of the processes of a batch. Raises `DatabaseUnavailable`."""
        for owner in {owner for one in batch if (owner := process_run(one.exchange)) is not None}:
            if owner in self._windows:
                self._windows.move_to_end(owner)
                continue
            first = min(one.exchange.started_at for one in batch if process_run(one.exchange) == owner)
            self._windows[owner] = await self._load_window(owner, first)
            if len(self._windows) > MAX_PROCESSES:
                self._windows.popitem(last=False)

    def is_undivided(self, exchange: Exchange) -> bool:
        """Whether the calls of the exchange's process are one agent's, as far as is known."""
        window = self._find_window(exchange)
        return window is not None and not window.is_divided

    async def divide_processes(self, batch: Sequence[DerivedExchange]) -> dict[str, str]:
        """Add a batch to the windows; return the new runs of exchanges whose process turns out to have several agents."""
        changed: dict[str, Window] = {}
        for one in batch:
            if (window := self._find_window(one.exchange)) is not None:
                window.add(_window_entry(one))
                changed[window.owner] = window
        moves: dict[str, str] = {}
        for window in changed.values():
            if not window.is_divided:
                moves |= await self._divide_window(window)
        return moves

    async def _divide_window(self, window: Window) -> dict[str, str]:
        recent = list(window.entries.values())[-MAX_RECENT:]
        free = [one for one in recent if one.is_free and one.run == window.owner]
        links = [replace(one.link, run=window.owner) for one in free if one.link is not None]
        runs = {name: run for name, run in Chains(links).runs.items() if run != window.owner}
        model_calls = (one.model_call for one in free if one.model_call is not None)
        agents = estimate_agent_count(group_conversations(model_calls, runs))
        if agents == "one" or (agents == "unclear" and window.is_unclear):
            return {}
        window.is_unclear, window.is_divided = True, agents == "several"
        await self._save_state(window)
        if not window.is_divided:
            return {}
        return runs

    def update_runs(self, batch: Iterable[DerivedExchange]) -> None:
        """Update the runs of the exchanges of a batch in the windows."""
        for one in batch:
            window = self._find_window(one.exchange)
            if window is not None and one.exchange.id in window.entries:
                window.entries[one.exchange.id].is_free = _is_free(one.exchange)
                window.move(one.exchange.id, one.exchange.run)

    async def find_placements(self, batch: Iterable[DerivedExchange]) -> dict[str, ProcessPlacement]:
        """Find the conversations of exchanges that only their process attributes, by shared identifiers."""
        owners = {owner for one in batch if (owner := process_run(one.exchange)) is not None}
        found: dict[str, ProcessPlacement] = {}
        for window in (self._windows[owner] for owner in owners if owner in self._windows):
            if not window.conversation_runs:
                continue
            found |= _place_free_entries(window)
            if (
                len(window.conversation_runs) > 1
                and not window.is_unclear
                and any(one.run == window.owner for one in window.free_entries())
            ):
                window.is_unclear = True
                await self._save_state(window)
        return found

    async def _save_state(self, window: Window) -> None:
        async with self._database.connection() as connection:
            await connection.execute(UPSERT_PROCESS, self._project, window.owner, window.is_divided, window.is_unclear)

    def _find_window(self, exchange: Exchange) -> Window | None:
        owner = process_run(exchange)
        return None if owner is None else self._windows.get(owner)

    async def _load_window(self, owner: str, first: int) -> Window:
        """Load the window of a process. If the process is known, everything before `first` counts as forgotten."""
        async with self._database.connection() as connection:
            noted = await connection.fetchrow(FETCH_PROCESS, self._project, owner)
            if noted is None:
                await connection.execute(UPSERT_PROCESS, self._project, owner, False, False)
                return Window(owner)
            rows = await connection.fetch(FETCH_RECENT, self._project, owner, MAX_RECENT)
        window = Window(
            owner,
            is_divided=noted["is_divided"],
            is_unclear=noted["is_unclear"],
            forgotten_until=first,
            has_unknown_runs=True,
        )
        for row in reversed(rows):
            name, started = str(row["id"]), row["started_at"]
            link = ChainLink(
                id=name, started_at=started, run=owner, ties=row["ties"] or (), is_movable=True, owner=owner
            )
            ended_at = started + (row["ended_at"] or 0)
            model = (
                ModelCall(id=name, started_at=started, ended_at=ended_at, question="")
                if row["kind"] == "model"
                else None
            )
            window.add(
                WindowEntry(
                    id=name,
                    started_at=started,
                    ended_at=ended_at,
                    run=owner,
                    is_free=True,
                    # For other kinds, the column has the ties of tool calls too (`correlation_ids.tool_ties`).
                    link=link if model and row["ties"] else None,
                    model_call=model,
                )
            )
        return window


def process_run(exchange: Exchange) -> str | None:
    """The own run of the process that sent an exchange; None if the exchange has an explicit run."""
    return owner_run(exchange) if is_owned_by_process(exchange) else None


def _is_free(exchange: Exchange) -> bool:
    if not can_join_requester(exchange) or is_assigned_to_requester(exchange):
        return False
    return exchange.run == owner_run(exchange) or is_assigned_by_process(exchange)


def _window_entry(derived: DerivedExchange) -> WindowEntry:
    exchange, call = derived.exchange, derived.call
    ended_at = exchange.started_at + (exchange.ended_at or exchange.first_byte_at or 0)
    tied = id_ties(exchange, call)
    model = None
    if call is not None and call.kind == "model":
        values = (one[:MAX_ARGUMENT_LENGTH] for tool in call.tool_calls for one in scalar_values(tool.arguments))
        model = ModelCall(
            id=exchange.id,
            started_at=exchange.started_at,
            ended_at=ended_at,
            question=first_question(call.request)[:MAX_QUESTION_LENGTH],
            arguments=[one for one in values if len(one) > 1][:MAX_ARGUMENTS],
        )
    return WindowEntry(
        id=exchange.id,
        started_at=exchange.started_at,
        ended_at=ended_at,
        run=exchange.run,
        is_free=_is_free(exchange),
        link=chain_link(exchange, tied) if tied else None,
        model_call=model,
        identifiers=None if call is None else collect_identifiers(exchange, call),
    )


def _place_free_entries(window: Window) -> dict[str, ProcessPlacement]:
    """Find the runs of the free exchanges of a process that are to be moved."""
    groups = window.conversation_runs
    only = next(iter(groups)) if len(groups) == 1 and not (window.is_unclear or window.has_unknown_runs) else None
    placements: dict[str, ProcessPlacement] = {}
    # The identifiers of an exchange that was moved may attribute another.
    for _ in range(MAX_PASSES):
        has_moved = False
        for entry in list(window.free_entries()):
            run, identifier = (only, only) if only else window.find_run(entry)
            placement = ProcessPlacement(run, SAME_PROCESS if only else SHARES, identifier)
            if placement.run != entry.run:
                window.move(entry.id, placement.run)
                placements[entry.id] = placement
                has_moved = True
        if not has_moved:
            break
    return placements


FETCH_PROCESS = "SELECT is_divided, is_unclear FROM processes WHERE project = $1 AND run = $2"

UPSERT_PROCESS = """
INSERT INTO processes (project, run, is_divided, is_unclear) VALUES ($1, $2, $3, $4)
ON CONFLICT (project, run) DO UPDATE SET
    is_divided = processes.is_divided OR excluded.is_divided, is_unclear = processes.is_unclear OR excluded.is_unclear
"""

FETCH_RECENT = """
SELECT exchanges.id, exchanges.started_at, exchanges.ended_at, exchanges.ties, calls.kind
FROM exchanges LEFT JOIN calls USING (project, id)
WHERE project = $1 AND exchanges.run = $2 ORDER BY exchanges.started_at DESC, exchanges.id DESC LIMIT $3
"""
