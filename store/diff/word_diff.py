"""Compare two texts word by word: what is unchanged, removed and added, shortened for display."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final, Literal, NamedTuple

type Fate = Literal["same", "gone", "come"]

_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_AROUND: Final = 40
"""Characters of unchanged text that are shown on either side of a change."""

_LONGEST: Final = 400
"""The number of words beyond which both texts are shown as changed, without comparing their words."""

_SHOWN: Final = 600
"""Characters that are shown in all."""


class Piece(NamedTuple):
    """Some words, and whether they are unchanged, removed or added."""

    fate: Fate
    text: str


def diff_words(one: str, other: str) -> list[Piece]:
    """Return the pieces of both texts, in order."""
    return list(_limit_length(_shorten_unchanged(list(_pieces(_WORDS.findall(one), _WORDS.findall(other))))))


def _pieces(one: Sequence[str], other: Sequence[str]) -> Iterator[Piece]:
    before = _common_length(one, other)
    after = _common_length(one[before:][::-1], other[before:][::-1])
    here, there = one[before : len(one) - after], other[before : len(other) - after]
    yield Piece("same", "".join(one[:before]))
    yield from _changed_pieces(here, there)
    yield Piece("same", "".join(one[len(one) - after :]))


def _changed_pieces(one: Sequence[str], other: Sequence[str]) -> Iterator[Piece]:
    if max(len(one), len(other)) > _LONGEST:
        yield Piece("gone", "".join(one))
        yield Piece("come", "".join(other))
        return
    removed_text = added_text = ""
    for fate, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        here, there = "".join(one[a:b]), "".join(other[c:d])
        if fate == "equal" and any(map(str.isalnum, here)):
            yield from (Piece("gone", removed_text), Piece("come", added_text), Piece("same", here))
            removed_text = added_text = ""
        else:
            # Blanks and punctuation between two changed words do not separate them.
            removed_text, added_text = removed_text + here, added_text + there
    yield from (Piece("gone", removed_text), Piece("come", added_text))


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(bool, (a == b for a, b in zip(one, other, strict=False))))


def _shorten_unchanged(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Shorten unchanged text to the parts next to a change."""
    for number, piece in enumerate(pieces):
        if not piece.text:
            continue
        first, last = number == 0, number == len(pieces) - 1
        room = _AROUND if first or last else 2 * _AROUND
        if piece.fate != "same" or len(piece.text) <= room:
            yield piece
        else:
            head = "" if first else piece.text[:_AROUND]
            tail = "" if last else piece.text[-_AROUND:]
            yield Piece("same", f"{head}…{tail}")


def _limit_length(pieces: Iterator[Piece]) -> Iterator[Piece]:
    remaining = _SHOWN
    for fate, text in pieces:
        if remaining <= 0:
            yield Piece("same", "…")
            return
        # Leave room for the other side if one is long.
        room = max(_AROUND, remaining // 2)
        short_text = text if len(text) <= room else text[:room] + "…"
        remaining -= len(short_text)
        yield Piece(fate, short_text)
