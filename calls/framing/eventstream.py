"""Amazon's event stream, `application/vnd.amazon.eventstream`: framed messages with typed headers and two checksums.

    total length u32 | headers length u32 | CRC of these 8 bytes u32 | headers | payload | CRC of all before u32

Everything is big-endian. A message whose checksums do not hold ends the reading: nothing behind it can be believed.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from calls.codec.json import dumps
from calls.framing import Message

_PRELUDE: Final = 12
_LEAST: Final = _PRELUDE + 4
_LONGEST: Final = 32 * 1024 * 1024
"""Amazon's own limit is 24 MiB of payload and 128 KiB of headers."""

_NUMBERS: Final[Mapping[int, int]] = {2: 1, 3: 2, 4: 4, 5: 8, 8: 8}
"""Header types of one number, and its bytes: byte, short, integer, long, timestamp."""

type Value = bool | int | bytes | str


class Broken(ValueError):
    """These bytes are no message of an event stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One message as it is framed."""

    headers: Mapping[str, Value]
    payload: bytes

    @property
    def message(self) -> Message:
        """The message under its event's name; an exception or error, which ends a stream under HTTP 200, says so in its name."""
        text = self.payload.decode("utf-8", "replace")
        match self.headers.get(":message-type"):
            case "exception":
                return Message("exception:" + self._header(":exception-type"), text)
            case "error":
                told = dumps({"message": self._header(":error-message")}).decode()
                return Message("error:" + self._header(":error-code"), told)
            case _:
                return Message(self._header(":event-type"), text)

    def _header(self, name: str) -> str:
        value = self.headers.get(name)
        return value if isinstance(value, str) else ""


def framed(headers: Mapping[str, Value], payload: bytes) -> bytes:
    """The bytes of one message: what a stream that was recorded whole is sent as."""
    head = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", _LEAST + len(head) + len(payload), len(head))
    whole = prelude + crc32(prelude).to_bytes(4) + head + payload
    return whole + crc32(whole).to_bytes(4)


def _header(name: str, value: Value) -> bytes:
    return bytes([len(name.encode())]) + name.encode() + _typed(value)


def _typed(value: Value) -> bytes:
    match value:
        case bool():
            return b"\0" if value else b"\1"
        case int():
            return b"\5" + value.to_bytes(8, signed=True)
        case bytes():
            return b"\6" + len(value).to_bytes(2) + value
        case str():
            return b"\7" + len(value.encode()).to_bytes(2) + value.encode()


def begins(head: bytes, media: str, *, ended: bool) -> bool | None:
    """A prelude whose checksum holds; else the label, but never against a brace."""
    if head[:1] in (b"{", b"["):
        return False
    if len(head) < _PRELUDE:
        return ("eventstream" in media) if ended else None
    return "eventstream" in media or crc32(head[:8]) == int.from_bytes(head[8:12])


class Decoder:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self.broken = False
        self._buffer = bytearray()
        self._need = _PRELUDE

    def feed(self, data: bytes) -> list[Message]:
        """Take more bytes; give the messages that they complete."""
        return [frame.message for frame in self.frames(data)]

    def frames(self, data: bytes) -> list[Frame]:
        """Take more bytes; give the frames that they complete."""
        if self.broken:
            return []
        self._buffer += data
        if len(self._buffer) < self._need:
            return []
        found: list[Frame] = []
        try:
            found.extend(self._complete())
        except Broken:
            self.broken = True
        return found

    def finish(self) -> list[Message]:
        """What is not a whole frame was cut, and its checksum cannot hold."""
        self.broken = self.broken or bool(self._buffer)
        return []

    def _complete(self) -> Iterator[Frame]:
        at = 0
        data = memoryview(bytes(self._buffer))
        try:
            while len(data) - at >= self._length(data[at:]):
                end = at + self._need
                frame = _frame(data[at:end])
                at, self._need = end, _PRELUDE
                yield frame
        finally:
            del self._buffer[:at]

    def _length(self, data: memoryview) -> int:
        """How long the next frame is, as far as can be told."""
        self._need = _total(data) if len(data) >= _PRELUDE else _PRELUDE
        return self._need


def _total(data: memoryview) -> int:
    total, headers, checksum = struct.unpack(">III", data[:_PRELUDE])
    if crc32(data[:8]) != checksum or not _LEAST + headers <= total <= _LONGEST:
        raise Broken("the prelude's checksum or lengths do not hold")
    return int(total)


def _frame(data: memoryview) -> Frame:
    _, headers, _ = struct.unpack(">III", data[:_PRELUDE])
    if crc32(data[:-4]) != int.from_bytes(data[-4:]):
        raise Broken("the message's checksum does not hold")
    end = _PRELUDE + headers
    return Frame(headers=dict(_headers(bytes(data[_PRELUDE:end]))), payload=bytes(data[end:-4]))


def _headers(data: bytes) -> Iterator[tuple[str, Value]]:
    at = 0
    while at < len(data):
        length = data[at]
        name, kind = data[at + 1 : at + 1 + length], data[at + 1 + length : at + 2 + length]
        value, at = _value(kind, data, at + 2 + length)
        yield name.decode("utf-8", "replace"), value


def _value(kind: bytes, data: bytes, at: int) -> tuple[Value, int]:
    """A header's value, and where it ends."""
    match list(kind):
        case [0 | 1 as no]:
            return no == 0, at
        case [code] if code in _NUMBERS:
            end = at + _NUMBERS[code]
            return int.from_bytes(_part(data, at, end), signed=True), end
        case [6 | 7 as code]:
            start = at + 2
            end = start + int.from_bytes(_part(data, at, start))
            value = _part(data, start, end)
            return (value if code == 6 else value.decode("utf-8", "replace")), end
        case [9]:
            return _part(data, at, at + 16), at + 16
        case _:
            raise Broken("a header is of no known type")


def _part(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise Broken("a header runs over the end of the headers")
    return data[start:end]
