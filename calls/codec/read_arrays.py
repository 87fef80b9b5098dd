"""Find the items that an array of a body begins with among those of earlier bodies: a conversation sends its messages again with every request.

Bytes are compared, not hashed: what an array has in common with an earlier one costs as much as reading it from memory.
"""

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

import msgspec

from calls.codec.elements import Element
from calls.codec.recent_values import RecentValues
from calls.model import Json

SMALLEST: Final = 512
"""Bytes of an array that is remembered at least."""

_WINDOW: Final = 48
"""Bytes by which an earlier array is found: those before a power of two."""

_MOST_NEEDLES: Final = 16
_MOST_SELECTED: Final = 4

_SPACE: Final = b" \t\r\n"


class ReadArray(msgspec.Struct, frozen=True, kw_only=True):
    """An array that was read item by item. Nobody changes its values."""

    text: bytes
    """From its bracket to the end of its last item."""

    start: int
    """Where it was in its body."""

    member: str
    elements: tuple[Element, ...]
    """Its items, with their places in that body."""

    values: list[Json]
    digests: dict[int, bytes]
    """The SHA-256 of the text of items, by the `id` of their values."""

    absent: set[bytes] = msgspec.field(default_factory=set)
    """Some bytes that do not occur in the text."""

    selected: dict[Hashable, Any] = msgspec.field(default_factory=dict)
    """What was made of its items, for those who use it."""

    def note_absent(self, needle: bytes) -> None:
        """Note that these bytes do not occur in the text."""
        if len(self.absent) < _MOST_NEEDLES:
            self.absent.add(needle)

    def note_selected(self, rules: Hashable, selected: Any) -> None:
        """Note what was made of the items."""
        if len(self.selected) < _MOST_SELECTED:
            self.selected[rules] = selected

    def common_items(self, raw: bytes) -> int:
        """Return how many of the items an array begins with. It is valid JSON."""
        if raw.startswith(self.text) and _ends_item(raw, len(self.text)):
            return len(self.elements)
        low, high = 0, len(self.elements)
        while low < high:
            middle = (low + high + 1) // 2
            if raw.startswith(self.text[: self.end_of(middle)]):
                low = middle
            else:
                high = middle - 1
        # Of a number, the end may be the middle of another one.
        return low if low == 0 or _ends_item(raw, self.end_of(low)) else low - 1

    def end_of(self, count: int) -> int:
        """Return where the first items end in the text."""
        return self.elements[count - 1].end - self.start if count else 1

    def elements_at(self, count: int, start: int, member: str) -> tuple[Element, ...]:
        """Return the first elements, with their places in a body that has the array at `start`."""
        elements = self.elements[:count]
        if start == self.start and member == self.member:
            return elements
        moved = start - self.start
        return tuple(
            [Element(one + moved, end + moved, short, member, digest) for one, end, short, _, digest in elements]
        )


def _ends_item(raw: bytes, at: int) -> bool:
    while raw[at] in _SPACE:
        at += 1
    return raw[at] in b",]"


class Beginning(NamedTuple):
    """The items that an array begins with, and the earlier array that has them."""

    array: ReadArray
    size: int
    """How many items."""


class ArrayMemory:
    """Remembers arrays, in a limited amount of memory. Several threads may use it."""

    def __init__(self, limit: int) -> None:
        self._arrays = RecentValues[tuple[int, bytes], ReadArray](limit)

    def find_beginning(self, raw: bytes) -> Beginning | None:
        """Return an earlier array that has the first items of this one, if there is one; the array is valid JSON."""
        size = _power_below(len(raw))
        while size >= SMALLEST:
            if (found := self._arrays.get(_place(raw, size))) is not None and (count := found.common_items(raw)):
                return Beginning(found, count)
            size >>= 1
        return None

    def remember(self, array: ReadArray) -> None:
        """Remember an array, instead of one with the same beginning that is not much shorter."""
        if len(array.text) < SMALLEST:
            return
        place = _place(array.text, _power_below(len(array.text)))
        self._arrays.pop(place)
        # Its values take three times as much memory, and what is made of them twice.
        self._arrays.put(place, array, 6 * len(array.text) + 1000 * len(array.elements))


def _power_below(size: int) -> int:
    return 1 << (size.bit_length() - 1)


def _place(text: bytes, size: int) -> tuple[int, bytes]:
    return size, text[size - _WINDOW : size]
