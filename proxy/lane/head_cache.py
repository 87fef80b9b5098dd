"""Recognise heads that came before on a connection: a client sends the same ones, except for lengths.

What such a head asks for was found out when it came first. It is known by all of its bytes but those digits.
"""

from typing import Any, Final, NamedTuple

from calls.model import Headers
from proxy.lane.admission import LaneRequest

MOST: Final = 16
LONGEST: Final = 8 << 10

_SPELLINGS: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")


class _Known(NamedTuple):
    start: bytes
    stop: bytes
    """The head's bytes around the digits of its length; without a length `stop` is empty, and `start` is all."""

    asked: LaneRequest
    fixed: tuple[Any, ...]
    """What `Asked` begins with, up to what differs."""

    before: Headers
    name: str
    after: Headers
    head: tuple[bytes, bytes]
    """What the upstream gets, around the length."""

    def again(self, raw: bytes) -> LaneRequest | None:
        """What this head asks for, if it is the known one but for the length."""
        start, stop = self.start, self.stop
        if not (raw.startswith(start) and raw.endswith(stop)):
            return None
        digits = raw[len(start) : len(raw) - len(stop)]
        if not stop:
            return None if digits else self.asked
        if not digits.isdigit() or len(digits) > 15 or (digits.startswith(b"0") and digits != b"0"):
            return None
        headers = (*self.before, (self.name, digits.decode()), *self.after)
        if (digits != b"0") is not self.asked.body_follows:
            return None
        before, after = self.head
        return LaneRequest._make((*self.fixed, headers, before + digits + after, int(digits)))


class HeadCache:
    """The heads of one connection."""

    __slots__ = ("_known", "_last")

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        self._last: _Known | None = None
        """The one that was found last, which is mostly the one to be found next."""

    def find(self, raw: bytes) -> LaneRequest | None:
        """What a head asks for, if it came before."""
        last = self._last
        if last is None:
            return None
        if (asked := last.again(raw)) is not None:
            return asked
        at, end = _length(raw)
        known = self._known.get(raw[:at] + raw[end:])
        if known is None:
            return None
        self._last = known
        return known.again(raw)

    def remember(self, raw: bytes, asked: LaneRequest) -> None:
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
        start, stop = (raw[:at], raw[end:]) if at else (raw, b"")
        self._last = _Known(start, stop, asked, asked[:-3], before, name, after, head)
        self._known[raw[:at] + raw[end:]] = self._last


def _length(raw: bytes) -> tuple[int, int]:
    """Where the digits of the body's length stand; (0, 0) where there are none, or not as everybody writes them."""
    for spelling in _SPELLINGS:
        at = raw.find(spelling)
        if at >= 0:
            at += len(spelling)
            return at, raw.index(b"\r\n", at)
    return 0, 0
