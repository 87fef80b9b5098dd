"""Search the texts that messages carry in pieces, by the shapes of earlier messages where these fit.

Messages of one shape that follow one another are searched together: a search of one word costs as much as one of ten.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Hashable, Sequence
from typing import Final

from calls.redaction.scanning.scanner import RuleTable
from calls.redaction.streams.channels import Channel, Channels, EnclosedText
from calls.redaction.streams.json_leaves import NotJson, find_leaves
from calls.redaction.streams.message_bounds import MAX_MESSAGE
from calls.redaction.streams.message_shapes import MAX_SHAPED_MESSAGE as LONGEST_SHAPE
from calls.redaction.streams.message_shapes import MEMORY, CompiledShape, build_shape
from calls.redaction.streams.message_texts import MessageLeaves, TextLeaf, is_repeated

MAX_SHAPES: Final = 6
"""The number of shapes with which the messages of a stream are compared."""

_MAX_LEARNT_SHAPES: Final = 16
"""The most shapes that are built for one stream: each costs as much as parsing a hundred messages."""

_MAX_LAST_TEXTS: Final = 512
_CARRIER: Final = re.compile(rb'\s*+\{.{0,4096}?"bytes"\s*+:\s*+"([A-Za-z0-9+/]++=*+)"', re.DOTALL)
"""A message of Bedrock with the model's own message, or an agent's text, in base64."""

_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1f]")


class MessageSearch:
    """Reads messages and searches the texts that they carry in pieces."""

    __slots__ = ("_last_texts", "_learnt_count", "_shapes", "channels")

    def __init__(self, table: RuleTable, key: bytes) -> None:
        self.channels = Channels(table, key)
        self._shapes: list[CompiledShape] = []
        self._learnt_count = 0
        self._last_texts: dict[Hashable, bytes] = {}

    def take_run(self, data: bytes, start: int, end: int, base: int, mark: int | None = None) -> int:
        """Process messages of one known shape and one set of channels, each followed by the byte `mark` if that is given.

        Return the offset after the last of them, or `start` if there is none. `base` is the offset of `data`.
        """
        known = self._known_shape(data, start, end)
        if known is None:
            return start
        shape, first = known
        match, names, run, at = shape.match, shape.names, [], start
        values = first.group(*names) if names else None
        # A pending text is settled a number of bytes after its last message: each message counts then.
        limit = start if self.channels.is_pending else start + MAX_MESSAGE
        found: re.Match[bytes] | None = first
        while found is not None and (not names or found.group(*names) == values):
            stop = found.end()
            if stop - at > MAX_MESSAGE or (mark is not None and (stop == end or data[stop] != mark)):
                break
            run.append(found)
            at = stop if mark is None else stop + 1
            if at > limit or at == end:
                break
            found = match(data, at, end)
        if run:
            self._add_run(shape, run, base)
        return at

    def take_known(self, data: bytes, start: int, end: int, base: int, enclosed: EnclosedText | None = None) -> bool:
        """Process a message if its shape is known; return whether it was processed."""
        known = self._known_shape(data, start, end)
        if known is None or known[1].end() != end:  # the message may only begin like a known one
            return False
        self._add_run(known[0], (known[1],), base, enclosed)
        return True

    def _known_shape(self, data: bytes, start: int, end: int) -> "tuple[CompiledShape, re.Match[bytes]] | None":
        for number, shape in enumerate(self._shapes):
            found = shape.match(data, start, end)
            if found:
                if number:
                    self._shapes.insert(0, self._shapes.pop(number))
                return shape, found
        known = MEMORY.find(data, start, end)
        if known:
            self._shapes = [known[0], *self._shapes[: MAX_SHAPES - 1]]
        return known

    def _add_run(
        self, shape: CompiledShape, run: "Sequence[re.Match[bytes]]", base: int, enclosed: EnclosedText | None = None
    ) -> None:
        """Add the texts of consecutive messages of one shape, whose channels have the same names."""
        channels = self.channels
        for group, channel_name, names, may_repeat in shape.texts:
            name: Hashable = (channel_name, run[0].group(*names)) if names else channel_name
            pieces = run if may_repeat else self._without_repeated(name, group, run)
            text = pieces[0][group] if len(pieces) == 1 else b"".join([found[group] for found in pieces])
            if not text:
                continue
            channel = channels.get_channel(name)
            if not channels.try_pass(channel, text):
                for found in pieces:
                    self._add_piece(channel, found[group], found.start(group), base, enclosed)

    def _without_repeated(
        self, name: Hashable, group: int, run: "Sequence[re.Match[bytes]]"
    ) -> "Sequence[re.Match[bytes]]":
        """Return the messages of a run that do not repeat the value of the one before."""
        before = self._last_texts.get(name)
        found = []
        for one in run:
            text = one[group]
            if text and not is_repeated(text, before):
                found.append(one)
                before = text
        if found and before is not None:
            self._remember_text(name, before)
        return found

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
        if self.take_known(inner, 0, len(inner), base + match.start(1), enclosed):
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
        self._add_piece(self.channels.get_channel(name), text, at, base, enclosed)

    def _add_piece(self, channel: Channel, text: bytes, at: int, base: int, enclosed: EnclosedText | None) -> None:
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
