"""Read the elements of a JSON body that earlier bodies had too only once."""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

import msgspec

from calls.codec.elements import MIN_SPLIT_SIZE, Element, NotSplit, large_members, split_items, whole_element
from calls.codec.json import (
    MAX_DEPTH,
    InvalidJson,
    check_depth,
    check_surrogates,
    exact_decoder,
    is_deeper,
    parse_json,
)
from calls.codec.read_arrays import ArrayMemory, ReadArray
from calls.codec.recent_values import RecentValues
from calls.model import Json

MIN_REMEMBERED_SIZE: Final = 64
"""Bytes from which the value of an element is remembered: a smaller one is read faster than it is looked up."""

VALUES_LIMIT: Final = 24 << 20
ARRAYS_LIMIT: Final = 32 << 20
"""Bytes of memory, roughly, of the values of elements and of arrays."""

_DEPTH_ABOVE: Final = 2
"""Levels of the body above an element: an object, and an array in it."""

_MARK: Final = b"NaN"
"""Stands for a value in the text between the values. JSON has no such word, so that the parser asks what it is."""


class ReadMemory:
    """The values of elements and the arrays of earlier bodies."""

    def __init__(self) -> None:
        self.values = RecentValues[bytes, Json](VALUES_LIMIT)
        self.arrays = ArrayMemory(ARRAYS_LIMIT)


class BodyArray(NamedTuple):
    """An array of a body."""

    array: ReadArray
    known: ReadArray | None
    """An earlier array that has its first items."""

    known_count: int
    """How many of them."""


class ReadBody(msgspec.Struct):
    """A body that was read element by element."""

    body: bytes
    value: Json = None
    elements: list[Element] = msgspec.field(default_factory=list)
    digests: dict[int, bytes] = msgspec.field(default_factory=dict)
    """The SHA-256 of the text of each value that is an element, by the `id` of the value, which lives as long as the body."""

    arrays: dict[int, BodyArray] = msgspec.field(default_factory=dict)
    """Its arrays, by the `id` of their values."""

    frame: bytes = b""
    """The text between elements and arrays."""

    new_text: bytes = b""
    """The text without the items that earlier arrays have."""

    def has_text(self, needle: bytes) -> bool:
        """Return whether some bytes occur in the body, or might."""
        if needle in self.new_text:
            return True
        for _, known, _ in self.arrays.values():
            if known is not None and needle not in known.absent and needle in known.text:
                return True
        for array, *_ in self.arrays.values():
            array.note_absent(needle)
        return False


def read_body(body: bytes, memory: ReadMemory) -> ReadBody | None:
    """Parse a body exactly as `parse_json` does; None if it has to be parsed as a whole.

    Each element is parsed by itself, or not at all if its value is remembered, and then the text between them.
    """
    if len(body) < MIN_SPLIT_SIZE:
        return None
    try:
        return _read_members(body, memory)
    except (NotSplit, InvalidJson):
        return None


def _read_members(body: bytes, memory: ReadMemory) -> ReadBody | None:
    read = ReadBody(body)
    values: list[Json] = []
    between: list[bytes] = []
    new: list[bytes] = []
    end = new_end = 0
    for member, start, raw in large_members(body):
        if raw[:1] != b"[":
            element = whole_element(raw, start, member)
            read.elements.append(element)
            value = _read_element(raw, element.digest, memory.values)
            read.digests[id(value)] = element.digest
        else:
            one = _read_array(raw, start, member, memory, read.elements)
            if one is None:
                continue
            value = one.array.values
            read.digests.update(one.array.digests)
            read.arrays[id(value)] = one
            if one.known is not None:
                new.append(body[new_end:start])
                new_end = start + one.known.end_of(one.known_count)
        values.append(value)
        between.append(body[end:start])
        end = start + len(raw)
    if not values:
        return None
    between.append(body[end:])
    new.append(body[new_end:])
    read.frame, read.new_text = _MARK.join(between), b" ".join(new)
    if read.frame.count(_MARK) != len(values):
        return None
    read.value = _parse_frame(read.frame, values)
    return None if read.value is None else read


def _read_array(raw: bytes, start: int, member: str, memory: ReadMemory, elements: list[Element]) -> BodyArray | None:
    """Read an array and add its elements; None if its items are so small that they are read faster together."""
    beginning = memory.arrays.find_beginning(raw)
    if beginning is None:
        items = tuple(split_items(raw, 1, start, member))
        elements += items
        if len(raw) < MIN_REMEMBERED_SIZE * len(items) or not items:
            return None
        array = _make_array(raw, start, member, items, [], {}, memory)
        memory.arrays.remember(array)
        return BodyArray(array, None, 0)
    known, count = beginning
    old = known.elements_at(count, start, member)
    items = (*old, *split_items(raw, known.end_of(count), start, member))
    elements += items
    if len(items) == len(known.elements) == count:
        return BodyArray(known, known, count)
    values = known.values[:count]
    digests = (
        dict(known.digests)
        if count == len(known.elements)
        # Only of values that live as long as the body.
        else {id(value): digest for value in values if (digest := known.digests.get(id(value))) is not None}
    )
    array = _make_array(raw, start, member, items, values, digests, memory)
    memory.arrays.remember(array)
    return BodyArray(array, known, count)


def _make_array(
    raw: bytes,
    start: int,
    member: str,
    items: tuple[Element, ...],
    values: list[Json],
    digests: dict[int, bytes],
    memory: ReadMemory,
) -> ReadArray:
    """Read the items that come after these values."""
    for begin, end, _, _, digest in items[len(values) :]:
        text = raw[begin - start : end - start]
        if len(text) < MIN_REMEMBERED_SIZE:
            values.append(_parse_element(text))
        else:
            values.append(value := _read_element(text, digest, memory.values))
            digests[id(value)] = digest
    return ReadArray(
        text=raw[: items[-1].end - start], start=start, member=member, elements=items, values=values, digests=digests
    )


def _read_element(text: bytes, digest: bytes, values: RecentValues[bytes, Json]) -> Json:
    if (value := values.get(digest)) is None:
        value = _parse_element(text)
        values.put(digest, value, 3 * len(text) + 400)
    return value


def _parse_element(text: bytes) -> Json:
    """Parse an element. Raises `InvalidJson`, also if it is nested so deeply that the body may be refused."""
    value = parse_json(text)
    if value is None or is_deeper(text.decode(), value, MAX_DEPTH - _DEPTH_ABOVE):
        raise InvalidJson("it is not read by itself")
    return value


def _parse_frame(frame: bytes, values: Sequence[Json]) -> Json:
    """Parse the text between values, which are members at the marks; None if the marks are not all where a member is."""
    try:
        text = frame.decode()
        value = _frame_decoder.decode(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, ArithmeticError) as error:
        raise InvalidJson("the text is not JSON") from error
    if type(value) is not dict:
        return None
    # A mark within a string is no value.
    marked = [name for name, member in value.items() if member is _MARKED]
    if len(marked) != len(values):
        return None
    value.update(zip(marked, values, strict=True))
    check_depth(text, value)
    check_surrogates(text, value)
    return value


def _note_mark(constant: str) -> Json:
    if constant != "NaN":
        raise InvalidJson(f"{constant} is not JSON")
    return _MARKED


_MARKED: Final = Decimal(0)
"""Is a member where a mark is, by its identity."""

_frame_decoder: Final = exact_decoder(_note_mark)
