"""Keep what witnesses and timestamp authorities answered, beside the checkpoints."""

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    # Every command imports this module for its settings.
    import asyncpg

type AnchorKind = Literal["witness", "timestamp"]


class Anchor(NamedTuple):
    """What one of them says about a checkpoint."""

    size: int
    """The size of the checkpoint."""

    kind: AnchorKind
    by: str
    """The name of the witness, or the URL of the authority."""

    at: int
    """When it says to have signed, in nanoseconds since the Unix epoch."""

    content: bytes
    """The line of the witness, or the response of the authority."""


async def store_anchor(connection: "asyncpg.Connection", project: str, server: uuid.UUID, anchor: Anchor) -> None:
    """Store an answer."""
    await connection.execute(STORE, project, server, *anchor)


async def newest_anchor_size(
    connection: "asyncpg.Connection", project: str, server: uuid.UUID, kind: AnchorKind, by: str
) -> int:
    """Return the size of the newest checkpoint that one of them has vouched for; 0 if there is none."""
    found: int | None = await connection.fetchval(NEWEST, project, server, kind, by)
    return found or 0


async def best_anchored_size(
    connection: "asyncpg.Connection", project: str, server: uuid.UUID, beyond: int
) -> int | None:
    """Return the size of the first checkpoint over a size that the most have vouched for; None if nobody has for any of them."""
    found: int | None = await connection.fetchval(BEST, project, server, beyond, MOST_ANCHORS)
    return found


async def load_anchors(connection: "asyncpg.Connection", project: str, server: uuid.UUID, size: int) -> list[Anchor]:
    """Load what was said about the checkpoint of a size."""
    return [_anchor(row) for row in await connection.fetch(OF_SIZE, project, server, size)]


async def load_newest_anchors(
    connection: "asyncpg.Connection", project: str, server: uuid.UUID, beyond: int
) -> Sequence[Anchor]:
    """Load the newest answer of each about a checkpoint over a size."""
    return [_anchor(row) for row in await connection.fetch(NEWEST_OF_EACH, project, server, beyond)]


def _anchor(row: Any) -> Anchor:
    return Anchor(row["size"], row["kind"], row["by"], row["at"], row["content"])


MOST_ANCHORS: Final = 1000
"""Answers that are looked at for the checkpoint of a bundle."""

STORE = """
INSERT INTO anchors (project, server, size, kind, by, at, content) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (project, server, size, kind, by) DO UPDATE SET at = excluded.at, content = excluded.content
"""

NEWEST = "SELECT max(size) FROM anchors WHERE project = $1 AND server = $2 AND kind = $3 AND by = $4"

BEST = """
SELECT size FROM (
    SELECT size FROM anchors WHERE project = $1 AND server = $2 AND size > $3 ORDER BY size LIMIT $4
) AS anchored GROUP BY size ORDER BY count(*) DESC, size LIMIT 1
"""

OF_SIZE = """
SELECT size, kind, by, at, content FROM anchors WHERE project = $1 AND server = $2 AND size = $3 ORDER BY kind, by
"""

NEWEST_OF_EACH = """
SELECT DISTINCT ON (kind, by) size, kind, by, at, content FROM anchors
WHERE project = $1 AND server = $2 AND size > $3 ORDER BY kind, by, size DESC
"""
