"""Find secrets that are divided among many messages of a stream.

`StreamedText` has the interface of `Scanner`: bytes are fed as they arrive, and edits are returned, with the offset up to which
everything is decided. The result does not depend on how the bytes are divided. Memory is bounded: messages of more than 64 KiB
are not searched, and a text that may begin a secret is decided after 128 KiB of the stream without more of it.
"""

from collections import deque
from typing import Final, NamedTuple

from calls.redaction.scanning.scanner import RuleTable
from calls.redaction.streams.channels import Slice
from calls.redaction.streams.message_bounds import (
    MAX_MESSAGE,
    MessageSpan,
    MessageSplitter,
    data_lines,
    detect_kind,
    event_name,
)
from calls.redaction.streams.message_search import MessageSearch
from calls.redaction.streams.message_shapes import MAX_SHAPED_MESSAGE as LONGEST_SHAPE

MAX_WAITING: Final = 128 << 10
"""The number of bytes of a stream after which a text that may begin a secret is decided without more of it."""

_MIN_MESSAGE: Final = 6
"""The fewest bytes of a message with text: `data:x`."""

_LINE_FEED: Final = 10


class StreamedText:
    """Searches one body. `feed` returns the edits; before the offset `decided_to`, there will be no more."""

    __slots__ = (
        "_base",
        "_buffer",
        "_carried_stream",
        "_cutter",
        "_essence",
        "_has_lines",
        "_is_event_stream",
        "_is_inert",
        "_is_too_long",
        "_key",
        "_search",
        "_skip_to",
        "_table",
    )

    def __init__(self, table: RuleTable, key: bytes, essence: str = "") -> None:
        self._table, self._key, self._essence = table, key, essence
        self._search = MessageSearch(table, key)
        self._cutter: MessageSplitter | None = None
        self._is_event_stream = self._has_lines = self._is_inert = False
        self._buffer = b""
        self._base = 0
        """The offset of the buffer in the body."""

        self._skip_to = 0
        self._is_too_long = False
        """Whether the current message is too long to be searched."""

        self._carried_stream: _CarriedStream | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of messages."""
        return self._cutter is not None

    @property
    def decided_to(self) -> int:
        """The offset before which nothing will change any more."""
        undecided_at = self._search.channels.undecided_at
        at = self._base if undecided_at is None else min(self._base, undecided_at)
        if self._carried_stream is None or (part := self._carried_stream.undecided_at) is None:
            return at
        return min(at, part)

    @property
    def is_settled(self) -> bool:
        """Whether nothing of what was fed may still change, even at the end."""
        return not (self._buffer or self._carried_stream or self._search.channels.is_pending)

    def feed(self, data: bytes, *, last: bool = False) -> list[Slice]:
        """Feed the next piece; return the edits. `last`: decide everything."""
        if self._is_inert:
            self._base += len(data)
            return []
        buffer = self._buffer + data if self._buffer else data
        if self._cutter is None and not self._detect_kind(buffer, is_whole=last):
            return []
        at = self._take_messages(buffer)
        if last:
            self._finish(buffer, at)
            at = len(buffer)
        self._drop_prefix(buffer, at)
        channels = self._search.channels
        if not channels.slices:
            return []
        slices, channels.slices = channels.slices, []
        return slices

    def _detect_kind(self, buffer: bytes, *, is_whole: bool) -> bool:
        kind = detect_kind(buffer, self._essence, is_whole=is_whole)
        if kind:
            self._cutter = MessageSplitter(kind)
            self._is_event_stream = kind == "sse"
            self._has_lines = kind == "lines"
            return True
        if kind is None:
            self._buffer = buffer
        else:
            self._is_inert = True
            self._buffer = b""
            self._base += len(buffer)
        return False

    def _take_messages(self, buffer: bytes) -> int:
        """Process all complete messages; return the offset of the next one."""
        assert self._cutter
        size, at = len(buffer), max(0, self._skip_to - self._base)
        while at < size:
            if (self._is_event_stream or self._has_lines) and not self._is_too_long:
                end = self._search.take_run(buffer, at, size, self._base, _LINE_FEED if self._has_lines else None)
                if end > at:
                    at = end
                    if self._search.channels.is_pending:
                        self._settle_before(at)
                    continue
            cut = self._cutter.next_message(buffer, at)
            if cut is None:
                break
            if isinstance(cut, int):
                if cut <= at:
                    break
                if self._cutter.skips_long_messages:
                    self._search.channels.settle()
                at = cut
                continue
            if self._is_too_long or cut.end - cut.start > MAX_MESSAGE:
                self._search.channels.settle()
            elif cut.inner_end - cut.inner >= _MIN_MESSAGE or cut.is_part:
                self._take_message(buffer, cut)
            self._is_too_long = False
            at = cut.end
            self._settle_before(at)
        return at

    def _settle_before(self, at: int) -> None:
        undecided_at = self._search.channels.undecided_at
        if undecided_at is not None and undecided_at < self._base + at - MAX_WAITING:
            self._search.channels.settle(self._base + at - MAX_WAITING)

    def _drop_prefix(self, buffer: bytes, at: int) -> None:
        """Remove the beginning of the buffer that is no longer needed."""
        assert self._cutter
        size = len(buffer)
        if at > size:
            self._skip_to = self._base + at
            at = size
        elif size - at > MAX_MESSAGE:
            self._is_too_long = True
            self._search.channels.settle()
            at = max(at, self._cutter.needed_offset(buffer))
        self._buffer = buffer[at:]
        self._base += at
        self._cutter.shift(at)

    def _finish(self, buffer: bytes, at: int) -> None:
        assert self._cutter
        if at < len(buffer) and not self._is_too_long:
            self._take_message(buffer, self._cutter.last_message(buffer, at), is_cut=True)
        if self._carried_stream:
            self._search.channels.slices += self._carried_stream.finish()
        self._search.channels.settle()

    def _take_message(self, buffer: bytes, cut: MessageSpan, *, is_cut: bool = False) -> None:
        span = cut.inner, cut.inner_end
        if self._is_event_stream:
            self._take_event(buffer, cut, is_cut=is_cut)
        elif cut.is_part:
            if self._carried_stream is None:
                self._carried_stream = _CarriedStream(StreamedText(self._table, self._key))
            self._search.channels.slices += self._carried_stream.feed(buffer[slice(*span)], self._base + cut.inner)
        elif not self._search.take_known(buffer, *span, self._base) and not self._search.take_carried(
            buffer, span, self._base
        ):
            self._search.take_json(buffer, span, self._base, is_cut=is_cut)

    def _take_event(self, buffer: bytes, cut: MessageSpan, *, is_cut: bool) -> None:
        lines = list(data_lines(buffer, cut.inner, cut.inner_end))
        if not lines:
            return
        span = lines[0][0], lines[-1][1]
        if buffer[span[0] : span[1]].lstrip()[:1] in (b"{", b"[", b'"'):
            data = buffer if len(lines) == 1 else _blank_other_fields(buffer, lines)
            whole = None if is_cut or len(lines) > 1 else (cut.start, cut.end)
            if whole is None:
                # A message on several lines has no shape: shapes are compared with the body's own bytes.
                is_read = self._search.take_json(data, span, self._base, is_cut=is_cut, whole=(0, LONGEST_SHAPE + 1))
            else:
                is_read = self._search.take_json(data, span, self._base, whole=whole)
            if is_read:
                return
        self._search.take_lines(event_name(buffer, cut.inner, cut.inner_end), buffer, lines, self._base)


def _blank_other_fields(buffer: bytes, lines: list[tuple[int, int]]) -> bytes:
    """Replace everything but the data by spaces, so that offsets stay valid."""
    data = bytearray(b" " * len(buffer))
    for start, end in lines:
        data[start:end] = buffer[start:end]
    return bytes(data)


class _Part(NamedTuple):
    start: int
    end: int
    at: int


class _CarriedStream:
    """Searches a stream that is carried in parts by another one."""

    def __init__(self, text: StreamedText) -> None:
        self._text = text
        self._parts: deque[_Part] = deque()
        self._length = 0

    def feed(self, data: bytes, at: int) -> list[Slice]:
        """Feed a part at an offset of the carrying stream; return the edits."""
        if data:
            self._parts.append(_Part(self._length, self._length + len(data), at))
            self._length += len(data)
        return self._place_slices(self._text.feed(data))

    def finish(self) -> list[Slice]:
        """End the carried stream; return the last edits."""
        return self._place_slices(self._text.feed(b"", last=True))

    @property
    def undecided_at(self) -> int | None:
        """The offset of the first part that may still change."""
        if not self._parts:
            return None
        return self._parts[0].at + max(0, self._text.decided_to - self._parts[0].start)

    def _place_slices(self, slices: list[Slice]) -> list[Slice]:
        found: list[Slice] = []
        for at, data, begins in slices:
            for part in self._parts:
                low, high = max(at, part.start), min(at + len(data), part.end)
                if low < high:
                    new = data[low - at : high - at]
                    found.append(Slice(part.at + low - part.start, new, begins and low == at))
        while self._parts and self._parts[0].end <= self._text.decided_to:
            self._parts.popleft()
        return found
