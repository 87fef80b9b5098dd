"""Check what vouches for a checkpoint: cosignatures in its note, and timestamps beside it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from calls.proof.checkpoint import SignedNote, VerifierKey
from store.anchors.rows import AnchorKind

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorState:
    """What a witness or a timestamp authority says about a checkpoint."""

    kind: AnchorKind
    by: str | None
    """The name of the witness, or the URL of the authority; None for a timestamp in a bundle."""

    at: int | None
    """When it says to have signed, in nanoseconds since the Unix epoch; None if it has not."""

    is_checked: bool = False
    """Whether its signature was checked by a key or root that is trusted."""

    problem: str | None = None
    """Why it does not vouch."""


@dataclass(frozen=True, slots=True)
class AnchorTrust:
    """Whose word counts."""

    witnesses: Sequence[VerifierKey] = ()
    roots: str | None = None
    """Root certificates of timestamp authorities, as PEM."""


def check_note(note: SignedNote, timestamps: Collection[bytes], trust: AnchorTrust) -> Iterator[AnchorState]:
    """Yield what vouches for a checkpoint: each trusted witness, whether or not it has signed, and everything else that there is."""
    trusted = {key.name for key in trust.witnesses}
    for key in trust.witnesses:
        at = note.cosigned_at(key)
        problem = f"the witness {key.name} has not signed it" if at is None else None
        yield AnchorState(kind="witness", by=key.name, at=at and at * _SECOND, is_checked=True, problem=problem)
    for name, at in note.cosigners:
        if name not in trusted:
            yield AnchorState(kind="witness", by=name, at=at * _SECOND)
    if trust.roots and not timestamps:
        yield AnchorState(kind="timestamp", by=None, at=None, is_checked=True, problem="it has no timestamp")
    for response in timestamps:
        yield check_response(note, response, trust)


def check_response(note: SignedNote, response: bytes, trust: AnchorTrust) -> AnchorState:
    """Check one timestamp of a checkpoint."""
    # Most proofs have none, and the library takes time to import.
    from store.anchors.timestamp import InvalidTimestamp, check_timestamp, read_roots, stated_time

    try:
        if trust.roots is None:
            return AnchorState(kind="timestamp", by=None, at=stated_time(response))
        at = check_timestamp(response, note.own_note.encode(), read_roots(trust.roots))
    except InvalidTimestamp as error:
        return AnchorState(
            kind="timestamp", by=None, at=None, is_checked=True, problem=f"its timestamp is invalid: {error}"
        )
    return AnchorState(kind="timestamp", by=None, at=at, is_checked=True)
