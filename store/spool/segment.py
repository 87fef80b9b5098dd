"""The form of a segment: a line that says what it is, then frames, each with a checksum.

A frame is a mark, the payload's length and its CRC-32, and the payload. The mark lets a reader find its way behind damage
with one search. The checksum starts from a number that is drawn for each writer and stands in the first line: so bytes
that an agent or a server sent can never be read as a frame, whatever they are, even where damage makes us search.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, Literal, NamedTuple

from calls.model import UnknownFormat

FORMAT: Final = 2
READABLE: Final = (1, FORMAT)
"""In 1 a payload was one record; since 2 it may be several (`calls/events.py`)."""

MAGIC: Final = b"playhead-spool "
MARK: Final = b"\xf5PH\xf6"
LARGEST: Final = 256 << 20
"""A payload is never longer; a length that says so is damage."""

_FRAME: Final = Struct(">4sII")
OVERHEAD: Final = _FRAME.size
_HEAD_LIMIT: Final = 512
_NAME: Final = re.compile(r"(\d{8,})\.seg")


class Position(NamedTuple):
    """A place in a spool: a segment's number, an offset in it, and how many records lie before it.

    Positions compare by their place. One that was made from a file's size alone has no count, and is not greater than the
    same place with a count.
    """

    segment: int
    offset: int
    records: int = 0


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """A segment's first line."""

    salt: int
    created: int
    size: int
    """How long the line is."""

    first: int = 0
    """The number of the first record in it; 0 where an older Playhead wrote it."""


def head_line(number: int, salt: int, created: int, first: int) -> bytes:
    """The first line of a segment whose first record has the number `first`."""
    head = {"format": FORMAT, "segment": number, "salt": salt, "created": created, "first": first}
    return MAGIC + json.dumps(head).encode() + b"\n"


def read_head(data: bytes) -> SegmentHead | None:
    """The first line, or None when there is none to be had. Raises UnknownFormat for one of a newer Playhead."""
    line, newline, _ = data[:_HEAD_LIMIT].partition(b"\n")
    if not newline or not line.startswith(MAGIC):
        return None
    try:
        told = json.loads(line[len(MAGIC) :])
        known = told["format"] in READABLE
        first = int(told.get("first", 0))
        head = SegmentHead(int(told["salt"]), int(told["created"]), len(line) + 1, first) if known else None
    except (ValueError, KeyError, TypeError):
        return None
    if head is None:
        raise UnknownFormat(
            f"a spool segment has format {told['format']!r}; this Playhead reads up to {FORMAT}: update it"
        )
    return head


def framed(payloads: Iterable[bytes], salt: int) -> bytes:
    """The payloads as frames."""
    parts: list[bytes] = []
    for payload in payloads:
        parts += (_FRAME.pack(MARK, len(payload), zlib.crc32(payload, salt)), payload)
    return b"".join(parts)


type Fault = Literal["short", "bad"]


def frame_at(data: bytes, at: int, salt: int) -> tuple[int, int] | Fault:
    """Where the payload of the frame at an offset starts and stops; "short" when the data ends before it does."""
    start = at + OVERHEAD
    if start > len(data):
        return "short" if MARK.startswith(data[at : at + len(MARK)]) or data.startswith(MARK, at) else "bad"
    mark, size, checksum = _FRAME.unpack_from(data, at)
    if mark != MARK or not 0 < size <= LARGEST:
        return "bad"
    stop: int = start + size
    if stop > len(data):
        return "short"
    return (start, stop) if zlib.crc32(memoryview(data)[start:stop], salt) == checksum else "bad"


def wanted(data: bytes, at: int) -> int:
    """How many bytes from an offset on the frame there says it takes; 0 where that is not to be seen."""
    if at + OVERHEAD > len(data):
        return 0
    return OVERHEAD + int(_FRAME.unpack_from(data, at)[1])


def path_of(directory: Path, number: int) -> Path:
    """Where a segment lies."""
    return directory / f"{number:08}.seg"


def numbers(directory: Path) -> list[int]:
    """The segments there are, in their order. Raises OSError where that cannot be seen: no segments would mean all is read."""
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[1]) for entry in entries if (name := _NAME.fullmatch(entry)))
