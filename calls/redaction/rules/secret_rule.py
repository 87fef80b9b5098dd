"""The form of a rule that finds secrets in bytes, with the tests and ends that several rules share.

A rule has a `lead`, which is kept; a `begin` of bounded length, the start of the secret; an `end`, which finds where the
secret stops; and `is_real`, which makes the final decision.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from calls.placeholder import PREFIX
from calls.redaction.rules.patterns import Part

type End = Callable[[bytes, int], int]
"""Returns where the secret that starts or continues at an offset stops; the length of the data if that ends first."""

type Real = Callable[[bytes, int, int, int], bool]
"""Returns whether data[start:stop] after a lead at an offset is a secret; arguments: data, lead, start, stop."""

type Inner = Callable[[bytes, int, int], Iterator[tuple[int, int]]]
"""Yields the spans of the secrets in data[start:stop], which is a list, an object or a tuple of values."""


class SecretRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that recognises one form of secrets."""

    kind: str
    """The letter in its placeholder."""

    lead: tuple[Part, ...] = ()
    begin: tuple[Part, ...] = ()
    end: Callable[[bytes, int], End]
    """Returns the function that finds the secret's end, given the data and the secret's start."""

    is_real: Real
    is_bounded: bool = True
    """Whether the match must not start in the middle of a word."""

    is_outside_base64: bool = False
    """Whether a match inside base64 is rejected."""

    find_inner: Inner | None = None
    """Set if several values follow the lead, of which only some are secret."""

    lookahead: int = 0
    """The number of bytes after the secret's end that the rule may examine."""


LOOKBEHIND = 96
"""The number of bytes before a secret that a rule may examine."""

# A word may start right after an escape of JSON or of a URL, even though the escape's last character is a letter; after
# a terminal colour; or after the length that precedes a string in MessagePack, CBOR and Protocol Buffers.
ESCAPE: Final = r"\\[bfnrt]|\\u[0-9A-Fa-f]{4}|%(?:25){0,2}[0-9A-Fa-f]{2}|\[[0-9;]{0,12}m|[\x12\x1a\xc4\xd9][ -~]|[\xda\xc5][\x00-\xff][ -~]|x\w"
"""Matches text that ends with a letter which is not part of the following word, as an expression for `re` and RE2."""


def end_of_run(chars: str, most: int | None = None) -> Callable[[bytes, int], End]:
    """Return an end for secrets that consist of these characters, at most `most` of them."""
    match = re.compile(rf"[{chars}]{{0,{most or ''}}}".encode("latin-1")).match

    def end(data: bytes, at: int) -> int:
        found = match(data, at)
        return found.end() if found else at

    return lambda _data, _at: end


# -- which values are real secrets

_DIGIT = re.compile(rb"[0-9]")
_SPACE = re.compile(rb"\s")
_TEMPLATE = re.compile(rb"\$?\{.*\}|<.*>|%.*%|\$[A-Z_]+", re.DOTALL)
_UPPER, _LOWER = re.compile(rb"[A-Z]"), re.compile(rb"[a-z]")
_NAME = re.compile(rb"[A-Za-z]*+[0-9]*+(?:[-_.:/ ](?:[A-Z]?[a-z]++|[A-Z]*+)[0-9]*+)*+")
_DATE = re.compile(rb"\d{4}-\d\d-\d\d")
_MIN_EACH_CASE = 4


def is_long(least: int) -> Real:
    """Accept values of at least this length with a digit: real keys contain one, prose with hyphens does not."""
    return lambda data, _lead, start, stop: stop - start >= least and _DIGIT.search(data, start, stop) is not None


def is_random(least: int) -> Real:
    """Accept values of at least this length with a digit or many letters of both cases: some tokens have no digit."""

    def is_real(data: bytes, _lead: int, start: int, stop: int) -> bool:
        if stop - start < least:
            return False
        if _DIGIT.search(data, start, stop):
            return True
        text = data[start:stop]
        return len(_UPPER.findall(text)) >= _MIN_EACH_CASE and len(_LOWER.findall(text)) >= _MIN_EACH_CASE

    return is_real


def reject_replaced(is_real: Real) -> Real:
    """Reject values that contain a placeholder: they were decided before the replacement and must pass unchanged."""
    return lambda data, lead, start, stop: data.find(PREFIX, start, stop) < 0 and is_real(data, lead, start, stop)


is_key_like = is_long(8)


def is_actual_value(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """Return whether a value is neither empty nor a template: `${KEY}`, `{{key}}`, `<your key>`."""
    if start == stop or _TEMPLATE.fullmatch(data, start, stop):
        return False
    # A template whose end was replaced together with a secret inside it is still one.
    return data[start] not in b"$%<{" or data.find(PREFIX, start, stop) < 0


@reject_replaced
def is_assigned(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a value after a name and a sign, in code or prose, looks like a key."""
    return is_key_like(data, lead, start, stop) and _SPACE.search(data, start, stop) is None


@reject_replaced
def is_opaque(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Return whether a value looks like a key, and not like a name (`refresh_token`, `gpt-4o-mini`) or a date."""
    if not is_assigned(data, lead, start, stop) or not (
        _UPPER.search(data, start, stop) or _LOWER.search(data, start, stop)
    ):
        return False
    return not (_NAME.fullmatch(data, start, stop) or _DATE.match(data, start, stop)) and b"://" not in data[start:stop]


TOKEN_LIKE: Final = re.compile(rb"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])(?!\d{4}-\d\d-\d\d)[A-Za-z0-9._~+/=-]{16,}")


@reject_replaced
def is_token_like(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """Return whether a value has the letters and digits of a token, and its length, and is no name such as `db-credentials-1`."""
    return TOKEN_LIKE.fullmatch(data, start, stop) is not None and not _NAME.fullmatch(data, start, stop)


# -- where a secret ends


def quoted_end(data: bytes, at: int) -> End:
    """Return an end for a quoted string, which may itself be inside nested JSON strings."""
    quote = data[at - 1 : at]
    depth = _quote_depth(data, at - 1)

    def end(data: bytes, at: int) -> int:
        found = data.find(quote, at)
        while found >= 0 and not _is_closing(_count_backslashes(data, found, at), depth):
            found = data.find(quote, found + 1)
        return len(data) if found < 0 else max(at, found - min(_count_backslashes(data, found, at), 2**depth - 1))

    return end


def _count_backslashes(data: bytes, before: int, floor: int) -> int:
    count = 0
    while before - count > floor and data[before - count - 1] == 0x5C:
        count += 1
    return count


def _quote_depth(data: bytes, quote: int) -> int:
    """Return the number of JSON strings around the string that opens here: each doubles the backslashes and adds one."""
    return (_count_backslashes(data, quote, max(0, quote - LOOKBEHIND)) + 1).bit_length() - 1


def _is_closing(backslashes: int, depth: int) -> bool:
    """Return whether a quote after this many backslashes ends the string or one around it."""
    for _ in range(depth):
        if backslashes % 2 == 0:
            return True
        backslashes //= 2
    return backslashes % 2 == 0
