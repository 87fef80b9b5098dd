"""Find changes of the model behind a name in ordinary runs, without replays or canaries.

The result has three parts. `items`: changes, where another model or fingerprint began to answer to the same name.
`variants`: all models and fingerprints that answered, and when. `answers`: how often an identical request was repeated and
answered differently: if that share rises at once, the model changed even if the provider reports no change.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched, groupby
from operator import attrgetter
from typing import Final

import asyncpg

from calls.comparison.answer_fingerprint import answer_digest
from calls.keys.profile import Profiles
from calls.model import Call, Exchange
from store.database.connection import Database
from store.drift.stored_days import ModelAnswers, read_stored_days
from store.drift.variants import (
    HAS_ANSWER,
    TELLS,
    Repeats,
    Variant,
    VariantIdentity,
    make_repeats,
    merge_repeats,
    merge_variants,
    read_variant,
    select_variants,
)
from store.query.call_reader import CallReader
from store.query.rest_shapes import Shape, rfc3339

COMPARED: Final = 1000
"""Pairs of different answers, the newest, that are compared under the profiles in force. Older pairs count as different."""

READ_AT_ONCE: Final = 20
"""Pairs whose exchanges are in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftQuestion:
    """Which calls and changes to report."""

    since: int | None = None
    """Nanoseconds since the Unix epoch: earlier changes are omitted, but earlier calls are still compared with."""

    until: int | None = None
    model: str | None = None
    """The model as it was requested, or as the answer names it."""

    provider: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Another variant began to answer to a name."""

    was: Variant
    now: Variant

    @property
    def is_replacement(self) -> bool:
        """Whether the old variant has not answered since."""
        return self.was.last_at < self.now.first_at

    @property
    def is_rolled_out(self) -> bool:
        """Whether both answered at first, and the old variant not since, for at least as long; if neither, the two alternate."""
        both = self.was.last_at - self.now.first_at
        return 0 <= both <= self.now.last_at - self.was.last_at


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerComparison:
    """Compares answers without the parts that the profiles in force ignore, as a diff does."""

    recorded: CallReader
    derive: Callable[[Exchange], Call]
    profiles: Profiles

    @property
    def is_needed(self) -> bool:
        """Whether any profile ignores something."""
        return any(self.profiles.ignored_answer_fields(profile.name) for profile in self.profiles.profiles)

    async def equal_answers(self, pairs: Iterable[tuple[str, str]]) -> list[str]:
        """Return the later call of each pair whose answers are equal apart from ignored parts."""
        return [later for batch in batched(pairs, READ_AT_ONCE) for later in await self._equal_answers(batch)]

    async def _equal_answers(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        names = await self.recorded.without_large({name for pair in pairs for name in pair})
        evidence, _ = await self.recorded.readable_exchanges(names)
        meanings = await asyncio.to_thread(lambda: {name: self._meaning(each) for name, each in evidence.items()})
        return [later for earlier, later in pairs if later in meanings and meanings[later] == meanings.get(earlier)]

    def _meaning(self, exchange: Exchange) -> str:
        call = self.derive(exchange)
        return answer_digest(exchange, call, self.profiles.ignored_answer_fields(call.profile))


async def find_model_changes(
    database: Database,
    question: DriftQuestion,
    project: str = "default",
    *,
    comparison: AnswerComparison | None = None,
    uses_days: bool = True,
) -> Shape:
    """Return the changes of models, newest first, the variants, and how often requests were repeated.

    Without `uses_days`, from the calls alone, which has the same result. So it is with profiles that ignore parts of answers, too.
    """
    found: ModelAnswers | None = None
    if uses_days and not (comparison is not None and comparison.is_needed):
        stored = await read_stored_days(database, project, question.since, question.until)
        found = stored and _narrow(stored, question)
    variants, again = found or await _read_calls(database, question, project, comparison)
    changes = [change for change in variant_changes(variants) if change.now.first_at >= (question.since or 0)]
    changes.sort(key=lambda change: change.now.first_at, reverse=True)
    return {
        "items": [_change_shape(change, again) for change in changes],
        "next": None,
        "variants": [_variant_shape(variant) for variant in variants if variant.last_at >= (question.since or 0)],
        "answers": [_answers_shape(one) for one in again if one.was[2:] == one.now[2:]],
    }


def _narrow(found: ModelAnswers, question: DriftQuestion) -> ModelAnswers | None:
    """Return what is asked for; None if that needs the calls: the previous answer of another model does not count then, but one before."""

    def is_meant(one: VariantIdentity) -> bool:
        return question.provider in (None, one[0]) and question.model in (None, one[1], one[2])

    repeats = [one for one in found.repeats if is_meant(one.now)]
    if not all(is_meant(one.was) for one in repeats):
        return None
    variants = [one for one in found.variants if is_meant(one.identity)]
    return ModelAnswers(merge_variants(variants), merge_repeats(repeats))


async def _read_calls(
    database: Database, question: DriftQuestion, project: str, comparison: AnswerComparison | None
) -> ModelAnswers:
    """Read all calls."""
    conditions = (project, question.provider, question.model, question.until)
    equal: list[str] = []
    if comparison is not None and comparison.is_needed:
        async with database.connection() as connection:
            pairs = await connection.fetch(ANSWERED_OTHERWISE, *conditions, question.since)
        equal = await comparison.equal_answers((str(row["was_id"]), str(row["id"])) for row in pairs)
    async with database.connection() as connection, connection.transaction():
        # Enough to sort a hundred thousand calls in memory rather than on disk.
        await connection.execute("SET LOCAL work_mem = '64MB'")
        variants = [read_variant(row) for row in await connection.fetch(VARIANTS, *conditions)]
        again = await connection.fetch(ASKED_AGAIN, *conditions, question.since, equal)
    return ModelAnswers(variants, [_read_repeats(row) for row in again])


def _read_repeats(row: asyncpg.Record) -> Repeats:
    provider, requested = row["provider"], row["model_requested"]
    was = provider, requested, row["was_model_returned"], row["was_fingerprint"]
    return make_repeats(row, was, (provider, requested, row["model_returned"], row["fingerprint"]))


def variant_changes(variants: Iterable[Variant]) -> Iterator[Change]:
    """Yield each variant except the first of its name, with the one that had answered last when it began."""
    for _, same_name in groupby(sorted(variants, key=attrgetter("name", "first_at")), key=attrgetter("name")):
        earlier: list[Variant] = []
        for variant in same_name:
            if earlier:
                yield Change(was=_latest(earlier, variant), now=variant)
            earlier.append(variant)


def _latest(earlier: Sequence[Variant], now: Variant) -> Variant:
    """Return the variant that answered last before `now` began; one of the same model is preferred."""
    return max(
        earlier,
        key=lambda one: (one.model_returned == now.model_returned, min(one.last_at, now.first_at), one.first_at),
    )


def _change_shape(change: Change, again: Iterable[Repeats]) -> Shape:
    was, now = change.was, change.now
    kind = "fingerprint" if was.model_returned == now.model_returned else "model"
    between = [one for one in again if one.now == now.identity and one.was[2:] == was.identity[2:]]
    return {
        "provider": now.provider,
        "model_requested": now.model_requested,
        "kind": kind,
        "from": {"model_returned": was.model_returned, "system_fingerprint": was.fingerprint},
        "to": {"model_returned": now.model_returned, "system_fingerprint": now.fingerprint},
        "first_at": rfc3339(now.first_at),
        "last_before_at": rfc3339(was.last_at),
        "replaced": change.is_replacement,
        "rolled_out": change.is_rolled_out,
        "calls_before": was.calls,
        "calls_after": now.calls,
        "examples": {"before": list(was.last)[::-1], "after": list(now.first)},
        "same_requests": _repeat_counts(between),
    }


def _repeat_counts(repeats: Sequence[Repeats]) -> Shape:
    """Count how often both answered the same request, and how often differently."""
    example = next(([one.example, one.example_now] for one in repeats if one.example), None)
    return {
        "asked_again": sum(one.again for one in repeats),
        "answered_otherwise": sum(one.otherwise for one in repeats),
        "example": example,
    }


def _variant_shape(variant: Variant) -> Shape:
    return {
        "provider": variant.provider,
        "model_requested": variant.model_requested,
        "model_returned": variant.model_returned,
        "system_fingerprint": variant.fingerprint,
        "calls": variant.calls,
        "first_at": rfc3339(variant.first_at),
        "last_at": rfc3339(variant.last_at),
        "examples": list(dict.fromkeys((*variant.first[:1], *variant.last[-1:]))),
    }


def _answers_shape(one: Repeats) -> Shape:
    provider, requested, returned, fingerprint = one.now
    return {
        "provider": provider,
        "model_requested": requested,
        "model_returned": returned,
        "system_fingerprint": fingerprint,
        **_repeat_counts([one]),
        "first_at": rfc3339(one.first_at) if one.first_at is not None else None,
    }


_CONDITIONS: Final = f"""
    {TELLS}
    AND ($2::text IS NULL OR provider = $2) AND ($3::text IS NULL OR $3 IN (model_requested, model_returned))
    AND ($4::bigint IS NULL OR started_at < $4)
