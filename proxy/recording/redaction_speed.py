"""Decide whether pieces of a streamed body are redacted on the thread, because other connections would wait too long."""

from typing import Final

import msgspec

INLINE_FEED: Final = 4 << 10
"""Bytes of a streamed body that are redacted at once without the thread while it is not known to be fast: up to 20 ms."""

FAST_FEED: Final = 16 << 10
"""The same once it is known to be fast."""

SLOW_FEED: Final = 0.005
"""Seconds for `INLINE_FEED` bytes, in which a slow body is redacted."""

MIN_TIMED: Final = 1 << 10
"""Fewer bytes are not timed: reading the clock takes as long as searching them."""

MAX_SLOW: Final = 3
"""How often a body may be slow before the rest is redacted on the thread: once may be a collection of garbage."""


class RedactionSpeed(msgspec.Struct):
    """How fast one body was redacted so far."""

    is_slow: bool | None = None
    """Whether its last pieces took so long that the thread redacts the next; None if that is not known."""

    slow_count: int = 0
    """How often they did."""

    @property
    def feed_size(self) -> int:
        """The number of bytes that may be redacted at once without the thread."""
        return FAST_FEED if self.is_slow is False else INLINE_FEED

    def is_too_slow_for(self, size: int) -> bool:
        """Return whether so many bytes are redacted on the thread."""
        return bool(self.is_slow) or self.slow_count >= MAX_SLOW or (size > INLINE_FEED and size > self.feed_size)

    def note_duration(self, seconds: float, size: int) -> None:
        """Note how long the redaction of so many bytes took, in seconds of the CPU."""
        self.is_slow = seconds > SLOW_FEED * max(1, size / INLINE_FEED)
        self.slow_count += self.is_slow
