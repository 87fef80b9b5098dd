"""Heads that came before on a connection: a client says the same each time, but for the length of its body.

What such a head asks for was found out when it came first. It is known by all of its bytes but those digits.
"""

from typing import Any, Final, NamedTuple

from calls.model import Headers
from proxy.lane.admission import Asked

MOST: Final = 16
LONGEST: Final = 8 << 10

_SPELLINGS: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")


class _Known(NamedTuple):
    asked: Asked
    fixed: tuple[Any, ...]
    """What `Asked` begins with, up to what differs."""

    before: Headers
    name: str
    after: Headers
    head: tuple[bytes, bytes]
    """What the upstream gets, around the length."""


class Repeated:
    """The heads of one connection."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}

    def find(self, raw: bytes) -> Asked | None:
        """What a head asks for, if it came before."""
        if not self._known:
            return None
        at, end = _length(raw)
        known = self._known.get(raw[:at] + raw[end:])
        if known is None or not at:
            return known and known.asked
        digits = raw[at:end]
        if not digits.isdigit() or len(digits) > 15:
            return None
        headers = (*known.before, (known.name, digits.decode()), *known.after)
        before, after = known.head
        return Asked._make((*known.fixed, headers, before + digits + after, int(digits)))

    def remember(self, raw: bytes, asked: Asked) -> None:
        """This is what it asks for."""
        if len(self._known) >= MOST or len(raw) > LONGEST:
            return
        at, end = _length(raw)
        to_at, to_end = _length(asked.head)
        names = [name.lower() for name, _ in asked.headers]
        place = names.index("content-length") if at else len(names)
        before, after = asked.headers[:place], asked.headers[place + 1 :]
        name = asked.headers[place][0] if at else ""
        head = asked.head[:to_at], asked.head[to_end:]
        self._known[raw[:at] + raw[end:]] = _Known(asked, asked[:-3], before, name, after, head)


def _length(raw: bytes) -> tuple[int, int]:
    """Where the digits of the body's length stand; (0, 0) where there are none, or not as everybody writes them."""
    for spelling in _SPELLINGS:
        at = raw.find(spelling)
        if at >= 0:
            at += len(spelling)
            return at, raw.index(b"\r\n", at)
    return 0, 0
