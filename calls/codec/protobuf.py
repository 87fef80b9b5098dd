"""Read a protobuf message without its schema: the fields by their numbers, as far as the wire format tells what they hold.

The bytes do not say whether a field of variable length is a text, a message or something else. It is read as a text if all its
characters can be printed, else as a message if it is one to its last byte, else by its digest.
"""

import hashlib
import math
import struct
from collections.abc import Iterator
from typing import Final

from calls.model import Json

MAX_SIZE: Final = 1 << 20
"""A larger message is not read."""

_MAX_DEPTH: Final = 24
_MAX_FIELDS: Final = 20_000
"""Maximum number of fields of a message and of all that are in it."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10


class _Unreadable(ValueError):
    """The bytes are no message."""


def read_protobuf(data: bytes) -> dict[str, Json] | None:
    """Return the fields of a message by their numbers, repeated ones as lists; None if the bytes are no message, or a large one."""
    if len(data) > MAX_SIZE:
        return None
    try:
        return _Reader().read_message(data, 0)
    except _Unreadable:
        return None


class _Reader:
    def __init__(self) -> None:
        self._count = 0

    def read_message(self, data: bytes, depth: int) -> dict[str, Json]:
        found: dict[str, list[Json]] = {}
        for number, value in self._fields(data, depth):
            found.setdefault(str(number), []).append(value)
        return {name: values[0] if len(values) == 1 else values for name, values in found.items()}

    def _fields(self, data: bytes, depth: int) -> Iterator[tuple[int, Json]]:
        at = 0
        while at < len(data):
            self._count += 1
            if self._count > _MAX_FIELDS:
                raise _Unreadable
            tag, at = _read_varint(data, at)
            number, wire_type = tag >> 3, tag & 7
            if not 0 < number < 1 << 29:
                raise _Unreadable
            if wire_type == _VARINT:
                value, at = _read_varint(data, at)
                yield number, value - (1 << 64) if value >> 63 else value  # a negative number has ten bytes
                continue
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)
            if wire_type == _BYTES:
                size, at = _read_varint(data, at)
            elif not size:
                raise _Unreadable  # groups, which nothing has used since 2008, and types that do not exist
            if at + size > len(data):
                raise _Unreadable
            part, at = data[at : at + size], at + size
            yield number, self._read_bytes(part, depth) if wire_type == _BYTES else _read_fixed(part)

    def _read_bytes(self, data: bytes, depth: int) -> Json:
        if (text := _printable_text(data)) is not None:
            return text
        if depth < _MAX_DEPTH:
            try:
                return self.read_message(data, depth + 1)
            except _Unreadable:
                pass
        return bytes_digest(data)


def bytes_digest(data: bytes) -> Json:
    """Return what stands for bytes that are not shown."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(min(_LONGEST_VARINT, len(data) - at)):
        byte = data[at + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, at + count + 1
    raise _Unreadable


def _read_fixed(data: bytes) -> Json:
    """Return a number of fixed size: a float where that is one that people use, else a whole number."""
    (number,) = struct.unpack("<d" if len(data) == 8 else "<f", data)
    is_usual = math.isfinite(number) and (number == 0 or 1e-9 < abs(number) < 1e15)
    return number if is_usual and any(data) else int.from_bytes(data, "little")


def _printable_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\t\r\n" for char in text) else None
