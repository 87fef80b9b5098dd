"""Divide a text of any language into words, without knowing the language.

A word is a run of letters and digits, without regard to case and width (NFKC, casefold). So `refund_order`, `/orders/17` and
`a@example.com` are several words that follow one another. Scripts that are written without spaces are divided into pairs of
characters that overlap, and the last character by itself: any part of such a text is found as a phrase of pairs.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

LONGEST_WORD: Final = 64
"""Characters of a word; a longer one, such as base64, counts by its beginning."""

LAST_POSITION: Final = 16_383
"""The highest position that a tsvector holds. Words beyond it are found, but not in phrases."""

MOST_POSITIONS: Final = 255
"""Positions of a word that PostgreSQL keeps."""

# Han, Hiragana, Katakana (and its extensions), Thai, Lao, Myanmar, Khmer.
_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN: Final = re.compile(rf"([{_UNSPACED}]+)|[^\W_]+", re.UNICODE)
_SPACED: Final = bytes(code if chr(code).isalnum() else ord(" ") for code in range(128)).lower() + bytes(128)
"""Translates ASCII text to its words in lower case, with spaces between them."""

_POSITIONS: Final = tuple(map(str, range(1, LAST_POSITION)))
_PIECE: Final = re.compile(rf"([{_UNSPACED}]+)|[^{_UNSPACED}]+")


class Word(NamedTuple):
    """A word, and where it is in the text."""

    text: str
    start: int
    end: int


def find_words(text: str) -> Iterator[Word]:
    """Yield the words of a text, in their order."""
    for run in _RUN.finditer(text):
        for piece in _PIECE.finditer(text, run.start(), run.end()):
            if piece[1]:
                yield from _pairs(piece[1], piece.start())
            else:
                yield Word(_normal(piece[0]), piece.start(), piece.end())


def _pairs(text: str, start: int) -> Iterator[Word]:
    for place in range(len(text)):
        pair = text[place : place + 2]
        yield Word(_normal(pair), start + place, start + place + len(pair))


def _normal(text: str) -> str:
    if text.isascii():
        return text[:LONGEST_WORD].lower()
    folded = unicodedata.normalize("NFKC", text[:LONGEST_WORD]).casefold()
    return "".join(letter for letter in folded if letter.isalnum() or unicodedata.combining(letter))[:LONGEST_WORD]


def word_vector(text: str) -> str:
    """Return the words with their positions, as PostgreSQL reads a tsvector."""
    positions: dict[str, list[str]] = {}
    if text.isascii() and _are_short(words := text.encode().translate(_SPACED).decode().split()):
        # Most texts, and much faster.
        get = positions.get
        for word, position in zip(words, _POSITIONS, strict=False):
            if (found := get(word)) is None:
                positions[word] = [position]
            else:
                found.append(position)
        return " ".join([f"'{word}':{','.join(found[:MOST_POSITIONS])}" for word, found in positions.items()])
    for number, (word, _, _) in enumerate(find_words(text), 1):
        if word:
            positions.setdefault(word, []).append(str(min(number, LAST_POSITION)))
    return " ".join(
        [f"'{word}':{','.join(dict.fromkeys(found[:MOST_POSITIONS]))}" for word, found in positions.items()]
    )


def _are_short(words: Sequence[str]) -> bool:
    """Whether these words are short enough, and so few, that none of them has to be cut or loses its position."""
    return len(words) < LAST_POSITION and max(map(len, words), default=0) <= LONGEST_WORD
