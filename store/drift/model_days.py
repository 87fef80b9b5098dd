"""Keep which models answered on each day that is over, and how often they repeated and changed an answer.

A day has one row of `model_days`, and each answer that is compared has one of `model_answers`, by which the previous answer to the same
request is found, on whatever day it was given. Both are made from `calls` once the sums of the day are (`sums.day_sums`), and whatever
changes these forgets both (`sums.summed_days`). The repeats of a day depend on all days before: they are right as long as the number of
changes of all these days is what it was when the repeats were found.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Final

import asyncpg
import msgspec

from store.database.conflicts import TRANSIENT_ERRORS
from store.database.connection import Database, DatabaseError
from store.drift.variants import (
    HAS_ANSWER,
    IDENTITY,
    TELLS,
    Repeats,
    Variant,
    VariantIdentity,
    make_repeats,
    read_variant,
    select_variants,
)
from store.feed.feed import projects_in
from store.sums.summed_days import DAY

log = logging.getLogger(__name__)

POLL_INTERVAL: Final = 60.0
TIMEOUT: Final = 600.0
"""Seconds that reading one day may take."""

MOST_VARIANTS: Final = 10_000
"""Variants of a day that are stored. A day with more is read from the calls."""


type _Step = Callable[[asyncpg.Connection, str, int], Awaitable[bool]]


class ModelDay(msgspec.Struct, frozen=True, kw_only=True):
    """A day of `summed_days`, and what is stored of it."""

    day: int
    changes: int
    """How often the day and all days before it have changed."""

    variants: tuple[Variant, ...] | None
    """None if they are not stored, or not as the day is now."""

    repeats: tuple[Repeats, ...] | None
    """Likewise."""

    is_made: bool
    """Whether the day is as its row says, with too many variants perhaps."""

    can_be_made: bool
    """Whether the day is over and has settled."""


class ModelDays:
    """Makes the rows of days that are over."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Make what is missing, again and again, until the task is cancelled."""
        while True:
            try:
                await self.make_days()
            except DatabaseError as error:
                log.warning("the models of days wait for the database: %s", error)
            await asyncio.sleep(POLL_INTERVAL)

    async def make_days(self) -> int:
        """Make all rows that are missing or outdated, the oldest first; return how many."""
        async with self._database.connection() as connection:
            projects = [row["project"] for row in await connection.fetch(PROJECTS)]
        return sum([await self._make_days_of(project) for project in projects])

    async def _make_days_of(self, project: str) -> int:
        async with self._database.connection() as connection:
            days = await load_days(connection, project)
        count = 0
        for day in days:
            if not day.is_made and day.can_be_made:
                count += await self._try(_make_day, project, day.day)
                # What is stored meanwhile comes first.
                await asyncio.sleep(0)
        return count + await self._link_days_of(project)

    async def _link_days_of(self, project: str) -> int:
        """Find the repeats of the days whose earlier days are all there."""
        async with self._database.connection() as connection:
            days = await load_days(connection, project)
        count = 0
        for day in days:
            if day.variants is None:
                break
            if day.repeats is None:
                count += await self._try(_link_day, project, day.day)
                await asyncio.sleep(0)
        return count

    async def _try(self, step: _Step, project: str, day: int) -> bool:
        """Do a step in one snapshot. If the day changes meanwhile, the next round does it."""
        try:
            async with self._database.connection() as connection, connection.transaction(isolation="repeatable_read"):
                return bool(await step(connection, project, day))
        except (*TRANSIENT_ERRORS, asyncpg.UniqueViolationError):
            # Another store server may have made it a moment ago.
            return False


async def load_days(connection: asyncpg.Connection, project: str) -> list[ModelDay]:
    """Load the days of a project, the oldest first."""
    rows = await connection.fetch(DAYS, project)
    totals = accumulate(row["changes"] for row in rows)
    return [_read_day(row, total) for row, total in zip(rows, totals, strict=True)]


def _read_day(row: asyncpg.Record, changes: int) -> ModelDay:
    is_made = row["is_valid"] and row["made_at"] == row["changes"]
    variants = _variants.decode(row["variants"]) if is_made and row["variants"] is not None else None
    is_linked = variants is not None and row["linked_at"] == changes
    return ModelDay(
        day=row["day"],
        changes=changes,
        variants=variants,
        repeats=_repeats.decode(row["repeats"]) if is_linked else None,
        is_made=is_made,
        can_be_made=row["is_valid"],
    )


async def _make_day(connection: asyncpg.Connection, project: str, day: int) -> bool:
    """Make the row of a day, unless another store server does."""
    if not await connection.fetchval(LOCK_DAY, f"{project}/{day}"):
        return False
    changes = await connection.fetchval(CHANGES, project, day)
    if changes is None:
        return False
    end = day + DAY
    await connection.execute(FORGET_ANSWERS, project, day, end)
    rows = await connection.fetch(VARIANTS_OF_DAY, project, day, end, timeout=TIMEOUT)
    found = [read_variant(row) for row in rows]
    variants = None if len(found) > MOST_VARIANTS else _encoder.encode(found)
    if variants is not None:
        await connection.execute(INSERT_ANSWERS, project, day, end, timeout=TIMEOUT)
    await connection.execute(UPSERT_DAY, project, day, changes, variants)
    # Whoever changes the day waits, and forgets it then; if that has happened, this is a conflict of transactions.
    return await connection.fetchval(LOCK_CHANGES, project, day, changes) is not None


