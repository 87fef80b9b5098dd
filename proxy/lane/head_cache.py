"""Recognise request heads that repeat on a connection, equal but for their Content-Length.

Such a head is parsed and admitted only the first time. It is compared by all its bytes except the digits of the length.
"""

from typing import Any, Final, NamedTuple

from calls.model import Headers
from proxy.lane.admission import LaneRequest
from proxy.recording.request_start import HeadMemo

MAX_HEADS: Final = 16
MAX_HEAD_BYTES: Final = 8 << 10

_SPELLINGS: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")


class _CachedHead(NamedTuple):
    start: bytes
    stop: bytes
    """The head's bytes around the digits of its length. Without a length, `start` is the whole head and `stop` is empty."""

    request: LaneRequest
    fixed: tuple[Any, ...]
    """The leading fields of LaneRequest, which do not depend on the length."""

    before: Headers
    name: str
    after: Headers
    head: tuple[bytes, bytes]
    """The bytes for the upstream around the digits."""

    def request_for(self, raw: bytes) -> LaneRequest | None:
        """Return the request of a head that equals this one but for the length, else None."""
        start, stop = self.start, self.stop
        if not (raw.startswith(start) and raw.endswith(stop)):
            return None
        digits = raw[len(start) : len(raw) - len(stop)]
        if not stop:
            return None if digits else self.request
        if not digits.isdigit() or len(digits) > 15 or (digits.startswith(b"0") and digits != b"0"):
            return None
        headers = (*self.before, (self.name, digits.decode()), *self.after)
        if (digits != b"0") is not self.request.has_body:
            return None
        before, after = self.head
        return LaneRequest._make((*self.fixed, headers, before + digits + after, int(digits)))


class HeadCache:
    """The heads of one connection."""

    __slots__ = ("_heads", "_last", "_last_raw", "_last_request")

    def __init__(self) -> None:
        self._heads: dict[bytes, _CachedHead] = {}
        self._last: _CachedHead | None = None
        """The head that was found last, which is mostly the next one too."""

        self._last_raw = b""
        self._last_request: LaneRequest | None = None
        """The bytes of the last request that was found, and the request: one of the same length needs no comparison in parts."""

    def find(self, raw: bytes) -> LaneRequest | None:
        """Return the request of a head, if it is cached."""
        last = self._last
        if last is None:
            return None
        if raw == self._last_raw:
            return self._last_request
        request = self._find_similar(raw, last)
        if request is not None:
            self._last_raw, self._last_request = raw, request
        return request

    def _find_similar(self, raw: bytes, last: _CachedHead) -> LaneRequest | None:
        """Return the request of a head that equals a cached one but for its length."""
        if (request := last.request_for(raw)) is not None:
            return request
        at, end = _length_span(raw)
        known = self._heads.get(raw[:at] + raw[end:])
        if known is None:
            return None
        self._last = known
        return known.request_for(raw)

    def remember(self, raw: bytes, request: LaneRequest) -> None:
        """Cache the request of a head."""
        if len(self._heads) >= MAX_HEADS or len(raw) > MAX_HEAD_BYTES:
            return
        at, end = _length_span(raw)
        to_at, to_end = _length_span(request.http1_head)
        names = [name.lower() for name, _ in request.headers]
        place = names.index("content-length") if at else len(names)
        before, after = request.headers[:place], request.headers[place + 1 :]
        name = request.headers[place][0] if at else ""
        head = request.http1_head[:to_at], request.http1_head[to_end:]
        start, stop = (raw[:at], raw[end:]) if at else (raw, b"")
        request = request._replace(memo=HeadMemo())
        self._last = _CachedHead(start, stop, request, request[:-3], before, name, after, head)
        self._heads[raw[:at] + raw[end:]] = self._last


def _length_span(raw: bytes) -> tuple[int, int]:
    """Return the span of the Content-Length digits, or (0, 0) if there are none in one of the usual spellings."""
    for spelling in _SPELLINGS:
        at = raw.find(spelling)
        if at >= 0:
            at += len(spelling)
            return at, raw.index(b"\r\n", at)
    return 0, 0
