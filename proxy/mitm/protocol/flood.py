"""Notice floods of empty HTTP/2 frames before each frame is parsed.

mitmproxy's HTTP/2 is Python, and a frame costs it a tenth of a millisecond: 65,000 empty ones in a few reads of a socket
would hold up everybody for seconds. Here only their heads are looked at (RFC 9113 4.1).
"""

from typing import Final

_HEAD: Final = 9
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
_END_STREAM: Final = 1
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

ALLOWED: Final = 1000
"""Frames that carry nothing which may come at once."""

PER_SECOND: Final = 500
"""How many more may come each second."""

BYTES_EACH: Final = 1024
"""Bytes that were carried, either way, for which one more may come: acknowledgements and windows go with them."""

RESET: Final = 5
"""A reset counts as so many: what it ends was begun for nothing (CVE-2023-44487)."""


class FloodGuard:
    """Counts the frames of one connection that carry nothing."""

    def __init__(self, *, preface: bool) -> None:
        self._skip = len(PREFACE) if preface else 0
        self._head = b""
        self._credit = float(ALLOWED)
        self._at: float | None = None

    def carried(self, size: int) -> None:
        """So many bytes were sent to the peer."""
        self._credit = min(ALLOWED, self._credit + size / BYTES_EACH)

    def is_flooded(self, data: bytes, now: float) -> bool:
        """Whether these bytes bring more frames that carry nothing than may come; `now` in seconds."""
        if self._at is not None:
            self._credit = min(ALLOWED, self._credit + (now - self._at) * PER_SECOND)
        self._at = now
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            part = data[at : at + _HEAD - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == _HEAD:
                size = int.from_bytes(self._head[:3])
                self._skip = size
                self._credit = min(ALLOWED, self._credit - _cost(self._head[3], self._head[4], size))
                self._head = b""
                if self._credit < 0:
                    return True
        return False


def _cost(kind: int, flags: int, size: int) -> float:
    """What a frame costs; less than nothing, where it carries something."""
    if kind == _DATA:
        return -size / BYTES_EACH if size else 0 if flags & _END_STREAM else 1
    if kind == _RESET:
        return RESET
    if kind == _HEADERS:
        return 0
    return 1
