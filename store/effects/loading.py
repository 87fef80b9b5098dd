"""Load the effects of a run: pages of them, and their sums between calls (docs/effects.md)."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from calls.events import EffectBatch
from store.bundle.stored_effects import EffectQueries
from store.database.connection import Database
from store.effects.observed import EffectReader, ObservedEffect
from store.effects.shapes import (
    EffectFilter,
    EffectGroup,
    effect_shape,
    group_shape,
    sort_groups,
    step_after,
)
from store.query.pages import BadCursor
from store.query.rest_shapes import Shape
from store.query.runs import Page

MOST_SCANNED: Final = 64
"""Batches that are read for one page. A page of effects that are rare may be empty, and have a next one."""

MOST_SUMMED: Final = 128 << 20
"""Bytes of batches that are summed up; of longer runs the sums are those of the first."""


@dataclass(slots=True)
class RunEffects:
    """Reads the effects of a project's runs."""

    database: Database
    project: str
    queries: EffectQueries = field(init=False)

    def __post_init__(self) -> None:
        self.queries = EffectQueries(self.database, self.project)

    async def page(
        self, run: str, effect_filter: EffectFilter, cursor: str | None, limit: int, *, shows_values: bool
    ) -> Page:
        """Return a page of effects, by process, in the order in which each process asked. Raises BadCursor."""
        ids = list(await self.queries.ids(run))
        steps = await self.step_times(run)
        first, offset = (0, 0) if cursor is None else _position(ids, cursor)
        readers: dict[str, EffectReader] = {}
        items: list[Shape] = []
        for place in range(first, min(len(ids), first + MOST_SCANNED)):
            batch = await self._batch(run, ids[place])
            if batch is None:
                continue
            if batch.process not in readers:
                readers[batch.process] = await self._primed_reader(run, ids[:place], batch.process)
            found = await asyncio.to_thread(list, readers[batch.process].read(batch))
            begin = offset if place == first else 0
            for at, effect in islice(enumerate(found), begin, None):
                step = step_after(steps, effect.happened_at)
                if not effect_filter.matches(effect, step, len(steps)):
                    continue
                if len(items) == limit:
                    return Page(items, f"{ids[place]}.{at}")
                items.append(effect_shape(effect, step, shows_values=shows_values))
        last = first + MOST_SCANNED
        return Page(items, f"{ids[last]}.0" if last < len(ids) else None)

    async def groups(self, run: str, *, shows_values: bool) -> dict[str, Any]:
        """Return the sums of a run's effects between its calls, as the API shows them."""
        groups, is_whole = await self.load_groups(run)
        return {"items": [group_shape(group, shows_values=shows_values) for group in groups], "whole": is_whole}

    async def load_groups(self, run: str) -> tuple[list[EffectGroup], bool]:
        """Return the groups between a run's calls, and whether these are all effects."""
        steps = await self.step_times(run)
        groups: dict[int | None, EffectGroup] = {}
        is_whole = True
        total = 0
        async for batch, effects in self._read(run):
            total += len(batch.items)
            for effect in effects:
                step = step_after(steps, effect.happened_at)
                groups.setdefault(step, EffectGroup(step=step)).add(effect)
            if total > MOST_SUMMED:
                is_whole = False
                break
        return sort_groups(groups.values()), is_whole

    async def observe(self, run: str, note: Callable[[Sequence[ObservedEffect]], bool]) -> None:
        """Call `note` with the effects of each batch, as long as it returns True."""
        async for _, effects in self._read(run):
            if not await asyncio.to_thread(note, effects):
                return

    async def _read(self, run: str) -> AsyncIterator[tuple[EffectBatch, list[ObservedEffect]]]:
        readers: dict[str, EffectReader] = {}
        async for batch in self.queries.batches(run):
            reader = readers.setdefault(batch.process, EffectReader())
            yield batch, await asyncio.to_thread(list, reader.read(batch))

    async def _batch(self, run: str, name: uuid.UUID) -> EffectBatch | None:
        async for batch in self.queries.batches(run, [name]):
            return batch
        return None

    async def _primed_reader(self, run: str, earlier: Sequence[uuid.UUID], process: str) -> EffectReader:
        """Return a reader that knows when a process began, and the contents of its files so far."""
        reader = EffectReader()
        async for batch in self.queries.batches(run, earlier):
            if batch.process == process and (batch.number == 0 or b'"content"' in batch.items):
                await asyncio.to_thread(list, reader.read(batch))
        return reader

    async def step_times(self, run: str) -> list[int]:
        """Return when the steps of a run began."""
        async with self.database.connection() as connection:
            return [row["started_at"] for row in await connection.fetch(STEP_TIMES, self.project, run)]


def _position(ids: Sequence[uuid.UUID], cursor: str) -> tuple[int, int]:
    """Return the place of the batch that a cursor names, and the place in it."""
    name, _, offset = cursor.partition(".")
    place = next((place for place, one in enumerate(ids) if str(one) == name), None)
    if place is None or not offset.isdecimal():
        raise BadCursor(f"invalid cursor {cursor[:80]!r}: request the first page, without a cursor")
    return place, int(offset)


STEP_TIMES = "SELECT started_at FROM exchanges WHERE project = $1 AND run = $2 ORDER BY started_at, id"
