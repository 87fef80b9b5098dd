"""Detect floods of empty HTTP/2 frames before the frames are parsed.

mitmproxy parses HTTP/2 in Python, at a tenth of a millisecond per frame: 65,000 empty frames in a few socket reads would
delay all connections for seconds. This module reads only the frame headers (RFC 9113 4.1).
"""

from typing import Final

_HEAD: Final = 9
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
_END_STREAM: Final = 1
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

ALLOWED_FRAMES: Final = 1000
"""Number of empty frames that may arrive at once."""

FRAMES_PER_SECOND: Final = 500
"""Number of further empty frames allowed per second."""

BYTES_PER_FRAME: Final = 1024
"""Bytes of data, in either direction, for each further empty frame, because data causes acknowledgements and window updates."""

RESET_COST: Final = 5
"""The number of empty frames that a reset counts as, because the work on its stream is wasted (CVE-2023-44487)."""


class FloodGuard:
    """Counts the empty frames of one connection."""

    def __init__(self, *, preface: bool) -> None:
        self._skip = len(PREFACE) if preface else 0
        self._head = b""
        self._credit = float(ALLOWED_FRAMES)
        self._checked_at: float | None = None

    def credit_sent(self, size: int) -> None:
        """Allow more empty frames, because data was sent to the peer."""
        self._credit = min(ALLOWED_FRAMES, self._credit + size / BYTES_PER_FRAME)

    def is_flooded(self, data: bytes, now: float) -> bool:
        """Count the frames in received data. Return whether there are too many empty ones. `now` is in seconds."""
        if self._checked_at is not None:
            self._credit = min(ALLOWED_FRAMES, self._credit + (now - self._checked_at) * FRAMES_PER_SECOND)
        self._checked_at = now
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
                self._credit = min(ALLOWED_FRAMES, self._credit - _frame_cost(self._head[3], self._head[4], size))
                self._head = b""
                if self._credit < 0:
                    return True
        return False


def _frame_cost(kind: int, flags: int, size: int) -> float:
    """Return the cost of a frame, which is negative for a frame with data."""
    if kind == _DATA:
        return -size / BYTES_PER_FRAME if size else 0 if flags & _END_STREAM else 1
    if kind == _RESET:
        return RESET_COST
    if kind == _HEADERS:
        return 0
    return 1
