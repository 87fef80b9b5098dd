"""Read the effects of runs: what their programs got from elsewhere than the network."""

import uuid
from collections.abc import AsyncIterator, Sequence

from calls.events import EffectBatch
from store.database.connection import Database
from store.database.rows import effect_batch


class EffectQueries:
    """Queries the effects of a project's runs."""

    def __init__(self, database: Database, project: str) -> None:
        self._database = database
        self._project = project

    async def ids(self, run: str) -> Sequence[uuid.UUID]:
        """Return the ids of a run's batches, by process, in the order in which they were observed."""
        async with self._database.connection() as connection:
            return [row["id"] for row in await connection.fetch(IDS, self._project, run)]

    async def batches(self, run: str, ids: Sequence[uuid.UUID] | None = None) -> AsyncIterator[EffectBatch]:
        """Yield the batches of a run, one at a time, because each may have some megabytes. Raises `CorruptData`."""
        for name in await self.ids(run) if ids is None else ids:
            async with self._database.connection() as connection:
                row = await connection.fetchrow(BATCH, self._project, run, name)
            if row is not None:
                yield effect_batch(row, run)


IDS = "SELECT id FROM effects WHERE project = $1 AND run = $2 ORDER BY process, number, id"

BATCH = """
SELECT id, observed_at, process, number, count, items FROM effects WHERE project = $1 AND run = $2 AND id = $3
"""
