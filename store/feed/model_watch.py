"""Notice that another model answers under a name: a consumer of the feed that writes `ModelChanged`.

What answered is known by the model that it names and the fingerprint that it states. A model that has answered under the name
before is no news, so two that alternate are told of once.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Final

import asyncpg

from store.feed.entries import CallStored, FeedEntry, ModelChanged
from store.feed.feed import FeedRow, append_entries

MOST_NAMES: Final = 1000
"""Names whose models are remembered; those of others are looked up."""

MOST_VARIANTS: Final = 200
"""Models that are remembered of a name. A name with more says something new with each answer, and is told of no more."""

type _Name = tuple[str, str, str]
"""Project, provider, requested model."""

type _Variant = tuple[str | None, str | None]
"""Returned model, fingerprint."""


class ModelWatch:
    """The consumer."""

    name = "models/1"

    def __init__(self) -> None:
        self._known: OrderedDict[_Name, dict[_Variant, None]] = OrderedDict()

    async def process(self, connection: asyncpg.Connection, project: str, rows: Sequence[FeedRow]) -> None:
        """Append an entry for each model that answers for the first time."""
        calls = [entry for row in rows for entry in row.entries if isinstance(entry, CallStored) and _can_tell(entry)]
        changes: list[FeedEntry] = []
        new = [one.id for one in calls]
        for call in calls:
            known = await self._known_variants(connection, project, call, new)
            variant = (call.model_returned, call.fingerprint)
            if known and variant not in known and len(known) < MOST_VARIANTS:
                changes.append(_change(call, next(reversed(known))))
            # The newest last.
            known.pop(variant, None)
            known[variant] = None
            if len(known) > MOST_VARIANTS:
                del known[next(iter(known))]
        if changes:
            # A client may name the entry as the last that it has seen, so it must not be lost with the host.
            await connection.execute("SET LOCAL synchronous_commit TO DEFAULT")
            await append_entries(connection, project, changes)

    async def rebuild(self, _: str) -> AsyncIterator[None]:
        """Do nothing: what was stored before this consumer began is no news."""
        yield

    async def _known_variants(
        self, connection: asyncpg.Connection, project: str, call: CallStored, new: Sequence[str]
    ) -> dict[_Variant, None]:
        name = (project, call.provider, call.model or "")
        if (known := self._known.get(name)) is None:
            rows = await connection.fetch(VARIANTS, project, call.provider, call.model, new, MOST_VARIANTS)
            known = self._known[name] = {(row["model_returned"], row["fingerprint"]): None for row in reversed(rows)}
            if len(self._known) > MOST_NAMES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(name)
        return known


def _can_tell(call: CallStored) -> bool:
    """Whether the call tells which model answered: it has an answer of one that was requested by name."""
    return call.kind == "model" and call.status is not None and call.status < 300 and call.model_returned is not None


def _change(call: CallStored, was: _Variant) -> ModelChanged:
    return ModelChanged(
        run=call.run,
        at=call.at,
        call=call.id,
        provider=call.provider,
        model=call.model or "",
        returned=call.model_returned,
        fingerprint=call.fingerprint,
        was_returned=was[0],
        was_fingerprint=was[1],
    )


# By `calls_models_idx` alone.
VARIANTS = """
SELECT model_returned, fingerprint FROM calls
WHERE project = $1 AND provider = $2 AND model_requested = $3 AND kind = 'model' AND status < 300
    AND id <> ALL ($4::uuid[])
GROUP BY model_returned, fingerprint ORDER BY max(started_at) DESC LIMIT $5
"""
