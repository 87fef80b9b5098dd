"""Read JSON without loss: integers of any size, decimals as written; refuse what has no single meaning.

`parse` refuses what parsers read differently (duplicate names, lone surrogates, NaN, nesting beyond `MAX_DEPTH`), so that
a key is never made from a guess; `lenient` reads such a text as most clients do, for answers that people look at.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any

from calls.model import Json

MAX_DEPTH = 128
"""Deeper values are refused: a limit of ours holds everywhere, one of the interpreter's stack depends on who calls."""

_LONGEST_INT = 21
"""Integers of more digits are Decimals: their canonical spelling has an exponent, and a Decimal takes any length in linear
time, where Python refuses to make an int of 4,300 digits (CVE-2020-10735)."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*[-{\[\"0-9tfnNI]")
"""How every text begins that `lenient` takes, `NaN` and `Infinity` among them."""


class NotLossless(ValueError):
    """This is not JSON, or is JSON that parsers read differently."""


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise NotLossless("an object has two members of the same name")
    return members


def _refuse(constant: str) -> Json:
    raise NotLossless(f"{constant} is not JSON")


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _LONGEST_INT else Decimal(digits)


_strict = json.JSONDecoder(object_pairs_hook=_unique, parse_float=Decimal, parse_int=_integer, parse_constant=_refuse)
_lenient = json.JSONDecoder(parse_float=Decimal, parse_int=_integer, parse_constant=str)


def parse(data: bytes) -> Json:
    """The value of a JSON text; numbers are int, or Decimal where they are no integers or long ones. Raises `NotLossless`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotLossless("the text is not UTF-8") from error
    value = _decoded(text)
    _check_depth(text, value)
    _check_surrogates(text, value)
    return value


def lenient(data: bytes) -> Json:
    """The value as most clients read it: the last of two members counts, what is not Unicode becomes U+FFFD. Raises `NotLossless`."""
    try:
        return parse(data)
    except NotLossless:
        # To decode 100 MB of an image takes seconds, and its first bytes say that it is no JSON.
        if _BEGINNING.match(data) is None:
            raise
    text = data.decode("utf-8", "replace")
    try:
        value: Json = _lenient.decode(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise NotLossless("the text is not JSON") from error
    _check_depth(text, value)
    return _without_surrogates(value)


def dumps(value: Json) -> bytes:
    """A value as compact JSON, members in their order, numbers exact."""
    return written(value, list).encode()


def _decoded(text: str) -> Json:
    try:
        value: Json = _strict.decode(text)
    except (json.JSONDecodeError, RecursionError, InvalidOperation) as error:
        raise NotLossless(f"the text is not JSON: {_why(error)}") from error
    return value


def _why(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at character {error.pos}"
        case RecursionError():
            return "it is nested too deeply"
        case _:
            return "a number's exponent is beyond all bounds"


def _check_surrogates(text: str, value: Json) -> None:
    if _SURROGATE.search(text) is None:
        return
    try:
        dumps(value)
    except UnicodeEncodeError as error:
        raise NotLossless("a string holds half a surrogate pair") from error


def _check_depth(text: str, value: Json) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for outer in level for item in _items(outer) if type(item) is dict or type(item) is list]
        if not level:
            return
    raise NotLossless(f"it is nested deeper than {MAX_DEPTH} levels")


def _items(value: Any) -> Iterable[Json]:
    return value.values() if type(value) is dict else value if type(value) is list else ()


def _without_surrogates(value: Json) -> Json:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case Mapping():
            return {str(_without_surrogates(name)): _without_surrogates(item) for name, item in value.items()}
        case Sequence():
            return [_without_surrogates(item) for item in value]
        case _:
            return value


type Order = Callable[[Mapping[str, Json]], list[str]]
"""In which order the members of an object are written."""


def written(value: Json, order: Order, number: Callable[[int | float | Decimal], str] = str) -> str:
    """A value as compact JSON text, with the caller's order of members and spelling of numbers."""
    # RFC 8785 3.2.2.2 and Python's own escaper agree: short escapes, lower-case \u00xx, everything else as it is.
    quoted = encode_basestring

    def text(value: Json) -> str:
        kind = type(value)
        if kind is str:
            return quoted(value)  # type: ignore[arg-type] # its type was just compared
        if kind is dict:
            return members(value)  # type: ignore[arg-type] # likewise
        if kind is list:
            return "[" + ",".join([text(item) for item in value]) + "]"  # type: ignore[union-attr] # likewise
        return rare(value)

    def members(value: Mapping[str, Json]) -> str:
        return "{" + ",".join([quoted(name) + ":" + text(value[name]) for name in order(value)]) + "}"

    def rare(value: Json) -> str:
        match value:
            case None:
                return "null"
            case bool():
                return "true" if value else "false"
            case int() | float() | Decimal():
                return number(value)
            case str():
                return quoted(value)
            case Mapping():
                return members(value)
            case Sequence():
                return "[" + ",".join([text(item) for item in value]) + "]"

    return text(value)
