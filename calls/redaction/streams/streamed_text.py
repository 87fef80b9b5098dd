"""Find secrets that are divided among many messages of a stream.

It has the form of a `Scanner`: bytes go in as they come, and what is to be replaced comes out with how far it is decided. What
it finds does not depend on how the bytes were cut. What it holds is bounded: a message of more than 64 KiB is not read, and a text
that may be the beginning of a secret is decided when the stream has gone on for 128 KiB without more of it.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from calls.redaction.scanning.scanner import Table
from calls.redaction.streams.channels import Channel, Channels, EnclosedText, Slice
from calls.redaction.streams.json_leaves import NotJson, leaves
from calls.redaction.streams.message_bounds import LONGEST, Cut, Cutter, data_lines, event_name, kind_of
from calls.redaction.streams.message_shapes import LONGEST as LONGEST_SHAPE
from calls.redaction.streams.message_shapes import MEMORY, KnownShape, shape_of
from calls.redaction.streams.message_texts import MessageLeaves, TextLeaf, is_repeated

WAITING: Final = 128 << 10
"""How many bytes of a stream may pass until the text that may begin a secret is decided without more of it."""

SHAPES: Final = 6
"""Shapes of messages that a stream is compared with."""

_LEARNT: Final = 16
"""Shapes that are made of one stream's messages at most: each costs as much as reading a hundred."""

_SHORTEST: Final = 6
"""`data:x`: what is shorter says nothing."""

_LINE_FEED: Final = 10
_SAID: Final = 512
_CARRIER: Final = re.compile(rb'\s*+\{.{0,4096}?"bytes"\s*+:\s*+"([A-Za-z0-9+/]++=*+)"', re.DOTALL)
"""Bedrock's: the model's own message in base64, or an agent's text."""

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]")


class _Usual(NamedTuple):
    """What most messages of a stream are: one piece of one text, and besides what they all say."""

    match: Callable[[bytes, int, int], "re.Match[bytes] | None"]
    group: int
    channel: Channel
    repeated: tuple[tuple[int, Hashable], ...]


class MessageSearch:
    """Reads messages, and searches the texts that they carry pieces of."""

    def __init__(self, table: Table, key: bytes) -> None:
        self.channels = Channels(table, key)
        self._shapes: list[KnownShape] = []
        self._learnt = 0
        self._said: dict[Hashable, bytes] = {}
        self._usual: _Usual | None = None

    def takes(self, data: bytes, end: int, base: int) -> bool:
        """Take what is one message up to this offset, if all of it is as usual."""
        usual = self._usual
        if usual is None:
            return False
        found = usual.match(data, 0, end)
        if found is None or found.end() != end:
            return False
        for group, name in usual.repeated:
            if not is_repeated(found[group], self._said.get(name)):
                return False
        text = found[usual.group]
        if text and not self.channels.passes(usual.channel, text):
            self.channels.take(usual.channel, text, base + found.start(usual.group))
        return True

    def is_known(
        self, data: bytes, start: int, end: int, base: int, enclosed: EnclosedText | None = None
    ) -> int | None:
        """Take the message that begins here, if it is like one before, and give where it ends; `base` is where data begins."""
        known = self._known_shape(data, start, end)
        if known is None:
            return None
        shape, found = known
        for group, channel, names, may_repeat in shape.texts:
            text = found[group]
            if text:
                name = (channel, found.group(*names)) if names else channel
                self._take(name, text, found.start(group), base, enclosed, may_repeat=may_repeat)
        return found.end()

    def _known_shape(self, data: bytes, start: int, end: int) -> "tuple[KnownShape, re.Match[bytes]] | None":
        for number, shape in enumerate(self._shapes):
            found = shape.match(data, start, end)
            if found:
                if number:
                    self._shapes.insert(0, self._shapes.pop(number))
                    self._usual = self._usual_of(shape)
                return shape, found
        known = MEMORY.find(data, start, end)
        if known:
            self._shapes = [known[0], *self._shapes[: SHAPES - 1]]
            self._usual = self._usual_of(known[0])
        return known

    def read(
        self,
        data: bytes,
        span: tuple[int, int],
        base: int,
        *,
        whole: tuple[int, int] | None = None,
        enclosed: EnclosedText | None = None,
        is_cut: bool = False,
    ) -> bool:
        """Take a message that is JSON; False where it is none. `whole` is where it stands with what frames it."""
        try:
            message = MessageLeaves(data, leaves(data, *span, is_cut=is_cut))
        except NotJson:
            return False
        texts = tuple(message.texts())
        for text in texts:
            piece = message.value(text.leaf)
            if piece:
                name = self._name(message, text)
                self._take(name, piece, text.leaf.start, base, enclosed, may_repeat=text.may_repeat)
        start, end = whole or span
        if not is_cut and end - start <= LONGEST_SHAPE and self._learnt < _LEARNT:
            self._learnt += 1
            MEMORY.note(data, start, shape_of(data, start, end, message, texts))
        return True

    def read_carried(self, data: bytes, span: tuple[int, int], base: int) -> bool:
        """Take a message whose content is another one in base64; False where it is none."""
        found = _CARRIER.match(data, *span)
        if found is None:
            return False
        try:
            inner = b64decode(found.group(1), validate=True)
        except NotBase64:
            return False
        if b64encode(inner) != found.group(1):
            return False
        enclosed = EnclosedText(inner, base + found.start(1))
        if self.is_known(inner, 0, len(inner), base + found.start(1), enclosed) == len(inner):
            return True
        if inner[:1] == b"{" and self.read(inner, (0, len(inner)), base + found.start(1), enclosed=enclosed):
            return True
        if _CONTROL.search(inner):
            return False
        self._take(b"bytes", inner, 0, base + found.start(1), enclosed, may_repeat=True)
        return True

    def take_lines(self, name: Hashable, data: bytes, lines: list[tuple[int, int]], base: int) -> None:
        """Take a message that is plain text, line by line."""
        channel = self.channels.channel((b"text", name))
        for number, (start, end) in enumerate(lines):
            if number:
                self.channels.take(channel, b"\n", None)
            self.channels.take(channel, data[start:end], base + start)

    def _take(
        self, name: Hashable, text: bytes, at: int, base: int, enclosed: EnclosedText | None, *, may_repeat: bool
    ) -> None:
        if not may_repeat:
            if is_repeated(text, self._said.get(name)):
                return
            self._note(name, text)
        channel = self.channels.channel(name)
        if self.channels.passes(channel, text):
            return
        if enclosed:
            self.channels.take(channel, text, base, enclosed, at)
        else:
            self.channels.take(channel, text, base + at)

    def _note(self, name: Hashable, text: bytes) -> None:
        if len(self._said) >= _SAID and name not in self._said:
            self._said.clear()
        self._said[name] = text

    def _name(self, message: MessageLeaves, text: TextLeaf) -> Hashable:
        if not text.names:
            return text.channel
        values = tuple(map(message.value, text.names))
        return text.channel, values if len(values) > 1 else values[0]

    def _usual_of(self, shape: KnownShape) -> _Usual | None:
        pieces = [one for one in shape.texts if one.may_repeat]
        if len(pieces) != 1 or any(one.names for one in shape.texts):
            return None
        repeated = tuple((one.group, one.channel) for one in shape.texts if not one.may_repeat)
        return _Usual(shape.match, pieces[0].group, self.channels.channel(pieces[0].channel), repeated)


