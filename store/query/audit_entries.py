"""List the entries of the audit log, newest first."""

import uuid
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select

from store.database.connection import Database
from store.database.tables import audit_log
from store.query.pages import NEWEST_FIRST, BadCursor, Cursor, list_digest, parse_cursor
from store.query.rest_shapes import rfc3339
from store.query.runs import Page

_MILLISECOND: Final = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilters:
    """Which entries to list. Times are nanoseconds since the Unix epoch; None does not restrict."""

    since: int | None = None
    until: int | None = None
    token: str | None = None
    action: str | None = None
    subject: str | None = None


async def load_audit_page(
    database: Database, project: str, filters: AuditFilters, limit: int, cursor_text: str | None
) -> Page:
    """Load a page of the audit log of a project. Raises `BadCursor`."""
    digest = list_digest(f"audit {filters}", project, NEWEST_FIRST)
    cursor = parse_cursor(cursor_text, digest)
    query = select(audit_log).where(audit_log.c.project == project)
    for column, value in (
        (audit_log.c.token, filters.token),
        (audit_log.c.action, filters.action),
        (audit_log.c.subject, filters.subject),
    ):
        query = query if value is None else query.where(column == value)
    if filters.since is not None:
        query = query.where(audit_log.c.id >= _first_id(filters.since))
    if filters.until is not None:
        query = query.where(audit_log.c.id < _first_id(filters.until))
    if cursor is not None:
        query = query.where(audit_log.c.id < _cursor_id(cursor))
    async with database.transaction() as connection:
        rows = (await connection.execute(query.order_by(audit_log.c.id.desc()).limit(limit + 1))).mappings().all()
    items = [
        {
            "at": rfc3339(_time_of(row["id"])),
            "project": row["project"],
            **{name: row[name] for name in ("token", "action", "subject", "path", "status")},
        }
        for row in rows[:limit]
    ]
    last = rows[limit - 1]["id"] if len(rows) > limit else None
    return Page(items, last and str(Cursor(digest, None, _time_of(last), str(last))))


def _first_id(time: int) -> uuid.UUID:
    """Return the least uuidv7 of this time."""
    return uuid.UUID(int=max(time // _MILLISECOND, 0) << 80)


def _time_of(name: uuid.UUID) -> int:
    return (name.int >> 80) * _MILLISECOND


def _cursor_id(cursor: Cursor) -> uuid.UUID:
    try:
        return uuid.UUID(cursor.id)
    except ValueError as error:
        raise BadCursor(f"invalid cursor for {cursor.id[:80]!r}: request the first page, without a cursor") from error
