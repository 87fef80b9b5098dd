"""Texts of a run and day that are stored together, and the words by which the group is found.

What an index of words costs is for each word of each row. Texts that are said in one run repeat most of their words, so an entry for a
group of them is a quarter of the work of an entry for each. Which texts of a group fit is found by reading it (`store.search.matching`).
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from store.database.blobs import pack, unpack
from store.search.words import distinct_words

MOST_TEXTS: Final = 64
"""Texts of a group."""

MOST_CHARACTERS: Final = 64 << 10
"""Characters of a group of more than one text: a search reads all of it, even if one text fits."""


class GroupText(msgspec.Struct, frozen=True, array_like=True):
    """A text of a group, the first call of the run and day that has it, and when this began."""

    hash: bytes
    call: uuid.UUID
    started_at: int
    role: str
    text: str


class StoredGroup(NamedTuple):
    """The columns of a group that follow from its texts."""

    newest_at: int
    words: str
    """As PostgreSQL reads a tsvector."""

    texts: bytes
    """In a form of `blobs`."""


def divide_texts(texts: Iterable[GroupText]) -> Iterator[list[GroupText]]:
    """Divide texts of one run and day into groups, in their order."""
    group: list[GroupText] = []
    size = 0
    for one in texts:
        if group and (len(group) == MOST_TEXTS or size + len(one.text) > MOST_CHARACTERS):
            yield group
            group, size = [], 0
        group.append(one)
        size += len(one.text)
    if group:
        yield group


def make_group(texts: Sequence[GroupText]) -> StoredGroup:
    """Make the columns of a group."""
    found = distinct_words([one.text for one in texts])
    words = " ".join(found)
    if not words.isascii():
        # Words have letters and digits only, so nothing is escaped. Which others PostgreSQL takes for spaces depends on its locale.
        words = " ".join([f"'{word}'" for word in found])
    return StoredGroup(max([one.started_at for one in texts]), words, pack(_encode(texts)))


def read_group(form: bytes) -> list[GroupText]:
    """Read the texts of a group. Raises `CorruptData`."""
    return _decode(unpack(form))


_encode: Final = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_decode: Final = msgspec.msgpack.Decoder(list[GroupText]).decode
