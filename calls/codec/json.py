"""Read JSON without loss: integers of any size, decimals as written; reject texts that parsers read differently.

`parse_json` rejects duplicate names, lone surrogates, NaN and nesting beyond `MAX_DEPTH`, so that no key depends on how a
parser resolves them. `parse_json_leniently` reads such a text as most clients do, for answers that are displayed.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring, encode_basestring_ascii
from types import NoneType
from typing import Any, Literal

import msgspec

from calls.model import Json

type JsonType = Literal["null", "boolean", "integer", "number", "string", "array", "object"]

MAX_DEPTH = 128
"""Deeper values are rejected. The limit of the interpreter's stack would depend on the caller."""

_LONGEST_INT = 21
"""Integers of more digits are read as Decimals: their canonical form has an exponent, and a Decimal reads any length in
linear time, while Python refuses to convert ints of 4,300 digits (CVE-2020-10735)."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*[-{\[\"0-9tfnNI]")
"""The beginning of every text that `parse_json_leniently` accepts, including `NaN` and `Infinity`."""


class InvalidJson(ValueError):
    """The text is not JSON, or is JSON that parsers read differently."""


def _unique_members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidJson("an object has two members of the same name")
    return members


def _refuse_constant(constant: str) -> Json:
    raise InvalidJson(f"{constant} is not JSON")


def _parse_integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) <= _LONGEST_INT else Decimal(digits)


def exact_decoder(constant: Callable[[str], Json]) -> json.JSONDecoder:
    """Return a decoder that reads numbers exactly and rejects duplicate names, and asks `constant` what NaN and Infinity are."""
    return json.JSONDecoder(
        object_pairs_hook=_unique_members, parse_float=Decimal, parse_int=_parse_integer, parse_constant=constant
    )


_strict_decoder = exact_decoder(_refuse_constant)
_OPENING = ("{", "[")
_SPACE = " \t\r\n"
_scan: Callable[[str, int], tuple[Any, int]] = _strict_decoder.scan_once  # type: ignore[attr-defined] # what `decode` calls
_lenient_decoder = json.JSONDecoder(parse_float=Decimal, parse_int=_parse_integer, parse_constant=str)


def parse_json(data: bytes) -> Json:
    """Parse a JSON text. Numbers become int, or Decimal if they are fractional or long. Raises `InvalidJson`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidJson("the text is not UTF-8") from error
    value = _decode_text(text)
    check_depth(text, value)
    check_surrogates(text, value)
    return value


