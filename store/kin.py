"""Exchanges that nobody named a run for, and that have a trace in common: they are of one run.

The first of a trace cannot be told from a call that has a trace of its own, so it is stored under its connection's owner and
taken from there when the second comes. What is asked is the database, so a keeper that dies in between changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from calls.model import Exchange
from store.database import Database
from store.filing import in_trace, trace_of
from store.ingest import Kept
from store.recorded import Recorded


class Kin:
    """Finds the run of a batch's traces. `understand` derives the call of an exchange that is moved."""

    def __init__(self, database: Database, understand: Callable[[Exchange], Kept], project: str = "default") -> None:
        self._database = database
        self._understand = understand
        self._project = project

    async def joined(self, batch: Sequence[Kept]) -> list[Kept]:
        """The batch with each exchange of a shared trace in that trace's run, and with those stored earlier that are to
        be moved there. Raises `Unavailable` while Postgres is away."""
        traces = {kept.exchange.id: trace for kept in batch if (trace := trace_of(kept.exchange))}
        if not traces:
            return list(batch)
        alone, made = await self._stored(traces.values())
        carriers: dict[str, set[str]] = {}
        for name, trace in (*traces.items(), *alone.items()):
            carriers.setdefault(trace, set()).add(name)
        shared = made | {trace for trace, names in carriers.items() if len(names) > 1}
        kept = [_moved(one) if traces.get(one.exchange.id) in shared else one for one in batch]
        earlier = [name for name, trace in alone.items() if trace in shared and name not in traces]
        return kept + [_moved(self._understand(one)) for one in await self._exchanges(earlier)]

    async def _stored(self, traces: Iterable[str]) -> tuple[dict[str, str], set[str]]:
        """Exchanges that are alone with one of these traces so far, and the traces that have a run already."""
        wanted = sorted(set(traces))
        async with self._database.raw() as connection:
            alone = await connection.fetch(ALONE, self._project, wanted)
            made = await connection.fetch(MADE, self._project, wanted)
        return {str(row["id"]): row["trace"] for row in alone}, {row["trace"] for row in made}

    async def _exchanges(self, ids: Iterable[str]) -> list[Exchange]:
        recorded = Recorded(self._database, lambda _: _nothing_is_derived(), self._project)
        found = [await recorded.exchange(name) for name in ids]
        return [one for one in found if one is not None]


def _moved(kept: Kept) -> Kept:
    exchange = in_trace(kept.exchange)
    return kept if exchange == kept.exchange else replace(kept, exchange=exchange, was=kept.exchange.run)


def _nothing_is_derived() -> Any:
    raise AssertionError("only evidence is read here")


ALONE = "SELECT id, trace FROM exchanges WHERE project = $1 AND trace = ANY ($2::text[])"

MADE = """
SELECT trace FROM unnest($2::text[]) AS wanted (trace)
WHERE EXISTS (SELECT FROM exchanges WHERE exchanges.project = $1 AND exchanges.run = wanted.trace)
"""