async def _link_day(connection: asyncpg.Connection, project: str, day: int) -> bool:
    """Find the repeats of a day."""
    days = {one.day: one for one in await load_days(connection, project)}
    if day not in days or days[day].variants is None:
        return False
    rows = await connection.fetch(REPEATS_OF_DAY, project, day, day + DAY, timeout=TIMEOUT)
    identities = {one.day: [variant.identity for variant in one.variants or ()] for one in days.values()}
    repeats = [read_repeats(row, identities) for row in rows]
    return await connection.fetchval(SET_REPEATS, project, day, days[day].changes, _encoder.encode(repeats)) is not None


type Identities = dict[int, list[VariantIdentity]]
"""By day, the variants in the order of their numbers."""


def read_repeats(row: asyncpg.Record, identities: Identities) -> Repeats:
    """Read a row of repeats, whose variants are named by their days and numbers."""
    was, now = (identities[row[f"{side}_day"]][row[f"{side}_variant"]] for side in ("was", "now"))
    return make_repeats(row, was, now)


_encoder: Final = msgspec.msgpack.Encoder()
_variants: Final = msgspec.msgpack.Decoder(tuple[Variant, ...])
_repeats: Final = msgspec.msgpack.Decoder(tuple[Repeats, ...])

PROJECTS: Final = projects_in("summed_days")

DAYS: Final = """
SELECT summed_days.day, is_valid, summed_days.changes, model_days.changes AS made_at, variants, linked_at, repeats
FROM summed_days LEFT JOIN model_days ON model_days.project = $1 AND model_days.day = summed_days.day
WHERE summed_days.project = $1 ORDER BY summed_days.day
"""

LOCK_DAY: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 20261126))"

CHANGES: Final = "SELECT changes FROM summed_days WHERE project = $1 AND day = $2 AND is_valid"

LOCK_CHANGES: Final = """
UPDATE summed_days SET is_valid = true WHERE project = $1 AND day = $2 AND changes = $3 AND is_valid RETURNING changes
"""

FORGET_ANSWERS: Final = "DELETE FROM model_answers WHERE project = $1 AND started_at >= $2 AND started_at < $3"

_OF_DAY: Final = f"{TELLS} AND started_at >= $2 AND started_at < $3"

# In the order in which they are numbered.
VARIANTS_OF_DAY: Final = f"SELECT * FROM ({select_variants(f'calls WHERE {_OF_DAY}')}) AS found ORDER BY {IDENTITY}"  # noqa: S608 - constants

INSERT_ANSWERS: Final = f"""
INSERT INTO model_answers (project, key, started_at, id, variant, answer)
SELECT $1, substring(key FOR 16), started_at, id, number - 1, answer FROM (
    SELECT key, started_at, id, answer, complete, dense_rank() OVER (ORDER BY {IDENTITY}) AS number
    FROM calls WHERE {_OF_DAY}
) AS numbered
WHERE {HAS_ANSWER} ORDER BY key
"""  # noqa: S608 - constants of this package

UPSERT_DAY: Final = """
INSERT INTO model_days (project, day, changes, variants) VALUES ($1, $2, $3, $4)
ON CONFLICT (project, day) DO UPDATE SET
    changes = excluded.changes, variants = excluded.variants, linked_at = NULL, repeats = NULL
"""

SET_REPEATS: Final = """
UPDATE model_days SET linked_at = $3, repeats = $4 WHERE project = $1 AND day = $2 RETURNING day
"""

COUNTS_OF_PAIRS: Final = """
    count(*)::int AS again, (count(*) FILTER (WHERE answer <> was_answer))::int AS otherwise,
    min(started_at) FILTER (WHERE answer <> was_answer) AS first_at,
    (array_agg(was_id ORDER BY started_at, id) FILTER (WHERE answer <> was_answer))[1] AS example,
    (array_agg(id ORDER BY started_at, id) FILTER (WHERE answer <> was_answer))[1] AS example_now
"""

REPEATS_OF_DAY: Final = f"""
SELECT now_day, now_variant, was_day, was_variant, {COUNTS_OF_PAIRS}
FROM (
    SELECT $2::bigint AS now_day, now.variant AS now_variant, now.started_at, now.id, now.answer,
        was.day AS was_day, was.variant AS was_variant, was.id AS was_id, was.answer AS was_answer
    FROM model_answers AS now CROSS JOIN LATERAL (
        SELECT started_at - started_at % {DAY} AS day, variant, id, answer FROM model_answers AS earlier
        WHERE earlier.project = $1 AND earlier.key = now.key AND (earlier.started_at, earlier.id) < (now.started_at, now.id)
        ORDER BY earlier.started_at DESC, earlier.id DESC LIMIT 1
    ) AS was
    WHERE now.project = $1 AND now.started_at >= $2 AND now.started_at < $3
) AS pairs
GROUP BY now_day, now_variant, was_day, was_variant
"""  # noqa: S608 - constants of this package
