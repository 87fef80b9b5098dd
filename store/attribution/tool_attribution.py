"""Attribute a tool call without a run to the one run whose model requested it.

A model asks (the asking), and the next call of its run brings what came of it (the telling). What was called in between with
what was asked is of that run; what two runs could have asked for is of nobody. A session of MCP (its handshake, its lists,
its end) goes where its tool calls are, when these are all in one run. Whatever order they come in, it ends the same: what
was of one run and could be of another now goes back to its connection's owner.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import asyncpg

from calls.model import ToolCall
from store.attribution.correlation_ids import DOING, HOUR, asked_at, marks, tie_of, ties
from store.attribution.run_chains import reach
from store.call_graph.call_graph import ToolExecution, fits
from store.ingest.insert_rows import DerivedExchange

MOST: Final = 1000
"""Exchanges that are looked at in one step: where there are more, it stays unknown whose a call of a tool is."""

MANY: Final = 8
"""Askings that a call of a tool may come from: one that may come from more is nobody's."""

REMEMBERED: Final = 512
SMALL: Final = 16 << 10
"""Bytes of an answer that is remembered, so that it need not be read again."""


class SeenExchange(NamedTuple):
    """What is known of an exchange without reading it."""

    id: str
    run: str
    started_at: int
    kind: str
    ties: frozenset[int]

    @property
    def asks(self) -> bool:
        """Whether it is a call of a model, which asks for tools and tells what came of them."""
        return self.kind == "model"

    @property
    def makes(self) -> set[int]:
        """The ties of those who do what it asks for, and who hand back its ids."""
        return {tie | 1 for tie in self.ties if not tie & 1}

    @property
    def takes(self) -> set[int]:
        """The ties of those who may have asked for what it did, or made the ids that it hands back."""
        return {tie ^ 1 for tie in self.ties if tie & 1}


class RequestedTool(NamedTuple):
    """A tool call that a model asked for, from the answer that asks to the next call of its run, which tells of it."""

    run: str
    begin: int
    end: int
    tool: ToolCall


class ToolRequests(NamedTuple):
    """What an answer asks of tools, with the ties of its ids, and since when it may be done."""

    id: str
    begin: int
    tools: tuple[tuple[int, ToolCall], ...]


class Around:
    """What was seen around some calls of tools."""

    def __init__(self, seen: Iterable[SeenExchange]) -> None:
        self.seen: dict[str, SeenExchange] = {}
        self._by_tie: dict[int, list[SeenExchange]] = {}
        self._last: dict[str, int] = {}
        self.add(seen)

    def add(self, seen: Iterable[SeenExchange]) -> None:
        """Take these as well, but for those that are known."""
        self._last.clear()
        for one in seen:
            if self.seen.setdefault(one.id, one) is one:
                for tie in one.ties:
                    self._by_tie.setdefault(tie, []).append(one)

    def done_after(self, asker: SeenExchange) -> list[SeenExchange]:
        """The calls of tools that may have done what this one asked for, before it was told of something."""
        found = self._with(asker.makes) if self._told(asker) else ()
        return [one for one in found if one.kind in DOING and self._is_around(asker, one)]

    def askers(self, done: SeenExchange) -> list[SeenExchange]:
        """Those that may have asked for this, and were told of something since."""
        return [one for one in self._with(done.takes) if one.asks and self._is_around(one, done)]

    def _is_around(self, asker: SeenExchange, done: SeenExchange) -> bool:
        return asker.started_at <= done.started_at < self._told(asker)

    def _told(self, asker: SeenExchange) -> int:
        """When it was told last of what it asked for."""
        if (found := self._last.get(asker.id)) is None:
            found = self._last[asker.id] = max((one.started_at for one in self._tellings(asker)), default=0)
        return found

    def rounds(self, asking: ToolRequests) -> Iterator[RequestedTool]:
        """What was asked for and its run was told of."""
        tellings = self._tellings(here := self.seen[asking.id])
        for tie, tool in asking.tools:
            if ends := [one.started_at for one in tellings if tie | 1 in one.ties]:
                yield RequestedTool(here.run, asking.begin, min(*ends, asking.begin + HOUR), tool)

    def in_session(self, tie: int) -> Iterator[tuple[str, str | None]]:
        """What surrounds the calls of a session and is elsewhere, and the run that it is to go to; None is its owner's."""
        runs = {one.run for one in self._with([tie | 1])}
        for one in self._with([tie]) if runs else ():
            if len(runs) > 1 and one.run in runs:
                yield one.id, None
            elif len(runs) == 1 and one.run not in runs:
                yield one.id, next(iter(runs))

    def _tellings(self, asker: SeenExchange) -> list[SeenExchange]:
        found = self._with(asker.makes)
        return [one for one in found if one.asks and one.run == asker.run and one.started_at > asker.started_at]

    def _with(self, ties: Collection[int]) -> list[SeenExchange]:
        return list({one.id: one for tie in ties for one in self._by_tie.get(tie, ())}.values())


