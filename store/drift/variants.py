"""The models that answered to a name, and how often requests were repeated, found in the calls themselves."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import asyncpg
import msgspec

EXAMPLES: Final = 3


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One model with one fingerprint that answered to a name."""

    provider: str
    model_requested: str | None
    model_returned: str
    fingerprint: str | None
    calls: int
    first_at: int
    last_at: int
    first: tuple[str, ...]
    """Ids of its first calls, in the order of time."""

    last: tuple[str, ...]
    """Ids of its last calls, in the order of time."""

    @property
    def name(self) -> tuple[str, str]:
        """The provider and the requested model."""
        return self.provider, self.model_requested or ""

    @property
    def identity(self) -> "VariantIdentity":
        """What distinguishes it from others."""
        return self.provider, self.model_requested, self.model_returned, self.fingerprint


type VariantIdentity = tuple[str, str | None, str, str | None]
"""Provider, requested model, returned model, fingerprint."""


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """How often one variant answered a request that another, or the same one, had answered last."""

    was: VariantIdentity
    now: VariantIdentity
    again: int
    otherwise: int
    """How often with another answer."""

    first_at: int | None = None
    """When that happened first."""

    example: str | None = None
    """The earlier call of the first pair of different answers."""

    example_now: str | None = None
    """The later one."""


def merge_variants(variants: Iterable[Variant]) -> list[Variant]:
    """Join what was found on several days, which are given in the order of time. As Postgres sorts it."""
    merged: dict[VariantIdentity, Variant] = {}
    for one in variants:
        before = merged.get(one.identity)
        merged[one.identity] = one if before is None else _join_variants(before, one)
    return sorted(merged.values(), key=_order_of_variant)


def _join_variants(before: Variant, after: Variant) -> Variant:
    return msgspec.structs.replace(
        before,
        calls=before.calls + after.calls,
        last_at=after.last_at,
        first=(*before.first, *after.first)[:EXAMPLES],
        last=(*before.last, *after.last)[-EXAMPLES:],
    )


def _order_of_variant(one: Variant) -> tuple[Any, ...]:
    return (
        one.provider,
        _nulls_last(one.model_requested),
        one.first_at,
        one.model_returned,
        _nulls_last(one.fingerprint),
    )


def merge_repeats(repeats: Iterable[Repeats]) -> list[Repeats]:
    """Join what was found on several days. As Postgres sorts it, by the later variant."""
    merged: dict[tuple[VariantIdentity, str, str | None], Repeats] = {}
    for one in repeats:
        place = (one.now, one.was[2], one.was[3])
        before = merged.get(place)
        merged[place] = one if before is None else _join_repeats(before, one)
    return sorted(merged.values(), key=lambda one: [*map(_nulls_last, one.now), *map(_nulls_last, one.was[2:])])


def _join_repeats(one: Repeats, other: Repeats) -> Repeats:
    # Times are equal where an import has none: then the smaller id, as for all calls.
    first = min((one, other), key=lambda each: (_nulls_last(each.first_at), each.example_now or ""))
    return msgspec.structs.replace(first, again=one.again + other.again, otherwise=one.otherwise + other.otherwise)


def _nulls_last(value: Any) -> tuple[bool, Any]:
    return value is None, value if value is not None else ""


async def load_variants(
    connection: asyncpg.Connection, project: str, ranges: Sequence[tuple[int, int]]
) -> list[Variant]:
    """Load the models that answered at these times, each from its beginning to its end, from the calls."""
    begins, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
    return [read_variant(row) for row in await connection.fetch(VARIANTS_IN_RANGES, project, begins, ends)]


def read_variant(row: asyncpg.Record) -> Variant:
    """Read a row of `select_variants`."""
    first, last = (tuple(str(name) for name in row[column]) for column in ("first", "last"))
    return Variant(
        provider=row["provider"],
        model_requested=row["model_requested"],
        model_returned=row["model_returned"],
        fingerprint=row["fingerprint"],
        calls=row["calls"],
        first_at=row["first_at"],
        last_at=row["last_at"],
        first=first,
        last=last,
    )


def make_repeats(row: asyncpg.Record, was: VariantIdentity, now: VariantIdentity) -> Repeats:
    """Read the counts and examples of a row of repeats, whose variants were found already."""
    return Repeats(
        was=was,
        now=now,
        again=row["again"],
        otherwise=row["otherwise"],
        first_at=row["first_at"],
        example=row["example"] and str(row["example"]),
        example_now=row["example_now"] and str(row["example_now"]),
    )


TELLS: Final = """
    calls.project = $1 AND kind = 'model' AND status < 300 AND model_returned IS NOT NULL
    AND EXISTS (
        SELECT FROM runs
        WHERE runs.project = $1 AND runs.id = calls.run AND NOT runs.labels @> '{"kind": "canary"}'
    )
"""
"""Calls that tell which model answered, in ordinary traffic: not what canaries ask, nor what is about to be removed with its run."""

HAS_ANSWER: Final = "complete AND answer IS NOT NULL"
"""Calls whose answers are compared."""

IDENTITY: Final = "provider, model_requested, model_returned, fingerprint"


def select_variants(source: str) -> str:
    """Return the statement that groups these calls by what answered."""
    # One array of ids serves for the first and the last: the index returns this order, and another one would need a sort.
    return f"""
SELECT {IDENTITY}, calls, first_at, last_at,
    ids[:{EXAMPLES}] AS first, ids[greatest(1, calls - {EXAMPLES - 1}):] AS last
FROM (
    SELECT {IDENTITY}, count(*)::int AS calls,
        min(started_at) AS first_at, max(started_at) AS last_at, array_agg(id ORDER BY started_at, id) AS ids
    FROM {source}
    GROUP BY {IDENTITY}
) AS variants
ORDER BY provider, model_requested, first_at, model_returned, fingerprint
"""  # noqa: S608 - constants of this package


RANGES: Final = "unnest($2::bigint[], $3::bigint[]) AS ranges (range_begin, range_end)"
IN_RANGE: Final = "started_at >= range_begin AND started_at < range_end"

VARIANTS_IN_RANGES: Final = select_variants(f"{RANGES} JOIN calls ON {IN_RANGE} WHERE {TELLS}")
