"""Export a run's rows for a replay on this machine (`store.bundle.rows_bundle`)."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from calls.events import Gap
from store.bundle.bundle import NOT_EXPORTED
from store.bundle.rows_bundle import COLUMNS, MAGIC, Effects, Parts, Rows, RowsHead, Tail, encode_frame
from store.bundle.stored_effects import EffectQueries
from store.database.connection import Database
from store.database.object_forms import fill_in, objects_of
from store.database.schema_version import SCHEMA
from store.query.rekey import stored_keys

MOST_FROM_OBJECTS: Final = 16 << 20
"""Bytes from object storage that are held together; a single row may have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsExporter:
    """Exports the rows of runs."""

    database: Database
    project: str = "default"
    batch: int = 1000
    """Rows that are read together."""

    async def export(self, run: Mapping[str, Any], profiles: str, gaps: list[Gap]) -> AsyncIterator[bytes]:
        """Yield a run as a rows bundle, frame by frame."""
        exported = {name: value for name, value in run.items() if name not in NOT_EXPORTED}
        yield MAGIC + encode_frame(RowsHead(SCHEMA, exported, profiles))
        keys = await stored_keys(self.database, run["id"], self.project)
        count = 0
        async for found in self._batches(ROWS, run["id"]):
            for some in _batches_by_objects(found, ("request_body", "response_body")):
                filled = await self._fill_objects(some, ("request_body", "response_body"))
                rows = [
                    (str(row["id"]), *list(row.values())[1:], *keys.get(str(row["id"]), (None, None))) for row in filled
                ]
                count += len(rows)
                yield encode_frame(Rows(rows))
        # Rows before parts: the parts to which a row refers are stored with it.
        async for found in self._batches(PARTS, run["id"]):
            for some in _batches_by_objects(found, ("body",)):
                filled = await self._fill_objects(some, ("body",))
                yield encode_frame(Parts([(row["hash"], row["body"]) for row in filled]))
        async for one in EffectQueries(self.database, self.project).batches(run["id"]):
            yield encode_frame(Effects([one]))
        yield encode_frame(Tail(count, gaps))

    async def _batches(self, query: str, run: str) -> AsyncIterator[list[Any]]:
        async with (
            self.database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            cursor = await connection.cursor(query, self.project, run)
            while found := await cursor.fetch(self.batch):
                yield found

    async def _fill_objects(self, rows: Sequence[Any], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows with the contents of objects in their columns; of one that cannot be had, why."""
        refs = objects_of(row[column] for row in rows for column in columns)
        contents = await self.database.objects.load(self.project, refs) if refs else {}
        return [
            {name: fill_in(value, contents) if name in columns and value else value for name, value in row.items()}
            for row in rows
        ]


def _batches_by_objects(rows: Sequence[Any], columns: Sequence[str]) -> Iterator[list[Any]]:
    """Divide rows so that only so many bytes from object storage are held at a time."""
    batch: list[Any] = []
    size = 0
    for row in rows:
        own = sum(ref.size for ref in objects_of(row[column] for column in columns))
        if batch and own and size + own > MOST_FROM_OBJECTS:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += own
    if batch:
        yield batch


ROWS = f"""
SELECT {", ".join(COLUMNS)} FROM exchanges WHERE project = $1 AND run = $2 ORDER BY started_at, id
"""  # noqa: S608 - constants

PARTS = "SELECT DISTINCT ON (hash) hash, body FROM parts WHERE project = $1 AND run = $2 ORDER BY hash, day"
