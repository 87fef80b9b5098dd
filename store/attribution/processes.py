"""Attribute the calls of a process that names no run: to the process while it does one thing, else to what it works on.

One agent is one run: the calls of a process stay together in its own run, whatever conversations it has one after another. A
process that has several at once (`conversations`) is divided: each conversation becomes a run, and a call besides goes to
the one conversation that has an identifier in common with it. What could belong to several stays in the process's run, whose
attribution is a guess then.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from calls.model import Exchange
from store.attribution.conversations import ModelCall, conversations, judged
from store.attribution.correlation_ids import owner_of, ties
from store.attribution.identifiers import identifiers
from store.attribution.run_assignment import SAME_PROCESS, SHARES, is_done, is_owned_by_process, is_placed, may_go
from store.attribution.run_chains import Chains, Link, link_of
from store.attribution.turns import first_question
from store.attribution.window import Window, WindowEntry
from store.call_graph.call_graph import values_in
from store.database.connection import Database
from store.ingest.batch_writer import DerivedExchange

PASSES: Final = 3
PROCESSES: Final = 128
"""Processes that are remembered."""

RECENT: Final = 256
"""Exchanges of a process that are looked at to tell whether it works on several things."""

QUESTION: Final = 4000
ARGUMENTS: Final = 16
ARGUMENT: Final = 1000
"""Characters and arguments that are remembered of a call."""


class ProcessPlacement(NamedTuple):
    """Where an exchange goes, and why."""

    run: str
    source: str
    value: str


class Processes:
    """What is known of the processes whose calls are attributed."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project
        self._windows: OrderedDict[str, Window] = OrderedDict()

    async def prepare(self, batch: Sequence[DerivedExchange]) -> None:
        """Remember what is stored of the processes of a batch. Raises `Unavailable` while Postgres is away."""
        for owner in {owner for one in batch if (owner := process_of(one.exchange)) is not None}:
            if owner in self._windows:
                self._windows.move_to_end(owner)
                continue
            first = min(one.exchange.started_at for one in batch if process_of(one.exchange) == owner)
            self._windows[owner] = await self._stored(owner, first)
            if len(self._windows) > PROCESSES:
                self._windows.popitem(last=False)

    def keeps_together(self, exchange: Exchange) -> bool:
        """Whether the calls of its process are one agent's, as far as is known."""
        window = self._window(exchange)
        return window is not None and not window.is_divided

    async def divide(self, batch: Sequence[DerivedExchange]) -> dict[str, str]:
        """Learn a batch. Returns the runs of the exchanges that move because a process turns out to work on several things."""
        touched: dict[str, Window] = {}
        for one in batch:
            if (window := self._window(one.exchange)) is not None:
                window.learn(_entry(one))
                touched[window.owner] = window
        moves: dict[str, str] = {}
        for window in touched.values():
            if not window.is_divided:
                moves |= await self._judge(window)
        return moves

    async def _judge(self, window: Window) -> dict[str, str]:
        recent = list(window.entries.values())[-RECENT:]
        free = [one for one in recent if one.is_free and one.run == window.owner]
        links = [replace(one.link, run=window.owner) for one in free if one.link is not None]
        runs = {name: run for name, run in Chains(links).runs.items() if run != window.owner}
        found = judged(conversations((one.model_call for one in free if one.model_call is not None), runs))
        if found == "one" or (found == "unclear" and window.is_unclear):
            return {}
        window.is_unclear, window.is_divided = True, found == "several"
        await self._note(window)
        if not window.is_divided:
            return {}
        return runs

    def learn(self, batch: Iterable[DerivedExchange]) -> None:
        """Remember where the exchanges of a batch are now."""
        for one in batch:
            window = self._window(one.exchange)
            if window is not None and one.exchange.id in window.entries:
                window.entries[one.exchange.id].is_free = _is_free(one.exchange)
                window.move(one.exchange.id, one.exchange.run)

    async def place(self, batch: Iterable[DerivedExchange]) -> dict[str, ProcessPlacement]:
        """Where the exchanges go that only their process names, by what they have in common with its conversations."""
        owners = {owner for one in batch if (owner := process_of(one.exchange)) is not None}
        found: dict[str, ProcessPlacement] = {}
        for window in (self._windows[owner] for owner in owners if owner in self._windows):
            if not window.groups:
                continue
            found |= _placed(window)
            if (
                len(window.groups) > 1
                and not window.is_unclear
                and any(one.run == window.owner for one in window.free())
            ):
                window.is_unclear = True
                await self._note(window)
        return found

    async def _note(self, window: Window) -> None:
        async with self._database.raw() as connection:
            await connection.execute(NOTE, self._project, window.owner, window.is_divided, window.is_unclear)

    def _window(self, exchange: Exchange) -> Window | None:
        owner = process_of(exchange)
        return None if owner is None else self._windows.get(owner)

    async def _stored(self, owner: str, first: int) -> Window:
        """What the store knows of a process; of one that it knows, what came before the `first` exchange is forgotten."""
        async with self._database.raw() as connection:
            noted = await connection.fetchrow(NOTED, self._project, owner)
            if noted is None:
                await connection.execute(NOTE, self._project, owner, False, False)
                return Window(owner)
            rows = await connection.fetch(STORED, self._project, owner, RECENT)
        window = Window(owner, is_divided=noted["divided"], is_unclear=noted["unclear"], forgot_until=first)
        for row in reversed(rows):
            name, started = str(row["id"]), row["started_at"]
            link = Link(id=name, started_at=started, run=owner, ties=row["ties"] or (), loose=True, owner=owner)
            ended = started + (row["ended_at"] or 0)
            model = (
                ModelCall(id=name, started_at=started, ended_at=ended, question="") if row["kind"] == "model" else None
            )
            window.learn(
                WindowEntry(
                    id=name,
                    started_at=started,
                    ended_at=ended,
                    run=owner,
                    is_free=True,
                    # Of the others the column holds what finds tool calls as well (`ties.marks`).
                    link=link if model and row["ties"] else None,
                    model_call=model,
                )
            )
        return window


