"""Write JSON canonically (RFC 8785), extended to numbers that a double cannot hold.

RFC 8785 writes numbers as ECMAScript does, from the nearest double. Requests carry larger integers and longer
decimals (ids, scores, vectors), and two requests that differ in the last digit are two requests. So the extension: an
`int` or a `Decimal` is written from its exact value, in ECMAScript's layout. Wherever the value is one that
ECMAScript would print itself, the two agree, so 1, 1.0 and 1e0 are all `1`.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from calls.codec.json import written
from calls.model import Json

_SAFE = 10**15
"""Integers below this are written as Python writes them: no layout rule touches them."""


def canonical(value: Json) -> bytes:
    """The canonical bytes of a JSON value."""
    return written(value, _sorted, _number).encode()


def canonical_parsed(value: Json) -> bytes:
    """The canonical bytes of a value that `json.parse` gave, at the speed of C.

    Such a value has no floats and no integers of more than 21 digits, so only its decimals need our spelling, and
    Python's order of names is that of RFC 8785 unless one leaves the Basic Multilingual Plane.
    """
    try:
        data = _encoder.encode(value).encode()
    except _OwnSpelling:
        return canonical(value)
    return data if data.isascii() or len(data.translate(None, _ASTRAL)) == len(data) else canonical(value)


class _OwnSpelling(Exception):  # a signal, not an error
    """A number that Python's encoder would spell differently."""


def _plain(value: object) -> int | float:
    """A decimal as the number that Python's encoder spells as we do."""
    if isinstance(value, Decimal) and _number(value) == repr(plain := float(value)):
        return plain
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < _SAFE:
        return int(value)
    raise _OwnSpelling


_ASTRAL: Final = bytes(range(0xF0, 0xF5))
"""The bytes with which a character beyond the Basic Multilingual Plane may begin."""

_encoder: Final = json.JSONEncoder(
    check_circular=False, default=_plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True
)


def digest(domain: str, data: bytes) -> str:
    """The SHA-256 of data under a domain tag, so that equal bytes of different meaning have different digests."""
    return "sha256:" + hashlib.sha256(domain.encode() + b"\0" + data).hexdigest()


def unicode(text: str) -> str:
    """A text with half surrogate pairs written as escapes: a URL or a header that was imported may hold one."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _sorted(members: Mapping[str, Json]) -> list[str]:
    # RFC 8785 3.2.3 sorts by UTF-16 code units; for ASCII that is Python's own order.
    if "".join(members).isascii():
        return sorted(members)
    return sorted(members, key=_utf16)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")


def _number(value: int | float | Decimal) -> str:
    if isinstance(value, int) and -_SAFE < value < _SAFE:
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    # repr gives the shortest digits that lead back to the double: ECMAScript's own choice.
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return _layout(exact)


def _layout(value: Decimal) -> str:
    """ECMA-262 6.1.6.1.20 Number::toString, from exact digits."""
    if not value:
        return "0"
    sign, coefficient, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a JSON number is finite"
    digits = "".join(map(str, coefficient)).lstrip("0")
    point = len(digits) + exponent
    return "-" * sign + _placed(digits.rstrip("0"), point)


def _placed(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if count > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
