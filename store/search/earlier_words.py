"""Divide a text into words as earlier versions did, so that a query finds what they have indexed.

They kept accents, divided words at marks such as the vowel signs of Devanagari, and took half-width Katakana for letters of one word.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from store.search.words import LONGEST_WORD, Word

_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN: Final = re.compile(rf"([{_UNSPACED}]+)|[^\W_]+", re.UNICODE)
_PIECE: Final = re.compile(rf"([{_UNSPACED}]+)|[^{_UNSPACED}]+")


def find_earlier_words(text: str) -> Iterator[Word]:
    """Yield the words of a text, in their order."""
    for run in _RUN.finditer(text):
        for piece in _PIECE.finditer(text, run.start(), run.end()):
            start, size = piece.start(), 2 if piece[1] else len(piece[0])
            for place in range(len(piece[0])) if piece[1] else (0,):
                part = piece[0][place : place + size]
                yield Word(_fold_word(part[:LONGEST_WORD]), start + place, start + place + len(part))


def _fold_word(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(letter for letter in folded if letter.isalnum() or unicodedata.combining(letter))[:LONGEST_WORD]
