"""Seal chains: append the heads of those that have grown to the tree of their project, and sign a checkpoint.

A run that has ended is sealed within `POLL_INTERVAL`, any other chain within `SEAL_EVERY`. The newest checkpoint of each project is also
written to a file of the data directory, so that somebody who can only change the database cannot take back what was sealed.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

import asyncpg

from calls.proof.checkpoint import Checkpoint, InvalidNote, parse_note, sign_checkpoint
from calls.proof.records import leaf_bytes
from calls.proof.tree import leaf_hash, tree_root
from store.database.connection import Database, DatabaseError
from store.feed.feed import projects_in
from store.private_file import write_private
from store.proof.chain import chain_name
from store.proof.signing_keys import SigningKeys
from store.proof.tiles import Tiles, load_last_tiles, store_tiles

log = logging.getLogger(__name__)

SEAL_EVERY: Final = 60.0
"""Seconds after which what was stored is sealed at the latest."""

POLL_INTERVAL: Final = 1.0
LARGEST_SEAL: Final = 500
"""Chains that are sealed in one transaction. It holds their locks, for which ingest waits."""


class TreeAltered(Exception):
    """The tree in the database is not the one whose root was signed. Nothing is signed until it is restored."""


class Sealer:
    """Seals the chains of one store server."""

    def __init__(
        self,
        database: Database,
        keys: SigningKeys,
        directory: Path,
        note_checkpoint: Callable[[str], None] = lambda _project: None,
    ) -> None:
        """`directory` gets the newest checkpoint of each project. `note_checkpoint` is told of each project that has a new one."""
        self._database = database
        self._keys = keys
        self._directory = directory
        self._note_checkpoint = note_checkpoint
        self._sealed_at: dict[str, float] = {}
        self._checkpoints: dict[str, tuple[str, Checkpoint]] = {}
        """The note and content of the newest checkpoint of each project, once its signature was checked or made here."""

        self.troubles: dict[str, str] = {}
        """Why no checkpoint is signed for a project, by project."""

        self._turn = asyncio.Lock()
        """Held while a project is sealed: two checkpoints of one size would differ in nothing but their time."""

    async def run(self, report: Callable[[str], None] = lambda _message: None) -> None:
        """Seal until the task is cancelled. A failure is logged and tried again; `report` is told what no longer trying can mend."""
        reported: dict[str, str] = {}
        while True:
            try:
                await self.seal_due(time.monotonic())
            except (DatabaseError, OSError) as error:
                log.warning("checkpoints are signed later: %s", error)
            for project in reported.keys() - self.troubles.keys():
                report(f"checkpoints of project {project} are signed again")
            for project, why in self.troubles.items():
                if reported.get(project) != why:
                    report(
                        f"nothing that is recorded in project {project} is proven from now on, because no checkpoint is signed: {why}."
                        " Run `playhead verify --all`, and restore the database and keys/proof of one and the same time (docs/proof.md)"
                    )
            reported = dict(self.troubles)
            await asyncio.sleep(POLL_INTERVAL)

    async def seal_due(self, now: float) -> None:
        """Seal the projects in which a run has ended, or that were not sealed for `SEAL_EVERY`. `now` is monotonic."""
        projects = await self._projects()
        due = []
        async with self._database.connection() as connection:
            for project in projects:
                is_urgent = await connection.fetchval(HAS_URGENT, project, self._keys.server)
                if is_urgent or (is_urgent is False and now >= self._sealed_at.get(project, -SEAL_EVERY) + SEAL_EVERY):
                    due.append(project)
        for project in due:
            # What was done to the tree of one project does not concern the others.
            with contextlib.suppress(TreeAltered):
                await self.seal(project)
                self._sealed_at[project] = now

    async def seal_all(self) -> None:
        """Seal what all projects have, if that is possible now."""
        with contextlib.suppress(DatabaseError, OSError):
            for project in await self._projects():
                with contextlib.suppress(TreeAltered):
                    await self.seal(project)

    async def _projects(self) -> list[str]:
        async with self._database.connection() as connection:
            return [row["project"] for row in await connection.fetch(CHAIN_PROJECTS)]

    async def seal_soon(self, project: str) -> None:
        """Seal everything that a project has, if that is possible now. What prevents it is logged by `run`."""
        with contextlib.suppress(DatabaseError, OSError, TreeAltered):
            await self.seal(project)

    def sign(self, text: str, project: str) -> str:
        """Return a signed note of a text."""
        return self._keys.sign(text, project)

    async def seal(self, project: str) -> str | None:
        """Seal everything that a project has; return the newest checkpoint, None if there was nothing to seal.

        Raises `TreeAltered`, which `troubles` has then, too.
        """
        try:
            newest = await self._seal(project)
        except TreeAltered as error:
            log.error("no checkpoint is signed: %s", error)
            self.troubles[project] = str(error)
            raise
        self.troubles.pop(project, None)
        return newest

    async def _seal(self, project: str) -> str | None:
        newest: str | None = None
        count = LARGEST_SEAL
        while count == LARGEST_SEAL:
            async with self._turn, self._database.connection() as connection, connection.transaction():
                count, note = await self._seal_some(connection, project)
            if note is not None:
                newest = note
                await asyncio.to_thread(write_private, self._directory / project, note.encode())
                self._note_checkpoint(project)
        return newest

    async def _seal_some(self, connection: asyncpg.Connection, project: str) -> tuple[int, str | None]:
        """Seal up to `LARGEST_SEAL` chains, in the connection's transaction; return how many, and the checkpoint."""
        server = self._keys.server
        chains = await connection.fetch(TAKE_UNSEALED, project, server, LARGEST_SEAL)
        if not chains:
            return 0, None
        size = await connection.fetchval(TREE_SIZE, project, server)
        tiles = await load_last_tiles(connection, project, server, size)
        await self._require_signed_tree(connection, project, size, tiles)
        leaves = []
        for chain in chains:
            content = leaf_bytes(chain_name(chain["incarnation"], server), chain["size"], chain["head"])
            tiles.append(size, leaf_hash(content))
            leaves.append((size, chain["incarnation"], chain["size"], chain["head"]))
            size += 1
        checkpoint = Checkpoint(self._keys.origin(project), size, tree_root(size, tiles.read_node))
        note = sign_checkpoint(checkpoint, self._keys.signing)
        columns = map(list, zip(*leaves, strict=True))
        await connection.execute(INSERT_SEAL, project, server, size, time.time_ns(), note, *columns)
        await store_tiles(connection, project, server, tiles)
        self._checkpoints[project] = note, checkpoint
        return len(chains), note

    async def _require_signed_tree(self, connection: asyncpg.Connection, project: str, size: int, tiles: Tiles) -> None:
        """Raise `TreeAltered` unless the tree so far has the root of the newest checkpoint, in the database and in our file."""
        newest = await newest_checkpoint(connection, project, self._keys.server)
        notes = [newest["note"]] if newest else []
        if (copy := await asyncio.to_thread(_read_text, self._directory / project)) is not None:
            notes.append(copy)
        try:
            checkpoints = [self._own_checkpoint(project, note) for note in notes]
            # After a crash, the file may have the checkpoint before the newest one.
            if any(one.size > size for one in checkpoints) or (checkpoints[0].size if checkpoints else 0) != size:
                raise TreeAltered(f"the tree of project {project} has {size} leaves, another number was signed")
            if checkpoints and tree_root(size, tiles.read_node) != checkpoints[0].root:
                raise TreeAltered(f"the tree of project {project} does not have the root that was signed")
        except (InvalidNote, KeyError) as error:
            raise TreeAltered(f"the tree or a checkpoint of project {project} is damaged: {error}") from error

    def _own_checkpoint(self, project: str, note: str) -> Checkpoint:
        known = self._checkpoints.get(project)
        if known is not None and known[0] == note:
            return known[1]
        parsed = parse_note(note)
        if not any(parsed.is_signed_by(key) for key in self._keys.verifier_keys(project)):
            raise TreeAltered(f"a checkpoint of project {project} is not signed by this store server")
        return parsed.checkpoint


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None


