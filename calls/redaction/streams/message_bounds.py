"""Find where messages begin and end in the bytes of a stream, for each framing.

The decoders of `calls.framing` return the text of messages; redaction needs its position, to change it in place.
"""

import re
from binascii import crc32
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

type StreamKind = Literal["sse", "lines", "nul", "array", "frames"]

MAX_MESSAGE: Final = 64 << 10
"""Longer messages, in bytes, are not searched: no piece of a text is that long."""

_NDJSON: Final = re.compile(r"ndjson|stream\+json|jsonl|json-lines|x-json-stream")
_FIELD: Final = re.compile(rb"(?:data|event|id|retry)?:")
_ELEMENTS: Final = (b'"candidates"', b'"answer"', b'"reply"')
"""Members in the elements of an array that is a stream (Gemini, Discovery Engine); any other array is a document."""

_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b"\xef\xbb\xbfdata:", b"\xef\xbb\xbfevent:")
_PRELUDE: Final = 12
_LENGTHS: Final = 1
"""The maximum of the first byte of a frame's length: Amazon's limit is below 32 MiB."""

_HEAD: Final = 4096
_NEWLINE: Final = 10


def detect_kind(head: bytes, essence: str, *, is_whole: bool) -> StreamKind | Literal[False] | None:
    """Detect how a body is divided into messages from its beginning; False: it is no stream; None: more bytes are needed."""
    head = head.lstrip(b" \t\r\n")
    if not head:
        return False if is_whole else None
    match head[:1]:
        case b"{":
            return _detect_object_kind(head, essence, is_whole=is_whole)
        case b"[":
            if any(name in head[:_HEAD] for name in _ELEMENTS):
                return "array"
            return False if is_whole or len(head) >= _HEAD else None
        case _:
            return _detect_other_kind(head, essence, is_whole=is_whole)


def has_messages(data: bytes) -> bool:
    """Return whether a whole body is a stream of several messages, or of one that lists the pieces of a text."""
    # Numbers: CPython raises and discards an error for each `bytes in bytes`, which takes longer than the search.
    if data[:1] == b"{" and _NEWLINE not in data and 0 not in data:
        return False  # one object, as `detect_kind` would find: this is nearly every body
    kind = detect_kind(data, "", is_whole=True)
    if kind == "sse":
        return data.count(b"data:") > 1 or data.find(b'"token"') >= 0
    return bool(kind)


def _detect_object_kind(head: bytes, essence: str, *, is_whole: bool) -> StreamKind | Literal[False] | None:
    """Detect JSON values one per line, or ended by zero bytes."""
    if _NDJSON.search(essence):
        return "lines"
    line = head.find(b"\n")
    if line >= 0:
        return "lines" if head[:line].rstrip().endswith(b"}") else False
    if (at := head.find(b"\0")) > 0 and head[at - 1 : at] == b"}":
        return "nul"
    return False if is_whole or len(head) > MAX_MESSAGE else None


def _detect_other_kind(head: bytes, essence: str, *, is_whole: bool) -> StreamKind | Literal[False] | None:
    if essence == "text/event-stream" or _FIELD.match(head.removeprefix(b"\xef\xbb\xbf")):
        return "sse"
    if head[0] > _LENGTHS:
        return None if not is_whole and any(field.startswith(head) for field in _FIELDS) else False
    if len(head) < _PRELUDE:
        return False if is_whole else None
    if essence == "application/vnd.amazon.eventstream" or crc32(head[:8]) == int.from_bytes(head[8:12]):
        return "frames"
    return False


# Two consecutive line ends. A "\r" that is the last byte so far may be the first half of "\r\n": the "\n" is then an empty
# line before the next event, which is ignored.
_EVENT_END: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_NO_LINE_END: Final = re.compile(rb"[^\r\n]")
_NO_MARK: Final = {b"\n": re.compile(rb"[^\n]"), b"\0": re.compile(rb"[^\0]")}
_MARK: Final = re.compile(rb'[\[\]{}"]|\\.', re.DOTALL)


class MessageSpan(NamedTuple):
    """The span of a message with its framing, and the span of its content."""

    start: int
    end: int
    inner: int
    inner_end: int
    is_part: bool = False
    """Whether the content is part of another stream (SageMaker's `PayloadPart`)."""


