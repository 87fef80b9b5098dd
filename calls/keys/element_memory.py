"""Remember what was read of the elements of requests, which a conversation sends again and again: their values, and what counts of them.

A key that is made with a memory is the same as one that is made without.
"""

from collections.abc import Hashable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Final, NamedTuple

from calls.codec.canonical import canonical_parsed_json
from calls.codec.elements import Element, ReadBody, read_elements, split_elements
from calls.codec.recent_values import RecentValues
from calls.keys.rules import At, FieldClass, Node
from calls.model import Json

VALUES_LIMIT: Final = 24 << 20
TEXTS_LIMIT: Final = 8 << 20
SELECTED_LIMIT: Final = 24 << 20
"""Bytes of memory, roughly, of values, of their canonical texts, and of what was selected."""

BODIES_LIMIT: Final = 32 << 20
"""Bytes of the bodies whose elements are remembered until `take_elements`: more than those of two batches of ingest."""

MOST_UNKNOWN: Final = 16
"""Items of an array that are written one by one at most; more of them are written faster all at once."""


class OmittedField:
    """The type of `OMITTED`."""


OMITTED: Final = OmittedField()
"""What is selected of a field that is not in the key."""


class SelectedElement(NamedTuple):
    """What a walk selected of an element, and what it noted about it."""

    at: At
    node: Node | None
    """The rules of the place; held so that no others have the same `id`."""

    value: Json | OmittedField
    text: bytes
    """The value as canonical JSON; empty if it was omitted."""

    names: tuple[tuple[str, str], ...]
    """The ids in it and how the key names them, in the order of their first occurrence."""

    left_out: tuple[tuple[At, str], ...]
    ids: tuple[tuple[At, str, str], ...]
    folds: tuple[tuple[At, str], ...]
    unknown: tuple[At, ...]
    has_notes: bool
    """Whether it says something about its place."""


class ElementMemory:
    """What is remembered of elements, in a limited amount of memory. Several threads may use it."""

    def __init__(self) -> None:
        self.selected = RecentValues[Hashable, SelectedElement](SELECTED_LIMIT)
        self.texts = RecentValues[bytes, bytes](TEXTS_LIMIT)
        """The canonical texts of whole elements, by the SHA-256 of their own text."""

        self._values = RecentValues[bytes, Json](VALUES_LIMIT)
        self._bodies = RecentValues[bytes, tuple[Element, ...]](BODIES_LIMIT)

    def read_body(self, body: bytes) -> ReadBody | None:
        """Parse a body element by element; None if it has to be parsed as a whole."""
        elements = split_elements(body)
        if not elements:
            return None
        self._bodies.put(body, elements, len(body) + 300 * len(elements))
        return read_elements(body, elements, self._values)

    def take_elements(self, body: bytes) -> tuple[Element, ...]:
        """Divide a body into its elements, unless `read_body` has just done so."""
        return self._bodies.pop(body) or split_elements(body)


class BodyMemory:
    """What is remembered of the elements of one body."""

    def __init__(self, memory: ElementMemory, digests: Mapping[int, bytes]) -> None:
        """`digests` are those of `calls.codec.elements.ReadBody`."""
        self.digests = digests
        self._memory = memory
        self.selected: dict[int, SelectedElement] = {}
        """What was selected of elements of this body, by the `id` of the selected value."""

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

    def members_text(self, members: Mapping[str, Json]) -> bytes | None:
        """Return the canonical text of an object that was selected; None if its names are in another order than Python's."""
        if not "".join(members).isascii():
            return None
        texts = [encode_basestring(name).encode() + b":" + self._text(members[name]) for name in sorted(members)]
        return b"{" + b",".join(texts) + b"}"

    def _text(self, value: Json) -> bytes:
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
