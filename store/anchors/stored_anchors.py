"""Check what the database has of the answers of witnesses and timestamp authorities."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg

from calls.proof.checkpoint import Checkpoint, InvalidNote, SignedNote, parse_note
from store.anchors.anchor_check import AnchorState, AnchorTrust, check_response
from store.anchors.rows import Anchor, load_newest_anchors
from store.proof.tiles import load_root


async def check_stored_anchors(
    connection: asyncpg.Connection,
    project: str,
    server: uuid.UUID,
    newest: Checkpoint,
    beyond: int,
    trust: AnchorTrust,
) -> AsyncIterator[tuple[int, AnchorState]]:
    """Yield what each of them says last about a checkpoint over a size, with the size of that one. `newest` was checked, and so was its tree.

    Whoever is trusted and has said nothing is left out: who removed its answer is found out by the next one.
    """
    for anchor in await load_newest_anchors(connection, project, server, beyond):
        checkpoint = await connection.fetchrow(NOTE, project, server, anchor.size)
        if checkpoint is None:
            detail = f"{anchor.by} has vouched for the checkpoint of {anchor.size} leaves, which is missing"
            yield anchor.size, _failed_state(anchor, detail)
            continue
        try:
            note = parse_note(checkpoint["note"])
            root = (
                await load_root(connection, project, server, newest.size, anchor.size)
                if anchor.size <= newest.size
                else b""
            )
        except (InvalidNote, KeyError):
            root, note = b"", None
        if note is None or note.checkpoint.root != root:
            detail = (
                f"the tree does not continue the checkpoint of {anchor.size} leaves that {anchor.by} has vouched for"
            )
            yield anchor.size, _failed_state(anchor, detail)
            continue
        yield anchor.size, _check(anchor, note, trust)


def _check(anchor: Anchor, note: SignedNote, trust: AnchorTrust) -> AnchorState:
    if anchor.kind == "timestamp":
        return replace(check_response(note, anchor.content, trust), by=anchor.by)
    key = next((key for key in trust.witnesses if key.name == anchor.by), None)
    if key is None:
        return AnchorState(kind="witness", by=anchor.by, at=anchor.at)
    try:
        at = parse_note(note.own_note + anchor.content.decode()).cosigned_at(key)
    except (InvalidNote, UnicodeDecodeError):
        at = None
    if at is None:
        return _failed_state(anchor, f"what is stored as the signature of the witness {anchor.by} is none by its key")
    return AnchorState(kind="witness", by=anchor.by, at=at * 1_000_000_000, is_checked=True)


def _failed_state(anchor: Anchor, problem: str) -> AnchorState:
    return AnchorState(kind=anchor.kind, by=anchor.by, at=None, is_checked=True, problem=problem)


NOTE = "SELECT note FROM checkpoints WHERE project = $1 AND server = $2 AND size = $3"
