"""Keep who writes to a day apart from who replaces its partitions, by one order of locks.

Replacing a day's partitions (`retention.partition_swap`) takes a while, and at its end needs the partitioned tables alone. A writer that
waited for a partition would hold these tables meanwhile: each would wait for the other. So a writer takes a shared lock of its days, or of
any day, **before** it holds anything else; whoever replaces partitions has those locks alone. The order for everybody: days, then rows of
`runs` by name, then the partitioned tables, then all else. The locks are advisory and end with the transaction.
"""

import datetime as dt
from collections.abc import Collection
from typing import Final

import asyncpg

_CLASS: Final = 0x64617973  # "days"
_ANY: Final = 0
"""The lock of writers that do not know their days."""

OTHERS_TIMEOUT: Final = 600.0
"""Seconds to wait for another who replaces partitions."""

WRITERS_TIMEOUT: Final = "2s"
"""How long to wait for those who write to the day, while others wait behind."""


async def share_days(connection: asyncpg.Connection, days: Collection[dt.date]) -> None:
    """Lock days for writing, first in a transaction."""
    await connection.execute(SHARE, _CLASS, sorted(day.toordinal() for day in days))


async def share_any_day(connection: asyncpg.Connection) -> None:
    """Lock all days for writing, first in a transaction."""
    await connection.execute(SHARE, _CLASS, [_ANY])


async def try_to_share_any_day(connection: asyncpg.Connection) -> bool:
    """Lock all days for writing in a transaction that holds other locks; return whether that was possible without waiting."""
    is_shared: bool = await connection.fetchval("SELECT pg_try_advisory_xact_lock_shared($1, $2)", _CLASS, _ANY)
    return is_shared


async def lock_day(connection: asyncpg.Connection, day: dt.date) -> None:
    """Lock a day alone, first in a transaction. Raises `asyncpg.LockNotAvailableError`."""
    await connection.execute(f"SET LOCAL lock_timeout = '{OTHERS_TIMEOUT:.0f}s'")
    await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", _CLASS, _ANY, timeout=OTHERS_TIMEOUT)
    await connection.execute(f"SET LOCAL lock_timeout = '{WRITERS_TIMEOUT}'")
    await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", _CLASS, day.toordinal())


SHARE = "SELECT pg_advisory_xact_lock_shared($1, day) FROM unnest($2::int[]) AS day"
