"""Whom to ask to vouch for checkpoints."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from store.anchors.rows import AnchorKind

if TYPE_CHECKING:
    from calls.proof.checkpoint import VerifierKey


class WitnessTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A witness of C2SP tlog-witness."""

    url: str
    """Its submission prefix, to which `/add-checkpoint` is added."""

    key: str
    """Its public key, `NAME+ID+KEY`."""

    @property
    def verifier_key(self) -> "VerifierKey":
        """Its public key."""
        # Every command knows this class, and few parse a key.
        from calls.proof.checkpoint import parse_verifier_key

        return parse_verifier_key(self.key)


class TimestampTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A timestamp authority of RFC 3161."""

    url: str
    roots: str
    """The root certificates that its certificate must lead to, as PEM."""


class AnchorTargets(msgspec.Struct, frozen=True, kw_only=True):
    """All that are asked."""

    witnesses: tuple[WitnessTarget, ...] = ()
    timestamp: TimestampTarget | None = None

    @property
    def witness_keys(self) -> "list[VerifierKey]":
        """The public keys of the witnesses."""
        return [one.verifier_key for one in self.witnesses]

    @property
    def roots(self) -> str | None:
        """The root certificates of the timestamp authority, as PEM."""
        return self.timestamp.roots if self.timestamp else None

    @property
    def names(self) -> Iterator[tuple[AnchorKind, str]]:
        """The kind and name of each."""
        for key in self.witness_keys:
            yield "witness", key.name
        if self.timestamp is not None:
            yield "timestamp", self.timestamp.url