async def newest_checkpoint(connection: asyncpg.Connection, project: str, server: uuid.UUID) -> asyncpg.Record | None:
    """Return the newest checkpoint of a store server: size, signed_at, note."""
    return await connection.fetchrow(NEWEST_CHECKPOINT, project, server)


CHAIN_PROJECTS = projects_in("chains")

HAS_URGENT = "SELECT bool_or(is_urgent) FROM chains WHERE project = $1 AND server = $2 AND is_unsealed"

TAKE_UNSEALED = """
UPDATE chains SET is_unsealed = false, is_urgent = false
WHERE project = $1 AND server = $2 AND incarnation = ANY (ARRAY(
    SELECT incarnation FROM chains WHERE project = $1 AND server = $2 AND is_unsealed ORDER BY incarnation LIMIT $3 FOR UPDATE
)) RETURNING incarnation, size, head
"""

TREE_SIZE = "SELECT coalesce(max(place) + 1, 0) FROM tree_leaves WHERE project = $1 AND server = $2"

INSERT_SEAL = """
WITH leaves AS (
    INSERT INTO tree_leaves (project, server, place, incarnation, size, head)
    SELECT $1::text, $2::uuid, * FROM unnest($6::bigint[], $7::uuid[], $8::bigint[], $9::bytea[])
)
INSERT INTO checkpoints (project, server, size, signed_at, note) VALUES ($1, $2, $3, $4, $5)
"""

NEWEST_CHECKPOINT = """
SELECT size, signed_at, note FROM checkpoints WHERE project = $1 AND server = $2 ORDER BY size DESC LIMIT 1
"""
