"""Keep which calls of a run were retried and how its calls are connected, in bounded memory, until the run changes.

Each page of a run needs both of the whole run, which take seconds to load for a run of 100,000 calls.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from store.call_graph.packed_graph import PackedGraph
from store.call_graph.retry_query import RetryGroups, load_retry_groups
from store.database.asyncio_engine import AsyncConnection, driver_connection
from store.query.call_graph import load_call_graph

MOST_BYTES: Final = 32 << 20
"""Bytes of all that is kept. A run of 100,000 calls takes 8 MB; one that takes more than this is loaded for each page."""

ATTEMPT_BYTES: Final = 1000
"""Bytes that an attempt in a retry group takes, about."""

RUN_BYTES: Final = 1000
"""Bytes that a run takes besides."""

type _RunName = tuple[str, str]
"""Project and run."""


@dataclass(frozen=True, slots=True)
class RunGraph:
    """The retry groups of a run and, where it was asked for, its call graph."""

    groups: RetryGroups
    graph: PackedGraph | None

    @property
    def size(self) -> int:
        """The bytes that it takes, about."""
        attempts = sum(len(group.parts) for group in self.groups.groups) + len(self.groups.repeated_polls)
        return RUN_BYTES + ATTEMPT_BYTES * attempts + (self.graph.size if self.graph else 0)


class _KnownGraph(NamedTuple):
    version: str
    """The version of the run that it is of."""

    graph: RunGraph
    size: int


class RunGraphs:
    """The graphs of the runs whose pages were read last. Of a run that has changed since, none is returned."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._by_run: OrderedDict[_RunName, _KnownGraph] = OrderedDict()

    async def load(self, connection: AsyncConnection, project: str, run: str, *, has_links: bool) -> RunGraph:
        """Return the graph of a run, with its call graph if `has_links`."""
        # First: what is loaded after it is of this version or a later one, and is remembered as of this one.
        version = await (await driver_connection(connection)).fetchval(VERSION, project, run)
        known = self._take((project, run))
        if known is None or known.version != version:
            found = RunGraph(await load_retry_groups(connection, project, [run]), None)
        else:
            found = known.graph
        if has_links and found.graph is None:
            found = RunGraph(found.groups, await load_call_graph(connection, project, run, found.groups, PackedGraph))
        if version is not None:
            self._keep((project, run), version, found)
        return found

    def _take(self, name: _RunName) -> _KnownGraph | None:
        known = self._by_run.pop(name, None)
        self._bytes -= known.size if known else 0
        return known

    def _keep(self, name: _RunName, version: str, graph: RunGraph) -> None:
        # Another request of the run may have put its own there meanwhile.
        self._take(name)
        # Known from here on: there may be tens of thousands of runs, of which one is added for a page.
        size = graph.size
        if size > self._most_bytes:
            return
        self._by_run[name] = _KnownGraph(version, graph, size)
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._take(next(iter(self._by_run)))


# Ingest writes the row of a run with whatever it stores in it, and so do new keys; what moves or erases an exchange appends to a chain.
VERSION: Final = """
SELECT concat_ws(
    ' ', incarnation::text, xmin::text,
    (SELECT coalesce(sum(size), 0) FROM chains WHERE chains.project = $1 AND chains.incarnation = runs.incarnation)
)
FROM runs WHERE project = $1 AND id = $2
"""
