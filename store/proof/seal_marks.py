"""Say how far runs are sealed, and how their last verification ended, without verifying anything: what a list shows beside its runs."""

import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from store.database.connection import Database
from store.query.rest_shapes import Shape, rfc3339

MOST_VERDICTS: Final = 10_000
"""Verifications that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastVerdict:
    """How the last verification of a run ended."""

    verdict: str
    at: int
    incarnation: uuid.UUID
    records: int
    """The length of its chains at that time: if they have grown, the verdict is about less than there is."""


@dataclass(slots=True)
class LastVerdicts:
    """The last verifications since the store server started, by project and run."""

    _verdicts: OrderedDict[tuple[str, str], LastVerdict] = field(default_factory=OrderedDict)

    def note(self, project: str, run: str, verdict: LastVerdict) -> None:
        """Remember a verification, and forget the oldest if there are too many."""
        self._verdicts.pop((project, run), None)
        self._verdicts[project, run] = verdict
        while len(self._verdicts) > MOST_VERDICTS:
            self._verdicts.popitem(last=False)

    def get(self, project: str, run: str) -> LastVerdict | None:
        """Return how the last verification of a run ended; None if there was none."""
        return self._verdicts.get((project, run))


async def load_seals(database: Database, project: str, runs: Sequence[str]) -> dict[str, Any]:
    """Return by run: its incarnation, the length of its chains, whether all of it is sealed, and by which checkpoint the newest of it was."""
    async with database.connection() as connection:
        return {row["id"]: row for row in await connection.fetch(SEALS, project, list(runs))}


def proof_shape(seal: Any, verdict: LastVerdict | None) -> Shape | None:
    """Return what is known of a run's proof; None for a run without one."""
    if seal is None:
        return None
    is_of_run = verdict is not None and verdict.incarnation == seal["incarnation"]
    return {
        "is_sealed": seal["is_sealed"],
        "sealed_at": None if seal["signed_at"] is None else rfc3339(seal["signed_at"]),
        "verified": {
            "verdict": verdict.verdict,
            "at": rfc3339(verdict.at),
            "is_current": verdict.records == seal["records"],
        }
        if verdict is not None and is_of_run
        else None,
    }


SEALS = """
SELECT runs.id, runs.incarnation, sum(chains.size)::bigint AS records,
    bool_and(NOT chains.is_unsealed AND leaf.signed_at IS NOT NULL) AS is_sealed, max(leaf.signed_at) AS signed_at
FROM runs JOIN chains ON chains.project = $1 AND chains.incarnation = runs.incarnation
LEFT JOIN LATERAL (
    SELECT (
        SELECT signed_at FROM checkpoints
        WHERE project = $1 AND server = tree_leaves.server AND checkpoints.size > tree_leaves.place
        ORDER BY checkpoints.size LIMIT 1
    ) AS signed_at
    FROM tree_leaves
    WHERE project = $1 AND tree_leaves.incarnation = chains.incarnation AND tree_leaves.server = chains.server
    ORDER BY place DESC LIMIT 1
) AS leaf ON true
WHERE runs.project = $1 AND runs.id = ANY($2)
GROUP BY runs.id, runs.incarnation
"""
