"""Check the checkpoints of store servers and the trees that they have signed, once for all runs that are verified together."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from calls.proof.checkpoint import Checkpoint, InvalidNote, VerifierKey, parse_note
from calls.proof.tree import inclusion_path, is_included, tree_root
from store.anchors.anchor_check import AnchorState, AnchorTrust
from store.anchors.stored_anchors import check_stored_anchors
from store.proof.run_check import Finding
from store.proof.sealing import newest_checkpoint
from store.proof.signing_keys import log_origin
from store.proof.tiles import TreeNodes


@dataclass(slots=True, kw_only=True)
class CheckedTree:
    """The newest checkpoint of a store server, and its tree."""

    newest: Mapping[str, Any]
    """The row of the checkpoint."""

    nodes: TreeNodes
    checkpoint: Checkpoint | None = None
    """None if it, or the tree, is not what a trusted key has signed."""

    findings: list[Finding] = field(default_factory=list)
    """Why."""

    anchors: Sequence[tuple[int, AnchorState]] = ()
    """Who else vouches, each with the size of the newest checkpoint that it has signed."""

    def is_included(self, leaf: bytes, place: int) -> bool:
        """Whether this hash is that of the leaf at a place. `nodes` has loaded its path."""
        if self.checkpoint is None:
            return False
        size = self.checkpoint.size
        try:
            path = self.nodes.compute(partial(inclusion_path, place, size))
        except (KeyError, ValueError):
            path = []
        return is_included(leaf, place, size, path, self.checkpoint.root)


class TreeChecker:
    """Checks the trees of a project.

    `keys` are the public keys that are trusted, `copies` the directory of the checkpoints of the store server `own`, `trust` whose
    word counts beside.
    """

    def __init__(
        self,
        project: str,
        keys: Collection[VerifierKey],
        own: uuid.UUID | None,
        copies: Path | None,
        trust: AnchorTrust,
    ) -> None:
        self._project = project
        self._keys = keys
        self._own = own
        self._copies = copies
        self._trust = trust

    async def check(self, connection: asyncpg.Connection, server: uuid.UUID) -> CheckedTree | None:
        """Check the newest checkpoint of a store server, and who vouches for it; None if it has none."""
        newest = await newest_checkpoint(connection, self._project, server)
        if newest is None:
            return None
        tree = CheckedTree(newest=newest, nodes=TreeNodes(connection, self._project, server, newest["size"]))
        tree.checkpoint = await self._check_checkpoint(server, tree)
        if tree.checkpoint is not None:
            stored = check_stored_anchors(connection, self._project, server, tree.checkpoint, 0, self._trust)
            tree.anchors = [one async for one in stored]
        return tree

    async def _check_checkpoint(self, server: uuid.UUID, tree: CheckedTree) -> Checkpoint | None:
        origin, size = log_origin(server, self._project), tree.newest["size"]

        def find(change: Any, element: str, detail: str) -> None:
            tree.findings.append(Finding(change, element, detail))

        try:
            checkpoint = self._signed_checkpoint(tree.newest["note"], origin)
            copy = self._read_copy(server)
            if copy is not None and (earlier := self._signed_checkpoint(copy, origin)) is not None:
                if checkpoint is None or earlier.size > checkpoint.size:
                    find("truncated", "checkpoint", "the data directory has a newer one than the database")
                    return None
                if await tree.nodes.load(partial(tree_root, earlier.size)) != earlier.root:
                    find("altered", "tree", "it is not the one that the data directory's checkpoint has signed")
                    return None
            if (
                checkpoint is not None
                and checkpoint.size == size
                and await tree.nodes.load(partial(tree_root, size)) != checkpoint.root
            ):
                find("altered", "tree", "it does not have the root that the checkpoint has signed")
                return None
        except (InvalidNote, KeyError) as error:
            find("altered", "checkpoint", f"it, or the tree, is damaged: {error}")
            return None
        if checkpoint is None or checkpoint.size != size:
            detail = (
                f"no key that is trusted for {origin} has signed it; if that is another store server, give its key, too"
            )
            find("unsigned", "checkpoint", detail)
            return None
        return checkpoint

    def _signed_checkpoint(self, note: str, origin: str) -> Checkpoint | None:
        """Return the checkpoint if a trusted key has signed it. Raises `InvalidNote`."""
        parsed = parse_note(note)
        trusted = any(parsed.is_signed_by(key) for key in self._keys if key.name == origin)
        return parsed.checkpoint if trusted and parsed.checkpoint.origin == origin else None

    def _read_copy(self, server: uuid.UUID) -> str | None:
        if self._copies is None or server != self._own:
            return None
        try:
            return (self._copies / self._project).read_text("utf-8")
        except FileNotFoundError:
            return None
