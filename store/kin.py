"""Exchanges that nobody named a run for, and that have something in common: they are of one run.

The first of them cannot be told from a call that stands alone, so it is stored under its connection's owner and taken from
there when the second comes. What is asked is the database, so a keeper that dies in between changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from calls.model import Exchange
from store import chains
from store.chains import Chains, link_of
from store.database import Database
from store.filing import in_trace, may_follow, trace_of
from store.ingest import Kept
from store.recorded import Recorded
from store.ties import ties


class Kin:
    """Finds the runs of a batch's traces and chains. `understand` derives the call of an exchange that is moved."""

    def __init__(self, database: Database, understand: Callable[[Exchange], Kept], project: str = "default") -> None:
        self._database = database
        self._understand = understand
        self._project = project

    async def joined(self, batch: Sequence[Kept]) -> list[Kept]:
        """The batch with each exchange in the run of its kin, and with those stored earlier that are to be moved there.

        Raises `Unavailable` while Postgres is away.
        """
        return await self._chained(await self._traced(batch))

    # -- by traces

    async def _traced(self, batch: Sequence[Kept]) -> list[Kept]:
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

    async def _chained(self, batch: Sequence[Kept]) -> list[Kept]:
        fresh = [link_of(one.exchange, tied) for one in batch if (tied := ties(one.exchange, one.call))]
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

    async def _exchanges(self, ids: Iterable[str]) -> list[Exchange]:
        recorded = Recorded(self._database, lambda _: _nothing_is_derived(), self._project)
        return list((await recorded.evidence(ids)).values())


def _in_trace(kept: Kept) -> Kept:
    return _moved(kept, in_trace(kept.exchange).run)


def _moved(kept: Kept, run: str | None, stored: str | None = None) -> Kept:
    """The same in this run; `stored` is the one in which it is stored already."""
    exchange = kept.exchange
    if run is None or run == exchange.run:
        return kept
    return replace(kept, exchange=replace(exchange, run=run), was=stored or kept.was or exchange.run)


def _nothing_is_derived() -> Any:
    raise AssertionError("only evidence is read here")


ALONE = "SELECT id, trace FROM exchanges WHERE project = $1 AND trace = ANY ($2::text[])"

MADE = """
SELECT trace FROM unnest($2::text[]) AS wanted (trace)
WHERE EXISTS (SELECT FROM exchanges WHERE exchanges.project = $1 AND exchanges.run = wanted.trace)
"""
