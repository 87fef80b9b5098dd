"""Recognise messages that differ only in their text by one expression, instead of parsing each.

A stream's events are mostly alike: what is in them is found by the expression of the one that was read before, at a tenth of
the price. What tells texts apart is written out in it, so that a message of another channel is of another shape.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from calls.redaction.streams.json_leaves import OTHER, STRING
from calls.redaction.streams.message_texts import MessageLeaves, TextLeaf

LONGEST: Final = 4096
"""A message of more bytes is always read."""

REMEMBERED: Final = 256
"""Beginnings of messages of which shapes are kept, for all streams."""

_ALIKE: Final = 8
"""Shapes of one beginning that are."""

_HEAD: Final = 16

_NUMBERED: Final = re.compile(rb"(?m)^id:[^\r\n]*+")


class CarriedText(NamedTuple):
    """A text in a message: the group of the expression that holds it, and its channel's name."""

    group: int
    channel: Hashable
    names: tuple[int, ...]
    """The groups that hold the rest of that name."""

    may_repeat: bool


class Shape(NamedTuple):
    """What messages that are alike have in common."""

    pattern: bytes
    texts: tuple[CarriedText, ...]


def shape_of(data: bytes, start: int, end: int, message: MessageLeaves, texts: Sequence[TextLeaf]) -> Shape:
    """The shape of the message between these offsets of the data, whose leaves lie between them."""
    carried = {text.leaf: text for text in texts}
    named = {leaf for text in texts for leaf in text.names}
    parts: list[bytes] = []
    groups: dict[object, int] = {}
    at = start
    for leaf in message.leaves:
        parts.append(_escape_fixed_bytes(data[at : leaf.start], is_head=at == start))
        at = leaf.end
        if leaf in carried or leaf in named:
            groups[leaf] = len(groups) + 1
            parts.append(b"(%s)" % (STRING if leaf.is_string else OTHER))
        elif message.is_fixed(leaf):
            parts.append(re.escape(message.value(leaf)))
        else:
            parts.append(STRING if leaf.is_string else b"(?:%s)" % OTHER)
    parts.append(_escape_fixed_bytes(data[at:end], is_head=False))
    found = tuple(
        CarriedText(groups[leaf], text.channel, tuple(groups[name] for name in text.names), text.may_repeat)
        for leaf, text in carried.items()
    )
    return Shape(b"".join(parts), found)


def _escape_fixed_bytes(data: bytes, *, is_head: bool) -> bytes:
    """Bytes that are the same in all messages; but the number that an event may have."""
    written = re.escape(data)
    return _NUMBERED.sub(rb"id:[^\\r\\n]*+", written) if is_head and b"id:" in data else written


class KnownShape(NamedTuple):
    """A shape with its expression."""

    match: Callable[[bytes, int, int], re.Match[bytes] | None]
    texts: tuple[CarriedText, ...]


class ShapeMemory:
    """The shapes that streams had of late, so that the next one need not learn them. What it holds makes things faster, no more."""

    def __init__(self) -> None:
        self._by_head: OrderedDict[bytes, list[KnownShape]] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def find(self, data: bytes, start: int, end: int) -> tuple[KnownShape, re.Match[bytes]] | None:
        """The shape of the message that begins here."""
        for known in tuple(self._by_head.get(_head(data, start), ())):
            found = known.match(data, start, end)
            if found:
                return known, found
        return None

    def note(self, data: bytes, start: int, shape: Shape) -> None:
        """A message that begins here is of this shape. The second one makes it worth an expression."""
        if shape.pattern not in self._seen:
            _remember(self._seen, shape.pattern, None, REMEMBERED)
            return
        head = _head(data, start)
        match = re.compile(shape.pattern, re.DOTALL).match
        _remember(
            self._by_head, head, [KnownShape(match, shape.texts), *self._by_head.get(head, ())][:_ALIKE], REMEMBERED
        )


def _head(data: bytes, start: int) -> bytes:
    """What the message begins with, but for the number that an event may have."""
    if data.startswith(b"id:", start):
        start = data.find(b"\n", start) + 1
    return data[start : start + _HEAD]


def _remember[V](into: OrderedDict[bytes, V], key: bytes, value: V, most: int) -> None:
    into[key] = value
    if len(into) > most:
        into.popitem(last=False)


MEMORY: Final = ShapeMemory()