class MessageSplitter:
    """Finds messages in a buffer that grows at its end and whose beginning may be removed between two calls."""

    __slots__ = ("_depth", "_element_start", "_is_quoted", "_kind", "_seen", "skips_long_messages")

    def __init__(self, kind: StreamKind) -> None:
        self._kind = kind
        self.skips_long_messages = kind == "frames"
        """Whether text that it skips is a message that is too long to be searched."""

        self._seen = 0
        """The offset up to which the end of the current message was searched."""

        self._depth = 0
        self._is_quoted = False
        self._element_start = 0
        """The start of the current element; negative if it was removed from the buffer."""

    def shift(self, count: int) -> None:
        """Adjust the offsets after bytes were removed from the buffer's beginning."""
        self._seen = max(0, self._seen - count)
        self._element_start -= count

    def needed_offset(self, data: bytes) -> int:
        """Return the offset from which the buffer is needed to find the end of a message that is too long."""
        match self._kind:
            case "sse":
                return len(data) - 3
            case "array":
                return self._seen
            case _:
                return len(data)

    def next_message(self, data: bytes, at: int) -> MessageSpan | int | None:
        """Return the next message from an offset on, or the offset up to which there is none; None: it is incomplete."""
        match self._kind:
            case "sse":
                return self._next_event(data, at)
            case "lines":
                return self._next_line(data, at, b"\n")
            case "nul":
                return self._next_line(data, at, b"\0")
            case "array":
                return self._next_element(data, at)
            case "frames":
                return _next_frame(data, at)

    def last_message(self, data: bytes, at: int) -> MessageSpan:
        """Return the incomplete message at the end of a stream."""
        inner = at
        if self._kind == "array":
            inner = max(at, self._element_start) if self._depth > 1 else len(data)
        elif self._kind == "frames":
            inner = min(len(data), at + _PRELUDE + int.from_bytes(data[at + 4 : at + 8]))
        return MessageSpan(at, len(data), inner, len(data), b"PayloadPart" in data[at:inner])

    def _next_event(self, data: bytes, at: int) -> MessageSpan | int | None:
        if data[at] in b"\r\n":
            begins = _NO_LINE_END.search(data, at)
            return begins.start() if begins else len(data)
        found = _EVENT_END.search(data, max(at, self._seen - 3))
        if found is None:
            self._seen = len(data)
            return None
        return MessageSpan(at, found.end(), at, found.start())

    def _next_line(self, data: bytes, at: int, mark: bytes) -> MessageSpan | int | None:
        if data[at : at + 1] == mark:
            found = _NO_MARK[mark].search(data, at)
            return found.start() if found else len(data)
        end = data.find(mark, max(at, self._seen))
        if end < 0:
            self._seen = len(data)
            return None
        return MessageSpan(at, end + 1, at, end)

    def _next_element(self, data: bytes, at: int) -> MessageSpan | int | None:
        """Find an object in the array by counting brackets outside strings."""
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
                    self._element_start = mark.start()
            else:
                self._depth -= 1
                if self._depth == 1:
                    return MessageSpan(self._element_start, mark.end(), self._element_start, mark.end())
        # A backslash at the end escapes the next byte.
        self._seen = max(self._seen, len(data) - data.endswith(b"\\"))
        return None if self._depth > 1 else max(at, self._seen)


def _next_frame(data: bytes, at: int) -> MessageSpan | int | None:
    """Find a frame of Amazon's event stream. After an invalid prelude, everything is skipped."""
    if len(data) - at < _PRELUDE:
        return None
    total, headers = int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8])
    if crc32(data[at : at + 8]) != int.from_bytes(data[at + 8 : at + 12]) or not headers + 16 <= total <= 1 << 25:
        return len(data)
    if total > MAX_MESSAGE:
        return at + total
    if len(data) - at < total:
        return None
    inner = at + _PRELUDE + headers
    return MessageSpan(at, at + total, inner, at + total - 4, b"PayloadPart" in data[at + _PRELUDE : inner])


_LINE: Final = re.compile(rb"([^\r\n]*+)(\r\n|\r|\n|\Z)")


def data_lines(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the data lines of a server-sent event."""
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
    """Return the name of a server-sent event, or empty bytes."""
    found = re.compile(rb"(?m)^event:([^\r\n]*+)").search(data, start, end)
    return found.group(1).strip() if found else b""