class StreamedText:
    """One body. `feed` says what to change, `decided_to` up to which offset nothing will change any more."""

    def __init__(self, table: Table, key: bytes, essence: str = "") -> None:
        self._table, self._key, self._essence = table, key, essence
        self._search = MessageSearch(table, key)
        self._cutter: Cutter | None = None
        self._is_event_stream = self._ends_with_a_line = False
        self._is_inert = False
        self._buffer = b""
        self._base = 0
        """Where in the body the buffer begins."""

        self._skip_to = 0
        self._is_too_long = False
        """Whether the message that has begun is not to be read."""

        self._carried_stream: _CarriedStream | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the body is known to be a stream of messages."""
        return self._cutter is not None

    @property
    def decided_to(self) -> int:
        """Up to where nothing will change any more."""
        undecided_at = self._search.channels.undecided_at
        at = self._base if undecided_at is None else min(self._base, undecided_at)
        if self._carried_stream is None or (part := self._carried_stream.undecided_at) is None:
            return at
        return min(at, part)

    def takes(self, data: bytes) -> bool:
        """Take the next piece, if it is a whole message like the last one: nearly all of a stream is. See `take_slices`."""
        size = len(data)
        if self._is_inert:
            self._base += size
            return True
        if self._buffer or not size:
            return False
        end = size - 1 if self._ends_with_a_line and data[-1] == _LINE_FEED else size
        if not self._search.takes(data, end, self._base):
            return False
        self._base += size
        if self._search.channels.is_pending:
            self._settle_before(0)
        return True

    @property
    def is_clear(self) -> bool:
        """Whether nothing of what `takes` took changes or may change."""
        channels = self._search.channels
        return not (channels.slices or channels.is_pending)

    def take_slices(self) -> list[Slice]:
        """What is to be replaced because of what `takes` took."""
        slices, self._search.channels.slices = self._search.channels.slices, []
        return slices

    def feed(self, data: bytes, *, last: bool = False) -> list[Slice]:
        """Take the next piece and tell what is to be replaced; with `last` nothing stays undecided."""
        if self._is_inert:
            self._base += len(data)
            return []
        buffer = self._buffer + data if self._buffer else data
        if self._cutter is None and not self._is_of_a_kind(buffer, ended=last):
            return []
        at = self._through(buffer)
        if last:
            self._finish(buffer, at)
            at = len(buffer)
        self._forget(buffer, at)
        return self.take_slices()

    def _is_of_a_kind(self, buffer: bytes, *, ended: bool) -> bool:
        kind = kind_of(buffer, self._essence, ended=ended)
        if kind:
            self._cutter = Cutter(kind)
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

    def _through(self, buffer: bytes) -> int:
        """Take all messages that have come whole; where the next one begins."""
        assert self._cutter
        size, at = len(buffer), max(0, self._skip_to - self._base)
        while at < size:
            if self._is_event_stream and not self._is_too_long:
                end = self._search.is_known(buffer, at, size, self._base)
                if end is not None:
                    at = end
                    self._settle_before(at)
                    continue
            cut = self._cutter.next(buffer, at)
            if cut is None:
                break
            if isinstance(cut, int):
                if cut <= at:
                    break
                if self._cutter.skips:
                    self._search.channels.settle()
                at = cut
                continue
            if self._is_too_long or cut.end - cut.start > LONGEST:
                self._search.channels.settle()
            elif cut.inner_end - cut.inner >= _SHORTEST or cut.is_part:
                self._take(buffer, cut)
            self._is_too_long = False
            at = cut.end
            self._settle_before(at)
        return at

    def _settle_before(self, at: int) -> None:
        if not self._search.channels.is_pending:
            return
        undecided_at = self._search.channels.undecided_at
        if undecided_at is not None and undecided_at < self._base + at - WAITING:
            self._search.channels.settle(self._base + at - WAITING)

    def _forget(self, buffer: bytes, at: int) -> None:
        """Take off the buffer what is not needed any more."""
        assert self._cutter
        size = len(buffer)
        if at > size:
            self._skip_to = self._base + at
            at = size
        elif size - at > LONGEST:
            self._is_too_long = True
            self._search.channels.settle()
            at = max(at, self._cutter.needed_from(buffer))
        self._buffer = buffer[at:]
        self._base += at
        self._cutter.shift(at)

    def _finish(self, buffer: bytes, at: int) -> None:
        assert self._cutter
        if at < len(buffer) and not self._is_too_long:
            self._take(buffer, self._cutter.rest(buffer, at), is_cut=True)
        if self._carried_stream:
            self._search.channels.slices += self._carried_stream.finish()
        self._search.channels.settle()

    def _take(self, buffer: bytes, cut: Cut, *, is_cut: bool = False) -> None:
        span = cut.inner, cut.inner_end
        if self._is_event_stream:
            self._take_event(buffer, cut, is_cut=is_cut)
        elif cut.is_part:
            if self._carried_stream is None:
                self._carried_stream = _CarriedStream(StreamedText(self._table, self._key))
            self._search.channels.slices += self._carried_stream.feed(buffer[slice(*span)], self._base + cut.inner)
        elif self._search.is_known(buffer, *span, self._base) != cut.inner_end and not self._search.read_carried(
            buffer, span, self._base
        ):
            self._search.read(buffer, span, self._base, is_cut=is_cut)

    def _take_event(self, buffer: bytes, cut: Cut, *, is_cut: bool) -> None:
        lines = list(data_lines(buffer, cut.inner, cut.inner_end))
        if not lines:
            return
        span = lines[0][0], lines[-1][1]
        if buffer[span[0] : span[1]].lstrip()[:1] in (b"{", b"[", b'"'):
            data = buffer if len(lines) == 1 else _without_fields(buffer, lines)
            whole = None if is_cut or len(lines) > 1 else (cut.start, cut.end)
            if whole is None:
                # Nothing is learnt of what stands on several lines: it is compared as it stands in the body.
                is_read = self._search.read(data, span, self._base, is_cut=is_cut, whole=(0, LONGEST_SHAPE + 1))
            else:
                is_read = self._search.read(data, span, self._base, whole=whole)
            if is_read:
                return
        self._search.take_lines(event_name(buffer, cut.inner, cut.inner_end), buffer, lines, self._base)


def _without_fields(buffer: bytes, lines: list[tuple[int, int]]) -> bytes:
    """The same bytes with blanks in place of all that is no data, so that offsets stay."""
    data = bytearray(b" " * len(buffer))
    for start, end in lines:
        data[start:end] = buffer[start:end]
    return bytes(data)


class _Part(NamedTuple):
    start: int
    end: int
    at: int


class _CarriedStream:
    """A stream that is carried in parts by another one."""

    def __init__(self, text: StreamedText) -> None:
        self._text = text
        self._parts: deque[_Part] = deque()
        self._length = 0

    def feed(self, data: bytes, at: int) -> list[Slice]:
        """Take a part that stands at this offset of the stream that carries it."""
        if data:
            self._parts.append(_Part(self._length, self._length + len(data), at))
            self._length += len(data)
        return self._place_slices(self._text.feed(data))

    def finish(self) -> list[Slice]:
        """No more comes."""
        return self._place_slices(self._text.feed(b"", last=True))

    @property
    def undecided_at(self) -> int | None:
        """Where what may still change begins."""
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