"""

VARIANTS: Final = select_variants(f"calls WHERE {_CONDITIONS}")

# Each call with the previous call of the same key, hence of the same provider and model, which are part of the key.
_SEEN: Final = f"""
WITH seen AS (
    SELECT provider, model_requested, model_returned, fingerprint, answer, started_at, id,
        lag(id) OVER earlier AS was_id, lag(answer) OVER earlier AS was_answer,
        lag(model_returned) OVER earlier AS was_model_returned, lag(fingerprint) OVER earlier AS was_fingerprint
    FROM calls WHERE {_CONDITIONS} AND {HAS_ANSWER}
    WINDOW earlier AS (PARTITION BY key ORDER BY started_at, id)
)
"""  # noqa: S608 - likewise

ANSWERED_OTHERWISE: Final = f"""{_SEEN}
SELECT was_id, id FROM seen
WHERE was_id IS NOT NULL AND answer <> was_answer AND ($5::bigint IS NULL OR started_at >= $5)
ORDER BY started_at DESC, id LIMIT {COMPARED}
"""  # noqa: S608 - likewise

ASKED_AGAIN: Final = f"""{_SEEN}
SELECT provider, model_requested, was_model_returned, was_fingerprint, model_returned, fingerprint,
    count(*) AS again, count(*) FILTER (WHERE differs) AS otherwise,
    min(started_at) FILTER (WHERE differs) AS first_at,
    (array_agg(was_id ORDER BY started_at, id) FILTER (WHERE differs))[1] AS example,
    (array_agg(id ORDER BY started_at, id) FILTER (WHERE differs))[1] AS example_now
FROM (SELECT *, answer <> was_answer AND NOT (id = ANY ($6::uuid[])) AS differs FROM seen) AS pairs
WHERE was_id IS NOT NULL AND ($5::bigint IS NULL OR started_at >= $5)
GROUP BY provider, model_requested, was_model_returned, was_fingerprint, model_returned, fingerprint
ORDER BY provider, model_requested, model_returned, fingerprint
"""  # noqa: S608 - likewise
