"""Recognise messages that differ only in their text by one expression, instead of parsing each.

Most events of a stream are alike: their text is found with the expression of an earlier one, at a tenth of the cost of
parsing. The values that distinguish texts are literal in it, so that a message of another channel has another shape.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from calls.redaction.streams.json_leaves import OTHER_IN_LINE, STRING_IN_LINE
from calls.redaction.streams.message_texts import MessageLeaves, TextLeaf

MAX_SHAPED_MESSAGE: Final = 4096
"""Longer messages, in bytes, are always parsed."""

MEMORY_SIZE: Final = 256
"""The number of beginnings of messages for which shapes are stored, for all streams."""

_MAX_SHAPES_OF_HEAD: Final = 8
"""The number of shapes that are stored for one beginning."""

_HEAD: Final = 16

_END: Final = re.compile(rb'"?(?: *+[}\]])*+[\r\n]*+')
_CLOSING: Final = re.compile(rb" *+([}\]])")
_NUMBERED: Final = re.compile(rb"(?m)^id:[^\r\n]*+")


class CarriedText(NamedTuple):
    """A text in a message: its group in the expression, and the name of its channel."""

    group: int
    channel: Hashable
    names: tuple[int, ...]
    """The groups with the rest of that name."""

    may_repeat: bool


class Shape(NamedTuple):
    """The common form of messages that differ only in their text."""

    pattern: bytes
    texts: tuple[CarriedText, ...]


def build_shape(data: bytes, start: int, end: int, message: MessageLeaves, texts: Sequence[TextLeaf]) -> Shape:
    """Build the shape of the message between two offsets, from its leaves."""
    carried = {text.leaf: text for text in texts}
    text_leaves = {leaf for text in texts for leaf in text.names}
    parts: list[bytes] = []
    groups: dict[object, int] = {}
    at = start
    for leaf in message.leaves:
        parts.append(_escape_fixed_bytes(data[at : leaf.start], is_head=at == start))
        at = leaf.end
        if leaf in carried or leaf in text_leaves:
            groups[leaf] = len(groups) + 1
            parts.append(b"(%s)" % (STRING_IN_LINE if leaf.is_string else OTHER_IN_LINE))
        elif message.is_fixed(leaf):
            parts.append(re.escape(message.value(leaf)))
        else:
            parts.append(STRING_IN_LINE if leaf.is_string else b"(?:%s)" % OTHER_IN_LINE)
    parts.append(_escape_end(data[at:end]))
    found = tuple(
        CarriedText(groups[leaf], text.channel, tuple(groups[name] for name in text.names), text.may_repeat)
        for leaf, text in carried.items()
    )
    return Shape(b"".join(parts), found)


def _escape_fixed_bytes(data: bytes, *, is_head: bool) -> bytes:
    """Escape bytes that are the same in all messages, except the number of an event."""
    written = re.escape(data)
    return _NUMBERED.sub(rb"id:[^\\r\\n]*+", written) if is_head and b"id:" in data else written


def _escape_end(data: bytes) -> bytes:
    """Escape the bytes after the last leaf, with any number of spaces where only brackets follow."""
    # Anthropic pads its events with spaces (2026).
    return _CLOSING.sub(rb" *+\\\1", data) if _END.fullmatch(data) else re.escape(data)


class CompiledShape(NamedTuple):
    """A shape with its compiled expression."""

    match: Callable[[bytes, int, int], re.Match[bytes] | None]
    texts: tuple[CarriedText, ...]
    names: tuple[int, ...]
    """The groups with the parts of the names of channels that differ between messages."""


def _compile_shape(shape: Shape) -> CompiledShape:
    names = tuple({group: None for text in shape.texts for group in text.names})
    return CompiledShape(re.compile(shape.pattern, re.DOTALL).match, shape.texts, names)


class ShapeMemory:
    """A cache of the shapes of recent streams. It affects speed only."""

    def __init__(self) -> None:
        self._by_head: OrderedDict[bytes, list[CompiledShape]] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def find(self, data: bytes, start: int, end: int) -> tuple[CompiledShape, re.Match[bytes]] | None:
        """Find the shape of the message that begins at an offset."""
        for known in tuple(self._by_head.get(_message_head(data, start), ())):
            found = known.match(data, start, end)
            if found:
                return known, found
        return None

    def add(self, data: bytes, start: int, shape: Shape) -> None:
        """Note the shape of a message. The expression is compiled when a shape occurs for the second time."""
        if shape.pattern not in self._seen:
            _remember(self._seen, shape.pattern, None, MEMORY_SIZE)
            return
        head = _message_head(data, start)
        _remember(
            self._by_head,
            head,
            [_compile_shape(shape), *self._by_head.get(head, ())][:_MAX_SHAPES_OF_HEAD],
            MEMORY_SIZE,
        )


def _message_head(data: bytes, start: int) -> bytes:
    """Return the beginning of a message, without the number of an event."""
    if data.startswith(b"id:", start):
        start = data.find(b"\n", start) + 1
    return data[start : start + _HEAD]


def _remember[V](into: OrderedDict[bytes, V], key: bytes, value: V, most: int) -> None:
    into[key] = value
    if len(into) > most:
        into.popitem(last=False)


MEMORY: Final = ShapeMemory()
