"""Find the names of tools that begin as a filter says (`tool=delete_*`)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import func, or_, select

from store.database.connection import Database
from store.database.tables import call_sums
from store.query.filters import Filters

MOST_NAMES: Final = 500
"""Names that one filter finds at most, in alphabetical order."""

_HOUR: Final = 3600 * 10**9


async def resolve_tools(database: Database, project: str, filters: Filters) -> Filters:
    """Add the names that the prefixes among the filter's tools find, from the sums of calls, which follow the record."""
    if not (prefixes := filters.tool_prefixes):
        return filters
    query = select(func.unnest(call_sums.c.tools).label("tool")).where(call_sums.c.project == project)
    if filters.since is not None:
        query = query.where(call_sums.c.hour >= filters.since - filters.since % _HOUR)
    if filters.until is not None:
        query = query.where(call_sums.c.hour < filters.until)
    tool = query.subquery("tools").c.tool
    begins = or_(*(tool.startswith(prefix, autoescape=True) for prefix in prefixes))
    found = select(tool).distinct().where(begins).order_by(tool).limit(MOST_NAMES)
    async with database.transaction() as connection:
        names: Sequence[str] = (await connection.execute(found)).scalars().all()
    return replace(filters, matching_tools=tuple(names))
