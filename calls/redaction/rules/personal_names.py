"""Find the names of people that the settings list.

Names have no form, so only listed ones are found, in upper or lower case, as whole words. The words of a name may be separated by
spaces or as in an address (`ada.lovelace@`, `ada%20lovelace`). Letters beyond ASCII are found as UTF-8, in either normal
form, and as escapes of JSON and URLs.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from calls.redaction.rules.patterns import Either, Part, Repeat, Word, full_expression
from calls.redaction.rules.secret_rule import End, SecretRule, reject_replaced

MIN_LETTERS: Final = 2
"""The fewest letters of a name: a single letter would be found in every text."""

MAX_NAMES: Final = 5000
"""The most names in a list: the expression that finds them grows with each name."""

MAX_LETTERS: Final = 40
"""The most letters of a name."""

_JOINT: Final = Either(
    (
        (Repeat("[ \\t\\r\\n_.,+\\-]", 1, 3),),
        (Repeat("\\\\", 1, 8), Word(("n", "r\\n", "u00a0"))),
        (Word(("%20", "%0a", "\xc2\xa0")),),
    )
)
_LETTER: Final = rb"[A-Za-z0-9]|[\xc3-\xdf][\x80-\xbf]|[\xe0\xe1][\x80-\xbf]{2}"
_IN_WORD: Final = re.compile(rb"(?:%s)\Z" % _LETTER)
_CONTINUATION: Final = rb"(?:%s|\\{1,8}u0(?:0[c-fC-F]|[1-6]))" % _LETTER
_ESCAPED: Final = re.compile(rb"(?:\\[bfnrt]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2})\Z")
_ASCII: Final = "".join(map(chr, range(32, 127)))
_APOSTROPHES: Final = ("'", "\u2019")
_BEGIN_LETTERS: Final = 4
_LOOKAHEAD: Final = 96
"""The number of bytes after the first letters that decide whether they begin a name."""


def read_names(text: str) -> tuple[str, ...]:
    """Read the names in a file, one per line; lines that begin with # are comments."""
    lines = (" ".join(line.split()) for line in text.removeprefix("\ufeff").splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def find_unfit_name(names: Iterable[str]) -> str | None:
    """Return the first name that is too short or too long to be searched; None if there is none."""
    return next((name for name in names if not MIN_LETTERS <= sum(map(str.isalnum, name)) <= MAX_LETTERS), None)


@lru_cache(4)
def rules_for_names(names: tuple[str, ...]) -> tuple[SecretRule, ...]:
    """Make the rules that find these names: one for names that begin with an ASCII letter, one for the others."""
    groups: dict[bool, list[str]] = {}
    for name in names:
        groups.setdefault(name[0].isascii(), []).append(name)
    return tuple(_names_rule(group, bounded=is_ascii) for is_ascii, group in sorted(groups.items(), reverse=True))


def _names_rule(names: list[str], *, bounded: bool) -> SecretRule:
    # If one name is the beginning of another, the longer one must be tried first.
    parts = [_name_parts(name) for name in sorted(names, key=len, reverse=True)]
    # Searching for the first letters only is far cheaper than for thousands of whole names.
    begin = Either(tuple(sorted({tuple(one[:_BEGIN_LETTERS]) for one in parts}, key=str)))
    whole = re.compile(
        b"(?:%s)(?!%s)" % (full_expression((Either(tuple(map(tuple, parts))),)).encode("latin-1"), _CONTINUATION)
    )

    def end(_data: bytes, start: int) -> End:
        def find_end(data: bytes, _at: int) -> int:
            found = whole.match(data, start)
            return found.end() if found else start

        return find_end

    @reject_replaced
    def is_whole_word(data: bytes, _lead: int, start: int, stop: int) -> bool:
        before = data[max(0, start - 8) : start]
        return stop > start and (_IN_WORD.search(before) is None or _ESCAPED.search(before) is not None)

    return SecretRule(
        kind="D", begin=(begin,), end=end, is_real=is_whole_word, is_bounded=bounded, lookahead=_LOOKAHEAD
    )


def _name_parts(name: str) -> list[Part]:
    """Return the parts of a name: its letters and the separators of its words."""
    parts: list[Part] = []
    for word in unicodedata.normalize("NFC", name).split():
        parts += [_JOINT] if parts else []
        parts += map(_letter_part, word)
    return parts


def _letter_part(text: str) -> Part:
    if text in _APOSTROPHES:
        return Either(tuple(way for one in _APOSTROPHES for way in _spellings(one)))
    if text.isascii():
        return Word((text,), nocase=True)
    cases = {unicodedata.normalize(form, one) for form in ("NFC", "NFD") for one in (text.upper(), text.lower())}
    return Either(tuple(way for one in sorted(cases) for way in _spellings(one)))


def _spellings(text: str) -> Iterator[tuple[Part, ...]]:
    """Yield all encodings of a letter beyond ASCII; its decomposed form begins with an ASCII letter."""
    rest = text.lstrip(_ASCII)
    base = text[: len(text) - len(rest)]
    lead: tuple[Part, ...] = (Word((base,)),) if base else ()
    if not rest:
        yield lead
        return
    data = rest.encode("utf-16-be")
    units = [data[at : at + 2].hex() for at in range(0, len(data), 2)]
    yield *lead, Word((rest.encode().decode("latin-1"),))
    yield *lead, Word(("".join(f"%{byte:02x}" for byte in rest.encode()),), nocase=True)
    yield *lead, *(part for unit in units for part in (Repeat("\\\\", 1, 8), Word((f"u{unit}",), nocase=True)))
