"""Find where a body of HTTP/1.1 ends, and which of its bytes are payload. All bytes pass as they came.

What a chunked body says beside its payload goes on only where it may: extensions of chunks are for the next hop alone, and a
recipient ignores those that it does not know (RFC 9112 7.1.1); some fields may not stand in trailers (`proxy/wire/trailers`).

Feeding is incremental: what is only half of a size line or of an end waits for the rest of it; all else may go on at once,
but for what completes the message, which is given apart.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from calls.model import Headers
from proxy.wire.trailers import is_sendable

LINE: Final = 4096
"""No size line is longer, with its extensions."""

TRAILERS: Final = 64 << 10

# RFC 9112 7.1. Old servers pad with blanks; a request that does could mean something else to whom it goes to.
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~\x80-\xff]*)?")
_PADDED: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t -~\x80-\xff]*)?")
_TRAILER: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")


class MalformedBody(ValueError):
    """These bytes are no body of this kind."""

    def __init__(self, fault: str, go: bytes = b"") -> None:
        super().__init__(fault)
        self.go = go
        """What came with them before the fault, and may go on."""

        self.pieces: Sequence[bytes] = ()
        """The payload of that."""


class Cut(NamedTuple):
    """Some bytes, taken apart."""

    go: bytes
    """May go on."""

    pieces: Sequence[bytes]
    """The payload."""

    end: bytes | None
    """Completes the message; None where it is not complete yet."""

    rest: bytes = b""
    """Does not belong to it."""


class Body(Protocol):
    """A body that is being read."""

    trailers: Headers

    def feed(self, data: bytes) -> Cut:
        """Take in what comes next. Raises Malformed."""


class SizedBody:
    """A body of known length, which is not 0."""

    __slots__ = ("_left",)
    trailers: Headers = ()

    def __init__(self, length: int) -> None:
        self._left = length

    def feed(self, data: bytes) -> Cut:
        left = self._left - len(data)
        self._left = max(left, 0)
        if left > 0:
            return Cut(data, (data,), None)
        if left == 0:
            return Cut(b"", (data,), data)
        end = data[:left]
        return Cut(b"", (end,), end, data[left:])


class UntilClosed:
    """A body that ends with its connection."""

    __slots__ = ()
    trailers: Headers = ()

    def feed(self, data: bytes) -> Cut:
        return Cut(data, (data,), None)


class ChunkedBody:
    """A body in chunks, each of which is a piece of its own."""

    __slots__ = ("_closing", "_left", "_size", "_tail", "trailers")

    def __init__(self, *, padded: bool = False) -> None:
        self._size = _PADDED if padded else _SIZE
        self._tail = b""
        self._left = 0
        self._closing = False
        """Whether the line's end behind a chunk's data is due."""
        self.trailers: Headers = ()

    def feed(self, data: bytes) -> Cut:
        if self._tail:
            data, self._tail = self._tail + data, b""
        elif not (self._left or self._closing) and (piece := self._only_chunk(data)):
            return Cut(data, (piece,), None)
        pieces: list[bytes] = []
        try:
            return self._cut(data, pieces)
        except MalformedBody as fault:
            fault.pieces = pieces
            raise

    def _cut(self, data: bytes, pieces: list[bytes]) -> Cut:
        passed = _Passed(data)
        try:
            return self._scan(data, pieces, passed)
        except MalformedBody as fault:
            fault.go = passed.until(len(fault.go))
            raise

    def _scan(self, data: bytes, pieces: list[bytes], passed: "_Passed") -> Cut:
        at, size = 0, len(data)
        while at < size:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                self._closing = not self._left
            elif self._closing:
                if not data.startswith(b"\r\n", at):
                    if data[at:] != b"\r":
                        raise MalformedBody("a chunk is longer than it said", data[:at])
                    break
                self._closing = False
                at += 2
            else:
                line = data.find(b"\r\n", at)
                if line < 0:
                    if size - at > LINE:
                        raise MalformedBody("an endless size line", data[:at])
                    break
                self._left = self._sized(data, at, line)
                if not self._left:
                    return self._last(data, at, line, pieces, passed)
                if (extension := data.find(b";", at, line)) >= 0:
                    passed.leave_out(extension, line)
                at = line + 2
        if at < size:
            self._tail = data[at:]
        return Cut(passed.until(at), pieces, None)

    def _only_chunk(self, data: bytes) -> bytes | None:
        """The payload, where this is one chunk and no more: as nearly all events of a stream come."""
        line = data.find(b"\r\n", 0, LINE)
        if line <= 0 or not data.endswith(b"\r\n") or data.find(b";", 0, line) >= 0:
            return None
        found = self._size.fullmatch(data, 0, line)
        size = int(found[1], 16) if found else 0
        return data[line + 2 : -2] if size and size == len(data) - line - 4 else None

    def _sized(self, data: bytes, at: int, end: int) -> int:
        found = self._size.fullmatch(data, at, end)
        if found is None:
            raise MalformedBody("what should be a chunk's size is none", data[:at])
        return int(found[1], 16)

    def _last(self, data: bytes, at: int, line: int, pieces: list[bytes], passed: "_Passed") -> Cut:
        """The chunk of size 0, and the trailers behind it."""
        if data.startswith(b"\r\n", line + 2):
            end = line + 4
        else:
            end = data.find(b"\r\n\r\n", line + 2) + 4
            if end < 4:
                if len(data) - line > TRAILERS:
                    raise MalformedBody("endless trailers", data[:at])
                self._tail = data[at:]
                return Cut(passed.until(at), pieces, None)
            self.trailers = _trailers(data[line + 2 : end - 4], data[:at])
        return Cut(passed.until(at), pieces, self._end(data[at:line], data[line + 2 : end - 2]), data[end:])

    def _end(self, size: bytes, lines: bytes) -> bytes:
        """What goes on of the last chunk's size line and of the trailers behind it."""
        if all(is_sendable(name) for name, _ in self.trailers):
            sendable = lines
        else:
            sent = [
                line for line in lines.split(b"\r\n")[:-1] if is_sendable(line.partition(b":")[0].decode("latin-1"))
            ]
            sendable = b"".join([line + b"\r\n" for line in sent])
        return size.partition(b";")[0] + b"\r\n" + sendable + b"\r\n"


class _Passed:
    """What goes on of some bytes: all but what is left out of them."""

    __slots__ = ("_data", "_from", "_pieces")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pieces: list[bytes] = []
        self._from = 0

    def leave_out(self, start: int, end: int) -> None:
        """Leave these out, behind all that was left out before."""
        self._pieces.append(self._data[self._from : start])
        self._from = end

    def until(self, end: int) -> bytes:
        """What goes on of those before `end`."""
        if not self._pieces:
            return self._data if end == len(self._data) else self._data[:end]
        return b"".join([*self._pieces, self._data[self._from : end]])


def _trailers(lines: bytes, before: bytes) -> Headers:
    found = [_TRAILER.fullmatch(line) for line in lines.split(b"\r\n")]
    if None in found:
        raise MalformedBody("what should be a trailer is none", before)
    return tuple((field[1].decode("latin-1"), field[2].decode("latin-1")) for field in found if field)
