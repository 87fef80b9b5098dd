"""Encode and decode segments: a first line that describes the segment, then frames, each with a checksum.

A frame is a mark, the payload's length and its CRC-32, and the payload. The mark lets a reader find the next frame after
damage with one search. The checksum starts from a random number (the salt) that each writer draws and stores in the first
line, so bytes sent by an agent or a server are never mistaken for a frame, even when the reader searches after damage.
"""

import json
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Final, Literal

import msgspec

from calls.model import UnknownFormat

FORMAT: Final = 2
READABLE_FORMATS: Final = (1, FORMAT)
"""In format 1 a payload was one record; since format 2 it may be several (`calls/events.py`)."""

MAGIC: Final = b"playhead-spool "
MARK: Final = b"\xf5PH\xf6"
MAX_PAYLOAD: Final = 256 << 20
"""Bytes of a payload at most; a greater length is damage."""

_FRAME: Final = Struct(">4sII")
OVERHEAD: Final = _FRAME.size
_HEAD_LIMIT: Final = 512
_NAME: Final = re.compile(r"(\d{8,})\.seg")


class Position(msgspec.Struct, frozen=True, order=True):
    """A position in a spool: a segment's number, an offset in it, and how many records precede it.

    Positions compare by segment and offset first. A position made from a file's size has no count, and is not greater than
    the same position with a count.
    """

    segment: int
    offset: int
    records: int = 0


class SegmentHead(msgspec.Struct, frozen=True):
    """A segment's first line."""

    salt: int
    created: int
    size: int
    """Bytes of the line."""

    first_record: int = 0
    """The number of the segment's first record; 0 if an older Playhead wrote the segment."""


def head_line(number: int, salt: int, created: int, first_record: int) -> bytes:
    """The first line of a segment whose first record has this number."""
    head = {"format": FORMAT, "segment": number, "salt": salt, "created": created, "first": first_record}
    return MAGIC + json.dumps(head).encode() + b"\n"


def read_head(data: bytes) -> SegmentHead | None:
    """Parse the first line; None if it is missing or damaged. Raises UnknownFormat if a newer Playhead wrote it."""
    line, newline, _ = data[:_HEAD_LIMIT].partition(b"\n")
    if not newline or not line.startswith(MAGIC):
        return None
    try:
        fields = json.loads(line[len(MAGIC) :])
        is_readable = fields["format"] in READABLE_FORMATS
        first = int(fields.get("first", 0))
        head = SegmentHead(int(fields["salt"]), int(fields["created"]), len(line) + 1, first) if is_readable else None
    except (ValueError, KeyError, TypeError):
        return None
    if head is None:
        raise UnknownFormat(
            f"a spool segment has format {fields['format']!r} and this Playhead reads formats up to {FORMAT}: update Playhead"
        )
    return head


def encode_frames(payloads: Sequence[bytes], salt: int) -> bytes:
    """Encode each payload as a frame."""
    if len(payloads) == 1:
        (payload,) = payloads
        return _FRAME.pack(MARK, len(payload), zlib.crc32(payload, salt)) + payload
    parts: list[bytes] = []
    for payload in payloads:
        parts += (_FRAME.pack(MARK, len(payload), zlib.crc32(payload, salt)), payload)
    return b"".join(parts)


type Fault = Literal["short", "bad"]


def frame_at(data: bytes, at: int, salt: int) -> tuple[int, int] | Fault:
    """The start and stop of the payload of the frame at an offset; "short" if the data ends before the frame does."""
    start = at + OVERHEAD
    if start > len(data):
        return "short" if MARK.startswith(data[at : at + len(MARK)]) or data.startswith(MARK, at) else "bad"
    mark, size, checksum = _FRAME.unpack_from(data, at)
    if mark != MARK or not 0 < size <= MAX_PAYLOAD:
        return "bad"
    stop: int = start + size
    if stop > len(data):
        return "short"
    return (start, stop) if zlib.crc32(memoryview(data)[start:stop], salt) == checksum else "bad"


def whole_frames(data: bytes, salt: int, longest: int) -> list[tuple[int, bytes | memoryview]]:
    """The payloads of the frames that the data begins with, each with its stop; those longer than `longest` are not copied.

    They end at the first place where `frame_at` finds no frame.
    """
    found: list[tuple[int, bytes | memoryview]] = []
    unpack, checksum_of, whole = _FRAME.unpack_from, zlib.crc32, memoryview(data)
    at, last = 0, len(data) - OVERHEAD
    while at <= last:
        mark, size, checksum = unpack(data, at)
        start = at + OVERHEAD
        at = start + size
        if mark != MARK or not 0 < size <= MAX_PAYLOAD or at > len(data):
            break
        payload = whole[start:at] if size > longest else data[start:at]
        if checksum_of(payload, salt) != checksum:
            break
        found.append((at, payload))
    return found


def frame_size(data: bytes, at: int) -> int:
    """The size that the frame at an offset declares; 0 if the data ends before the frame's length."""
    if at + OVERHEAD > len(data):
        return 0
    return OVERHEAD + int(_FRAME.unpack_from(data, at)[1])


def segment_path(directory: Path, number: int) -> Path:
    """The path of a segment."""
    return directory / f"{number:08}.seg"


def segment_numbers(directory: Path) -> list[int]:
    """The numbers of the existing segments, in order. Raises OSError if the directory cannot be listed."""
    try:
        entries = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[1]) for entry in entries if (name := _NAME.fullmatch(entry)))