def seen(kept: DerivedExchange) -> SeenExchange | None:
    """What is seen of an exchange that is about to be stored; None of one that has nothing to do with others."""
    exchange, call = kept.exchange, kept.call
    found = frozenset((*ties(exchange, call), *marks(exchange, call)))
    return SeenExchange(exchange.id, exchange.run, exchange.started_at, call.kind, found) if call and found else None


def asking(kept: DerivedExchange) -> ToolRequests:
    """What it asks of tools."""
    exchange, call = kept.exchange, kept.call
    begin = asked_at(exchange, call) if call else None
    if call is None or begin is None:
        return ToolRequests(exchange.id, 0, ())
    tied = ((tie_of(exchange, tool.id), tool) for tool in call.tool_calls if tool.id)
    return ToolRequests(exchange.id, begin, tuple((tie, tool) for tie, tool in tied if tie is not None))


class RecentRequests:
    """What need not be read again: the askings, and the calls of tools, that came last. It forgets, and is never wrong."""

    def __init__(self) -> None:
        self._askings: dict[str, ToolRequests] = {}
        self._done: dict[str, DerivedExchange] = {}

    def learn(self, batch: Iterable[DerivedExchange]) -> None:
        """Remember those that are small."""
        for one in batch:
            if one.call is None or not one.exchange.response:
                continue
            if one.call.kind == "model" and one.call.tool_calls and one.exchange.response.body.size <= SMALL:
                _remember(self._askings, one.exchange.id, asking(one))
            elif one.call.kind in DOING and one.exchange.request.body.size + one.exchange.response.body.size <= SMALL:
                _remember(self._done, one.exchange.id, replace(one, was=None))

    def asking(self, name: str) -> ToolRequests | None:
        """What was asked for in this answer."""
        return self._askings.get(name)

    def done(self, one: SeenExchange) -> DerivedExchange | None:
        """A call of a tool, if it is still where it was."""
        found = self._done.get(one.id)
        return found if found and found.exchange.run == one.run else None


def _remember[T](kept: dict[str, T], name: str, value: T) -> None:
    kept.pop(name, None)
    kept[name] = value
    if len(kept) > REMEMBERED:
        del kept[next(iter(kept))]


def asked_for(done: ToolExecution, rounds: Iterable[RequestedTool]) -> dict[str, str]:
    """The runs in which this may have been asked for, and by which tool call."""
    found: dict[str, str] = {}
    for one in sorted(rounds, key=lambda one: (one.begin, one.tool.id)):
        if one.begin <= done.started_at < one.end and one.tool.id and fits(one.tool, done):
            found.setdefault(one.run, one.tool.id)
    return found


async def around(
    connection: asyncpg.Connection, project: str, fresh: Sequence[SeenExchange]
) -> tuple[Around, list[SeenExchange]]:
    """What is around these, and the calls of tools of which they may tell whose they are."""
    known = Around(fresh)
    look = _Look(connection, project, fresh)
    await look.up(known, {tie for one in fresh if one.asks for tie in one.takes})
    askers = [one for one in known.seen.values() if one.asks]
    await look.up(known, {tie for one in askers for tie in one.makes})
    begun = {one.id: one for one in fresh if one.kind in DOING}
    found = begun | {one.id: one for asker in askers for one in known.done_after(asker)}
    await look.up(known, {tie for one in found.values() for tie in one.takes})
    await look.up(known, {tie for one in known.seen.values() if one.asks for tie in one.makes})
    return known, [] if look.too_much else list(found.values())


async def in_sessions(
    connection: asyncpg.Connection, project: str, mine: Sequence[SeenExchange], sessions: Collection[int]
) -> dict[str, str | None]:
    """Where what surrounds the calls in these sessions is to go; None is back to its owner."""
    known, look = Around(mine), _Look(connection, project, mine)
    await look.up(known, {tie | side for tie in sessions for side in (0, 1)})
    if look.too_much:
        return {}
    return {name: run for tie in sessions for name, run in known.in_session(tie)}


class _Look:
    """Looks for what is stored, for each tie once."""

    def __init__(self, connection: asyncpg.Connection, project: str, near: Sequence[SeenExchange]) -> None:
        self._connection = connection
        self._project = project
        self._reach = reach([one.started_at for one in near])
        self._had: set[int] = set()
        self.too_much = False

    async def up(self, known: Around, ties: set[int]) -> None:
        if not (wanted := ties - self._had):
            return
        self._had |= wanted
        rows = await self._connection.fetch(SEEN, self._project, sorted(wanted), *self._reach, MOST)
        self.too_much |= len(rows) == MOST
        known.add(
            SeenExchange(str(row["id"]), row["run"], row["started_at"], row["kind"], frozenset(row["ties"]))
            for row in rows
        )


SEEN = """
SELECT exchanges.id, exchanges.run, exchanges.started_at, calls.kind, exchanges.ties
FROM exchanges JOIN calls USING (project, id)
WHERE project = $1 AND exchanges.ties && $2::bigint[] AND id BETWEEN $3 AND $4
LIMIT $5
"""
