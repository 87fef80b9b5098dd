"""Erase runs or calls, and report where something was."""

import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from calls.model import Call, Exchange
from store.database.conflicts import retry_conflicts
from store.database.connection import Database
from store.database.object_forms import ObjectStorageDown
from store.erasure.disk_traces import remove_disk_traces
from store.erasure.erase_rows import ErasedRows, erase_exchanges, erase_replays, erase_run
from store.erasure.files import NO_FILES, ErasedFiles, erase_files
from store.erasure.matching import BodyMatch, find_calls
from store.ingest.partitions import first_id_of
from store.search.index import TextIndex


class ErasureReport(NamedTuple):
    """What was erased, and where it was."""

    runs: Sequence[str]
    exchanges: Sequence[str]
    rows: Mapping[str, int]
    """Deleted rows by table."""

    files: ErasedFiles
    objects: int
    """Objects that were deleted from object storage."""

    remains: Sequence[str]
    """What may still have something, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eraser:
    """Erases from one project. `data` is the data directory; None where files are not this process's matter."""

    database: Database
    derive: Callable[[Exchange], Call]
    project: str
    data: Path | None
    now: Callable[[], int]

    async def erase_run(self, run: str) -> ErasureReport | None:
        """Erase a run; None if there is none."""
        found = await retry_conflicts(lambda: erase_run(self.database, self.project, run, self.now()))
        return None if found is None else await self._finish(found)

    async def erase_exchanges(self, exchanges: Mapping[str, Sequence[str]]) -> ErasureReport | None:
        """Erase exchanges, by their runs; None if there is none of them."""
        found = ErasedRows()
        for run, ids in exchanges.items():
            erase = partial(erase_exchanges, self.database, self.project, run, list(map(uuid.UUID, ids)), self.now())
            erased = await retry_conflicts(erase)
            if erased is not None:
                found.add(erased)
                await self._index_again(run, erased)
        return await self._finish(found) if found.runs else None

    def find(self, match: BodyMatch) -> AsyncIterator[tuple[str, str]]:
        """Yield the runs and ids of the exchanges that a match finds."""
        return find_calls(self.database, self.derive, self.project, match)

    async def _index_again(self, run: str, erased: ErasedRows) -> None:
        """Index the remaining calls of the days: a text that an erased call had may be in them, too."""
        index = TextIndex(self.database, self.derive)
        for day in sorted(erased.days):
            last = uuid.UUID(int=first_id_of(day).int + (86_400_000 << 80))
            async with self.database.connection() as connection:
                rows = await connection.fetch(CALLS, self.project, run, first_id_of(day), last)
            await retry_conflicts(partial(index.index_calls, self.project, [str(row["id"]) for row in rows]))

    async def _finish(self, found: ErasedRows) -> ErasureReport:
        found.rows["replays"] += await erase_replays(self.database, self.project, sorted(found.runs))
        files = NO_FILES
        if self.data is not None:
            files = await erase_files(self.data, found.runs | found.exchanges)
        objects, kept_objects = await self._delete_objects(found.addresses)
        remains = [*files.remains, *kept_objects, *await remove_disk_traces(self.database, found.days)]
        rows = {table: count for table, count in found.rows.items() if count}
        return ErasureReport(sorted(found.runs), sorted(found.exchanges), rows, files, objects, remains)

    async def _delete_objects(self, addresses: Collection[bytes]) -> tuple[int, list[str]]:
        """Delete the objects that nothing names any more; return how many, and what may still be there."""
        try:
            return await self.database.objects.delete_unused(self.project, addresses), []
        except ObjectStorageDown as error:
            return 0, [
                f"objects of it are in object storage until retention deletes them there, which it tries every hour: {error}"
            ]


CALLS = "SELECT id FROM calls WHERE project = $1 AND run = $2 AND id >= $3 AND id < $4 ORDER BY id"
