"""Recognise encoded text: unnecessary escapes, and the beginnings of base64 that may contain text."""

from collections.abc import Callable
from typing import Final

CHARS: Final = "A-Za-z0-9+/_\\-"
TEXT: Final = 4
"""The number of groups of four characters, decoding to printable ASCII, that begin a run."""

LONG: Final = 60
"""The number of characters of any base64 that begin a run; GitHub breaks lines after this many."""

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _class(is_member: Callable[[int], bool]) -> str:
    chars = "".join(chr(char) for value, char in enumerate(_ALPHABET) if is_member(value))
    return "[" + chars.replace("+", "+\\-").replace("/", "/_") + "]"


_PRINTABLE = (9, 10, 13, *range(32, 127))
_HIGH = frozenset(byte >> 4 for byte in _PRINTABLE)
# Four characters that decode to printable ASCII.
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
"""A run that may contain text, with the character before it, as an expression for RE2."""

# Letters, digits and their separators. Quotes, backslashes and white space are not decoded, because they would change the
# structure, nor `&`, `?`, `#` and `;` in a URL, which separate only if they are not escaped.
_IN_JSON = r"\\{1,8}u00(?:2[0b-fB-F]|3[0-9aAdD]|40|[46][1-9a-fA-F]|5[0-9aAfF]|7[0-9aAeE])"
# A URL in a URL in a URL is encoded up to three times: `%252D`.
_IN_URL = r"%(?:25){0,2}(?:2[bBdDeEfF]|3[0-9aAdD]|40|[46][1-9a-fA-F]|5[0-9aAfF]|7[0-9aAeE])"
ESCAPE: Final = f"{_IN_JSON}|{_IN_URL}"
"""An escape that is decoded."""

TEXT_RUN: Final = f"{START}(?:{GROUP}){{{TEXT}}}"
"""A run that certainly contains text."""

_GROUP_BEGINNING = f"{_GROUP[0]}(?:{_GROUP[1]}{_GROUP[2]}?)?"
TEXT_RUN_BEGINNING: Final = rf"{START}(?:{GROUP}){{1,{TEXT - 1}}}(?:{_GROUP_BEGINNING})?"
"""A possible beginning of a text run at the end of a piece; few words match."""

TEXT_GROUP_BEGINNING: Final = rf"{START}{_GROUP_BEGINNING}"
"""A possible beginning of the first group of a text run at the end of a piece: at most two decoded bytes."""

_BEGINNINGS = RUNS.replace("(?:[^", r"(?:\A|[^", 1)
IN_WHOLE: Final = f"{ESCAPE}|{_BEGINNINGS}"
"""Text in a whole body that may have to be decoded."""

PIECE_ENDS: Final = frozenset(_ALPHABET + b"-_%\\")
"""The last bytes of pieces that may begin text which has to be decoded."""

ESCAPE_BEGINNING: Final = r"(?:\\{1,8}(?:u(?:0(?:0[2-7]?)?)?)?|%(?:25){0,2}[2-7]?)"
"""The beginning of an escape that is decoded, at the end of a piece."""

IN_SPELLED_TEXT: Final = f"{ESCAPE}|{TEXT_RUN}"
"""Text that may have to be decoded in a piece of a model's output, most of which are words."""
