"""Find where messages begin and end in the bytes of a stream, for each framing.

The decoders of `calls.framing` give a message's text; here it is needed where that text stands, so that it can be changed there.
"""

import re
from binascii import crc32
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

type Kind = Literal["sse", "lines", "nul", "array", "frames"]

LONGEST: Final = 64 << 10
"""A message of more bytes is not read: no piece of a text is so long."""

_NDJSON: Final = re.compile(r"ndjson|stream\+json|jsonl|json-lines|x-json-stream")
_FIELD: Final = re.compile(rb"(?:data|event|id|retry)?:")
_ELEMENTS: Final = (b'"candidates"', b'"answer"', b'"reply"')
"""What the elements of an array have that is a stream (Gemini, Discovery Engine): any other array is a document."""

_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b"\xef\xbb\xbfdata:", b"\xef\xbb\xbfevent:")
_PRELUDE: Final = 12
_LENGTHS: Final = 1
"""The first byte of a frame's length is no greater: Amazon's limit is below 32 MiB."""

_HEAD: Final = 4096


def kind_of(head: bytes, essence: str, *, ended: bool) -> Kind | Literal[False] | None:
    """How a body that begins so is cut; False: it is no stream; None: only more of it can tell."""
    head = head.lstrip(b" \t\r\n")
    if not head:
        return False if ended else None
    match head[:1]:
        case b"{":
            return _of_object(head, essence, ended=ended)
        case b"[":
            if any(name in head[:_HEAD] for name in _ELEMENTS):
                return "array"
            return False if ended or len(head) >= _HEAD else None
        case _:
            return _of_other(head, essence, ended=ended)


def has_messages(data: bytes) -> bool:
    """Whether a whole body is a stream of several messages, or of one that lists a text's pieces."""
    kind = kind_of(data, "", ended=True)
    if kind == "sse":
        return data.count(b"data:") > 1 or b'"token"' in data
    return bool(kind)


def _of_object(head: bytes, essence: str, *, ended: bool) -> Kind | Literal[False] | None:
    """JSON values one a line, if the first line is one."""
    if _NDJSON.search(essence):
        return "lines"
    line = head.find(b"\n")
    if line >= 0:
        return "lines" if head[:line].rstrip().endswith(b"}") else False
    if (at := head.find(b"\0")) > 0 and head[at - 1 : at] == b"}":
        return "nul"
    return False if ended or len(head) > LONGEST else None


def _of_other(head: bytes, essence: str, *, ended: bool) -> Kind | Literal[False] | None:
    if essence == "text/event-stream" or _FIELD.match(head.removeprefix(b"\xef\xbb\xbf")):
        return "sse"
    if head[0] > _LENGTHS:
        return None if not ended and any(field.startswith(head) for field in _FIELDS) else False
    if len(head) < _PRELUDE:
        return False if ended else None
    if essence == "application/vnd.amazon.eventstream" or crc32(head[:8]) == int.from_bytes(head[8:12]):
        return "frames"
    return False


# One end of a line after another. A "\r" that is the last byte so far may be the first half of "\r\n": the "\n" is then an empty
# line before the next event, which means nothing.
_EVENT_END: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_NO_LINE_END: Final = re.compile(rb"[^\r\n]")
_NO_MARK: Final = {b"\n": re.compile(rb"[^\n]"), b"\0": re.compile(rb"[^\0]")}
_MARK: Final = re.compile(rb'[\[\]{}"]|\\.', re.DOTALL)


class Cut(NamedTuple):
    """Where a message stands, with all that frames it; where its content does."""

    start: int
    end: int
    inner: int
    inner_end: int
    is_part: bool = False
    """Whether the content is a part of another stream (SageMaker's `PayloadPart`)."""


