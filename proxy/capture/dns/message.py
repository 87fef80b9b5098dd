"""DNS messages (RFC 1035): read a query, write a response."""

import ipaddress
import struct
from collections.abc import Sequence
from typing import Final

import msgspec

A: Final = 1
PTR: Final = 12
AAAA: Final = 28
SVCB: Final = 64
HTTPS: Final = 65

NO_ERROR: Final = 0
SERVER_FAILURE: Final = 2
NO_SUCH_NAME: Final = 3
NOT_IMPLEMENTED: Final = 4

TTL: Final = 30
"""Seconds for which a client may cache an answer."""

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Query(msgspec.Struct, frozen=True):
    """A message with one question."""

    head: bytes
    """The twelve bytes of the header."""

    question: bytes
    """The question's bytes, which the response repeats."""

    name: str
    """The name in lower case, without its final dot."""

    kind: int
    """The record type."""


def read_query(data: bytes) -> Query | None:
    """Read the query in a message; None for anything but one question of class IN."""
    if len(data) < 17 or data[2] & 0x80 or data[4:6] != b"\0\1":
        return None
    labels: list[bytes] = []
    at = 12
    while at < len(data) and (size := data[at]):
        # A first question cannot be compressed, because there is nothing before it to point to.
        if size > 63:
            return None
        labels.append(data[at + 1 : at + 1 + size])
        at += 1 + size
    if at + 5 > len(data) or at - 12 > 254 or data[at + 3 : at + 5] != b"\0\1":
        return None
    name = b".".join(labels).decode("latin-1").lower()
    return Query(data[:12], data[12 : at + 5], name, int.from_bytes(data[at + 1 : at + 3]))


def build_response(
    query: Query, code: int = NO_ERROR, addresses: Sequence[Address] = (), pointer: str | None = None
) -> bytes:
    """Build the response to a query: with addresses of its type, a name for a PTR query, or neither."""
    records = [_build_record(A if one.version == 4 else AAAA, one.packed) for one in addresses]
    if pointer is not None:
        records.append(_build_record(PTR, _encode_name(pointer)))
    opcode_and_recursion = query.head[2] & 0x79
    flags = bytes([0x80 | opcode_and_recursion, 0x80 | code])
    counts = struct.pack(">HHHH", 1, len(records), 0, 0)
    return query.head[:2] + flags + counts + query.question + b"".join(records)


def build_failure(data: bytes, code: int) -> bytes | None:
    """Build the response to an unsupported message; None if it has no valid header."""
    if len(data) < 12 or data[2] & 0x80:
        return None
    return data[:2] + bytes([0x80 | (data[2] & 0x79), 0x80 | code]) + bytes(8)


def _build_record(kind: int, data: bytes) -> bytes:
    # The name is a pointer to the question's name.
    return b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, TTL, len(data)) + data


def _encode_name(name: str) -> bytes:
    labels = name.encode("latin-1").split(b".")
    return b"".join(bytes([len(label)]) + label for label in labels if label) + b"\0"
