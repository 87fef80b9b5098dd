"""Write what workers recorded into its projects.

A spool holds what was recorded for all projects; the full names of runs say for which (`calls.project_runs`). Each project has
its own writer and its own grouping into runs, so that nothing of one project is joined with another.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import replace

from calls.events import EffectBatch, Gap, ReplayReported
from calls.model import Exchange
from calls.project_runs import DEFAULT_PROJECT, split_run_name
from store.attribution.grouping import RunGrouping
from store.ingest.batch_writer import BatchWriter, DerivedExchange

MAX_PROJECTS: Final = 64
"""Projects whose grouping is kept in memory. That of another one is loaded from the tables again."""

type Derive = Callable[[Exchange, str], DerivedExchange]
"""Derives the call of an exchange of a project. In the exchange, the run has the id that it has within the project."""


@dataclass(slots=True)
class _Batch:
    """What is written into one project."""

    exchanges: list[DerivedExchange] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    replays: list[ReplayReported] = field(default_factory=list)
    effects: list[EffectBatch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Project:
    writer: BatchWriter
    grouping: RunGrouping


class ProjectWriters:
    """The writers of all projects, on one database. Like a `BatchWriter`, it writes one batch at a time."""

    def __init__(self, writer: BatchWriter, derive: Derive, *, reads_large: bool = False) -> None:
        self._writer = writer
        self._derive = derive
        self._reads_large = reads_large
        self._projects: OrderedDict[str, _Project] = OrderedDict()

    async def group_batch(self, batch: Sequence[DerivedExchange]) -> list[DerivedExchange]:
        """Move each exchange to the run of related ones of its project. Raises `DatabaseUnavailable`."""
        grouped: list[DerivedExchange] = []
        for project, part in _divide(batch).items():
            grouped += await self._project(project).grouping.group_batch(part.exchanges)
        return grouped

    async def write_batch(
        self,
        batch: Sequence[DerivedExchange],
        gaps: Sequence[Gap] = (),
        replays: Sequence[ReplayReported] = (),
        effects: Sequence[EffectBatch] = (),
    ) -> None:
        """Store the batch and commit, project by project. Raises `DatabaseUnavailable`: then write the same batch again."""
        for project, part in _divide(batch, gaps, replays, effects).items():
            await self._project(project).writer.write_batch(part.exchanges, part.gaps, part.replays, part.effects)

    def _project(self, name: str) -> _Project:
        if (found := self._projects.get(name)) is None:
            writer = self._writer.for_project(name)
            grouping = RunGrouping(
                writer.database,
                lambda exchange: self._derive(exchange, name),
                name,
                reads_large=self._reads_large,
            )
            found = self._projects[name] = _Project(writer, grouping)
        self._projects.move_to_end(name)
        if len(self._projects) > MAX_PROJECTS:
            self._projects.popitem(last=False)
        return found


def exchange_in_project(exchange: Exchange) -> tuple[Exchange, str]:
    """Return an exchange that a worker recorded with its run's id within its project, and the project."""
    project, run = split_run_name(exchange.run)
    return exchange if project == DEFAULT_PROJECT else replace(exchange, run=run), project


def _divide(
    batch: Iterable[DerivedExchange],
    gaps: Iterable[Gap] = (),
    replays: Iterable[ReplayReported] = (),
    effects: Iterable[EffectBatch] = (),
) -> dict[str, _Batch]:
    parts: defaultdict[str, _Batch] = defaultdict(_Batch)
    for derived in batch:
        parts[derived.project].exchanges.append(derived)
    for gap in gaps:
        project, run = split_run_name(gap.run)
        parts[project].gaps.append(msgspec.structs.replace(gap, run=run))
    for report in replays:
        project, name = split_run_name(report.replay)
        parts[project].replays.append(msgspec.structs.replace(report, replay=name))
    for observed in effects:
        project, run = split_run_name(observed.run)
        parts[project].effects.append(msgspec.structs.replace(observed, run=run))
    return parts
