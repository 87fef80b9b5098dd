"""Find where an HTTP/1.1 body ends, and which of its bytes are payload. Bytes are forwarded unchanged, with two exceptions.

Chunk extensions are for the next hop only, and a recipient ignores those that it does not know (RFC 9112 7.1.1), so they
are not forwarded; neither are the trailers that `proxy/wire/trailers` excludes.

Feeding is incremental: an incomplete size line or end waits for the rest. All other bytes may be forwarded at once, except
those that complete the message, which are returned separately.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from calls.model import Headers
from proxy.wire.trailers import is_sendable

MAX_SIZE_LINE: Final = 4096
"""Maximum length of a size line, with its extensions."""

MAX_TRAILERS: Final = 64 << 10

# RFC 9112 7.1. Old servers pad the size with whitespace. In a request, that could be ambiguous to the upstream.
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?")
_PADDED: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_TRAILER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")


class MalformedBody(ValueError):
    """The bytes are not a valid body of this kind."""

    def __init__(self, fault: str, forwardable: bytes = b"") -> None:
        super().__init__(fault)
        self.forwardable = forwardable
        """The bytes before the fault, which may be forwarded."""

        self.pieces: Sequence[bytes] = ()
        """Their payload."""


class BodyPart(NamedTuple):
    """The parts of some bytes of a body."""

    forwardable: bytes
    """What may be forwarded now."""

    pieces: Sequence[bytes]
    """The payload of `forwardable` and `end`."""

    end: bytes | None
    """The bytes that complete the message; None if it is still incomplete."""

    rest: bytes = b""
    """The bytes after the message."""


class Body(Protocol):
    """A body that is being received."""

    trailers: Headers

    def feed(self, data: bytes) -> BodyPart:
        """Feed the next bytes. Raises MalformedBody."""


class SizedBody:
    """A body of known length greater than 0."""

    __slots__ = ("_remaining",)
    trailers: Headers = ()

    def __init__(self, length: int) -> None:
        self._remaining = length

    def feed(self, data: bytes) -> BodyPart:
        remaining = self._remaining - len(data)
        self._remaining = max(remaining, 0)
        if remaining > 0:
            return BodyPart(data, (data,), None)
        if remaining == 0:
            return BodyPart(b"", (data,), data)
        end = data[:remaining]
        return BodyPart(b"", (end,), end, data[remaining:])


class BodyUntilClose:
    """A body that ends when its connection closes."""

    __slots__ = ()
    trailers: Headers = ()

    def feed(self, data: bytes) -> BodyPart:
        return BodyPart(data, (data,), None)


class ChunkedBody:
    """A chunked body. Each chunk is a piece of its own."""

    __slots__ = ("_needs_line_end", "_remaining", "_size_line", "_tail", "trailers")

    def __init__(self, *, padded: bool = False) -> None:
        self._size_line = _PADDED if padded else _SIZE
        self._tail = b""
        self._remaining = 0
        self._needs_line_end = False
        """Whether the line end after a chunk's data comes next."""

        self.trailers: Headers = ()

    def feed(self, data: bytes) -> BodyPart:
        if self._tail:
            data, self._tail = self._tail + data, b""
        elif not (self._remaining or self._needs_line_end) and (piece := self._only_chunk(data)):
            return BodyPart(data, (piece,), None)
        pieces: list[bytes] = []
        try:
            return self._scan_from_start(data, pieces)
        except MalformedBody as fault:
            fault.pieces = pieces
            raise

    def _scan_from_start(self, data: bytes, pieces: list[bytes]) -> BodyPart:
        passed = _ForwardedBytes(data)
        try:
            return self._scan(data, pieces, passed)
        except MalformedBody as fault:
            fault.forwardable = passed.bytes_until(len(fault.forwardable))
            raise

    def _scan(self, data: bytes, pieces: list[bytes], forwarded: "_ForwardedBytes") -> BodyPart:
        at, size = 0, len(data)
        while at < size:
            if self._remaining:
                piece = data[at : at + self._remaining]
                pieces.append(piece)
                at += len(piece)
                self._remaining -= len(piece)
                self._needs_line_end = not self._remaining
            elif self._needs_line_end:
                if not data.startswith(b"\r\n", at):
                    if data[at:] != b"\r":
                        raise MalformedBody("a chunk is longer than its size line says", data[:at])
                    break
                self._needs_line_end = False
                at += 2
            else:
                line = data.find(b"\r\n", at)
                if line < 0:
                    if size - at > MAX_SIZE_LINE:
                        raise MalformedBody("the size line of a chunk is too long", data[:at])
                    break
                self._remaining = self._chunk_size(data, at, line)
                if not self._remaining:
                    return self._read_last_chunk(data, at, line, pieces, forwarded)
                if (extension := data.find(b";", at, line)) >= 0:
                    forwarded.leave_out(extension, line)
                at = line + 2
        if at < size:
            self._tail = data[at:]
        return BodyPart(forwarded.bytes_until(at), pieces, None)

    def _only_chunk(self, data: bytes) -> bytes | None:
        """Return the payload if the data is exactly one chunk, as nearly all events of a stream are."""
        line = data.find(b"\r\n", 0, MAX_SIZE_LINE)
        if line <= 0 or not data.endswith(b"\r\n") or data.find(b";", 0, line) >= 0:
            return None
        found = self._size_line.fullmatch(data, 0, line)
        size = int(found[1], 16) if found else 0
        return data[line + 2 : -2] if size and size == len(data) - line - 4 else None

    def _chunk_size(self, data: bytes, at: int, end: int) -> int:
        found = self._size_line.fullmatch(data, at, end)
        if found is None:
            raise MalformedBody("the size of a chunk is not a hexadecimal number", data[:at])
        return int(found[1], 16)

    def _read_last_chunk(
        self, data: bytes, at: int, line: int, pieces: list[bytes], forwarded: "_ForwardedBytes"
    ) -> BodyPart:
        """Read the chunk of size 0 and the trailers after it."""
        if data.startswith(b"\r\n", line + 2):
            end = line + 4
        else:
            end = data.find(b"\r\n\r\n", line + 2) + 4
            if end < 4:
                if len(data) - line > MAX_TRAILERS:
                    raise MalformedBody("the trailers are too long", data[:at])
                self._tail = data[at:]
                return BodyPart(forwarded.bytes_until(at), pieces, None)
            self.trailers = _trailers(data[line + 2 : end - 4], data[:at])
        return BodyPart(
            forwarded.bytes_until(at), pieces, self._sendable_end(data[at:line], data[line + 2 : end - 2]), data[end:]
        )

    def _sendable_end(self, size: bytes, lines: bytes) -> bytes:
        """Return the bytes to forward of the last chunk's size line and the trailers."""
        if not self.trailers or all(is_sendable(name) for name, _ in self.trailers):
            sendable = lines
        else:
            trailer_lines = [
                line for line in lines.split(b"\r\n")[:-1] if is_sendable(line.partition(b":")[0].decode("latin-1"))
            ]
            sendable = b"".join([line + b"\r\n" for line in trailer_lines])
        return size.partition(b";")[0] + b"\r\n" + sendable + b"\r\n"


class _ForwardedBytes:
    """The bytes to forward of some data: all but the ranges left out."""

    __slots__ = ("_data", "_from", "_pieces")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pieces: list[bytes] = []
        self._from = 0

    def leave_out(self, start: int, end: int) -> None:
        """Leave out a range, which must follow the previous one."""
        self._pieces.append(self._data[self._from : start])
        self._from = end

    def bytes_until(self, end: int) -> bytes:
        """Return the bytes to forward of those before `end`."""
        if not self._pieces:
            return self._data if end == len(self._data) else self._data[:end]
        return b"".join([*self._pieces, self._data[self._from : end]])


def _trailers(lines: bytes, before: bytes) -> Headers:
    found = [_TRAILER.fullmatch(line) for line in lines.split(b"\r\n")]
    if None in found:
        raise MalformedBody("a trailer is not a valid field", before)
    return tuple((field[1].decode("latin-1"), field[2].decode("latin-1")) for field in found if field)
