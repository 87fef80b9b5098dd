"""Find named values in MessagePack and CBOR, where a string is preceded by its length."""

import re
from collections.abc import Iterator

from calls.redaction.rules.patterns import Either, Repeat, Word
from calls.redaction.rules.secret_names import SECRET_NAMES
from calls.redaction.rules.secret_rule import End, SecretRule, reject_replaced

_HEADERS = (
    (Repeat("[\xa0-\xbf]", 1, 1),),  # MessagePack: a string of up to 31 bytes
    (Repeat("[\xd9\xc4]", 1, 1), Repeat("[\x00-\xff]", 1, 1)),
    (Repeat("[\xda\xc5]", 1, 1), Repeat("[\x00-\xff]", 2, 2)),
    (Repeat("[\x60-\x77]", 1, 1),),  # CBOR: a string of up to 23 bytes
    (Repeat("[\x78\x58]", 1, 1), Repeat("[\x00-\xff]", 1, 1)),
)
_LONGEST_NAME = 64
_PRINTABLE = re.compile(rb"[\x21-\x7e]+")


def _packed_end(data: bytes, at: int) -> End:
    size = _packed_size(data, at)
    stop = at + size if size else at

    def end(data: bytes, _at: int) -> int:
        return min(stop, len(data))

    return end


def _packed_size(data: bytes, at: int) -> int:
    """Return the length of the string that starts here from its header; 0 if the name before it has no valid header."""
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
    """Return whether the name that ends here is preceded by a header with its length."""
    for size in range(4, min(_LONGEST_NAME, end)):
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
    is_real=_is_packed,
    is_bounded=False,
    is_outside_base64=True,
)
