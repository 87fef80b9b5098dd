"""Find named values in MessagePack and CBOR, where a string's length stands before it."""

import re
from collections.abc import Iterator

from calls.redaction.rules.patterns import Either, Some, Word
from calls.redaction.rules.secret_names import SECRET_NAMES
from calls.redaction.rules.secret_rule import AROUND, End, SecretRule, reject_replaced

_HEADERS = (
    (Some("[\xa0-\xbf]", 1, 1),),  # MessagePack: a string of up to 31 bytes
    (Some("[\xd9\xc4]", 1, 1), Some("[\x00-\xff]", 1, 1)),
    (Some("[\xda\xc5]", 1, 1), Some("[\x00-\xff]", 2, 2)),
    (Some("[\x60-\x77]", 1, 1),),  # CBOR: a string of up to 23 bytes
    (Some("[\x78\x58]", 1, 1), Some("[\x00-\xff]", 1, 1)),
)
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")


def _packed_end(data: bytes, at: int) -> End:
    size = _packed_size(data, at)
    stop = at + size if size else at

    def end(data: bytes, _at: int) -> int:
        return min(stop, len(data))

    return end


def _packed_size(data: bytes, at: int) -> int:
    """The length of the string that starts here, by the header before it; 0 where the name before it has none that fits."""
    for size, name_end in _header_before(data, at):
        if size and _has_header(data, name_end):
            return size
    return 0


def _header_before(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    if data[at - 2] in b"\xd9\xc4\x78\x58":
        yield data[at - 1], at - 2
    if data[at - 3] in b"\xda\xc5":
        yield int.from_bytes(data[at - 2 : at], "big"), at - 3
    if 0xA0 <= data[at - 1] <= 0xBF or 0x60 <= data[at - 1] <= 0x77:
        yield data[at - 1] & 0x1F, at - 1


def _has_header(data: bytes, end: int) -> bool:
    """Whether the name that ends here begins right behind a header with its length."""
    for size in range(4, min(AROUND, end)):
        first = data[end - size - 1]
        if first in (0xA0 | size, 0x60 | size) and size < 32:
            return True
        if first == size and end - size >= 2 and data[end - size - 2] in b"\xd9\x78":
            return True
    return False


@reject_replaced
def _is_packed(data: bytes, _lead: int, start: int, stop: int) -> bool:
    return (
        stop > start
        and _packed_size(data, start) >= stop - start
        and _PRINTABLE.fullmatch(data, start, stop) is not None
    )


PACKED = SecretRule(
    kind="J",
    lead=(Word(SECRET_NAMES, nocase=True), Either(_HEADERS)),
    end=_packed_end,
    real=_is_packed,
    bounded=False,
    apart=True,
)
