"""Read which models answered, and how often they repeated and changed an answer, from the days that are stored, and the others from the calls.

Days at both ends of a question, those that are not over, and those in which something was stored a moment ago are read from the calls;
the previous answers to their requests may be on any day, and are found by `model_answers`. All is read in one snapshot.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import asyncpg
from sqlalchemy import ARRAY, BigInteger, Text, any_, literal, select, text

from store.database.asyncio_engine import AsyncConnection
from store.database.connection import Database
from store.database.tables import call_sums, calls
from store.drift.model_days import COUNTS_OF_PAIRS, ModelDay, load_days
from store.drift.variants import (
    HAS_ANSWER,
    IN_RANGE,
    TELLS,
    Repeats,
    Variant,
    VariantIdentity,
    load_variants,
    make_repeats,
)
from store.sums.positions import load_changed_runs
from store.sums.summed_days import DAY

MOST_CHANGES: Final = 1000
"""Rows of the feed since the stored days were made, beyond which the calls alone are read."""

ALL_OF_READ_ANEW: Final = 8
"""Where more than one of so many days has to be read anew, reading all calls is faster than looking for the answers before each."""

_END_OF_TIME: Final = 1 << 62


class ModelAnswers(NamedTuple):
    """What answered, and how often requests were repeated."""

    variants: Sequence[Variant]
    repeats: Sequence[Repeats]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Which times are read from what."""

    stored: Sequence[ModelDay]
    """Days of which the variants are stored."""

    linked: Sequence[ModelDay]
    """Those of them of which all repeats are stored as well, and asked for."""

    fresh: Sequence[tuple[int, int]]
    """Times that are read from the calls."""

    counted: Sequence[tuple[int, int]]
    """Times of stored days in which repeats are counted anew."""

    @property
    def read_anew(self) -> int:
        """The number of days of which answers are read."""
        return len(self.fresh) + len(self.counted)


async def read_stored_days(
    database: Database, project: str, since: int | None, until: int | None
) -> ModelAnswers | None:
    """Read all variants until a time, and the repeats since another; None if little is stored, so that to read all calls is faster."""
    async with database.transaction() as connection:
        await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        changed = await load_changed_runs(connection, project, MOST_CHANGES)
        if changed is None:
            return None
        stale = await _days_of_runs(connection, project, changed)
        driver: Any = (await connection.get_raw_connection()).driver_connection
        times = _divide(await load_days(driver, project), stale, since or 0, until or _END_OF_TIME)
        if times.read_anew > 1 + (len(times.stored) + len(times.fresh)) // ALL_OF_READ_ANEW:
            return None
        # As for the calls: enough to sort a hundred thousand answers in memory.
        await connection.execute(text("SET LOCAL work_mem = '64MB'"))
        variants = [variant for day in times.stored for variant in day.variants or ()]
        repeats = [one for day in times.linked for one in day.repeats or ()]
        if times.fresh:
            variants += await load_variants(driver, project, times.fresh)
        if times.fresh or times.counted:
            repeats += await _count_repeats(driver, project, times, since or 0)
    return ModelAnswers(sorted(variants, key=lambda one: one.first_at), repeats)


async def _days_of_runs(connection: AsyncConnection, project: str, runs: Collection[str]) -> set[int]:
    """The days on which these runs have calls, or had some when they were summed."""
    if not runs:
        return set()
    names = literal(sorted(runs), ARRAY(Text))
    day = literal(DAY, BigInteger)
    found: set[int] = set()
    for table, time in ((calls, calls.c.started_at), (call_sums, call_sums.c.hour)):
        of_runs = (table.c.project == project, table.c.run == any_(names))
        found |= set((await connection.execute(select(time - time % day).where(*of_runs).distinct())).scalars())
    return found


