"""Divide a text of any language into words, without knowing the language.

A word is a run of letters and digits, without regard to case and width (NFKC, casefold). So `refund_order`, `/orders/17` and
`a@example.com` are several words that follow one another. Scripts that are written without spaces are divided into pairs of
characters that overlap, and the last character by itself: any part of such a text is found as a phrase of pairs.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

LONGEST_WORD: Final = 64
"""Characters of a word; a longer one, such as base64, counts by its beginning."""

MOST_REMEMBERED: Final = 8192
"""Words that are not ASCII whose form is remembered: 2 MB at most."""

# Han, Hiragana, Katakana (and its extensions), Thai, Lao, Myanmar, Khmer.
_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN: Final = re.compile(rf"([{_UNSPACED}]+)|[^\W_]+", re.UNICODE)
_SPACED: Final = bytes(code if chr(code).isalnum() else ord(" ") for code in range(128)).lower() + bytes(128)
"""Translates ASCII text to its words in lower case, with spaces between them."""

_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
_LETTERS: Final = re.compile(r"[^\W_]+", re.UNICODE)
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
    return text[:LONGEST_WORD].lower() if text.isascii() else _fold_word(text[:LONGEST_WORD])


# Texts repeat their words.
@lru_cache(MOST_REMEMBERED)
def _fold_word(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(letter for letter in folded if letter.isalnum() or unicodedata.combining(letter))[:LONGEST_WORD]


def space_words(text: str) -> str:
    """Return the words of an ASCII text in their order, uncut, with spaces around each of them."""
    return f" {text} ".encode().translate(_SPACED).decode()


def word_list(text: str) -> list[str]:
    """Return the words of a text in their order; empty where `find_words` yields an empty one."""
    if text.isascii() and _has_short_words(spaced := text.encode().translate(_SPACED).decode()):
        # Most texts.
        return spaced.split()
    if _IS_UNSPACED.search(text) is None:
        words = _LETTERS.findall(text)
        # Of a normalized text, folding changes letter by letter, and yields nothing but letters, digits and their marks.
        if (
            is_normalized(text)
            and len(max(folded := " ".join(words).casefold().split(), key=len, default="")) <= LONGEST_WORD
        ):
            return folded
        return [_normal(word) for word in words]
    return [word for word, _, _ in find_words(text)]


def is_normalized(text: str) -> bool:
    """Whether each word of a text is a part of the text's `casefold`."""
    return unicodedata.is_normalized("NFKC", text)


def distinct_words(texts: Iterable[str]) -> set[str]:
    """Return the words that occur in some of these texts, as `find_words` yields them."""
    ascii_texts: list[str] = []
    others: list[str] = []
    for text in texts:
        (ascii_texts if text.isascii() else others).append(text)
    # All at once: texts of a run repeat their words, and a word that is there already is only looked up.
    found = set(" ".join(ascii_texts).encode().translate(_SPACED).decode().split())
    if max(map(len, found), default=0) > LONGEST_WORD:
        found = {word[:LONGEST_WORD] for word in found}
    for text in others:
        found.update(word_list(text))
    found.discard("")
    return found


def _has_short_words(spaced: str) -> bool:
    """Whether the words of a text, between spaces, are short enough that none of them is cut."""
    at, last = -1, len(spaced) - LONGEST_WORD - 1
    while at < last:
        # The last space that ends a short word before it. Ten times as fast as the length of each word.
        at = spaced.rfind(" ", at + 1, at + LONGEST_WORD + 2)
        if at < 0:
            return False
    return True
