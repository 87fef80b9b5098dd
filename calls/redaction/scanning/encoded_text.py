"""Recognise encoded text: unnecessary escapes, and the beginnings of base64 that may hold text."""

from collections.abc import Callable
from typing import Final

CHARS: Final = "A-Za-z0-9+/_\\-"
TEXT: Final = 4
"""So many groups of four characters that decode to printable ASCII begin a run."""

LONG: Final = 60
"""And so many characters of any base64; GitHub breaks its lines there."""

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _class(is_member: Callable[[int], bool]) -> str:
    chars = "".join(chr(char) for value, char in enumerate(_ALPHABET) if is_member(value))
    return "[" + chars.replace("+", "+\\-").replace("/", "/_") + "]"


_PRINTABLE = (9, 10, 13, *range(32, 127))
_HIGH = frozenset(byte >> 4 for byte in _PRINTABLE)
# Four characters of which each byte that they decode to is printable ASCII.
_GROUP: Final = (
    _class(lambda value: any(byte >> 2 == value for byte in _PRINTABLE)),
    _class(lambda value: value & 15 in _HIGH),
    _class(lambda value: value & 3 in (0, 1)),
    f"[{CHARS}]",
)
GROUP: Final = "".join(_GROUP)
# A segment of a JSON web token follows a dot; a letter may belong to an escape.
START: Final = rf"(?:[^{CHARS}.\\%]|\\[bfnrt]|\\u[0-9A-Fa-f]{{4}}|%[0-9A-Fa-f]{{2}}|\[[0-9;]{{0,12}}m)"
RUNS: Final = rf"{START}(?:(?:{GROUP}){{{TEXT}}}|[{CHARS}]{{{LONG}}})"
"""A run that may hold text, with what stands before it, as an expression for RE2."""

# Letters, digits and what joins them. Quotes, backslashes and white space keep their escapes, because they mean something else.
# In a URL `&`, `?`, `#` and `;` keep theirs: they separate by not being escaped.
_IN_JSON = r"\\{1,8}u00(?:2[0b-fB-F]|3[0-9aAdD]|40|[46][1-9a-fA-F]|5[0-9aAfF]|7[0-9aAeE])"
_IN_URL = r"%(?:2[bBdDeEfF]|3[0-9aAdD]|40|[46][1-9a-fA-F]|5[0-9aAfF]|7[0-9aAeE])"
ESCAPE: Final = f"{_IN_JSON}|{_IN_URL}"
"""An escape that is read as what it means."""

TEXT_RUN: Final = f"{START}(?:{GROUP}){{{TEXT}}}"
"""A run that surely holds text."""

_GROUP_BEGINNING = f"{_GROUP[0]}(?:{_GROUP[1]}{_GROUP[2]}?)?"
TEXT_RUN_BEGINNING: Final = rf"{START}(?:{GROUP}){{1,{TEXT - 1}}}(?:{_GROUP_BEGINNING})?\z"
"""What may be the beginning of one at the end of a piece: few words are."""

TEXT_GROUP_BEGINNING: Final = rf"{START}{_GROUP_BEGINNING}\z"
"""And of its first group: two bytes of what it says at most."""

_BEGINNINGS = RUNS.replace("(?:[^", r"(?:\A|[^", 1)
IN_WHOLE: Final = f"{ESCAPE}|{_BEGINNINGS}"
"""What there may be to decode in a whole text."""

IN_PIECE: Final = rf"[{CHARS}%\\]\z|{IN_WHOLE}"
"""And in a piece, which may break off in it."""

IN_SPELLED_TEXT: Final = rf"(?:\\{{1,8}}(?:u(?:0(?:0[2-7]?)?)?)?|%[2-7]?)\z|{ESCAPE}|{TEXT_RUN}"
"""And in a piece of a text that a model spells out, most of which are words."""