def _divide(days: Sequence[ModelDay], stale: set[int], since: int, until: int) -> _Times:
    stored: list[ModelDay] = []
    linked: list[ModelDay] = []
    fresh: list[tuple[int, int]] = []
    counted: list[tuple[int, int]] = []
    by_day = {one.day: one for one in days}
    # Once a day is read from the calls, the later ones may repeat its requests.
    is_whole_before = True
    for day in sorted(by_day.keys() | stale):
        one, end = by_day.get(day), day + DAY
        if day >= until:
            break
        if one is None or one.variants is None or day in stale or end > until:
            fresh.append((day, min(end, until)))
            is_whole_before = False
            continue
        stored.append(one)
        if end <= since:
            continue
        if is_whole_before and one.repeats is not None and day >= since:
            linked.append(one)
        else:
            counted.append((max(day, since), end))
    return _Times(stored=stored, linked=linked, fresh=fresh, counted=counted)


async def _count_repeats(connection: asyncpg.Connection, project: str, times: _Times, since: int) -> list[Repeats]:
    fresh, counted, stored = (
        ([begin for begin, _ in ranges], [end for _, end in ranges])
        for ranges in (times.fresh, times.counted, [(day.day, day.day + DAY) for day in times.stored])
    )
    rows = await connection.fetch(REPEATS, project, *fresh, *counted, stored[0], since)
    identities = {day.day: [variant.identity for variant in day.variants or ()] for day in times.stored}
    return [_read_repeats(row, identities) for row in rows]


def _read_repeats(row: asyncpg.Record, identities: dict[int, list[VariantIdentity]]) -> Repeats:
    was, now = (
        identities[row[f"{side}day"]][row[f"{side}variant"]]
        if row[f"{side}identity"] is None
        else tuple(row[f"{side}identity"])
        for side in ("was_", "")
    )
    return make_repeats(row, was, now)


_STORED: Final = (
    f"key, started_at, id, answer, started_at - started_at % {DAY} AS day, variant, NULL::text[] AS identity"
)

# Answers that are read from the calls, those of which it is counted whether they repeat, and the last before each of both.
REPEATS: Final = f"""
WITH fresh AS MATERIALIZED (
    SELECT substring(key FOR 16) AS key, started_at, id, answer, NULL::bigint AS day, NULL::int AS variant,
        ARRAY[provider, model_requested, model_returned, fingerprint] AS identity, started_at >= $7 AS is_counted
    FROM unnest($2::bigint[], $3::bigint[]) AS ranges (range_begin, range_end) JOIN calls ON {IN_RANGE}
    WHERE {TELLS} AND {HAS_ANSWER}
), counted AS MATERIALIZED (
    SELECT {_STORED}, true AS is_counted
    FROM unnest($4::bigint[], $5::bigint[]) AS ranges (range_begin, range_end) JOIN model_answers ON {IN_RANGE}
    WHERE model_answers.project = $1
), earlier AS (
    SELECT last.* FROM (
        SELECT key, started_at, id FROM fresh UNION ALL SELECT key, started_at, id FROM counted
    ) AS now CROSS JOIN LATERAL (
        SELECT {_STORED}, false AS is_counted FROM model_answers
        WHERE model_answers.project = $1 AND model_answers.key = now.key
            AND (model_answers.started_at, model_answers.id) < (now.started_at, now.id)
            AND started_at - started_at % {DAY} = ANY ($6::bigint[])
        ORDER BY model_answers.started_at DESC, model_answers.id DESC LIMIT 1
    ) AS last
), answers AS (
    SELECT DISTINCT ON (key, started_at, id) *
    FROM (SELECT * FROM fresh UNION ALL SELECT * FROM counted UNION ALL SELECT * FROM earlier) AS each
    ORDER BY key, started_at, id, is_counted DESC
), pairs AS (
    SELECT *, lag(id) OVER earlier AS was_id, lag(answer) OVER earlier AS was_answer, lag(day) OVER earlier AS was_day,
        lag(variant) OVER earlier AS was_variant, lag(identity) OVER earlier AS was_identity
    FROM answers WINDOW earlier AS (PARTITION BY key ORDER BY started_at, id)
)
SELECT day, variant, identity, was_day, was_variant, was_identity, {COUNTS_OF_PAIRS}
FROM pairs WHERE is_counted AND was_id IS NOT NULL
GROUP BY day, variant, identity, was_day, was_variant, was_identity
"""  # noqa: S608 - constants of this package
