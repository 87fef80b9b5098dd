"""Export a run's rows for a replay on this machine (`store.bundle.rows_bundle`)."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from calls.events import Gap
from store.bundle.bundle import NOT_EXPORTED
from store.bundle.rows_bundle import COLUMNS, MAGIC, Parts, Rows, RowsHead, Tail, encode_frame
from store.database.connection import Database
from store.database.schema_version import SCHEMA
from store.query.rekey import stored_keys


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
            rows = [(str(row["id"]), *row[1:], *keys.get(str(row["id"]), (None, None))) for row in found]
            count += len(rows)
            yield encode_frame(Rows(rows))
        # Rows before parts: the parts to which a row refers are stored with it.
        async for found in self._batches(PARTS, run["id"]):
            yield encode_frame(Parts([(row["hash"], row["body"]) for row in found]))
        yield encode_frame(Tail(count, gaps))

    async def _batches(self, query: str, run: str) -> AsyncIterator[list[Any]]:
        async with (
            self.database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            cursor = await connection.cursor(query, self.project, run)
            while found := await cursor.fetch(self.batch):
                yield found


ROWS = f"""
SELECT {", ".join(COLUMNS)} FROM exchanges WHERE project = $1 AND run = $2 ORDER BY started_at, id
"""  # noqa: S608 - constants

PARTS = "SELECT DISTINCT ON (hash) hash, body FROM parts WHERE project = $1 AND run = $2 ORDER BY hash, day"
