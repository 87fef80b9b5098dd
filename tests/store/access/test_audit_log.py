"""The audit log loses no entry."""

import asyncio

from store.access.audit_log import AuditEntry, AuditLog
from store.database.connection import Database
from tests.store.samples import NOON


async def test_two_writers_at_once_write_each_entry_once(database: Database) -> None:
    log = AuditLog(database, lambda: NOON)

    async def flush_and_add(number: int) -> None:
        await log.flush()
        log.add(AuditEntry("north", None, "read", f"later-{number}", "/", 200))

    for number in range(3):
        log.add(AuditEntry("north", None, "read", f"{number}", "/", 200))
    await asyncio.gather(*map(flush_and_add, range(5)))
    await log.flush()
    async with database.connection() as connection:
        rows = await connection.fetch("SELECT subject FROM audit_log WHERE project = 'north'")
    written = [row["subject"] for row in rows]
    assert sorted(written) == ["0", "1", "2", *(f"later-{number}" for number in range(5))]