def parse_json_leniently(data: bytes) -> Json:
    """Parse JSON as most clients do: the last of duplicate members counts, invalid Unicode becomes U+FFFD.

    Raises `InvalidJson`.
    """
    try:
        return parse_json(data)
    except InvalidJson:
        # Decoding 100 MB of an image takes seconds, and its first bytes already show that it is not JSON.
        if _JSON_START.match(data) is None:
            raise
    text = data.decode("utf-8", "replace")
    try:
        value: Json = _lenient_decoder.decode(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise InvalidJson("the text is not JSON") from error
    check_depth(text, value)
    return _without_surrogates(value)


def json_type(value: Json) -> JsonType:
    """Return the type of a value as it is written: 1 is an integer, 1.0 a number."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float() | Decimal():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def make_writer(
    default: Callable[[Any], Json], *, sorts: bool = False, is_ascii: bool = False, allows_nan: bool = True
) -> Callable[[Json], str]:
    """Return a function that writes compact JSON in C. `default` returns a value in place of one that the writer does not know.

    It does what `json.JSONEncoder.encode` does, which makes a writer for each value: for most, that takes longer than writing.
    """
    encoder = json.JSONEncoder(
        check_circular=False,
        allow_nan=allows_nan,
        default=default,
        ensure_ascii=is_ascii,
        separators=(",", ":"),
        sort_keys=sorts,
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    quote = encode_basestring_ascii if is_ascii else encode_basestring
    write = make(None, default, quote, None, ":", ",", sorts, False, allows_nan)
    return lambda value: "".join(write(value, 0))


_PLAIN_KINDS = frozenset((str, int, bool, NoneType, dict, list))


def is_plain(value: Json) -> bool:
    """Whether a value has only texts, integers, truth values, nulls, arrays and objects: msgspec writes these as Python does."""
    if (kind := type(value)) is not dict and kind is not list:
        return kind in _PLAIN_KINDS
    waiting: Any = value.values() if kind is dict else value  # type: ignore[union-attr] # its type was compared above
    # All values of a depth at once, and by their types: it is asked of each call, several times.
    while waiting:
        kinds = set(map(type, waiting))
        if not kinds <= _PLAIN_KINDS:
            return False
        if dict not in kinds and list not in kinds:
            return True
        waiting = [
            inner
            for item in waiting
            if type(item) is dict or type(item) is list
            for inner in (item.values() if type(item) is dict else item)
        ]
    return True


write_plain_sorted: Callable[[Json], bytes] = msgspec.json.Encoder(order="sorted").encode
"""Write a plain value as compact JSON, with members in the order of their names, in a tenth of the time that Python's writer takes."""


def dumps(value: Json) -> bytes:
    """Write a value as compact JSON, with members in their order and exact numbers."""
    try:
        return _write_plain(value).encode()
    except ValueError:
        return write_json(value, list).encode()


def _exact_float(value: object) -> float:
    """Return a decimal as a number that is written in the same way."""
    if isinstance(value, Decimal) and str(value) == repr(plain := float(value)):
        return plain
    raise ValueError(f"{type(value).__name__} is not written in C")


_write_plain = make_writer(_exact_float, allows_nan=False)


def _decode_text(text: str) -> Json:
    try:
        value: Json = _scan_text(text) if text[:1] in _OPENING else _strict_decoder.decode(text)
    except (json.JSONDecodeError, RecursionError, InvalidOperation) as error:
        raise InvalidJson(f"the text is not JSON: {_failure_reason(error)}") from error
    return value


def _scan_text(text: str) -> Json:
    """Parse a text that begins with an array or object. The decoder would look for space around it with patterns."""
    value: Json
    try:
        value, end = _scan(text, 0)
        if end == len(text) or not text[end:].strip(_SPACE):
            return value
    except StopIteration:
        pass
    value = _strict_decoder.decode(text)  # which raises the error
    return value


def _failure_reason(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"{error.msg} at character {error.pos}"
        case RecursionError():
            return "it is nested too deeply"
        case _:
            return "the exponent of a number is too large"


def check_surrogates(text: str, value: Json) -> None:
    """Reject lone surrogates. Raises `InvalidJson`."""
    if "\\" not in text or _SURROGATE.search(text) is None:
        return
    try:
        dumps(value)
    except UnicodeEncodeError as error:
        raise InvalidJson("a string contains a lone surrogate") from error


def check_depth(text: str, value: Json) -> None:
    """Reject a value that is nested too deeply. Raises `InvalidJson`."""
    if is_deeper(text, value, MAX_DEPTH):
        raise InvalidJson(f"it is nested deeper than {MAX_DEPTH} levels")


def is_deeper(text: str, value: Json, limit: int) -> bool:
    """Return whether a value is nested deeper than this many levels. `text` is the JSON that it was read from."""
    if text.count("[") + text.count("{") <= limit:
        return False
    level = [value]
    for _ in range(limit):
        level = [item for outer in level for item in _children(outer) if type(item) is dict or type(item) is list]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Json]:
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
"""Returns the names of an object's members in the order in which they are written."""


def write_json(value: Json, order: Order, number: Callable[[int | float | Decimal], str] = str) -> str:
    """Write a value as compact JSON text, with the given order of members and format of numbers."""
    # RFC 8785 3.2.2.2 and Python's escaper agree: short escapes, lower-case \u00xx, everything else unchanged.
    quote = encode_basestring

    def write_value(value: Json) -> str:
        kind = type(value)
        if kind is str:
            return quote(value)  # type: ignore[arg-type] # its type was compared above
        if kind is dict:
            return write_members(value)  # type: ignore[arg-type] # likewise
        if kind is list:
            return "[" + ",".join([write_value(item) for item in value]) + "]"  # type: ignore[union-attr] # likewise
        return write_other(value)

    def write_members(value: Mapping[str, Json]) -> str:
        return "{" + ",".join([quote(name) + ":" + write_value(value[name]) for name in order(value)]) + "}"

    def write_other(value: Json) -> str:
        match value:
            case None:
                return "null"
            case bool():
                return "true" if value else "false"
            case int() | float() | Decimal():
                return number(value)
            case str():
                return quote(value)
            case Mapping():
                return write_members(value)
            case Sequence():
                return "[" + ",".join([write_value(item) for item in value]) + "]"

    return write_value(value)
