"""Remember what was read of the elements of requests, which a conversation sends again and again: their values, and what counts of them.

A key that is made with a memory is the same as one that is made without.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Final

import msgspec

from calls import placeholder
from calls.codec.canonical import canonical_parsed_json
from calls.codec.elements import Element, split_elements
from calls.codec.read_body import BodyArray, ReadBody, ReadMemory, read_body
from calls.codec.recent_values import RecentValues
from calls.keys.rules import At, FieldClass, Node
from calls.model import Json

TEXTS_LIMIT: Final = 8 << 20
SELECTED_LIMIT: Final = 24 << 20
"""Bytes of memory, roughly, of canonical texts, and of what was selected."""

BODIES_LIMIT: Final = 32 << 20
"""Bytes of the bodies whose elements are remembered until `take_elements`: more than those of two batches of ingest."""

MOST_UNKNOWN: Final = 16
"""Items of an array that are written one by one at most; more of them are written faster all at once."""


class OmittedField:
    """The type of `OMITTED`."""


OMITTED: Final = OmittedField()
"""What is selected of a field that is not in the key."""


class SelectedElement(msgspec.Struct, frozen=True):
    """What a walk selected of an element, and what it noted about it."""

    at: At
    node: Node | None
    """The rules of the place; held so that no others have the same `id`."""

    value: Json | OmittedField
    text: bytes
    """The value as canonical JSON; empty if it was omitted."""

    names: tuple[tuple[str, str], ...]
    """The ids in it and how the key names them, in the order of their first occurrence."""

    named_before: int
    """How many ids had been named before it."""

    left_out: tuple[tuple[At, str], ...]
    ids: tuple[tuple[At, str, str], ...]
    folds: tuple[tuple[At, str], ...]
    unknown: tuple[At, ...]
    has_notes: bool
    """Whether it says something about its place."""


class ItemNotes(msgspec.Struct, frozen=True):
    """How much there was after an item of an array: parts, their text, and each kind of notes."""

    parts: int
    text: int
    left_out: int
    ids: int
    folds: int
    unknown: int


class HashedText(msgspec.Struct, frozen=True):
    """The SHA-256 of a text as far as the end of some items of an array."""

    before: bytes
    """The text before the items."""

    state: Any
    size: int
    """Bytes of the text of items."""


class SelectedItems(msgspec.Struct):
    """What a walk selected of the items of an array, and what it noted about them."""

    at: At
    node: Node | None
    """The rules of the place; held so that no others have the same `id`."""

    parts: list[Json]
    text: bytes
    """The parts as canonical JSON, with commas."""

    has_placeholder: bool
    left_out: list[tuple[At, str]]
    ids: list[tuple[At, str, str]]
    folds: list[tuple[At, str]]
    unknown: list[At]
    ends: list[ItemNotes]
    """What there was after each item that was visited. Those that answer calls are visited in the order of the calls."""

    named_before: int
    """How many ids had been named before the array."""

    hashed: HashedText | None = None

    @classmethod
    def none(cls, at: At, node: Node, named_before: int) -> "SelectedItems":
        """Return what was selected of no items."""
        return cls(at, node, [], b"", False, [], [], [], [], [], named_before)

    def first(self, count: int) -> "SelectedItems":
        """Return what was selected of the first items."""
        if count == len(self.ends):
            return self
        end = self.ends[count - 1]
        return SelectedItems(
            self.at,
            self.node,
            self.parts[: end.parts],
            self.text[: end.text],
            self.has_placeholder and placeholder.PREFIX in self.text[: end.text],
            self.left_out[: end.left_out],
            self.ids[: end.ids],
            self.folds[: end.folds],
            self.unknown[: end.unknown],
            self.ends[:count],
            self.named_before,
            self.hashed if self.hashed is not None and self.hashed.size <= end.text else None,
        )


type TextPiece = bytes | SelectedItems
"""A piece of a canonical text, or the text of items."""


class ElementMemory:
    """What is remembered of elements, in a limited amount of memory. Several threads may use it."""

    def __init__(self) -> None:
        self.selected = RecentValues[Hashable, SelectedElement](SELECTED_LIMIT)
        self.texts = RecentValues[bytes, bytes](TEXTS_LIMIT)
        """The canonical texts of whole elements, by the SHA-256 of their own text."""

        self._read = ReadMemory()
        self._bodies = RecentValues[int, tuple[bytes, tuple[Element, ...]]](BODIES_LIMIT)

    def read_body(self, body: bytes) -> ReadBody | None:
        """Parse a body element by element; None if it has to be parsed as a whole."""
        read = read_body(body, self._read)
        if read is not None:
            # By its identity, because to hash it takes as long as to read it. An entry holds its body.
            self._bodies.put(id(body), (body, tuple(read.elements)), len(body) + 300 * len(read.elements))
        return read

    def take_elements(self, body: bytes) -> tuple[Element, ...]:
        """Divide a body into its elements, unless `read_body` has just done so."""
        found = self._bodies.pop(id(body))
        return found[1] if found is not None and found[0] is body else split_elements(body)


class BodyMemory:
    """What is remembered of the elements of one body."""

    def __init__(self, memory: ElementMemory, read: ReadBody) -> None:
        self.digests = read.digests
        self.arrays: Mapping[int, BodyArray] = read.arrays
        self._memory = memory
        self.selected: dict[int, SelectedElement] = {}
        """What was selected of elements of this body, by the `id` of the selected value."""

        self.items: dict[int, SelectedItems] = {}
        """What was selected of arrays of this body, by the `id` of the list of the selected items."""

        self.has_placeholder = False
        """Whether a text that was returned has a placeholder."""

    def find_selected(
        self, digest: bytes, node: Node | None, above: FieldClass | None, keeps_unknown: bool
    ) -> SelectedElement | None:
        """Return what was selected of an element under these rules."""
        return self._memory.selected.get((digest, id(node), above, keeps_unknown))

    def note_selected(
        self, digest: bytes, above: FieldClass | None, keeps_unknown: bool, selected: SelectedElement
    ) -> None:
        """Remember what was selected of an element."""
        notes = len(selected.left_out) + len(selected.ids) + len(selected.folds) + len(selected.unknown)
        weight = 3 * len(selected.text) + 300 * notes + 800
        self._memory.selected.put((digest, id(selected.node), above, keeps_unknown), selected, weight)

    def members_text(self, members: Mapping[str, Json]) -> list[TextPiece] | None:
        """Return the canonical text of an object that was selected; None if its names are in another order than Python's."""
        names = "".join(members)
        if not names.isascii():
            return None
        self.has_placeholder = placeholder.PREFIX.decode() in names
        pieces: list[TextPiece] = []
        text = b"{"
        for name in sorted(members):
            text += encode_basestring(name).encode()
            if (items := self.items.get(id(members[name]))) is None:
                value = self.value_text(members[name])
                self.has_placeholder = self.has_placeholder or placeholder.PREFIX in value
                text += b":%s," % value
            else:
                self.has_placeholder = self.has_placeholder or items.has_placeholder
                pieces += (text + b":[", items)
                text = b"],"
        return [*pieces, (text[:-1] if members else text) + b"}"]

    def value_text(self, value: Json) -> bytes:
        """Return the canonical text of a value that was selected."""
        if (known := self._known_text(value)) is not None:
            return known
        return self._items_text(value) if type(value) is list else canonical_parsed_json(value)

    def _known_text(self, value: Json) -> bytes | None:
        if (selected := self.selected.get(id(value))) is not None:
            return selected.text
        if (digest := self.digests.get(id(value))) is None:
            return None
        if (text := self._memory.texts.get(digest)) is None:
            text = canonical_parsed_json(value)
            self._memory.texts.put(digest, text, len(text) + 300)
        return text

    def _items_text(self, items: Sequence[Json]) -> bytes:
        known = [self._known_text(item) for item in items]
        if known.count(None) > MOST_UNKNOWN:
            return canonical_parsed_json(items)
        texts = [text or canonical_parsed_json(item) for text, item in zip(known, items, strict=True)]
        return b"[" + b",".join(texts) + b"]"


def join_text(pieces: Iterable[TextPiece]) -> bytes:
    """Return a whole text."""
    return b"".join([piece if isinstance(piece, bytes) else piece.text for piece in pieces])


def hash_text(pieces: Iterable[TextPiece]) -> str:
    """Return the SHA-256 of a text. From the end of items that an earlier text has after the same beginning, it is computed on."""
    before = b""
    state: Any = None
    for piece in pieces:
        if isinstance(piece, bytes):
            if state is None:
                before += piece
            else:
                state.update(piece)
        elif state is None:
            state = _hash_items(before, piece)
        else:
            state.update(piece.text)
    return (hashlib.sha256(before) if state is None else state).hexdigest()


def _hash_items(before: bytes, items: SelectedItems) -> Any:
    hashed = items.hashed
    if hashed is None or hashed.before != before:
        state = hashlib.sha256(before)
        state.update(items.text)
    else:
        state = hashed.state.copy()
        if hashed.size == len(items.text):
            return state
        state.update(items.text[hashed.size :])
    items.hashed = HashedText(before, state.copy(), len(items.text))
    return state
