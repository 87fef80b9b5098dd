"""The form of a rule that finds secrets in bytes, with the tests and ends that several rules share.

A rule has a `lead`, which stays; a bounded `begin`, which decides that a secret starts here; an `end`, which finds where
it stops; and `real`, which has the last word.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from calls.placeholder import MARK
from calls.redaction.rules.patterns import Part

type End = Callable[[bytes, int], int]
"""Where the secret that starts (or goes on) at an offset stops; the length of the data when it ends first."""

type Real = Callable[[bytes, int, int, int], bool]
"""Whether data[start:stop], which a lead at an offset announced, is a secret."""

type Inner = Callable[[bytes, int, int], Iterator[tuple[int, int]]]
"""Where in data[start:stop], which is a list, an object or a tuple of values, the secrets are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRule:
    """One way in which a secret shows itself."""

    kind: str
    """The letter in its placeholder."""

    lead: tuple[Part, ...] = ()
    begin: tuple[Part, ...] = ()
    end: Callable[[bytes, int], End]
    """Given the data and the secret's start: how to find its end."""

    real: Real
    bounded: bool = True
    """Whether it must not start in the middle of a word."""

    apart: bool = False
    """Whether it is none in the middle of base64."""

    inner: Inner | None = None
    """Set where the lead announces several values, of which only some are secret."""

    ahead: int = 0
    """How many bytes behind its end `real` looks at."""


AROUND = 64
"""How many bytes before a secret a rule may look at."""

# A word may start right after an escape of JSON or of a URL, though the escape's last character is a letter.
# Or right after a colour of a terminal, or after the length that MessagePack, CBOR and Protocol Buffers set before a string.
ESCAPE: Final = r"\\[bfnrt]|\\u[0-9A-Fa-f]{4}|%[0-9A-Fa-f]{2}|\[[0-9;]{0,12}m|[\x12\x1a\xc4\xd9][ -~]|[\xda\xc5][\x00-\xff][ -~]|x\w"
"""What ends with a letter that is no part of the word behind it, as an expression that `re` and RE2 both read."""


def run(chars: str, most: int | None = None) -> Callable[[bytes, int], End]:
    """A secret goes on as long as these characters do, or for so many of them."""
    match = re.compile(rf"[{chars}]{{0,{most or ''}}}".encode("latin-1")).match

    def end(data: bytes, at: int) -> int:
        found = match(data, at)
        return found.end() if found else at

    return lambda _data, _at: end


# -- what is real

_DIGIT = re.compile(rb"[0-9]")
_SPACE = re.compile(rb"\s")
_BLANK = re.compile(rb"\$?\{.*\}|<.*>|%.*%|\$[A-Z_]+", re.DOTALL)
_UPPER, _LOWER = re.compile(rb"[A-Z]"), re.compile(rb"[a-z]")
_NAME = re.compile(rb"[A-Za-z]*+[0-9]*+(?:[-_.:/ ](?:[A-Z]?[a-z]++|[A-Z]*+)[0-9]*+)*+")
_DATE = re.compile(rb"\d{4}-\d\d-\d\d")
_MIXED = 4


def is_long(least: int) -> Real:
    """Of some length, and not a word: real keys hold a digit, prose with hyphens does not."""
    return lambda data, _lead, start, stop: stop - start >= least and _DIGIT.search(data, start, stop) is not None


def is_random(least: int) -> Real:
    """Of some length, with a digit or with many letters of both cases: some services' tokens hold no digit."""

    def real(data: bytes, _lead: int, start: int, stop: int) -> bool:
        if stop - start < least:
            return False
        if _DIGIT.search(data, start, stop):
            return True
        text = data[start:stop]
        return len(_UPPER.findall(text)) >= _MIXED and len(_LOWER.findall(text)) >= _MIXED

    return real


def reject_replaced(real: Real) -> Real:
    """Nothing of which was replaced before: that was judged as it stood, may have had an end in it, and stays as it is."""
    return lambda data, lead, start, stop: data.find(MARK, start, stop) < 0 and real(data, lead, start, stop)


is_key_like = is_long(8)


def is_plain(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """Anything but nothing and a blank to be filled in: `${KEY}`, `{{key}}`, `<your key>`."""
    if start == stop or _BLANK.fullmatch(data, start, stop):
        return False
    # A blank whose end was replaced, with a secret inside of it, is still one.
    return data[start] not in b"$%<{" or data.find(MARK, start, stop) < 0


@reject_replaced
def is_assigned(data: bytes, lead: int, start: int, stop: int) -> bool:
    """What looks like a key where a name and a sign stand before it, in code or prose."""
    return is_key_like(data, lead, start, stop) and _SPACE.search(data, start, stop) is None


@reject_replaced
def is_opaque(data: bytes, lead: int, start: int, stop: int) -> bool:
    """What looks like a key, and neither like a name (`refresh_token`, `gpt-4o-mini`) nor like a date."""
    if not is_assigned(data, lead, start, stop) or not (
        _UPPER.search(data, start, stop) or _LOWER.search(data, start, stop)
    ):
        return False
    return not (_NAME.fullmatch(data, start, stop) or _DATE.match(data, start, stop)) and b"://" not in data[start:stop]


# -- where a secret ends


def quoted_end(data: bytes, at: int) -> End:
    """The end of a string in quotes, themselves perhaps inside a JSON string inside a JSON string."""
    quote = data[at - 1 : at]
    depth = _depth(data, at - 1)

    def end(data: bytes, at: int) -> int:
        found = data.find(quote, at)
        while found >= 0 and not _closes(_backslashes(data, found, at), depth):
            found = data.find(quote, found + 1)
        return len(data) if found < 0 else max(at, found - min(_backslashes(data, found, at), 2**depth - 1))

    return end


def _backslashes(data: bytes, before: int, floor: int) -> int:
    count = 0
    while before - count > floor and data[before - count - 1] == 0x5C:
        count += 1
    return count


def _depth(data: bytes, quote: int) -> int:
    """How many JSON strings the string that opens here is inside of: each doubles the backslashes and adds one."""
    return (_backslashes(data, quote, max(0, quote - AROUND)) + 1).bit_length() - 1


def _closes(backslashes: int, depth: int) -> bool:
    """Whether a quote after so many backslashes ends the string, or one that it is inside of."""
    for _ in range(depth):
        if backslashes % 2 == 0:
            return True
        backslashes //= 2
    return backslashes % 2 == 0
