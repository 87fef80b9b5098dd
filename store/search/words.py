"""Divide a text of any language into words, without knowing the language.

A word is a run of letters with their marks and of digits, without regard to case and width (NFKC, casefold), to accents of Latin and
Greek letters, to Cyrillic e with two dots, and to the vowel points of Arabic and Hebrew. Other marks count: those of Devanagari are
vowels, and Japanese ones make other syllables. So `refund_order`, `/orders/17` and `a@example.com` are several words that follow one
another. Scripts that are written without spaces are divided into pairs of characters that overlap, and the last character by itself:
any part of such a text is found as a phrase of pairs.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

LONGEST_WORD: Final = 64
"""Characters of a word; a longer one, such as base64, counts by its beginning."""

MOST_REMEMBERED: Final = 8192
"""Words that are not ASCII whose form is remembered: 2 MB at most."""

# Han, Hiragana, Katakana (and its extensions and half-width forms), Thai, Lao, Myanmar, Khmer.
_UNSPACED: Final = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"


def _ranges(codes: Iterable[int]) -> str:
    """Return these code points as the ranges of a class of characters."""
    ends: list[list[int]] = []
    for code in codes:
        if ends and code == ends[-1][1] + 1:
            ends[-1][1] = code
        else:
            ends.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ends)


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] == "M"


_BLOCKS_WITH_MARKS: Final = (
    *((0x300, 0x370), (0x483, 0x48A), (0x591, 0x860), (0x8D3, 0xE00), (0xF00, 0x1000), (0x1B00, 0x1C40)),
    *((0x1CD0, 0x1D00), (0x1DC0, 0x1E00), (0x20D0, 0x2100), (0xA8E0, 0xA900), (0xFE20, 0xFE30)),
)
"""Of the scripts in use."""

_HAS_SPACES: Final = re.compile(f"[^{_UNSPACED}]")
_JOINERS: Final = "\u200c\u200d"
_MARKS: Final = (
    _ranges(
        code
        for first, last in _BLOCKS_WITH_MARKS
        for code in range(first, last)
        if _is_mark(chr(code)) and _HAS_SPACES.match(chr(code))
    )
    + _JOINERS
)
_WORD: Final = rf"[^\W_]+(?:[{_MARKS}]+[^\W_]*)*"
_RUN: Final = re.compile(rf"([{_UNSPACED}]+)|{_WORD}", re.UNICODE)
_SPACED: Final = bytes(code if chr(code).isalnum() else ord(" ") for code in range(128)).lower() + bytes(128)
"""Translates ASCII text to its words in lower case, with spaces between them."""

_IS_UNSPACED: Final = re.compile(f"[{_UNSPACED}]")
_LETTERS: Final = re.compile(_WORD, re.UNICODE)
_SIGN: Final = re.compile("[\u3099\u309a\uff9e\uff9f]")
_SIGNED: Final = re.compile("[^\u3099\u309a\uff9e\uff9f][\u3099\u309a\uff9e\uff9f]?|.", re.DOTALL)
_PIECE: Final = re.compile(rf"([{_UNSPACED}]+)|[^{_UNSPACED}]+")


# What the letters without accents are that have no decomposition.
_STROKES: Final = {
    "ø": "o",
    "đ": "d",
    "ð": "d",
    "ł": "l",
    "ħ": "h",
    "ı": "i",
    "æ": "ae",
    "œ": "oe",
    "þ": "th",
    "ё": "е",
}
_ACCENTED: Final = ((0xC0, 0x250), (0x370, 0x400), (0x1E00, 0x2000))
"""Where the letters of Latin and Greek with accents are."""

_TATWEEL: Final = 0x640
_DROPPED: Final = (
    (0x300, 0x370),  # accents by themselves
    (0x591, 0x5C8),  # Hebrew points
    (0x610, 0x61B),  # Arabic vowels and signs, and the line that stretches a word
    (_TATWEEL, _TATWEEL + 1),
    (0x64B, 0x660),
    (0x670, 0x671),
    (0x6D6, 0x6EE),
)


def _without_accents(letter: str) -> str:
    return "".join(each for each in unicodedata.normalize("NFD", letter) if not _is_mark(each))


_FOLDS: Final[Mapping[str, str]] = {
    **{
        chr(code): base
        for first, last in _ACCENTED
        for code in range(first, last)
        if (base := _without_accents(chr(code))) != chr(code)
    },
    # Arabic alef with a sign, which many write without it.
    **dict.fromkeys("\u0622\u0623\u0625", "\u0627"),
    **_STROKES,
    **{
        chr(code): ""
        for first, last in _DROPPED
        for code in range(first, last)
        if code == _TATWEEL or _is_mark(chr(code))
    },
    **dict.fromkeys(_JOINERS, ""),
}
_FOLDED: Final = re.compile(f"[{_ranges(sorted(map(ord, _FOLDS)))}]")


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
    """Yield the pairs of a text. A half-width letter and its sign, or one and a sign that joins it, are one character."""
    if _SIGN.search(text) is None:
        for place in range(len(text)):
            pair = text[place : place + 2]
            yield Word(_normal(pair), start + place, start + place + len(pair))
        return
    ends = [each.end() for each in _SIGNED.finditer(text)]
    for begin, end in zip((0, *ends), (*ends[1:], ends[-1]), strict=False):
        yield Word(_normal(text[begin:end]), start + begin, start + end)


def _normal(text: str) -> str:
    return text[:LONGEST_WORD].lower() if text.isascii() else _fold_word(text[:LONGEST_WORD])


# Texts repeat their words.
@lru_cache(MOST_REMEMBERED)
def _fold_word(text: str) -> str:
    folded = fold_text(unicodedata.normalize("NFKC", text))
    return "".join(letter for letter in folded if letter.isalnum() or _is_mark(letter))[:LONGEST_WORD]


def fold_text(text: str) -> str:
    """Return a normalized text without regard to case and accents: each of its words folded."""
    folded = text.casefold()
    # A tenth of the time of `translate`, as few letters have an accent.
    return _FOLDED.sub(_fold_letter, folded)


def _fold_letter(letter: re.Match[str]) -> str:
    return _FOLDS[letter[0]]


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
            and len(max(folded := fold_text(" ".join(words)).split(), key=len, default="")) <= LONGEST_WORD
            and len(folded) == len(words)
        ):
            return folded
        return [_normal(word) for word in words]
    return [word for word, _, _ in find_words(text)]


def is_normalized(text: str) -> bool:
    """Whether each word of a text is a part of it as `fold_text` returns it."""
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
