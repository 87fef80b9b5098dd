"""Write JSON canonically (RFC 8785), extended to numbers that a double cannot hold.

RFC 8785 writes numbers as ECMAScript does, from the nearest double. Requests carry larger integers and longer decimals
(ids, scores, vectors), and two requests that differ in the last digit are different. So an `int` or a `Decimal` is written
from its exact value, in ECMAScript's layout. For values that ECMAScript prints exactly the results are the same: 1, 1.0
and 1e0 are all `1`.
"""

import hashlib
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from calls.codec.json import is_plain, make_writer, write_json, write_plain_sorted
from calls.model import Json

_PLAIN_BELOW = 10**15
"""Integers below this are written as Python writes them: no layout rule changes them."""


def canonical_json(value: Json) -> bytes:
    """Return the canonical bytes of a JSON value."""
    return write_json(value, _sort_names, _format_number).encode()


def canonical_parsed_json(value: Json) -> bytes:
    """Return the canonical bytes of a value from `parse_json`, at the speed of C.

    Such a value has no floats and no integers of more than 21 digits, so only its decimals need special formatting, and
    Python's order of names equals that of RFC 8785 unless a name leaves the Basic Multilingual Plane.
    """
    try:
        data = write_plain_sorted(value) if is_plain(value) else _write_parsed(value).encode()
    except _NeedsExactNumber:
        return canonical_json(value)
    return data if data.isascii() or len(data.translate(None, _ASTRAL)) == len(data) else canonical_json(value)


class _NeedsExactNumber(Exception):  # a signal, not an error
    """A number that Python's encoder would write differently."""


def _plain_number(value: object) -> int | float:
    """Return a decimal as a number that Python's encoder writes canonically."""
    if isinstance(value, Decimal) and _format_number(value) == repr(plain := float(value)):
        return plain
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < _PLAIN_BELOW:
        return int(value)
    raise _NeedsExactNumber


_ASTRAL: Final = bytes(range(0xF0, 0xF5))
"""The possible first bytes of characters beyond the Basic Multilingual Plane."""

_write_parsed: Final = make_writer(_plain_number, sorts=True)


def digest(domain: str, data: bytes) -> str:
    """Return the SHA-256 of data under a domain tag, so that equal bytes of different meaning have different digests."""
    return "sha256:" + hashlib.sha256(domain.encode() + b"\0" + data).hexdigest()


def escape_surrogates(text: str) -> str:
    """Write lone surrogates as escapes: an imported URL or header may contain one."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _sort_names(members: Mapping[str, Json]) -> list[str]:
    # RFC 8785 3.2.3 sorts by UTF-16 code units; for ASCII that is Python's own order.
    if "".join(members).isascii():
        return sorted(members)
    return sorted(members, key=_utf16_units)


def _utf16_units(name: str) -> bytes:
    return name.encode("utf-16-be")


def _format_number(value: int | float | Decimal) -> str:
    if isinstance(value, int) and -_PLAIN_BELOW < value < _PLAIN_BELOW:
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    # repr gives the shortest digits that round-trip to the double, as ECMAScript does.
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return _format_decimal(exact)


def _format_decimal(value: Decimal) -> str:
    """Format a decimal as ECMA-262 6.1.6.1.20 Number::toString does, from its exact digits."""
    if not value:
        return "0"
    sign, coefficient, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a JSON number is finite"
    digits = "".join(map(str, coefficient)).lstrip("0")
    point = len(digits) + exponent
    return "-" * sign + _place_point(digits.rstrip("0"), point)


def _place_point(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if count > 1 else ""
    return f"{digits[0]}{fraction}e{point - 1:+d}"