class Cutter:
    """Cuts a buffer that grows at its end; between two calls its beginning may be taken off."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.skips = kind == "frames"
        """Whether what it says is no message is one that is too long to be read."""

        self._seen = 0
        """Up to where the message that has begun was searched for its end."""

        self._depth = 0
        self._is_quoted = False
        self._opened = 0
        """Where the element that has begun does; before the buffer's beginning where that was taken off."""

    def shift(self, count: int) -> None:
        """So many bytes were taken off the buffer's beginning."""
        self._seen = max(0, self._seen - count)
        self._opened -= count

    def needed_from(self, data: bytes) -> int:
        """From where on the buffer is needed to find the end of a message that is too long to be read."""
        match self._kind:
            case "sse":
                return len(data) - 3
            case "array":
                return self._seen
            case _:
                return len(data)

    def next(self, data: bytes, at: int) -> Cut | int | None:
        """The next message from an offset on, or up to where there is none; None: it has begun, and its end has not come."""
        match self._kind:
            case "sse":
                return self._event(data, at)
            case "lines":
                return self._line(data, at, b"\n")
            case "nul":
                return self._line(data, at, b"\0")
            case "array":
                return self._element(data, at)
            case "frames":
                return _frame(data, at)

    def rest(self, data: bytes, at: int) -> Cut:
        """What is left of a stream that ends within a message."""
        inner = at
        if self._kind == "array":
            inner = max(at, self._opened) if self._depth > 1 else len(data)
        elif self._kind == "frames":
            inner = min(len(data), at + _PRELUDE + int.from_bytes(data[at + 4 : at + 8]))
        return Cut(at, len(data), inner, len(data), b"PayloadPart" in data[at:inner])

    def _event(self, data: bytes, at: int) -> Cut | int | None:
        if data[at] in b"\r\n":
            begins = _NO_LINE_END.search(data, at)
            return begins.start() if begins else len(data)
        found = _EVENT_END.search(data, max(at, self._seen - 3))
        if found is None:
            self._seen = len(data)
            return None
        return Cut(at, found.end(), at, found.start())

    def _line(self, data: bytes, at: int, mark: bytes) -> Cut | int | None:
        if data[at : at + 1] == mark:
            found = _NO_MARK[mark].search(data, at)
            return found.start() if found else len(data)
        end = data.find(mark, max(at, self._seen))
        if end < 0:
            self._seen = len(data)
            return None
        return Cut(at, end + 1, at, end)

    def _element(self, data: bytes, at: int) -> Cut | int | None:
        """An object in the array: brackets are counted, strings are skipped."""
        for mark in _MARK.finditer(data, max(at, self._seen)):
            self._seen = mark.end()
            sign = mark.group()
            if sign == b'"':
                self._is_quoted = not self._is_quoted
            elif self._is_quoted or sign[:1] == b"\\":
                continue
            elif sign in (b"{", b"["):
                self._depth += 1
                if self._depth == 2:
                    self._opened = mark.start()
            else:
                self._depth -= 1
                if self._depth == 1:
                    return Cut(self._opened, mark.end(), self._opened, mark.end())
        # A backslash at the end speaks for what comes next.
        self._seen = max(self._seen, len(data) - data.endswith(b"\\"))
        return None if self._depth > 1 else max(at, self._seen)


def _frame(data: bytes, at: int) -> Cut | int | None:
    """A message of Amazon's event stream. Where its prelude does not hold, all that follows is no message."""
    if len(data) - at < _PRELUDE:
        return None
    total, headers = int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8])
    if crc32(data[at : at + 8]) != int.from_bytes(data[at + 8 : at + 12]) or not headers + 16 <= total <= 1 << 25:
        return len(data)
    if total > LONGEST:
        return at + total
    if len(data) - at < total:
        return None
    inner = at + _PRELUDE + headers
    return Cut(at, at + total, inner, at + total - 4, b"PayloadPart" in data[at + _PRELUDE : inner])


_LINE: Final = re.compile(rb"([^\r\n]*+)(\r\n|\r|\n|\Z)")


def data_lines(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Where the data of a server-sent event stands, line by line."""
    at = start
    while at < end:
        line = _LINE.match(data, at, end)
        assert line
        low, high = line.span(1)
        if data.startswith(b"data:", low):
            low += 6 if data[low + 5 : low + 6] == b" " else 5
            yield low, max(low, high)
        at = line.end()


def event_name(data: bytes, start: int, end: int) -> bytes:
    """The name of a server-sent event, if it has one."""
    found = re.compile(rb"(?m)^event:([^\r\n]*+)").search(data, start, end)
    return found.group(1).strip() if found else b""
