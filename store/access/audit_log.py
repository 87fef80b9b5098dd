"""Note who read bodies, exported, changed or deleted what, through the REST API.

Entries wait in memory for at most `FLUSH_INTERVAL` and are written in batches, so that no request waits for them. If the
database does not answer, they are kept; once `MAX_WAITING` wait, requests that would have to be noted are refused.
"""

import asyncio
import logging
import secrets
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import asyncpg

from calls.uuid7 import Uuid7
from store.database.connection import Database, DatabaseError
from store.database.rows import storable_text

log = logging.getLogger(__name__)

FLUSH_INTERVAL: Final = 0.5
"""Seconds between two batches."""

BATCH: Final = 1000
MAX_WAITING: Final = 10_000
MAX_TEXT: Final = 2000

KEEP: Final = 400 * 86_400 * 10**9
"""Nanoseconds after which entries are deleted: longer than a year."""


class AuditEntry(NamedTuple):
    """One request."""

    project: str
    token: str | None
    """The name of the token; None where none was needed."""

    action: str
    subject: str | None
    """The run, call, exchange or replay."""

    path: str
    """The path and query of the request."""

    status: int


class AuditLog:
    """The entries that wait to be written, and those in the database."""

    def __init__(self, database: Database, now: Callable[[], int]) -> None:
        self._database = database
        self._now = now
        self._new_id = Uuid7(now, secrets.randbits)
        self._waiting: deque[tuple[str, AuditEntry]] = deque()
        self._has_entries = asyncio.Event()
        self._flushing = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether no entry can be added until the database answers."""
        return len(self._waiting) >= MAX_WAITING

    def add(self, entry: AuditEntry) -> None:
        """Add an entry, which is written soon."""
        self._waiting.append((self._new_id(), entry))
        self._has_entries.set()

    async def run(self) -> None:
        """Write entries until cancelled."""
        while True:
            await self._has_entries.wait()
            await asyncio.sleep(FLUSH_INTERVAL)
            try:
                await self.flush()
            except DatabaseError as error:
                log.warning("%d entries of the audit log are written later: %s", len(self._waiting), error)

    async def flush(self) -> None:
        """Write the entries that wait. Raises DatabaseError, and keeps them then."""
        # Lists flush, too: two at once would write the same batch, and each would remove as many entries from the queue.
        async with self._flushing:
            self._has_entries.clear()
            try:
                while self._waiting:
                    await self._write([self._waiting[place] for place in range(min(BATCH, len(self._waiting)))])
            except DatabaseError:
                self._has_entries.set()
                raise

    async def _write(self, batch: Sequence[tuple[str, AuditEntry]]) -> None:
        """Write the oldest entries that wait, and remove them."""
        async with self._database.connection() as connection:
            # Writing one twice, after a lost answer, has one result.
            await connection.executemany(INSERT, [_row(name, entry) for name, entry in batch])
        for _ in batch:
            self._waiting.popleft()


async def delete_old_audit_entries(connection: asyncpg.Connection, now: int) -> None:
    """Delete the entries of all projects that are older than `KEEP`."""
    # Not a join: each project's entries are in one shard.
    for row in await connection.fetch("SELECT DISTINCT project FROM audit_log"):
        await connection.execute(DELETE_OLD, row["project"], uuid.UUID(int=max((now - KEEP) // 10**6, 0) << 80))


def _row(name: str, entry: AuditEntry) -> tuple[object, ...]:
    texts = [None if text is None else storable_text(text)[:MAX_TEXT] for text in entry[:5]]
    return (*texts, entry.status, uuid.UUID(name))


INSERT: Final = """
INSERT INTO audit_log (project, token, action, subject, path, status, id) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (project, id) DO NOTHING
"""

DELETE_OLD: Final = "DELETE FROM audit_log WHERE project = $1 AND id < $2"
