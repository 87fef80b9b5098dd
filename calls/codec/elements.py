"""Divide a JSON body into the elements that a conversation sends again with every request.

Elements are the large members of the body, and of arrays among them the items. No JSON is written anew: an element is a range of bytes.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

MIN_SPLIT_SIZE: Final = 2048
"""Bytes from which a body is divided; for smaller ones, parts would need more space than they save."""

MIN_ELEMENT_SIZE: Final = 256
"""Bytes from which a member of a body is an element; smaller ones stay in the bytes between the slices."""

HASH_SIZE: Final = 16
"""Bytes of the hash by which a run's stored content is looked up."""

SEPARATORS: Final = b", \t\r\n"

_BEGINNING: Final = 32
"""Bytes of an element that are looked for first."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Element(NamedTuple):
    """A range of a body that may have been sent before."""

    start: int
    end: int
    hash: bytes
    member: str
    """The member of the body that it is the value of, or an item of."""

    digest: bytes = b""
    """The whole SHA-256, of which `hash` is the beginning."""


def split_elements(body: bytes) -> tuple[Element, ...]:
    """Split a JSON object into its large members, and arrays among them into their elements, in order."""
    if len(body) < MIN_SPLIT_SIZE:
        return ()
    found: list[Element] = []
    try:
        for member, start, raw in large_members(body):
            if raw[:1] == b"[":
                found += split_items(raw, 1, start, member)
            else:
                found.append(whole_element(raw, start, member))
    except NotSplit:
        return ()
    return tuple(found)


class NotSplit(ValueError):
    """A body is not divided into elements: it is small, no object, or not read."""


def large_members(body: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield the large members of a JSON object: names, places of the values, and their bytes. Raises `NotSplit`."""
    if len(body) < MIN_SPLIT_SIZE or body[:1] != b"{":
        raise NotSplit
    at = 0
    try:
        members = _members.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotSplit from error
    for member, value in members.items():
        # The decoder gives values without positions, in order. With a repeated name they may be out of order; then a value is
        # not found, or the same bytes are found elsewhere, and both are harmless.
        if len(raw := bytes(value)) >= MIN_ELEMENT_SIZE and (start := _find(body, raw, at)) >= 0:
            at = start + len(raw)
            yield member, start, raw


def _find(body: bytes, raw: bytes, at: int) -> int:
    """Return where these bytes are; as `bytes.find` does, which prepares itself for long ones by reading all of them."""
    start = body.find(raw[:_BEGINNING], at)
    return start if body.startswith(raw, start) else body.find(raw, at)


def whole_element(raw: bytes, start: int, member: str) -> Element:
    """Return the value of a member as one element."""
    digest = hashlib.sha256(raw).digest()
    return Element(start, start + len(raw), digest[:HASH_SIZE], member, digest)


def split_items(raw: bytes, at: int, start: int, member: str) -> list[Element]:
    """Return the items of an array from a place in it, which is before an item or after one. Raises `NotSplit`.

    `start` is where the array is in the body.
    """
    sha256 = hashlib.sha256
    found: list[Element] = []
    # Elements are separated by a comma and white space, and begin with neither.
    while raw[at] in SEPARATORS:
        at += 1
    try:
        items = _items.decode(b"[" + raw[at:] if at > 1 else raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotSplit from error
    for item in items:
        while raw[at] in SEPARATORS:
            at += 1
        data = memoryview(item)
        end = at + len(data)
        digest = sha256(data).digest()
        found.append(Element(start + at, start + end, digest[:HASH_SIZE], member, digest))
        at = end
    return found
