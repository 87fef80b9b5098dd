"""Find secrets that are divided among many messages of a stream.

`StreamedText` has the interface of `Scanner`: bytes are fed as they arrive, and edits are returned, with the offset up to which
everything is decided. The result does not depend on how the bytes are divided. Memory is bounded: messages of more than 64 KiB
are not searched, and a text that may begin a secret is decided after 128 KiB of the stream without more of it.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from calls.redaction.scanning.scanner import RuleTable
from calls.redaction.streams.channels import Channel, Channels, EnclosedText, Slice
from calls.redaction.streams.json_leaves import NotJson, find_leaves
from calls.redaction.streams.message_bounds import (
    MAX_MESSAGE,
    MessageSpan,
    MessageSplitter,
    data_lines,
    detect_kind,
    event_name,
)
from calls.redaction.streams.message_shapes import MAX_SHAPED_MESSAGE as LONGEST_SHAPE
from calls.redaction.streams.message_shapes import MEMORY, CompiledShape, build_shape
from calls.redaction.streams.message_texts import MessageLeaves, TextLeaf, is_repeated

MAX_WAITING: Final = 128 << 10
"""The number of bytes of a stream after which a text that may begin a secret is decided without more of it."""

MAX_SHAPES: Final = 6
"""The number of shapes with which the messages of a stream are compared."""

_MAX_LEARNT_SHAPES: Final = 16
"""The most shapes that are built for one stream: each costs as much as parsing a hundred messages."""

_MIN_MESSAGE: Final = 6
"""The fewest bytes of a message with text: `data:x`."""

_LINE_FEED: Final = 10
_MAX_LAST_TEXTS: Final = 512
_CARRIER: Final = re.compile(rb'\s*+\{.{0,4096}?"bytes"\s*+:\s*+"([A-Za-z0-9+/]++=*+)"', re.DOTALL)
"""A message of Bedrock with the model's own message, or an agent's text, in base64."""

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]")


class _UsualShape(NamedTuple):
    """The shape of most messages of a stream: one piece of one text, and members that all messages repeat."""

    match: Callable[[bytes, int, int], "re.Match[bytes] | None"]
    group: int
    channel: Channel
    repeated: tuple[tuple[int, Hashable], ...]


class MessageSearch:
    """Reads messages and searches the texts that they carry in pieces."""

    def __init__(self, table: RuleTable, key: bytes) -> None:
        self.channels = Channels(table, key)
        self._shapes: list[CompiledShape] = []
        self._learnt_count = 0
        self._last_texts: dict[Hashable, bytes] = {}
        self._usual: _UsualShape | None = None

    def try_take(self, data: bytes, end: int, base: int) -> bool:
        """Process the message up to an offset if it has the usual shape."""
        usual = self._usual
        if usual is None:
            return False
        found = usual.match(data, 0, end)
        if found is None or found.end() != end:
            return False
        for group, name in usual.repeated:
            if not is_repeated(found[group], self._last_texts.get(name)):
                return False
        text = found[usual.group]
        if text and not self.channels.try_pass(usual.channel, text):
            self.channels.add(usual.channel, text, base + found.start(usual.group))
        return True

    def take_known(
        self, data: bytes, start: int, end: int, base: int, enclosed: EnclosedText | None = None
    ) -> int | None:
        """Process the message at an offset if its shape is known, and return its end. `base` is the offset of `data`."""
        known = self._known_shape(data, start, end)
        if known is None:
            return None
        shape, found = known
        for group, channel, names, may_repeat in shape.texts:
            text = found[group]
            if text:
                name = (channel, found.group(*names)) if names else channel
                self._add_text(name, text, found.start(group), base, enclosed, may_repeat=may_repeat)
        return found.end()

    def _known_shape(self, data: bytes, start: int, end: int) -> "tuple[CompiledShape, re.Match[bytes]] | None":
        for number, shape in enumerate(self._shapes):
            found = shape.match(data, start, end)
            if found:
                if number:
                    self._shapes.insert(0, self._shapes.pop(number))
                    self._usual = self._usual_shape(shape)
                return shape, found
        known = MEMORY.find(data, start, end)
        if known:
            self._shapes = [known[0], *self._shapes[: MAX_SHAPES - 1]]
            self._usual = self._usual_shape(known[0])
        return known

    def take_json(
        self,
        data: bytes,
        span: tuple[int, int],
        base: int,
        *,
        whole: tuple[int, int] | None = None,
        enclosed: EnclosedText | None = None,
        is_cut: bool = False,
    ) -> bool:
        """Process a JSON message; return False if it is not JSON. `whole` is its span with its framing."""
        try:
            message = MessageLeaves(data, find_leaves(data, *span, is_cut=is_cut))
        except NotJson:
            return False
        texts = tuple(message.text_leaves())
        for text in texts:
            piece = message.value(text.leaf)
            if piece:
                name = self._channel_name(message, text)
                self._add_text(name, piece, text.leaf.start, base, enclosed, may_repeat=text.may_repeat)
        start, end = whole or span
        if not is_cut and end - start <= LONGEST_SHAPE and self._learnt_count < _MAX_LEARNT_SHAPES:
            self._learnt_count += 1
            MEMORY.add(data, start, build_shape(data, start, end, message, texts))
        return True

    def take_carried(self, data: bytes, span: tuple[int, int], base: int) -> bool:
        """Process a message that contains another one in base64; return False if it does not."""
        match = _CARRIER.match(data, *span)
        if match is None:
            return False
        try:
            inner = b64decode(match.group(1), validate=True)
        except NotBase64:
            return False
        if b64encode(inner) != match.group(1):
            return False
        enclosed = EnclosedText(inner, base + match.start(1))
        if self.take_known(inner, 0, len(inner), base + match.start(1), enclosed) == len(inner):
            return True
        if inner[:1] == b"{" and self.take_json(inner, (0, len(inner)), base + match.start(1), enclosed=enclosed):
            return True
        if _CONTROL.search(inner):
            return False
        self._add_text(b"bytes", inner, 0, base + match.start(1), enclosed, may_repeat=True)
        return True

    def take_lines(self, name: Hashable, data: bytes, lines: list[tuple[int, int]], base: int) -> None:
        """Process the lines of a message of plain text."""
        channel = self.channels.get_channel((b"text", name))
        for number, (start, end) in enumerate(lines):
            if number:
                self.channels.add(channel, b"\n", None)
            self.channels.add(channel, data[start:end], base + start)

    def _add_text(
        self, name: Hashable, text: bytes, at: int, base: int, enclosed: EnclosedText | None, *, may_repeat: bool
    ) -> None:
        if not may_repeat:
            if is_repeated(text, self._last_texts.get(name)):
                return
            self._remember_text(name, text)
        channel = self.channels.get_channel(name)
        if self.channels.try_pass(channel, text):
            return
        if enclosed:
            self.channels.add(channel, text, base, enclosed, at)
        else:
            self.channels.add(channel, text, base + at)

    def _remember_text(self, name: Hashable, text: bytes) -> None:
        if len(self._last_texts) >= _MAX_LAST_TEXTS and name not in self._last_texts:
            self._last_texts.clear()
        self._last_texts[name] = text

    def _channel_name(self, message: MessageLeaves, text: TextLeaf) -> Hashable:
        if not text.names:
            return text.channel
        values = tuple(map(message.value, text.names))
        return text.channel, values if len(values) > 1 else values[0]

    def _usual_shape(self, shape: CompiledShape) -> _UsualShape | None:
        pieces = [one for one in shape.texts if one.may_repeat]
        if len(pieces) != 1 or any(one.names for one in shape.texts):
            return None
        repeated = tuple((one.group, one.channel) for one in shape.texts if not one.may_repeat)
        return _UsualShape(shape.match, pieces[0].group, self.channels.get_channel(pieces[0].channel), repeated)


class StreamedText:
    """Searches one body. `feed` returns the edits; before the offset `decided_to`, there will be no more."""

    def __init__(self, table: RuleTable, key: bytes, essence: str = "") -> None:
        self._table, self._key, self._essence = table, key, essence
        self._search = MessageSearch(table, key)
        self._cutter: MessageSplitter | None = None
        self._is_event_stream = self._ends_with_a_line = False
        self._is_inert = False
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

    def try_take(self, data: bytes) -> bool:
        """Process the next piece if it is a whole message of the usual shape, like nearly all; then call `take_slices`."""
        size = len(data)
        if self._is_inert:
            self._base += size
            return True
        if self._buffer or not size:
            return False
        end = size - 1 if self._ends_with_a_line and data[-1] == _LINE_FEED else size
        if not self._search.try_take(data, end, self._base):
            return False
        self._base += size
        if self._search.channels.is_pending:
            self._settle_before(0)
        return True

    @property
    def is_clear(self) -> bool:
        """Whether the pieces that `try_take` accepted stay as they are: no edit was found in them, and none can follow."""
        channels = self._search.channels
        return not (channels.slices or channels.is_pending)

    def take_slices(self) -> list[Slice]:
        """Return the edits of the pieces that `try_take` accepted."""
        slices, self._search.channels.slices = self._search.channels.slices, []
        return slices

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
        return self.take_slices()

    def _detect_kind(self, buffer: bytes, *, is_whole: bool) -> bool:
        kind = detect_kind(buffer, self._essence, is_whole=is_whole)
        if kind:
            self._cutter = MessageSplitter(kind)
            self._is_event_stream = kind == "sse"
            self._ends_with_a_line = kind == "lines"
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
            if self._is_event_stream and not self._is_too_long:
                end = self._search.take_known(buffer, at, size, self._base)
                if end is not None:
                    at = end
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
        if not self._search.channels.is_pending:
            return
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
        elif self._search.take_known(buffer, *span, self._base) != cut.inner_end and not self._search.take_carried(
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
