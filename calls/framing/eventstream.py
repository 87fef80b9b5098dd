"""Read Amazon's event stream, `application/vnd.amazon.eventstream`: frames with typed headers and two checksums.

    total length u32 | headers length u32 | CRC of these 8 bytes u32 | headers | payload | CRC of all before u32

Everything is big-endian. Reading stops at a frame with a wrong checksum, because the frame boundaries after it are unknown.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final
from zlib import crc32

import msgspec

from calls.codec.json import dumps
from calls.framing import Message

_PRELUDE: Final = 12
_MIN_LENGTH: Final = _PRELUDE + 4
_MAX_LENGTH: Final = 32 * 1024 * 1024
"""Amazon's own limit is 24 MiB of payload and 128 KiB of headers."""

_NUMBER_SIZES: Final[Mapping[int, int]] = {2: 1, 3: 2, 4: 4, 5: 8, 8: 8}
"""The header types that are one number, and its size in bytes: byte, short, integer, long, timestamp."""

type Value = bool | int | bytes | str


class InvalidFrame(ValueError):
    """The bytes are not a frame of an event stream."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of the stream."""

    headers: Mapping[str, Value]
    payload: bytes

    @property
    def message(self) -> Message:
        """The message, named by its event type. Exceptions and errors, which end a stream with HTTP 200, have a prefix."""
        text = self.payload.decode("utf-8", "replace")
        match self.headers.get(":message-type"):
            case "exception":
                return Message("exception:" + self._text_header(":exception-type"), text)
            case "error":
                error = dumps({"message": self._text_header(":error-message")}).decode()
                return Message("error:" + self._text_header(":error-code"), error)
            case _:
                return Message(self._text_header(":event-type"), text)

    def _text_header(self, name: str) -> str:
        value = self.headers.get(name)
        return value if isinstance(value, str) else ""


def encode_frame(headers: Mapping[str, Value], payload: bytes) -> bytes:
    """Encode one message as a frame."""
    head = b"".join(_encode_header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", _MIN_LENGTH + len(head) + len(payload), len(head))
    whole = prelude + crc32(prelude).to_bytes(4) + head + payload
    return whole + crc32(whole).to_bytes(4)


def _encode_header(name: str, value: Value) -> bytes:
    return bytes([len(name.encode())]) + name.encode() + _encode_value(value)


def _encode_value(value: Value) -> bytes:
    match value:
        case bool():
            return b"\0" if value else b"\1"
        case int():
            return b"\5" + value.to_bytes(8, signed=True)
        case bytes():
            return b"\6" + len(value).to_bytes(2) + value
        case str():
            return b"\7" + len(value.encode()).to_bytes(2) + value.encode()


def matches(head: bytes, media: str, *, is_whole: bool) -> bool | None:
    """Match a prelude with a correct checksum, or the media type unless the body begins with a brace or bracket."""
    if head[:1] in (b"{", b"["):
        return False
    if len(head) < _PRELUDE:
        return ("eventstream" in media) if is_whole else None
    return "eventstream" in media or crc32(head[:8]) == int.from_bytes(head[8:12])


class Decoder:
    """Decodes the frames of an event stream."""

    def __init__(self) -> None:
        self.is_broken = False
        self._buffer = bytearray()
        self._need = _PRELUDE

    def feed(self, data: bytes) -> list[Message]:
        """Feed more bytes; return the messages that they complete."""
        return [frame.message for frame in self.feed_frames(data)]

    def feed_frames(self, data: bytes) -> list[Frame]:
        """Feed more bytes; return the frames that they complete."""
        if self.is_broken:
            return []
        self._buffer += data
        if len(self._buffer) < self._need:
            return []
        found: list[Frame] = []
        try:
            found.extend(self._take_complete_frames())
        except InvalidFrame:
            self.is_broken = True
        return found

    def finish(self) -> list[Message]:
        """End the stream. An incomplete frame is discarded: its checksum is missing."""
        self.is_broken = self.is_broken or bool(self._buffer)
        return []

    def _take_complete_frames(self) -> Iterator[Frame]:
        at = 0
        data = memoryview(bytes(self._buffer))
        try:
            while len(data) - at >= self._next_length(data[at:]):
                end = at + self._need
                frame = _parse_frame(data[at:end])
                at, self._need = end, _PRELUDE
                yield frame
        finally:
            del self._buffer[:at]

    def _next_length(self, data: memoryview) -> int:
        """Return the length of the next frame, or of its prelude while that is incomplete."""
        self._need = _parse_length(data) if len(data) >= _PRELUDE else _PRELUDE
        return self._need


def _parse_length(data: memoryview) -> int:
    total, headers, checksum = struct.unpack(">III", data[:_PRELUDE])
    if crc32(data[:8]) != checksum or not _MIN_LENGTH + headers <= total <= _MAX_LENGTH:
        raise InvalidFrame("the prelude's checksum or lengths are wrong")
    return int(total)


def _parse_frame(data: memoryview) -> Frame:
    _, headers, _ = struct.unpack(">III", data[:_PRELUDE])
    if crc32(data[:-4]) != int.from_bytes(data[-4:]):
        raise InvalidFrame("the message's checksum is wrong")
    end = _PRELUDE + headers
    return Frame(headers=dict(_parse_headers(bytes(data[_PRELUDE:end]))), payload=bytes(data[end:-4]))


def _parse_headers(data: bytes) -> Iterator[tuple[str, Value]]:
    at = 0
    while at < len(data):
        length = data[at]
        name, kind = data[at + 1 : at + 1 + length], data[at + 1 + length : at + 2 + length]
        value, at = _parse_value(kind, data, at + 2 + length)
        yield name.decode("utf-8", "replace"), value


def _parse_value(kind: bytes, data: bytes, at: int) -> tuple[Value, int]:
    """Return a header's value and the offset of its end."""
    match list(kind):
        case [0 | 1 as no]:
            return no == 0, at
        case [code] if code in _NUMBER_SIZES:
            end = at + _NUMBER_SIZES[code]
            return int.from_bytes(_header_bytes(data, at, end), signed=True), end
        case [6 | 7 as code]:
            start = at + 2
            end = start + int.from_bytes(_header_bytes(data, at, start))
            value = _header_bytes(data, start, end)
            return (value if code == 6 else value.decode("utf-8", "replace")), end
        case [9]:
            return _header_bytes(data, at, at + 16), at + 16
        case _:
            raise InvalidFrame("a header has an unknown type")


def _header_bytes(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise InvalidFrame("a header extends beyond the end of the headers")
    return data[start:end]
