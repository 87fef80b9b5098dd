"""Find the names of people that the settings list.

A name has no form: only who is listed is found, in upper or lower case, as whole words. What joins the words of a name may be
blanks, or what joins words in an address (`ada.lovelace@`, `ada%20lovelace`). Letters beyond ASCII are found as UTF-8, in either
normal form, and behind the escapes of JSON and of URLs.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from calls.redaction.rules.patterns import Either, Part, Some, Word, full
from calls.redaction.rules.secret_rule import End, SecretRule, reject_replaced

SHORTEST: Final = 2
"""Letters of a name: one alone would be found in every text."""

MOST: Final = 5000
"""Names in a list: the expression that finds them grows with each."""

LONGEST: Final = 40
"""And letters that it has at most."""

_JOINT: Final = Either(
    (
        (Some("[ \\t\\r\\n_.,+\\-]", 1, 3),),
        (Some("\\\\", 1, 8), Word(("n", "r\\n", "u00a0"))),
        (Word(("%20", "%0a", "\xc2\xa0")),),
    )
)
_LETTER: Final = rb"[A-Za-z0-9]|[\xc3-\xdf][\x80-\xbf]|[\xe0\xe1][\x80-\xbf]{2}"
_IN_WORD: Final = re.compile(rb"(?:%s)\Z" % _LETTER)
_GOES_ON: Final = rb"(?:%s|\\{1,8}u0(?:0[c-fC-F]|[1-6]))" % _LETTER
_ESCAPED: Final = re.compile(rb"(?:\\[bfnrt]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2})\Z")
_ASCII: Final = "".join(map(chr, range(32, 127)))
_APOSTROPHES: Final = ("'", "\u2019")
_FIRST: Final = 4
_AHEAD: Final = 96
"""How many bytes may follow the first letters until it is decided whether they begin a name."""


def read_names(text: str) -> tuple[str, ...]:
    """The names in a file, one a line; a line that begins with # is a remark."""
    lines = (" ".join(line.split()) for line in text.removeprefix("\ufeff").splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def find_unfit_name(names: Iterable[str]) -> str | None:
    """The first name that cannot be looked for."""
    return next((name for name in names if not SHORTEST <= sum(map(str.isalnum, name)) <= LONGEST), None)


@lru_cache(4)
def rules_for_names(names: tuple[str, ...]) -> tuple[SecretRule, ...]:
    """The rules that find these names: one for those that begin with a letter of ASCII, one for the others."""
    groups: dict[bool, list[str]] = {}
    for name in names:
        groups.setdefault(name[0].isascii(), []).append(name)
    return tuple(_rule(group, bounded=is_ascii) for is_ascii, group in sorted(groups.items(), reverse=True))


def _rule(names: list[str], *, bounded: bool) -> SecretRule:
    # Of two names of which one begins the other, the longer is looked for first.
    parts = [_parts(name) for name in sorted(names, key=len, reverse=True)]
    # To look for the first letters alone costs less, by far, than for thousands of names.
    begin = Either(tuple(sorted({tuple(one[:_FIRST]) for one in parts}, key=str)))
    whole = re.compile(b"(?:%s)(?!%s)" % (full((Either(tuple(map(tuple, parts))),)).encode("latin-1"), _GOES_ON))

    def end(_data: bytes, start: int) -> End:
        def find_end(data: bytes, _at: int) -> int:
            found = whole.match(data, start)
            return found.end() if found else start

        return find_end

    @reject_replaced
    def is_whole_word(data: bytes, _lead: int, start: int, stop: int) -> bool:
        before = data[max(0, start - 8) : start]
        return stop > start and (_IN_WORD.search(before) is None or _ESCAPED.search(before) is not None)

    return SecretRule(kind="D", begin=(begin,), end=end, real=is_whole_word, bounded=bounded, ahead=_AHEAD)


def _parts(name: str) -> list[Part]:
    """The letters of a name, and what joins its words."""
    parts: list[Part] = []
    for word in unicodedata.normalize("NFC", name).split():
        parts += [_JOINT] if parts else []
        parts += map(_part, word)
    return parts


def _part(text: str) -> Part:
    if text in _APOSTROPHES:
        return Either(tuple(way for one in _APOSTROPHES for way in _spellings(one)))
    if text.isascii():
        return Word((text,), nocase=True)
    cases = {unicodedata.normalize(form, one) for form in ("NFC", "NFD") for one in (text.upper(), text.lower())}
    return Either(tuple(way for one in sorted(cases) for way in _spellings(one)))


def _spellings(text: str) -> Iterator[tuple[Part, ...]]:
    """All ways in which a letter beyond ASCII is written; in its decomposed form it begins with one of ASCII."""
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
    yield *lead, *(part for unit in units for part in (Some("\\\\", 1, 8), Word((f"u{unit}",), nocase=True)))