def process_of(exchange: Exchange) -> str | None:
    """The own run of the process that an exchange came from, where no run was given."""
    return owner_of(exchange) if is_owned_by_process(exchange) else None


def _is_free(exchange: Exchange) -> bool:
    if not may_go(exchange) or is_done(exchange):
        return False
    return exchange.run == owner_of(exchange) or is_placed(exchange)


def _entry(kept: DerivedExchange) -> WindowEntry:
    exchange, call = kept.exchange, kept.call
    ended = exchange.started_at + (exchange.ended_at or exchange.first_byte_at or 0)
    tied = ties(exchange, call)
    model = None
    if call is not None and call.kind == "model":
        values = (one[:ARGUMENT] for tool in call.tool_calls for one in values_in(tool.arguments))
        model = ModelCall(
            id=exchange.id,
            started_at=exchange.started_at,
            ended_at=ended,
            question=first_question(call.request)[:QUESTION],
            arguments=[one for one in values if len(one) > 1][:ARGUMENTS],
        )
    return WindowEntry(
        id=exchange.id,
        started_at=exchange.started_at,
        ended_at=ended,
        run=exchange.run,
        is_free=_is_free(exchange),
        link=link_of(exchange, tied) if tied else None,
        model_call=model,
        identifiers=None if call is None else identifiers(exchange, call),
    )


def _placed(window: Window) -> dict[str, ProcessPlacement]:
    """The free exchanges of a process that are to go elsewhere."""
    groups = window.groups
    only = next(iter(groups)) if len(groups) == 1 and not (window.is_unclear or window.forgot_until) else None
    found: dict[str, ProcessPlacement] = {}
    # What one brings into a conversation may tell of the next.
    for _ in range(PASSES):
        moved = False
        for entry in list(window.free()):
            run, identifier = (only, only) if only else window.run_of(entry)
            goal = ProcessPlacement(run, SAME_PROCESS if only else SHARES, identifier)
            if goal.run != entry.run:
                window.move(entry.id, goal.run)
                found[entry.id] = goal
                moved = True
        if not moved:
            break
    return found


NOTED = "SELECT divided, unclear FROM processes WHERE project = $1 AND run = $2"

NOTE = """
INSERT INTO processes (project, run, divided, unclear) VALUES ($1, $2, $3, $4)
ON CONFLICT (project, run) DO UPDATE SET
    divided = processes.divided OR excluded.divided, unclear = processes.unclear OR excluded.unclear
"""

STORED = """
SELECT exchanges.id, exchanges.started_at, exchanges.ended_at, exchanges.ties, calls.kind
FROM exchanges LEFT JOIN calls USING (project, id)
WHERE project = $1 AND exchanges.run = $2 ORDER BY exchanges.started_at DESC, exchanges.id DESC LIMIT $3
"""
