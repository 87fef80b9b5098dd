"""The records of a chain, and the links between them.

A chain has a record for everything that one store server stored in a run, in the order in which it was stored. A record has no content:
it commits to each part by a digest of the part and a random salt. The link of a record is the SHA-256 of the link before it and of the record's
canonical JSON (RFC 8785), so the last link, the head of the chain, stands for all records and their order.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

type RecordKind = Literal["run", "exchange", "gap", "effects", "end", "moved", "erased"]
"""What was said about the run itself, an exchange, a gap, a batch of effects, the reported end of the run, an exchange or gap that went to
another run, one that was erased."""

type ErasedPart = Literal["whole", "run", "bodies"]
"""An exchange or gap as a whole, all of its run, or the bodies of an exchange."""

FIRST_LINK: Final = bytes(32)
"""The link before the first record of a chain."""


class ChainRecord(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A record. Times are nanoseconds since the Unix epoch, commitments 32 bytes."""

    kind: RecordKind
    id: str = ""
    """The exchange, gap or batch of effects; empty in a record about the run."""

    head: bytes | None = None
    """The commitment to everything but the bodies; for a run, to its name, labels and origin."""

    request: bytes | None = None
    """The commitment to the digest of the request's body; for a gap, of its evidence; for effects, of what they are. None if there is none."""

    response: bytes | None = None
    at: int | None = None
    """When the run ended, or when this was erased."""

    began: int | None = None
    """When the run began by what was said about it, or when the exchange that was moved or erased began."""

    part: ErasedPart | None = None
    rule: str | None = None
    """The rule of retention by which it was erased, as `rule_text` writes it."""


def commit(salt: bytes, part: bytes) -> bytes:
    """Return the commitment to a part: the SHA-256 of its salt, 16 random bytes, and of the part."""
    return hashlib.sha256(salt + part).digest()


class _RecordMembers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The members of a record as JSON, in the order of their names. Times are text: JSON numbers are too imprecise."""

    at: str | None = None
    began: str | None = None
    chain: str
    head: str | None = None
    id: str = ""
    kind: str
    part: str | None = None
    place: int
    request: str | None = None
    response: str | None = None
    rule: str | None = None


def record_members(chain: str, place: int, record: ChainRecord) -> dict[str, str | int]:
    """Return the members of a record as JSON, without those that are None."""
    members: dict[str, str | int] = msgspec.to_builtins(_members(chain, place, record))
    return members


def _members(chain: str, place: int, record: ChainRecord) -> _RecordMembers:
    return _RecordMembers(
        at=None if record.at is None else str(record.at),
        began=None if record.began is None else str(record.began),
        chain=chain,
        head=_hex(record.head),
        id=record.id or "",
        kind=record.kind,
        part=record.part,
        place=place,
        request=_hex(record.request),
        response=_hex(record.response),
        rule=record.rule,
    )


def _hex(commitment: bytes | None) -> str | None:
    return None if commitment is None else commitment.hex()


def rule_text(name: str) -> str:
    """Return the name of a rule as a record has it: in ASCII, without what JSON escapes."""
    return "".join(each if " " <= each <= "~" and each not in '"\\' else "?" for each in name)


_encode: Final = msgspec.json.Encoder().encode


def next_link(link: bytes, chain: str, place: int, record: ChainRecord) -> bytes:
    """Return the link of a record; `link` is that of the record before it, `chain` is `INCARNATION/SERVER`."""
    # Member names and values are ASCII without characters that JSON escapes, so this is the canonical form.
    return hashlib.sha256(link + _encode(_members(chain, place, record))).digest()


def fold_links(
    chain: str, records: Iterable[ChainRecord], link: bytes = FIRST_LINK, place: int = 0
) -> tuple[int, bytes]:
    """Return the size and the head of a chain after these records, the first of which has the place `place`."""
    for record in records:
        link = next_link(link, chain, place, record)
        place += 1
    return place, link


def leaf_bytes(chain: str, size: int, head: bytes) -> bytes:
    """Return the content of a leaf of the tree: that a chain had this head when it had so many records."""
    return _encode({"chain": chain, "head": head.hex(), "size": size})  # in the order of their names
