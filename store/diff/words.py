"""Compare two texts by words: what stayed, was removed, was added; shortened for a reader."""

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final, Literal, NamedTuple

type Fate = Literal["same", "gone", "come"]

_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_AROUND: Final = 40
"""Characters of what stayed that are shown on either side of a change."""

_LONGEST: Final = 400
"""Words beyond these are not compared one by one: both texts are shown as changed."""

_SHOWN: Final = 600
"""Characters in all."""


class Piece(NamedTuple):
    """Some words, and what became of them."""

    fate: Fate
    text: str


def pieces(one: str, other: str) -> list[Piece]:
    """The pieces of both texts, in order."""
    return list(_cut(_glanced(list(_pieces(_WORDS.findall(one), _WORDS.findall(other))))))


def _pieces(one: Sequence[str], other: Sequence[str]) -> Iterator[Piece]:
    before = _agreeing(one, other)
    after = _agreeing(one[before:][::-1], other[before:][::-1])
    here, there = one[before : len(one) - after], other[before : len(other) - after]
    yield Piece("same", "".join(one[:before]))
    yield from _changed(here, there)
    yield Piece("same", "".join(one[len(one) - after :]))


def _changed(one: Sequence[str], other: Sequence[str]) -> Iterator[Piece]:
    if max(len(one), len(other)) > _LONGEST:
        yield Piece("gone", "".join(one))
        yield Piece("come", "".join(other))
        return
    gone = come = ""
    for fate, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        here, there = "".join(one[a:b]), "".join(other[c:d])
        if fate == "equal" and any(map(str.isalnum, here)):
            yield from (Piece("gone", gone), Piece("come", come), Piece("same", here))
            gone = come = ""
        else:
            # Blanks and commas between two changed words are no reason to take the two apart.
            gone, come = gone + here, come + there
    yield from (Piece("gone", gone), Piece("come", come))


def _agreeing(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(bool, (a == b for a, b in zip(one, other, strict=False))))


def _glanced(found: Sequence[Piece]) -> Iterator[Piece]:
    """Of what stayed, no more than what stands near a change."""
    for number, piece in enumerate(found):
        if not piece.text:
            continue
        first, last = number == 0, number == len(found) - 1
        room = _AROUND if first or last else 2 * _AROUND
        if piece.fate != "same" or len(piece.text) <= room:
            yield piece
        else:
            head = "" if first else piece.text[:_AROUND]
            tail = "" if last else piece.text[-_AROUND:]
            yield Piece("same", f"{head}…{tail}")


def _cut(found: Iterator[Piece]) -> Iterator[Piece]:
    left = _SHOWN
    for fate, text in found:
        if left <= 0:
            yield Piece("same", "…")
            return
        # One long side must not push the other out of sight.
        room = max(_AROUND, left // 2)
        shown = text if len(text) <= room else text[:room] + "…"
        left -= len(shown)
        yield Piece(fate, shown)
