"""Divide a JSON body into the elements that a conversation sends again with every request, and read each of them only once.

Elements are the large members of the body, and of arrays among them the items. No JSON is written anew: an element is a range of bytes.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from calls.codec.json import (
    MAX_DEPTH,
    InvalidJson,
    check_depth,
    check_surrogates,
    exact_decoder,
    is_deeper,
    parse_json,
)
from calls.codec.recent_values import RecentValues
from calls.model import Json

MIN_SPLIT_SIZE: Final = 2048
"""Bytes from which a body is divided; for smaller ones, parts would need more space than they save."""

MIN_ELEMENT_SIZE: Final = 256
"""Bytes from which a member of a body is an element; smaller ones stay in the bytes between the slices."""

MIN_REMEMBERED_SIZE: Final = 64
"""Bytes from which the value of an element is remembered: a smaller one is read faster than it is looked up."""

HASH_SIZE: Final = 16
"""Bytes of the hash by which a run's stored content is looked up."""

SEPARATORS: Final = b", \t\r\n"

_BEGINNING: Final = 32
"""Bytes of an element that are looked for first."""

_DEPTH_ABOVE: Final = 2
"""Levels of the body above an element: an object, and an array in it."""

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
    if len(body) < MIN_SPLIT_SIZE or body[:1] != b"{":
        return ()
    found: list[Element] = []
    at = 0
    try:
        for member, value in _members.decode(body).items():
            # The decoder gives values without positions, in order. With a repeated name they may be out of order; then a value is
            # not found, or the same bytes are found elsewhere, and both are harmless.
            if len(raw := bytes(value)) >= MIN_ELEMENT_SIZE and (start := _find(body, raw, at)) >= 0:
                at = start + len(raw)
                _add_elements(found, body, start, raw, member)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    return tuple(found)


def _find(body: bytes, raw: bytes, at: int) -> int:
    """Return where these bytes are; as `bytes.find` does, which prepares itself for long ones by reading all of them."""
    start = body.find(raw[:_BEGINNING], at)
    return start if body.startswith(raw, start) else body.find(raw, at)


def _add_elements(elements: list[Element], body: bytes, start: int, raw: bytes, member: str) -> None:
    sha256 = hashlib.sha256
    if raw[:1] != b"[":
        digest = sha256(raw).digest()
        elements.append(Element(start, start + len(raw), digest[:HASH_SIZE], member, digest))
        return
    at = start + 1
    for item in _items.decode(raw):
        # Elements are separated by a comma and white space, and begin with neither.
        while body[at] in SEPARATORS:
            at += 1
        data = memoryview(item)
        end = at + len(data)
        digest = sha256(data).digest()
        elements.append(Element(at, end, digest[:HASH_SIZE], member, digest))
        at = end


class ReadBody(NamedTuple):
    """A body that was read element by element."""

    value: Json
    digests: dict[int, bytes]
    """The SHA-256 of the text of each value that is an element, by the `id` of the value, which lives as long as the body."""


_MARK: Final = b"NaN"
"""Stands for an element in the text between the elements. JSON has no such word, so that the parser asks what it is."""


def read_elements(body: bytes, elements: Sequence[Element], values: RecentValues[bytes, Json]) -> ReadBody | None:
    """Parse a body whose elements are known, exactly as `parse_json` does; None if it has to be parsed as a whole.

    Each element is parsed by itself, or not at all if its value is remembered, and then the text between them.
    """
    pieces: list[bytes] = []
    values_in_order: list[Json] = []
    digests: dict[int, bytes] = {}
    end = 0
    try:
        for start, after, _, _, digest in elements:
            if after - start < MIN_REMEMBERED_SIZE:
                continue
            if (value := values.get(digest)) is None:
                value = _parse_element(body[start:after])
                values.put(digest, value, 3 * (after - start) + 400)
            pieces.append(body[end:start])
            values_in_order.append(value)
            digests[id(value)] = digest
            end = after
        if not values_in_order:
            return None
        pieces.append(body[end:])
        frame = _MARK.join(pieces)
        if frame.count(_MARK) != len(values_in_order):
            return None
        value = _parse_frame(frame, values_in_order)
    except InvalidJson:
        return None
    return None if value is None else ReadBody(value, digests)


def _parse_element(text: bytes) -> Json:
    """Parse an element. Raises `InvalidJson`, also if it is nested so deeply that the body may be refused."""
    value = parse_json(text)
    if value is None or is_deeper(text.decode(), value, MAX_DEPTH - _DEPTH_ABOVE):
        raise InvalidJson("it is not read by itself")
    return value


def _parse_frame(frame: bytes, values: Sequence[Json]) -> Json:
    """Parse the text between elements, with their values at the marks; None if the marks are not all where a value is."""
    rest = iter(values)
    used = 0

    def next_value(constant: str) -> Json:
        nonlocal used
        if constant != "NaN":
            raise InvalidJson(f"{constant} is not JSON")
        used += 1
        return next(rest)

    try:
        text = frame.decode()
        value: Json = exact_decoder(next_value).decode(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, ArithmeticError) as error:
        raise InvalidJson("the text is not JSON") from error
    check_depth(text, value)
    check_surrogates(text, value)
    # A mark within a string would not have been asked about. All that were are values, in the order of the elements.
    return value if used == len(values) else None
