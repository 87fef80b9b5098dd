"""Read, check and write the effects of a batch: a JSON array of objects without floating-point numbers.

Numbers are integers up to 2^53, so that the canonical form (RFC 8785) is the same in every language. Values that are something else are
objects with one member: `{"$float": "0.1"}`, `{"$int": "9007199254740993"}`, `{"$bytes": "<base64>"}`.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

MOST_BYTES: Final = 8 << 20
"""Bytes of the effects of one batch."""

MOST_ITEMS: Final = 100_000
MOST_NAME: Final = 1000
MOST_INTEGER: Final = 1 << 53

FIRST: Final = "first"
"""The member with the first result of reading a clock, in nanoseconds, as text; `ns` has the difference of each further one."""

ABOUT_PROCESS: Final = frozenset(("process.start", "process.exit", "content", "stdout"))
"""Kinds of items that say something about the process and stand for no effect."""

_NANOSECONDS: Final = re.compile(r"-?\d{1,18}|-?[1-8]\d{18}")

_INTEGER: Final = re.compile(r"-?\d{1,5000}")

type Item = dict[str, Any]


class InvalidEffects(ValueError):
    """A batch is not what the format says. The message says why."""


class _Item(msgspec.Struct, omit_defaults=True):
    """The members that effects may have; `docs/trace-format.md` describes them."""

    kind: str
    task: str = ""
    at: str = ""
    order: int = 0
    happened: int = 0
    args: dict[str, Any] = {}
    results: list[Any] = []
    counts: list[int] = []
    first: str = ""
    ns: list[int] = []
    error: dict[str, Any] | None = None
    content: int | None = None
    digest: str = ""
    size: int = 0
    redactions: int = 0
    by: str = ""


_decoder = msgspec.json.Decoder(list[_Item])
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def read_items(data: bytes) -> list[Item]:
    """Read and check the effects of a batch. Raises InvalidEffects."""
    if len(data) > MOST_BYTES:
        raise InvalidEffects(f"a batch of effects has {len(data):,} bytes: send at most {MOST_BYTES:,}")
    try:
        known = _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise InvalidEffects(f"a batch of effects is malformed: {error}") from None
    if not 0 < len(known) <= MOST_ITEMS:
        raise InvalidEffects(f"a batch has {len(known):,} effects: send 1 to {MOST_ITEMS:,}")
    found: list[Item] = _decode(data)
    for item in found:
        _check_item(item)
    return found


def encode_items(items: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the canonical JSON of effects that were checked."""
    # Member names are ASCII and there are no floats, so this is the form of RFC 8785.
    return _encode(items)


def count_results(items: Sequence[Mapping[str, Any]]) -> int:
    """Return how many effects the items of a batch stand for."""
    return sum(_count(item) for item in items)


def _count(item: Mapping[str, Any]) -> int:
    if item["kind"] in ABOUT_PROCESS:
        return 0
    if FIRST in item:
        return 1 + len(item.get("ns", ()))
    return sum(item["counts"]) if item.get("counts") else max(len(item.get("results", ())), 1)


def _check_item(item: Item) -> None:
    for name in ("kind", "task", "at", "by"):
        if len(item.get(name, "")) > MOST_NAME:
            raise InvalidEffects(f"the {name} of an effect has more than {MOST_NAME:,} characters")
    if item["kind"] == "content" and "content" not in item:
        raise InvalidEffects("a content of an effect has no number by which others refer to it")
    if item.get("counts") and (len(item["counts"]) != len(item.get("results", ())) or min(item["counts"]) < 1):
        raise InvalidEffects("an effect has other counts than results: give how often each result came in a row")
    if FIRST in item and not _NANOSECONDS.fullmatch(item[FIRST]):
        raise InvalidEffects(f"a clock's first result {item[FIRST][:80]!r} is not a number of nanoseconds")
    if item.get("ns") and not -MOST_INTEGER <= min(item["ns"]) <= max(item["ns"]) <= MOST_INTEGER:
        raise InvalidEffects("a difference between a clock's results is larger than 2^53 ns")
    _check_value([value for name, value in item.items() if name != "ns"], 0)


def _check_value(value: Any, depth: int) -> None:
    if isinstance(value, float) or (isinstance(value, int) and abs(value) > MOST_INTEGER):
        raise InvalidEffects(f"an effect has the number {value}: write it as text, in $float or $int")
    if depth > 20:
        raise InvalidEffects("a value of an effect is nested more than 20 deep")
    if isinstance(value, Mapping):
        if not all(name.isascii() and name.isprintable() for name in value):
            raise InvalidEffects("a value of an effect has a member whose name is not printable ASCII")
        _check_tagged(value)
        value = [*value.values()]
    if isinstance(value, list):
        for one in value:
            if isinstance(one, str) or one is None:
                continue
            _check_value(one, depth + 1)


def _check_tagged(value: Mapping[str, Any]) -> None:
    """Check a value that stands for something that JSON has not. Whoever reads it later relies on it."""
    match value:
        case {"$bytes": text} if len(value) == 1:
            try:
                base64.b64decode(text, validate=True)
            except (TypeError, ValueError):
                raise InvalidEffects("a $bytes of an effect is not base64") from None
        case {"$float": text} if len(value) == 1 and not (isinstance(text, str) and _is_float(text)):
            raise InvalidEffects("a $float of an effect is not a number")
        case {"$int": text} if len(value) == 1 and not (isinstance(text, str) and _INTEGER.fullmatch(text)):
            raise InvalidEffects("a $int of an effect is not an integer")


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
